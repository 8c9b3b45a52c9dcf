"""The projection of docs/many-processes.md and its archive against numbers worked out by hand, and at its limits."""

import importlib.util
import math
import sys
from dataclasses import replace
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
# 100 bytes a second inside a node, 40 across; a start takes 5 s, a step inside 1 s and across 3 s.
TOY = model.Network(
    "toy",
    node_bytes_per_second=40.0,
    nvlink_bytes_per_second=100.0,
    link_share=1.0,
    start_seconds=5.0,
    ring_inside_seconds=1.0,
    ring_across_seconds=3.0,
    tree_start_seconds=7.0,
    tree_inside_seconds=0.5,
    tree_across_seconds=2.0,
    gpus_a_node=4,
    hop_seconds=0.25,
)
# A row takes a second; 1,000 parameters, of which 400 are in the last group and 500 in five layers.
JOB = model.Job(
    row_flops=10.0,
    parameters=1000.0,
    last_parameters=400.0,
    batch_rows=64,
    flops_per_second=10.0,
    most_rows_at_once=8,
)
MODES = ("fast", "exact")


def test_a_ring_of_two() -> None:
    """2 (W - 1) = 2 steps, and 2 (W - 1) / W = 1 times the bytes."""
    assert model.ring_seconds(TOY, 2, 600.0) == pytest.approx(5.0 + 2 * 1.0 + 600.0 / 100.0)


def test_a_ring_across_nodes() -> None:
    """8 GPUs on 2 nodes: 14 steps, of which 2 x 2 cross; 14 / 8 of the bytes at the node's 40 bytes a second."""
    assert model.ring_seconds(TOY, 8, 800.0) == pytest.approx(5.0 + 10 * 1.0 + 4 * 3.0 + 1400.0 / 40.0)


def test_a_tree_across_nodes() -> None:
    """16 GPUs on 4 nodes: up and down a chain of 3 inside and 2 levels across, all bytes both ways."""
    sending = 2 * 800.0 / (model.TREE_SHARE * 40.0)
    assert model.tree_seconds(TOY, 16, 800.0) == pytest.approx(7.0 + 2 * (3 * 0.5 + 2 * 2.0) + sending)


def test_half_a_ring_is_half() -> None:
    assert model.half_ring_seconds(TOY, 8, 800.0) == pytest.approx(5.0 + (10 * 1.0 + 4 * 3.0 + 35.0) / 2)


def test_an_all_to_all_sends_to_other_nodes_over_a_share_of_their_cards() -> None:
    """Inside one node as much as a ring's half. With 8 GPUs, 4 of 8 pieces leave the node, at 40 / 4 bytes a second."""
    inside = model.all_to_all_seconds(TOY, 4, 800.0)
    assert inside == pytest.approx(5.0 + 3 / model.MESSAGES_AT_ONCE * 1.0 + 600.0 / 100.0)
    across = model.all_to_all_seconds(TOY, 8, 800.0)
    assert across == pytest.approx(5.0 + 7 / model.MESSAGES_AT_ONCE * 3.0 + 400.0 / 10.0)


def test_bytes_of_an_update() -> None:
    assert model.update_bytes("fast", JOB, 2) == 4000.0 + 1000.0  # fp32 gradients, bf16 weights
    assert model.update_bytes("exact", JOB, 2) == 2000.0 + 1000.0


def test_what_a_backward_pass_hides() -> None:
    """4 GPUs compute 16 rows each, 8 at once: 2/3 of 8 s hide the body; the last group's all-reduce is never hidden."""
    assert JOB.last_backward_seconds(4) == pytest.approx(16 / 3)
    last = model.all_reduce_seconds(TOY, 4, 1600.0)
    body = model.all_reduce_seconds(TOY, 4, 2400.0)
    gathered = model.half_ring_seconds(TOY, 4, 2000.0)
    assert model.exposed_seconds("fast", TOY, JOB, 4) == pytest.approx(body - 16 / 3 + last + gathered)
    patient = replace(JOB, flops_per_second=0.01)
    assert model.exposed_seconds("fast", TOY, patient, 4) == pytest.approx(last + gathered)


def test_what_exact_costs_when_all_else_is_hidden() -> None:
    """The weights that it gathers, and its own all-to-all of the last group."""
    patient = replace(JOB, flops_per_second=0.01)
    gathered = model.half_ring_seconds(TOY, 4, 2000.0)
    sent = model.all_to_all_seconds(TOY, 4, 1600.0)
    assert model.exposed_seconds("exact", TOY, patient, 4) == pytest.approx(sent + gathered)


def test_a_step_is_never_shorter_than_what_the_hosts_say() -> None:
    quick = replace(JOB, parameters=1.0, last_parameters=0.5, flops_per_second=1e9)
    slow_hops = replace(TOY, hop_seconds=100.0)
    assert model.step_seconds("fast", slow_hops, quick, 16) == 15 * 100.0
    assert model.step_seconds("fast", TOY, JOB, 4) > model.exchange_seconds(TOY, 4) == 0.75


@pytest.mark.parametrize("mode", MODES)
def test_one_alone_sends_nothing(mode: str) -> None:
    assert model.exposed_seconds(mode, TOY, JOB, 1) == model.update_bytes(mode, JOB, 1) == 0.0
    assert model.ring_seconds(TOY, 1, 1e9) == model.tree_seconds(TOY, 1, 1e9) == 0.0
    assert model.all_to_all_seconds(TOY, 1, 1e9) == model.half_ring_seconds(TOY, 1, 1e9) == 0.0


def test_one_alone_is_the_measure() -> None:
    assert model.efficiency("fast", TOY, JOB, 1) == 1.0
    assert model.efficiency("exact", TOY, JOB, 1) < 1.0  # its copies


@pytest.mark.parametrize("network", model.NETWORKS.values(), ids=model.NETWORKS)
@pytest.mark.parametrize("mode", MODES)
def test_more_gpus_are_never_more_efficient(network: object, mode: str) -> None:
    job = model.job_of("base", 8192, 0.4 * model.PEAK_FLOPS)
    found = [model.efficiency(mode, network, job, gpus) for gpus in model.COUNTS]
    assert all(0.0 < value <= 1.0 for value in found)
    assert all(after <= before + 0.02 for before, after in zip(found, found[1:], strict=False)), found


@pytest.mark.parametrize("gpus", model.COUNTS)
def test_a_slower_network_is_never_faster(gpus: int) -> None:
    job = model.job_of("large", 8192, 0.4 * model.PEAK_FLOPS)
    for mode in MODES:
        times = [model.step_seconds(mode, model.NETWORKS[name], job, gpus) for name in ("8x400", "8x200", "1x100")]
        assert times == sorted(times)


def test_the_models_own_numbers() -> None:
    """RoBERTa base: 124,697,433 parameters at transformers' 514 positions; 6 FLOPs a weight and token and more."""
    job = model.job_of("base", 8192, 1e15)
    assert job.parameters == 124_697_433
    assert 6 * 84_934_656 * 512 < job.row_flops < 1.3 * 6 * 84_934_656 * 512


def test_the_page_shows_what_the_model_gives() -> None:
    """`python benchmarks/scaling_model.py` prints the tables of records/experiments.md."""
    page = (BENCHMARKS.parent / "records" / "experiments.md").read_text()
    speeds = model.shares([0.3, 0.5])
    for line in model.tables(["base", "large"], ["8x400"], [2048, 8192], speeds):
        assert line in page, line
    for line in model.tables(["base", "large"], ["1x100"], [8192], speeds):
        assert line in page, line


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
    ours = common.together("scaling_process.py", 2, where, *small, "--mode", "exact")
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
