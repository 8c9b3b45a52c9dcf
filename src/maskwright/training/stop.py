"""SIGTERM and SIGINT as a request: work stops at the next safe point, saved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from maskwright.core.console import say


class StopRequest:
    def __init__(self) -> None:
        self.reason: str | None = None

    @property
    def requested(self) -> bool:
        return self.reason is not None

    def ask(self, reason: str) -> None:
        self.reason = self.reason or reason


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """While inside, SIGTERM and SIGINT set the request; further signals change nothing, so a save is never torn."""
    request = StopRequest()

    def handle(number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        say(f"{name}: saving and stopping" if not request.requested else f"{name}: already stopping")
        request.ask(name)

    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
