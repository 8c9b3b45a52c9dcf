"""The command line in processes of its own, as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

COMMAND = [sys.executable, "-m", "maskwright"]


def maskwright(*arguments: object, cwd: Path, code: int = 0, command: Sequence[str] = COMMAND) -> str:
    result = subprocess.run(
        [*command, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=600, check=False
    )
    assert result.returncode == code, result.stdout + result.stderr
    return result.stdout


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
