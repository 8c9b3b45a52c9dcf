"""Wishes of others for a running run: signals, files in its folder, limits. Met at the next safe point, saved.

SIGTERM, SIGINT       stop; what is not saved when the grace period ends is left to the restart
SIGUSR1               save a checkpoint and go on
RUN/request.json      the same two, by `maskwright stop`, from any machine that sees the folder
--stop-after-hours and --stop-after-steps stop this start of the run; the same command continues.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from maskwright.core.console import say
from maskwright.core.errors import StoppedEarly, StopReason
from maskwright.core.parent import tell_reason
from maskwright.run.directory import RunDirectory

LOOK_EVERY_SECONDS = 1.0
DEFAULT_GRACE_SECONDS = 25.0
"""Kubernetes, SLURM and Google's Spot machines send SIGKILL 30 seconds after SIGTERM."""


def out_of_time(what: str) -> StoppedEarly:
    """Says it; the caller has to end the process."""
    error = StoppedEarly(what, reason="grace")
    tell_reason(error)
    say(f"stopped: {error}")
    return error


def end_now() -> None:
    """Before there is a run to speak of."""
    os._exit(out_of_time("the grace period ended before the run began; nothing half-written is left").exit_code)


class StopRequest:
    """`reason`: why to stop, empty to go on; `why`: the same in words. `urgent`: a signal asked, so the step under way
    is given up. `save_wanted`: a checkpoint was asked for and is not yet saved. `everywhere`: the reason is one that
    every process finds after the same step. `profile_steps`: how many early steps of this start to trace."""

    when_grace_ends: Callable[[], None]
    """Called in a thread of its own `grace_seconds` after the first signal, if the process still runs."""

    def __init__(
        self,
        *,
        stop_after_hours: float | None = None,
        stop_after_steps: int | None = None,
        profile_steps: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.reason: StopReason = ""
        self.why = ""
        self.urgent = False
        self.save_wanted = False
        self.everywhere = False
        self.grace_seconds, self.when_grace_ends = DEFAULT_GRACE_SECONDS, end_now
        self._clock, self._began, self._looked = clock, clock(), clock()
        self._stop_after_hours, self.stop_after_steps = stop_after_hours, stop_after_steps
        self.profile_steps = profile_steps

    @property
    def requested(self) -> bool:
        return self.reason != ""

    def ask(self, reason: StopReason, why: str) -> None:
        if not self.reason:
            self.reason, self.why = reason, why

    def look(self, directory: RunDirectory | None, steps_done: int) -> None:
        """After each step; `steps_done` since this start. The folder, if it is this process's to read, is looked at
        once a second."""
        now = self._clock()
        if self.stop_after_steps is not None and steps_done >= self.stop_after_steps:
            self.ask("limit", f"--stop-after-steps {self.stop_after_steps}")
            self.everywhere = True
        if self._stop_after_hours is not None and now - self._began >= self._stop_after_hours * 3600.0:
            self.ask("limit", f"--stop-after-hours {self._stop_after_hours:g}")
        if directory and now - self._looked >= LOOK_EVERY_SECONDS:
            self._looked = now
            wish = directory.take_request()
            if wish == "stop":
                self.ask("asked", "maskwright stop")
            self.save_wanted = self.save_wanted or wish == "checkpoint"


@contextmanager
def stop_on_signals(request: StopRequest) -> Iterator[StopRequest]:
    """While inside, signals only note a wish in `request`; further ones change nothing, so a save is never torn."""

    timers: list[threading.Timer] = []

    def stop(number: int, frame: FrameType | None) -> None:
        name, first = signal.Signals(number).name, not request.urgent
        request.ask("signal", name)
        request.urgent = True
        if first:
            timer = threading.Timer(request.grace_seconds, lambda: request.when_grace_ends())
            timer.daemon = True
            timers.append(timer)
            timer.start()
        say(f"{name}: saving and stopping" if first else f"{name}: already stopping")

    def save(number: int, frame: FrameType | None) -> None:
        request.save_wanted = True

    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    wanted = {signal.SIGTERM: stop, signal.SIGINT: stop}
    if hasattr(signal, "SIGUSR1"):
        wanted[signal.SIGUSR1] = save
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    try:
        yield request
    finally:
        for timer in timers:
            timer.cancel()
            timer.join()  # a thread that wakes while Python takes itself apart can abort the process
        for number, handler in before.items():
            signal.signal(number, handler)
