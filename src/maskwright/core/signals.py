"""Signals that end the work of the main thread by an exception that does not get lost."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable
from types import FrameType, TracebackType
from typing import Any

Handler = Callable[[int, FrameType | None], Any] | int | None
PACKAGE = __name__.partition(".")[0]
AGAIN_SECONDS = 0.1


def raise_on(signals: Iterable[int], error_of: Callable[[int], BaseException]) -> dict[int, Handler]:
    """From now on the first of `signals` raises `error_of(signal)` in the main thread. Further ones change nothing, so
    that they do not tear what the first one ends. Returns the handlers of before.

    Within an import the exception waits: jaxlib ended by SIGSEGV or SIGABRT when it was raised while its C++ modules
    were made (3 of 80 starts). Otherwise Python discards what a handler raises within a callback of the garbage
    collector or `__del__`, and libraries catch it where they try something. Therefore it is raised again until it has
    reached a function of this package, which then decides."""
    signals = tuple(signals)

    def arrived(number: int, frame: FrameType | None) -> None:
        for further in signals:
            signal.signal(further, signal.SIG_IGN)
        error, hook = error_of(number), sys.unraisablehook
        sys.unraisablehook = lambda lost: None if lost.exc_value is error else hook(lost)  # not shown: it comes again

        def again(number: int, frame: FrameType | None) -> None:
            if _has_reached_us(error):
                signal.setitimer(signal.ITIMER_REAL, 0.0)
            elif not _is_handled(error) and not _imports(frame):
                raise error.with_traceback(None)

        signal.signal(signal.SIGALRM, again)
        signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS, AGAIN_SECONDS)
        again(number, frame)

    return {number: signal.signal(number, arrived) for number in signals}


def _imports(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _is_handled(error: BaseException) -> bool:
    """Whether the code that was interrupted is the clean-up after `error`."""
    handled, seen = sys.exc_info()[1], set[int]()
    while handled is not None and id(handled) not in seen:
        if handled is error:
            return True
        seen.add(id(handled))
        handled = handled.__context__
    return False


def _has_reached_us(error: BaseException) -> bool:
    """Whether `error` has come as far as a function of this package: the outermost one that its traceback shows."""
    reached: TracebackType | None = error.__traceback__
    if reached is None:
        return False
    name = str(reached.tb_frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] == PACKAGE and name != __name__
