"""Processes that a command starts and must not lose; among them commands of maskwright, as a user would type them."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


def run(words: Sequence[str]) -> int:
    """Runs `maskwright WORDS` with its output on the screen. Returns its exit code, as a shell gives it.

    Whatever stops this process, such as the exception of a signal, stops the command first and waits for it. So a run
    is saved, Terraform's state too, and machines that the command made are taken away.
    """
    process: subprocess.Popen[bytes] | None = None
    try:
        with signals_wait():
            process = subprocess.Popen([sys.executable, "-m", "maskwright", *words])
        code = process.wait()
    except BaseException:
        if process is not None:
            process.terminate()
            process.wait()
        raise
    return code if code >= 0 else 128 - code


@contextmanager
def signals_wait() -> Iterator[None]:
    """Signals that arrive meanwhile are handled at the end: an exception inside `Popen` would lose the process that it
    has just started."""
    came: list[int] = []
    in_main = threading.current_thread() is threading.main_thread()
    ours: list[int] = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP] if in_main else []
    before = {number: handler for number in ours if callable(handler := signal.getsignal(number))}
    for number in before:
        signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in came:
        signal.raise_signal(number)
