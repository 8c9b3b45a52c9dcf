"""A job as a sequence of attempts: each is followed to its end and judged, and restarted if that may help."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Protocol

from maskwright.core.console import say, warn
from maskwright.core.signals import ending, leave_closed_terminal
from maskwright.launch.outcome import EARLY, End, JobOutcome, conclude, judge, report

LONGEST_WAIT_SECONDS = 30.0
MOST_LOST = 5
"""Attempts in a row that ended before the run had counted its own start (`run/starts.py`)."""


@dataclass(frozen=True)
class Streak:
    """Attempts in a row that have ended without a new checkpoint in between."""

    ends: int = 0
    newest: int = 0
    """Step of the newest checkpoint at the last of these ends."""
    lost: int = 0
    """The last attempts in a row that ended before the run had counted its own start."""

    def after(self, newest: int, *, counted: bool) -> Streak:
        """The streak after one more end, when the newest checkpoint is of step `newest`. `counted`: see `Attempt`."""
        in_a_row = newest == self.newest
        lost = 0 if counted else self.lost * in_a_row + 1
        return Streak(self.ends * in_a_row + 1, newest, lost)

    def pause_seconds(self, first: float) -> float:
        """Pause before the next attempt: `first` after one end, doubled for each further end, up to
        `LONGEST_WAIT_SECONDS`."""
        return min(first * 2.0 ** min(self.ends - 1, 64), max(first, LONGEST_WAIT_SECONDS))

    def describe(self, cause: str, seconds: float) -> str:
        origin = f" from step {self.newest:,}" if self.newest else ""
        count = f" (attempt {self.lost} of {MOST_LOST} in vain)" if self.lost else ""
        return f"{cause or 'one was lost'}: restarting{origin} in {seconds:g} s{count}"


class Attempt(Protocol):
    """One attempt at a job, which runs already. `poll` handles new events, and may wait for a moment. `request_stop`
    asks all members to save and end. `ends` has the ends of its `size` members, in the order of time."""

    ends: list[End]
    size: int

    @property
    def over(self) -> bool: ...

    @property
    def counted(self) -> bool:
        """Whether the run has counted this start: rank 0, of the first member, does that at the latest before 75."""
        return any(end.host == 0 and end.code == EARLY for end in self.ends)

    def poll(self) -> None: ...

    def request_stop(self) -> None: ...

    def close(self) -> None: ...


class Stop:
    """Handles the signals that end a command: `asked` after the first, `urgent` after the second. `quiet`: the job
    itself reports what it does, and no signal is urgent."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.asked = self.urgent = False
        self._quiet = quiet

    def _note(self, number: int, frame: FrameType | None) -> None:
        leave_closed_terminal(number)
        if self.asked and (self._quiet or number == signal.SIGHUP):
            return  # a closed terminal sends SIGHUP, and its shell sends it once more
        self.urgent = self.asked
        self.asked = True
        if not self._quiet:
            action = "leaving" if self.urgent else "asking the hosts to save and stop; a second signal leaves at once"
            say(f"{signal.Signals(number).name}: {action}")

    def pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.asked:
            time.sleep(min(0.1, seconds))

    @contextmanager
    def on_signals(self, more: Mapping[int, Callable[[int, FrameType | None], None]] | None = None) -> Iterator[Stop]:
        """`more`: handlers of other signals."""
        handlers = {**dict.fromkeys(ending(), self._note), **(more or {})}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def run(
    begin: Callable[[int], Attempt],
    stop: Stop,
    where: str,
    *,
    restarts: bool = True,
    wait_seconds: float,
    saved: Callable[[], int] = lambda: 0,
    member: str = "host",
) -> None:
    """Runs a job to its end; raises as `conclude` does. `begin` starts the attempt of a number, from 1.

    `restarts`: whether the job is restarted here, and not by another launcher, which gets 75, or the code of a kill
    before the run had counted its start. The run counts its starts itself, and `MOST_LOST` bounds the others. `saved`
    returns the step of its newest checkpoint, for a launcher that sees the run's folder. `wait_seconds`: pause before
    the first restart (`Streak.pause_seconds`)."""
    streak = Streak()
    for number in itertools.count(1):
        attempt = begin(number)
        try:
            while not attempt.over and not stop.urgent:
                attempt.poll()
                if stop.asked:
                    attempt.request_stop()
        finally:
            attempt.close()
        verdict = judge(attempt.ends, attempt.size, asked=stop.asked)
        streak = streak.after(saved(), counted=attempt.counted)
        if member == "host" and (verdict.code or verdict.restart):
            for line in report(attempt.ends, verdict):
                say(line)
        cause = verdict.cause.describe(member) if verdict.cause else ""
        if verdict.restart and not restarts:
            killed = verdict.cause.code if verdict.cause and not attempt.counted else None
            verdict = JobOutcome(killed or EARLY, False, verdict.cause)
        if not verdict.restart or streak.lost > MOST_LOST:
            break
        seconds = streak.pause_seconds(wait_seconds)
        warn(streak.describe(cause, seconds))
        stop.pause(seconds)
        if stop.asked:
            verdict = JobOutcome(EARLY, False, verdict.cause)
            break
    conclude(verdict.code, cause, where)
