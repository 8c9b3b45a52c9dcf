"""The command line called in this process, and what a user is shown of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

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
        known = (
            "layout: ",
            "warning: ",
            "continuing ",
            "model: ",
            "data: ",
            "run: ",
            "memory ",
            "engine: ",
            "encoding ",
            "validate ",
            "pretrain ",
            "evaluate ",
            "train ",
        )
        assert all(line.startswith((*known, "merging", "prepare ", "pretrain ", "step ")) for line in before), self.err
        assert ". Fix: " in last or self.code != 2, last
        return last.removeprefix("error: ")


Cli = Callable[..., Result]
ConfigFile = Callable[..., Path]
