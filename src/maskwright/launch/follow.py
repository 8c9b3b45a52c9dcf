"""Following a job that runs elsewhere until it is over, and waiting for its end after a request to stop."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from maskwright.core.console import say, warn
from maskwright.core.errors import MaskwrightError, StoppedEarly
from maskwright.core.signals import raise_on
from maskwright.launch.target import TargetReport

T = TypeVar("T")
R = TypeVar("R", bound=TargetReport)


class _Leave(BaseException):
    """No `Exception`: many a client takes those for trouble of its own."""


@contextmanager
def followed(where: str) -> Iterator[None]:
    """Inside, SIGINT and SIGTERM end only the following, by `StoppedEarly`; the job `where` goes on."""
    before = raise_on((signal.SIGINT, signal.SIGTERM), lambda number: _Leave())
    try:
        yield
    except _Leave:
        what = f"no longer followed; the job goes on: `maskwright logs {where} --follow` follows it again"
        raise StoppedEarly(what, where=where) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def until_over(
    look: Callable[[], T | None],
    where: str,
    poll_seconds: float,
    *,
    is_transient: Callable[[MaskwrightError], bool] = lambda error: True,
    meanwhile: Callable[[], object] = lambda: None,
) -> T:
    """Calls `look` until it returns the job's end. What `passes` ends no job and no budget: it is said once and waited
    out. `meanwhile` is called in each round."""
    trouble = ""
    while True:
        try:
            found = look()
            trouble = ""
            if found is not None:
                return found
        except StoppedEarly:  # a signal, or a wish: nothing that passes
            raise
        except MaskwrightError as error:
            if not is_transient(error):
                say(f"{where}: no longer followed; the job goes on, and `maskwright stop {where}` ends it")
                raise
            if str(error) != trouble:
                warn(f"{error}; the job goes on, and is looked at again")
            trouble = str(error)
        meanwhile()
        time.sleep(poll_seconds)


def wait_until_over(look: Callable[[], R], where: str, poll_seconds: float, wait_seconds: float) -> R:
    """How the job ended that was asked to stop. Raises `MaskwrightError` if it is not over by then."""
    deadline = time.monotonic() + wait_seconds
    while not (found := look()).over:
        if time.monotonic() > deadline:
            fix = f"`maskwright status {where}` and `maskwright logs {where}` tell how it goes on"
            raise MaskwrightError(f"is not over after {wait_seconds:g} s", where=where, fix=fix)
        time.sleep(min(poll_seconds, max(0.1, deadline - time.monotonic())))
    return found
