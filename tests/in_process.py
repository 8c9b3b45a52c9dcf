"""The command line called in this process, and what a user is shown of it."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from maskwright.model.config import ModelConfig

SHAPE = ModelConfig(400, 32, 2, 2, 64, 34)
"""Of the good model folder that tests spoil."""


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line that the user is shown: the last on stderr, after nothing but messages that are known."""
        *before, last = self.err.splitlines()
        assert last.startswith("error: "), self.err
        known = ("layout", "warning", "continuing", "model", "data", "run", "memory", "engine", "encoding", "validate",
                 "pretrain", "evaluate", "train", "merging", "prepare", "step")  # fmt: skip
        assert all(line.startswith(known) for line in before), self.err
        assert ". Fix: " in last or self.code != 2, last
        return last.removeprefix("error: ")


Cli = Callable[..., Result]


@contextmanager
def command_line(capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """`maskwright WORDS` in this process."""
    from maskwright.cli.main import run

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}

    def call(*words: object) -> Result:
        capfd.readouterr()
        code = run([str(word) for word in words])
        captured = capfd.readouterr()
        return Result(code, captured.out, captured.err)

    yield call
    for number, handler in before.items():
        signal.signal(number, handler)
