"""The command line in processes of its own, as a user runs it; `warm` says how they begin."""

import itertools
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import PIPE
from typing import Any

import warm
import yaml

COMMAND = [sys.executable, "-m", "maskwright"]


_ports = itertools.count(12_000 + os.getpid() * 101 % 16_000)


def free_port() -> str:
    """A port for a process that starts soon, below those that the system gives to connections, and never one twice.
    Several workers of pytest begin at different ones."""
    for port in _ports:
        with socket.socket() as free:
            try:
                free.bind(("127.0.0.1", port))
            except OSError:
                continue
        return str(port)
    raise AssertionError("no port is free")


def maskwright(
    *arguments: object, cwd: Path, code: int = 0, command: Sequence[str] = COMMAND, popen: Any = warm.Popen
) -> str:
    """What it printed. `popen`: `subprocess.Popen` for a Python that is started anew."""
    with popen([*command, *map(str, arguments)], cwd=cwd, stdout=PIPE, stderr=PIPE, text=True) as process:
        try:
            out, errors = process.communicate(timeout=600)
        finally:
            process.kill()
    assert process.returncode == code, out + errors
    return str(out)


def write_config(path: Path, store: str, **schedule: object) -> None:
    """A run of some seconds that has dropout and saves every 20 steps."""
    path.write_text(
        yaml.safe_dump(
            {
                "data": {"store": store, "seq_len": 48},
                "model": {"size": "nano", "hidden_size": 64, "hidden_dropout": 0.1},
                "optimizer": {"learning_rate": 4e-3},
                "schedule": {"steps": 150, "warmup_steps": 15, **schedule},
                "batch": {"micro_batch_rows": 8},
                "engine": {"threads": 1},
                "checkpoint": {"save_every_steps": 20},
                "logging": {"every_steps": 5},
            }
        )
    )


def slow_after(steps: int, until: Path) -> str:
    """Code for the start of a command that is to be killed in its run: after so many steps of the process, one takes
    half a second while there is no file `until`. So it is not at its end before a slow machine comes to kill it."""
    return f"""
import itertools, os, time
from maskwright.engines.torch.engine import TorchEngine
step, steps = TorchEngine.step, itertools.count()
def slow(self, *arguments, **more):
    if next(steps) >= {steps} and not os.path.exists({str(until)!r}):
        time.sleep(0.5)
    return step(self, *arguments, **more)
TorchEngine.step = slow
"""
