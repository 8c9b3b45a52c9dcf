"""Where the host is free, a log line is written late, with the next step begun; the run is the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from maskwright.config.pretraining import RunConfig
from maskwright.core.errors import StoppedEarly
from maskwright.engines.torch.engine import TorchEngine
from maskwright.prove.verify_resume import TIMES
from maskwright.tasks.pretrain import run as task
from maskwright.training.stop import StopRequest


def test_late_lines_are_those_that_are_read_at_once(
    config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {
        "schedule.steps": 23,
        "logging.every_steps": 2,
        "evaluation.every_steps": 5,
        "checkpoint.save_every_steps": 8,
    }
    lines = []
    for name in ("straight", "late", "stopped"):
        with monkeypatch.context() as patch:
            patch.setattr(TorchEngine, "leaves_host_free", name != "straight")
            if name == "stopped":
                with pytest.raises(StoppedEarly):
                    task.pretrain(config(**keys), str(tmp_path / name), stop_request=StopRequest(stop_after_steps=11))
            task.pretrain(config(**keys), str(tmp_path / name))
        text = (tmp_path / name / "metrics.jsonl").read_text()
        found = [json.loads(line) for line in text.splitlines()]
        lines.append([{key: value for key, value in line.items() if key not in TIMES} for line in found])
    assert lines[0] == lines[1] == lines[2]
    assert [line["step"] for line in lines[0] if "loss" in line] == [*range(2, 23, 2), 23]
