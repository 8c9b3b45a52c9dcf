"""The projection of records/experiments.md, and the processes that are measured for it."""

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest

from maskwright.config.pretraining import ModelSection, Optimizer
from maskwright.engines.torch.prepare import choose_dtype
from maskwright.engines.torch.shares import FlatOrder
from maskwright.model.config import model_config
from maskwright.model.torch.networks import make_network

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec and spec.loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


model = load("scaling_model")


def test_the_models_own_numbers() -> None:
    """RoBERTa base: 124,697,433 parameters at transformers' 514 positions; 6 FLOPs a weight and token and more."""
    job = model.job_of("base", 8192, 1e15)
    assert job.parameters == 124_697_433
    assert 6 * 84_934_656 * 512 < job.row_flops < 1.3 * 6 * 84_934_656 * 512


def test_a_line_through_measurements() -> None:
    scaling = load_scaling()
    sizes = [1e3, 1e6, 1e7, 3e7]
    start, rate = scaling.alpha_beta(sizes, [2e-4 + size / 1e9 for size in sizes])
    assert math.isclose(start, 2e-4, rel_tol=1e-6) and math.isclose(rate, 1e9, rel_tol=1e-6)


def load_scaling() -> ModuleType:
    """It imports its neighbours by name, as scripts of one folder do."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return load("scaling")
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.mark.long
def test_two_processes_of_either_side(store: object) -> None:
    """Ours and the peer's, for real: what process 0 sent is its sums of the other's share and its own new weights, or
    what an all-reduce of the gradient sends."""
    load_scaling()
    common = sys.modules["scaling_common"]
    small = ("--size", "nano", "--seq-len", 32, "--rows", 2, "--virtual-workers", 2, "--steps", 3)
    where = store.location  # type: ignore[attr-defined]
    ours = common.together("scaling_process.py", 2, where, *small)
    peer = common.together("peers/ddp.py", 2, where, *small)
    for side, sent in ((ours, sent_by_rank_0_of_2()), (peer, 4e-6 * NANO_NUMBERS)):
        assert side["step_seconds"] > 0 and side["tokens_per_second"] > 0
        if sys.platform == "linux":
            assert side["megabytes_sent_per_step"] == pytest.approx(sent, rel=0.03)


NANO_NUMBERS = 448 * 128 + 34 * 128 + 3 * 128 + 2 * (12 * 128**2 + 13 * 128) + 128**2 + 3 * 128 + 448


def sent_by_rank_0_of_2() -> float:
    """Megabytes of a step of nano: fp32 sums of rank 1's half, then weights of the own half in the run's precision."""
    config = model_config(ModelSection(size="nano"), 448, 32)
    shapes = {name: value.shape for name, value in make_network(config).named_parameters()}
    order = FlatOrder.of(shapes, list(shapes), 2, muon=Optimizer().kind == "muon")
    assert order.length >= NANO_NUMBERS
    half = order.length // 2
    return 1e-6 * half * (4 + choose_dtype("auto", "cpu").itemsize)
