"""The parts of `benchmarks/gpu.py` in miniature."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(
    ("part", "ratio"),
    [
        ("promises", "different_ends"),
        ("step", "exact_over_fast"),
        ("attention", "attention, dense, ordered"),
        ("products", "gelu, plain"),
        ("finetune", "eight lengths"),
    ],
)
def test_a_part_of_the_sitting_on_a_gpu_runs_in_miniature(store, tmp_path, monkeypatch, part, ratio):
    """On a CPU: whatever ends it would otherwise cost minutes of a card."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    gpu = importlib.import_module("gpu")
    more = ["--ragged", store.location] if part == "promises" else []
    words = ["gpu.py", part, "--store", store.location, "--small", "--results", str(tmp_path), *more]
    monkeypatch.setattr(sys, "argv", words)
    gpu.main()
    (result,) = tmp_path.glob("gpu-*.json")
    found = json.loads(result.read_text())["ratios"][ratio]
    assert found == 0.0 if part == "promises" else found > 0.0
