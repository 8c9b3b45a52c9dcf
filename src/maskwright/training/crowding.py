"""Notices that other programs compute on the cores of a run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

LEAST_SECONDS = 30.0
"""Of training that are looked at together: other programs come and go."""
LEAST_SHARE = 0.15
COMPUTES_SHARE = 0.5
"""A thread that computes or wants to for so much of the time is one of those that share the products. What saves in the
background does not count: it waits for our own threads."""
FIX = "end them, or start again with OMP_WAIT_POLICY=passive in the environment: the same numbers"
PASSIVE = "end them"


class Crowding:
    """By the time in which a thread was ready to run and others had its core, which Linux counts for each thread:
    docs.kernel.org/scheduler/sched-stats.html#proc-pid-schedstat."""

    def __init__(self, tasks: str = "/proc/self/task", clock: Callable[[], float] = time.monotonic) -> None:
        self._tasks, self._clock, self._said = tasks, clock, False
        self._begin()

    def look(self) -> str | None:
        """What to warn of, at most once. A step's threads wait for the last of them, by computing: with one busy
        program on one of two cores, a step of `nano` was measured to take 3.2 times as long, and 1.5 times with
        OMP_WAIT_POLICY=passive, which alone costs nearly as much."""
        seconds = self._clock() - self._since
        if self._said or seconds < LEAST_SECONDS:
            return None
        share = self._share(seconds)
        self._begin()
        if share < LEAST_SHARE:
            return None
        self._said = True
        fix = PASSIVE if os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive" else FIX
        return (
            f"other programs compute on this run's cores: a thread waited for {share:.0%} of the last {seconds:.0f} "
            f"seconds, and each step waits for its slowest thread. Fix: {fix}"
        )

    def _begin(self) -> None:
        self._since, self._before = self._clock(), self._times()

    def _share(self, seconds: float) -> float:
        """Of the thread that waited longest, among those that compute."""
        shares = [0.0]
        for thread, (ran, waited) in self._times().items():
            ran_before, waited_before = self._before.get(thread, (0.0, 0.0))
            ran, waited = ran - ran_before, waited - waited_before
            if ran + waited >= COMPUTES_SHARE * seconds:
                shares.append(waited / seconds)
        return max(shares)

    def _times(self) -> dict[str, tuple[float, float]]:
        """Seconds that each thread has run, and has waited to. Empty where the system does not tell."""
        times = {}
        try:
            for thread in os.listdir(self._tasks):
                with open(os.path.join(self._tasks, thread, "schedstat"), encoding="ascii") as file:
                    ran, waited, _ = file.read().split()
                times[thread] = int(ran) / 1e9, int(waited) / 1e9
        except (OSError, ValueError):  # one has just ended, or the kernel counts nothing
            return times
        return times
