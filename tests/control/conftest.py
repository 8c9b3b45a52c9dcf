"""The command line in this process, as in the tests of faults."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest
from in_process import Result

from maskwright.cli.main import run


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Result]]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def call(*words: object) -> Result:
        code = run([str(word) for word in words])
        captured = capfd.readouterr()
        return Result(code, captured.out, captured.err)

    yield call
    for number, handler in before.items():
        signal.signal(number, handler)
