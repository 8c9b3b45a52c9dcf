"""What both sides of a training benchmark count alike."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch


@pytest.fixture
def timing() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "timing.py"
    spec = importlib.util.spec_from_file_location("benchmark_timing", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_device_is_waited_for_at_the_end_of_groups_alone(timing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, waits = 100.0, []
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock)
    steps = timing.Steps(10, lambda: waits.append(clock))
    for number in range(80):
        clock += 5.0 if number == 0 else 0.5  # the first one compiles
        steps.end_step()
        if number == 39:
            clock += 7.0
            steps.resume()
    assert len(waits) == len(steps.seconds) == 8
    assert steps.seconds == pytest.approx([0.95] + [0.5] * 7) and steps.median == pytest.approx(0.5)
    assert steps.seconds[steps.warm] == steps.seconds[2:]


def test_memory_is_that_of_the_device(timing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert timing.peak_memory_bytes() > 1e7
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 5)
    assert timing.peak_memory_bytes() == 5
