"""The signals that end a command, and the exception by which they end the main thread's work, which cannot get lost."""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

Handler = Callable[[int, FrameType | None], Any] | int | None
PACKAGE = __name__.partition(".")[0]
AGAIN_SECONDS = 0.1


def ending() -> tuple[int, ...]:
    """The signals that ask a command to end: Ctrl-C, a scheduler, and a terminal that is closed, as by a lost ssh
    connection, unless it was started to outlive that (nohup)."""
    hang_up = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, *hang_up)


def leave_closed_terminal(number: int) -> None:
    """Call it when signal `number` has come: after SIGHUP, printing to the closed terminal would be an error."""
    for descriptor in (1, 2) if number == signal.SIGHUP else ():
        with suppress(OSError):  # it may be closed
            if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def raise_on(signals: Iterable[int], error_of: Callable[[int], BaseException]) -> dict[int, Handler]:
    """Makes the first of `signals` raise `error_of(signal)` in the main thread. Further ones are ignored, so that they
    do not interrupt the clean-up. Returns the previous handlers.

    The exception waits for the end of an import: jaxlib crashed (SIGSEGV, SIGABRT) if it was raised while its C++
    modules were initialized (3 of 80 starts). It waits until a thread has started, since Python would otherwise report
    a failed start (a KeyError). Python discards an exception that a handler raises in `__del__` or a
    callback of the garbage collector, and libraries may catch it. Therefore it is raised again until it has reached a
    function of this package."""
    signals = tuple(signals)

    def arrived(number: int, frame: FrameType | None) -> None:
        for further in signals:
            signal.signal(further, signal.SIG_IGN)
        leave_closed_terminal(number)
        error, hook = error_of(number), sys.unraisablehook
        sys.unraisablehook = lambda lost: None if lost.exc_value is error else hook(lost)  # it is raised again

        def again(number: int, frame: FrameType | None) -> None:
            if _has_reached_us(error):
                signal.setitimer(signal.ITIMER_REAL, 0.0)
            elif not _is_handled(error) and not _has_to_end(frame):
                raise error.with_traceback(None)

        signal.signal(signal.SIGALRM, again)
        signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS, AGAIN_SECONDS)
        again(number, frame)

    return {number: signal.signal(number, arrived) for number in signals}


def _has_to_end(frame: FrameType | None) -> bool:
    """Whether the interrupted code is an import, or starts a thread. An import that called a function of this package
    does not count, since the whole command may run within it."""
    while frame is not None and not (_is_ours(frame) and frame.f_code.co_name != "<module>"):
        if (
            frame.f_code.co_filename == "<frozen importlib._bootstrap>"
            or frame.f_code is threading.Thread.start.__code__
        ):
            return True
        frame = frame.f_back
    return False


def _is_ours(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] == PACKAGE and name != __name__


def _is_handled(error: BaseException) -> bool:
    """Whether the interrupted code is the clean-up after `error`."""
    handled, seen = sys.exc_info()[1], set[int]()
    while handled is not None and id(handled) not in seen:
        if handled is error:
            return True
        seen.add(id(handled))
        handled = handled.__context__
    return False


def _has_reached_us(error: BaseException) -> bool:
    """Whether the outermost function in the traceback of `error` is one of this package."""
    outermost: TracebackType | None = error.__traceback__
    return outermost is not None and _is_ours(outermost.tb_frame)
