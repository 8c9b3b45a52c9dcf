"""Following a job that runs elsewhere to its end, and waiting for its end after a request to stop."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from maskwright.core.console import say, typed, warn
from maskwright.core.errors import CloudError, MaskwrightError, NotFollowed, StoppedEarly
from maskwright.core.signals import ending, raise_on
from maskwright.launch.target import TargetReport

T = TypeVar("T")
R = TypeVar("R", bound=TargetReport)


class _Leave(BaseException):
    """Not an `Exception`, since clients catch those as their own failures."""


@contextmanager
def followed(where: str) -> Iterator[None]:
    """Inside, signals end only the following, by `NotFollowed`; the job `where` continues."""
    before = raise_on(ending(), lambda number: _Leave())
    try:
        yield
    except _Leave:
        what = f"no longer followed; the job continues: `{typed(['logs', where, '--follow'])}` follows it again"
        raise NotFollowed(what, where=where) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


TRANSIENT = ("unreached", "failed", "quota")
"""Reasons of a `CloudError` that pass; only rates of requests limit a read by quota."""


def is_transient(error: Exception) -> bool:
    return isinstance(error, CloudError) and error.reason in TRANSIENT


def until_over(
    poll: Callable[[], T | None], where: str, poll_seconds: float, *, meanwhile: Callable[[], object] = lambda: None
) -> T:
    """Calls `poll` until it returns the job's end, and `meanwhile` in each round. After a `CloudError` of a `TRANSIENT`
    reason, shown once, `poll` is called again; any other error of `poll` is raised at once."""
    shown = ""
    while True:
        try:
            end = poll()
            shown = ""
            if end is not None:
                return end
        except StoppedEarly:  # a signal or a request
            raise
        except MaskwrightError as error:
            if not is_transient(error):
                say(f"{where}: no longer followed; the job continues, and `{typed(['stop', where])}` ends it")
                raise
            if str(error) != shown:
                warn(f"{error}; the job continues; trying again")
            shown = str(error)
        meanwhile()
        time.sleep(poll_seconds)


def wait_until_over(poll: Callable[[], R], where: str, poll_seconds: float, wait_seconds: float) -> R:
    """Waits for the end of a job that was asked to stop. Raises `MaskwrightError` if it still runs after
    `wait_seconds`."""
    deadline = time.monotonic() + wait_seconds
    while not (report := poll()).over:
        if time.monotonic() > deadline:
            fix = f"check `{typed(['status', where])}` and `{typed(['logs', where])}`"
            raise MaskwrightError(f"still running after {wait_seconds:g} s", where=where, fix=fix)
        time.sleep(min(poll_seconds, max(0.1, deadline - time.monotonic())))
    return report
