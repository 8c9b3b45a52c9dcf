"""Torch against JAX, option by option: the same run in both, in fp32 on the CPU, compared number by number.

`parity_rows.py` names the options. `benchmarks/parity.py` prints what `compare` finds.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import jax
import numpy as np
import torch
from jax.sharding import PartitionSpec

from maskwright.config.pretraining import RunConfig
from maskwright.data.loader import Loader
from maskwright.data.store import TokenStore
from maskwright.engines.base import EvalStats, TrainState
from maskwright.engines.jax import optimizers as jax_optimizers
from maskwright.engines.jax.engine import JaxEngine
from maskwright.engines.jax.optimizers import rates_of
from maskwright.engines.jax.processes import CPU_DEVICES
from maskwright.engines.jax.step import Program
from maskwright.engines.torch.engine import TorchEngine
from maskwright.engines.torch.optimizers import AdamW, Muon, rate_scales
from maskwright.engines.torch.shares import FlatOrder
from maskwright.model.config import NEVER_PREDICTED, ModelConfig, model_config
from maskwright.model.hf.names import Parameters
from maskwright.model.initial import initial_parameters
from maskwright.model.jax.networks import stack, unstack
from maskwright.model.torch.networks import assign, extract, make_network

TOLERANCE = 1e-5
CURVE_STEPS = 50


def use_virtual_devices() -> None:
    """Before JAX computes anything in this process; all tests agree on it."""
    jax.config.update("jax_platforms", "cpu")
    if getattr(jax.config, CPU_DEVICES) < 8:
        jax.config.update(CPU_DEVICES, 8)


@dataclass(frozen=True)
class Difference:
    """Largest relative differences: of the first loss; of any gradient, as a share of the largest number in its
    parameter; of any weight, likewise, after each of three updates by given gradients; of any loss in 50 steps; of
    held-out loss."""

    loss: float
    gradient: float
    weights: float
    curve: float
    held_out: float

    @property
    def largest(self) -> float:
        return max(self.loss, self.gradient, self.weights, self.curve, self.held_out)


@dataclass
class Trace:
    losses: list[float]
    gradients: Parameters
    held_out: EvalStats


def trace(engine: TorchEngine | JaxEngine, config: RunConfig, shape: ModelConfig, loader: Loader) -> Trace:
    """50 updates. The gradient of the first is what its moments hold: (1 - beta) times it, after clipping."""
    engine.write(TrainState(0, initial_parameters(shape, config.seed)))
    losses: list[float] = []
    gradients: Parameters = {}
    for step in range(CURVE_STEPS):
        rate = config.learning_rate_at(step)
        stats = engine.step(loader.batches(step), rate)
        assert stats is not None
        losses.append(float(stats.loss_sum) / float(stats.weight))
        if step == 0:
            moments = engine.read().moments
            gradients = moments["exp_avg"] | moments.get("momentum", {})
    engine.check()
    return Trace(losses, gradients, engine.evaluate(loader.batches(CURVE_STEPS)))


def compare(
    store: TokenStore, config: Callable[..., RunConfig], row: dict[str, Any], *, updates: bool = True
) -> Difference:
    """`config(**keys)` makes a small configuration with those keys set. Without `updates`, whose program takes seconds
    to compile, weights are not compared."""
    values = {"schedule.steps": 60, "batch.virtual_workers": 2, "engine.dtype": "fp32"} | row
    run = config(**values | {"engine.kind": "jax"})
    shape = model_config(run.model, store.vocabulary.size, run.data.seq_len)
    loader = Loader(run, store)
    with same_dropout():
        plain = config(**values | {"engine.devices": None, "engine.sharding": "data"})
        engines = (
            TorchEngine(shape, run.optimizer, plain.engine, run.seed),
            JaxEngine(shape, run.optimizer, run.engine, run.seed),
        )
        one, two = (trace(engine, run, shape, loader) for engine in engines)
    return Difference(
        loss=relative([one.losses[0]], [two.losses[0]]),
        gradient=apart(one.gradients, two.gradients),
        weights=updates_apart(run, shape, engines[1].program) if updates else 0.0,
        curve=relative(one.losses, two.losses),
        held_out=relative([one.held_out.loss], [two.held_out.loss]),
    )


def updates_apart(run: RunConfig, shape: ModelConfig, program: Program) -> float:
    """After each of three updates, by gradients of all sizes that are the same for both. (Where a true gradient is
    near 0, AdamW makes a whole step of its rounding: weights after updates by each engine's own would differ there.)"""
    generator, start = np.random.default_rng(0), initial_parameters(shape, run.seed)
    shapes = {name: parameter.shape for name, parameter in make_network(shape).named_parameters()}
    order = FlatOrder.of(shapes, list(shapes), 1, muon=run.optimizer.kind == "muon")
    weights, gradients = torch.zeros(order.length), torch.zeros(order.length)
    assign(order.parameters(weights), start, shape, NEVER_PREDICTED)
    buffers = order.shares[0], weights, gradients
    scales = rate_scales(list(shapes), run.optimizer.layer_decay)
    optimizers: list[AdamW | Muon] = [AdamW(*buffers, run.optimizer, scales)]
    if run.optimizer.kind == "muon":
        optimizers.append(Muon(*buffers, run.optimizer, torch.float32))

    state = program.state_specs
    specs = (state["parameters"], state["moments"])
    update = jax.jit(
        jax.shard_map(
            lambda rates, w, g, m: jax_optimizers.apply(run.optimizer, rates, w, g, m, program.layout),
            mesh=program.layout.mesh,
            in_specs=(PartitionSpec(), specs[0], *specs),
            out_specs=specs,
            check_vma=False,
        )
    )
    ours = stack(start, shape, NEVER_PREDICTED)
    moments = {kind: {name: np.zeros_like(ours[name]) for name in of} for kind, of in specs[1].items()}
    worst = 0.0
    for step, rate in enumerate((1e-3, 3e-3, 2e-3)):
        given = {name: _of_all_sizes(generator, array.shape) for name, array in start.items()}
        assign(order.parameters(gradients), given, shape)
        for optimizer in optimizers:
            optimizer.step(rate)
        rates = rates_of(run.optimizer, rate, step + 1)
        ours, moments = update(rates, ours, stack(given, shape), moments)
        made = unstack({name: np.asarray(array) for name, array in ours.items()}, shape)
        worst = max(worst, apart(extract(order.parameters(weights), shape), made, biases=True))
    return worst


def _of_all_sizes(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    sizes = 10.0 ** generator.uniform(-7.0, 0.0, shape)
    return (generator.standard_normal(shape) * sizes).astype(np.float32)


def relative(one: list[float], two: list[float]) -> float:
    return max(abs(a - b) / abs(a) for a, b in zip(one, two, strict=True))


def apart(one: Parameters, two: Parameters, *, biases: bool = False) -> float:
    """Softmax does not see a shift of all keys, so the true gradient of a key's bias is 0 and what both engines have
    is rounding: unless `biases`, it is held to be as small, against the query's bias, as others are equal. ESM-2 turns
    the shift with the position, and softmax sees it."""
    assert one.keys() == two.keys()
    shares = []
    for name, a in one.items():
        scale = np.abs(a).max()
        if name.endswith(("key.bias", "k_lin.bias")) and not biases and not name.startswith("esm."):
            scale = np.abs(one[name.replace("key", "query").replace("k_lin", "q_lin")]).max()
            assert np.abs(a).max() < TOLERANCE * scale
        shares.append(float(np.abs(a - two[name]).max() / scale))
    return max(shares)


# ---- the same dropout in both: masks that depend on the shape alone, of hidden states on the width ----------------


@functools.cache
def _kept(shape: tuple[int, ...], keep: float) -> np.ndarray:
    """Every token has one mask: torch computes the end of its last layer [K, D] for the predicted ones alone, and JAX
    [M, T, D] for all."""
    drawn = shape if len(shape) == 4 else shape[-1:]
    return np.broadcast_to(np.random.default_rng(len(drawn)).random(drawn) < keep, shape)


@contextmanager
def same_dropout() -> Iterator[None]:
    """What is dropped is each engine's own; where it is dropped, and how the rest is scaled, must agree."""

    def in_torch(x: torch.Tensor, rate: float) -> torch.Tensor:
        return torch.from_numpy(_kept(tuple(x.shape), 1.0 - rate).copy()).to(x.dtype) / (1.0 - rate)

    def in_jax(key: Any, p: float, shape: tuple[int, ...]) -> Any:
        return _kept(tuple(shape), p)

    with (
        mock.patch("maskwright.model.torch.dropout.noise", in_torch),
        mock.patch("maskwright.model.torch.attention.uses_math_attention", lambda *_: True),
        mock.patch("jax.random.bernoulli", in_jax),
    ):
        yield
