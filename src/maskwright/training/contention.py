"""Notices that other programs compute on the cores of a run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress

from maskwright.machine.cgroups import Cgroups
from maskwright.machine.hardware import usable_cores

LEAST_SECONDS = 30.0
"""Seconds of training that are judged together, since other programs come and go."""
LEAST_SHARE = 0.15
COMPUTES_SHARE = 0.5
"""Threads that run or wait to run this much of the time are counted as compute threads. A thread that saves in the
background does not count, since it waits for our own threads."""
PASSIVE = "end them"
FIX = (
    f"{PASSIVE}, or start again with OMP_WAIT_POLICY=passive in the environment, which loses less to others, is slower "
    "alone, and changes no number"
)


class Contention:
    """Judges by the time in which a thread was ready but others had its core, which Linux counts for each thread:
    docs.kernel.org/scheduler/sched-stats.html#proc-pid-schedstat."""

    def __init__(
        self,
        tasks: str = "/proc/self/task",
        clock: Callable[[], float] = time.monotonic,
        cores: Callable[[], int] = usable_cores,
        throttled: Callable[[], int | None] = lambda: Cgroups().throttled(),
    ) -> None:
        self._tasks, self._clock, self._cores, self._throttled = tasks, clock, cores, throttled
        self._said = False
        self._begin()

    def look(self) -> str | None:
        """The text of a warning, at most once. A step's threads wait actively for the slowest: with one busy
        program on one of two cores, a step of `nano` was measured to take 3.2 times as long, and 1.5 times with
        OMP_WAIT_POLICY=passive, which alone costs nearly as much."""
        seconds = self._clock() - self._since
        if self._said or seconds < LEAST_SECONDS:
            return None
        shares, throttled = self._shares(seconds), self._throttled()
        quota_ran_out = throttled != self._throttled_before
        self._begin()
        # A container's quota, or more threads of our own than cores, make a thread wait as well.
        if quota_ran_out or len(shares) > self._cores() or max(shares, default=0.0) < LEAST_SHARE:
            return None
        self._said = True
        alone = len(shares) == 1
        passive = os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive"
        return (
            f"other programs compute on this run's cores: a thread waited for {max(shares):.0%} of the last "
            f"{seconds:.0f} seconds{'' if alone else ', and each step waits for its slowest thread'}. "
            f"Fix: {PASSIVE if alone or passive else FIX}"
        )

    def _begin(self) -> None:
        self._since, self._before = self._clock(), self._times()
        self._throttled_before = self._throttled()

    def _shares(self, seconds: float) -> list[float]:
        """The share of the time that each compute thread has waited. Threads that began or ended meanwhile are left
        out."""
        shares = []
        for thread, (ran, waited) in self._times().items():
            if thread not in self._before:
                continue
            ran, waited = ran - self._before[thread][0], waited - self._before[thread][1]
            if ran + waited >= COMPUTES_SHARE * seconds:
                shares.append(waited / seconds)
        return shares

    def _times(self) -> dict[str, tuple[float, float]]:
        """(seconds run, seconds waited to run) of each thread. Empty if the system does not count them."""
        times = {}
        for thread in os.listdir(self._tasks) if os.path.isdir(self._tasks) else []:
            with (
                suppress(OSError, ValueError),  # it has just ended, or the kernel counts nothing
                open(os.path.join(self._tasks, thread, "schedstat"), encoding="ascii") as file,
            ):
                ran, waited, _ = map(int, file.read().split())
                times[thread] = ran / 1e9, waited / 1e9
        return times
