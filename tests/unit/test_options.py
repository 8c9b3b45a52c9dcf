"""What all commands share: the documents that they print."""

from __future__ import annotations

import re
import signal
from typing import Any

import pytest
import typer.main

from maskwright.cli import main
from maskwright.config import finetuning, pretraining
from maskwright.config.settings import keys_of


class OutOfMemoryError(RuntimeError):
    """As torch's, of a GPU."""


@pytest.mark.parametrize("error", [MemoryError, OutOfMemoryError])
@pytest.mark.parametrize("command", [*main.LESS_MEMORY, "export"])
def test_what_takes_less_memory_is_there_in_the_command(
    command: str, error: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known: Any = typer.main.get_command(main.app)
    options = {option for parameter in known.commands[command].params for option in parameter.opts}
    keys = {key for name in ("finetune", "compare") if command == name for key in keys_of(finetuning.FinetuneConfig)}
    keys |= {*keys_of(pretraining.RunConfig)} if command == "pretrain" else set()

    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(main, "app", fail)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert main.run([command]) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: out of memory. Fix: ") and told.count("\n") == 1
    assert {*re.findall(r"--[a-z-]+", told)} <= options
    assert {*re.findall(r"[a-z]+\.[a-z_]+", told)} <= keys
