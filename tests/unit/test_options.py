"""What all commands share: the documents that they print."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from typing import Any

import pytest
import typer.main

from maskwright.cli import main
from maskwright.config import finetuning, pretraining
from maskwright.config.settings import keys_of

GOES_ON = """
import sys
from maskwright.cli.options import print_line, stdout_for_document
with stdout_for_document(True) as documents:
    print_line({"number": 1}, documents)
    sys.stdin.readline()
    for number in (2, 3):
        print_line({"number": number}, documents)
    sys.exit(75)
"""


def test_a_reader_that_has_gone_changes_no_exit_code() -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", GOES_ON], **pipes) as process:  # type: ignore[call-overload]
        assert json.loads(process.stdout.readline()) == {"version": 1, "number": 1}
        process.stdout.close()
        process.stdin.write(b"go on\n")
        process.stdin.close()
        assert process.wait(60) == 75 and process.stderr.read() == b""


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
