"""Our command line called in this process, with its messages."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from in_process import Cli, Result

from maskwright.cli.main import run


@contextmanager
def command_line(capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    before: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def call(*words: object) -> Result:
        capfd.readouterr()
        code = run([str(word) for word in words])
        captured = capfd.readouterr()
        return Result(code, captured.out, captured.err)

    yield call
    for number, handler in before.items():
        signal.signal(number, handler)
