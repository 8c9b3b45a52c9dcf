"""What both sides of a training benchmark count alike, and the parts of `benchmarks/gpu.py` in miniature."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from maskwright.data.store import TokenStore

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def timing() -> ModuleType:
    path = BENCHMARKS / "timing.py"
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


@pytest.mark.parametrize("part", ["promises", "step", "attention", "products", "finetune"])
def test_a_part_of_the_sitting_on_a_gpu_runs_in_miniature(
    store: TokenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """On a CPU: whatever ends it would otherwise cost minutes of a card."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    gpu = importlib.import_module("gpu")
    more = ["--ragged", store.location] if part == "promises" else []
    monkeypatch.setattr(
        sys, "argv", ["gpu.py", part, "--store", store.location, "--small", "--results", str(tmp_path), *more]
    )
    gpu.main()
    (result,) = tmp_path.glob("gpu-*.json")
    ratios = json.loads(result.read_text())["ratios"]
    wanted = {
        "promises": "different_ends",
        "step": "exact_over_fast",
        "attention": "attention, dense, ordered",
        "products": "gelu, plain",
        "finetune": "eight lengths",
    }[part]
    assert ratios[wanted] == 0.0 if part == "promises" else ratios[wanted] > 0.0
