"""Requests to a running run: signals, files in its folder, limits. They are met at the next safe point, after saving.

SIGTERM, SIGINT, SIGHUP  stop (75); the restart repeats the steps that are not saved when the grace period ends
SIGUSR1               save a checkpoint and continue
RUN/request.json      stop (76) or save, by `maskwright stop`, from any machine that sees the folder
--stop-after-hours and --stop-after-steps stop (76) at a moment that restarts keep (`run/starts.py`).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from maskwright.core.console import say
from maskwright.core.errors import EndedAsAsked, StoppedEarly, StopReason
from maskwright.core.signals import ending, leave_closed_terminal
from maskwright.run.directory import RunDirectory

LOOK_EVERY_SECONDS = 1.0
FINAL: tuple[StopReason, ...] = ("asked", "limit")


def out_of_time(what: str, *, is_final: bool = False) -> StoppedEarly:
    """Reports that the time is over; the caller must end the process. `is_final`: see `StopRequest`."""
    error = (EndedAsAsked if is_final else StoppedEarly)(what, reason="grace")
    say(f"stopped: {error}")
    return error


def end_now() -> None:
    """Ends a process whose run has not begun yet."""
    os._exit(out_of_time("the grace period ended before the run began; nothing half-written is left").exit_code)


@dataclass
class StopRequest:
    """Requests to this start of the run."""

    reason: StopReason = ""
    """The reason to stop; empty to continue."""
    why: str = ""
    """The reason in words."""
    urgent: bool = False
    """Whether a signal asked, so that the step in progress is abandoned."""
    save_wanted: bool = False
    """Whether a requested checkpoint is not saved yet."""
    everywhere: bool = False
    """Whether every rank sees the reason after the same step."""
    stop_after_hours: float | None = None
    stop_after_steps: int | None = None
    stop_at: float | None = None
    """Unix seconds of the first limit."""
    stop_at_step: int | None = None
    profile_steps: int = 0
    """How many early steps of this start to trace."""
    grace_seconds: float = 25.0
    """Kubernetes, SLURM and Google's Spot machines send SIGKILL 30 seconds after SIGTERM."""
    when_grace_ends: Callable[[], None] = end_now
    """Called in a thread of its own `grace_seconds` after the first signal, if the process still runs."""
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._looked = self.clock()

    @property
    def requested(self) -> bool:
        return self.reason != ""

    @property
    def is_final(self) -> bool:
        """Whether the run is to stay stopped."""
        return self.reason in FINAL

    def error(self, what: str, *, is_final: bool = False) -> StoppedEarly:
        """The end of the run. `is_final`: whether another rank received a final request."""
        kind = EndedAsAsked if self.is_final or is_final else StoppedEarly
        return kind(what, reason=self.reason or "agreed")

    def ask(self, reason: StopReason, why: str) -> None:
        """The first reason stays, unless a later one is final: after 75, an engine would start the run again."""
        if not self.reason or (reason in FINAL and not self.is_final):
            self.reason, self.why = reason, why

    def look(self, directory: RunDirectory | None, step: int) -> None:
        """Checks limits and requests after `step`. Reads the folder once a second; `directory` is None on ranks that
        must not."""
        now = self.clock()
        if self.stop_at_step is not None and step >= self.stop_at_step:
            self.ask("limit", f"--stop-after-steps {self.stop_after_steps}")
            self.everywhere = True
        if self.stop_at is not None and now >= self.stop_at:
            self.ask("limit", f"--stop-after-hours {self.stop_after_hours:g}")
        if directory and abs(now - self._looked) >= LOOK_EVERY_SECONDS:  # a clock may be set back
            self._looked = now
            self.take_request(directory)

    def take_request(self, directory: RunDirectory) -> None:
        request = directory.take_request()
        if request == "stop":
            self.ask("asked", "maskwright stop")
        self.save_wanted = self.save_wanted or request == "checkpoint"


@contextmanager
def stop_on_signals(request: StopRequest) -> Iterator[StopRequest]:
    """Inside, signals only set `request`. Further signals change nothing, so a save is never torn."""

    timers: list[threading.Timer] = []

    def stop(number: int, frame: FrameType | None) -> None:
        leave_closed_terminal(number)
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
    handlers = {**dict.fromkeys(ending(), stop), signal.SIGUSR1: save}
    previous_handlers = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield request
    finally:
        for timer in timers:
            timer.cancel()
            timer.join()  # a thread that wakes during Python's shutdown can abort the process
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
