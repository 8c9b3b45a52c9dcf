"""Optimizers in JAX, on dictionaries of fp32 arrays: twins of `torch/optimizers.py`, for one device's shards.

AdamW (Loshchilov and Hutter 2019) updates everything, or, beside Muon, everything except hidden matrices.
Muon (Jordan et al. 2024): the layers are shared out over the devices, each of which gets the whole matrices of its own
and gives their shards back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from maskwright.config.pretraining import Optimizer
from maskwright.engines.groups import is_decayed, rate_scale
from maskwright.engines.jax.layout import AXIS, ShardingLayout
from maskwright.engines.muon import HIDDEN_ROLES, NEWTON_SCHULZ, NEWTON_SCHULZ_STEPS, UPDATE_RMS, rows_of_matrices
from maskwright.model.jax.parts import LAYERS, Weights

Moments = dict[str, Weights]


def is_hidden(name: str) -> bool:
    return name.endswith(HIDDEN_ROLES)


def moment_names(kind: str, names: Iterable[str]) -> dict[str, list[str]]:
    """The parameters that have each moment."""
    all_names = list(names)
    others = [name for name in all_names if kind == "adamw" or not is_hidden(name)]
    moments = {"exp_avg": others, "exp_avg_sq": others}
    return moments if kind == "adamw" else moments | {"momentum": [name for name in all_names if is_hidden(name)]}


def rate_scales(name: str, dims: int, layers: int, layer_decay: float) -> np.ndarray | float:
    """See `groups.rate_scale`; for a stack of layers an array [L, 1, …] of `dims` dimensions."""
    if not name.startswith(LAYERS):
        return rate_scale(name, None, layers, layer_decay)
    stacked = [rate_scale(name, layer, layers, layer_decay) for layer in range(layers)]
    return np.array(stacked, np.float32).reshape(-1, *[1] * (dims - 1))


@dataclass(frozen=True)
class Rates:
    """fp32 scalars of one update, computed by the host in double precision."""

    learning_rate: Array
    correction1: Array
    """AdamW's bias correction 1 - beta1^t."""
    correction2: Array
    """AdamW's bias correction sqrt(1 - beta2^t)."""

    @staticmethod
    def of(options: Optimizer, learning_rate: float, step: int) -> list[float]:
        """`step` counts finished updates, this one included."""
        return [learning_rate, 1.0 - options.beta1**step, (1.0 - options.beta2**step) ** 0.5]


def apply(
    options: Optimizer, rates: Rates, weights: Weights, gradients: Weights, moments: Moments, layout: ShardingLayout
) -> tuple[Weights, Moments]:
    """(new weights, new moments)."""
    after, new = {}, {kind: dict(named) for kind, named in moments.items()}
    layer_decay = options.layer_decay
    layers = layout.shapes["layers.down.weight"][0]
    for name, m in moments["exp_avg"].items():
        gradient, v = gradients[name], moments["exp_avg_sq"][name]
        m = new["exp_avg"][name] = m + (gradient - m) * (1.0 - options.beta1)
        v = new["exp_avg_sq"][name] = v * options.beta2 + jnp.square(gradient) * (1.0 - options.beta2)
        decay = options.weight_decay if is_decayed(m.ndim - name.startswith(LAYERS)) else 0.0
        denominator = jnp.sqrt(v) / rates.correction2 + options.eps
        rate = rates.learning_rate
        if layer_decay < 1.0:
            rate = rate * rate_scales(name, m.ndim, layers, layer_decay)
        after[name] = weights[name] * (1.0 - rate * decay) - rate / rates.correction1 * m / denominator
    if options.kind == "muon":
        ahead = {}
        for name, momentum in moments["momentum"].items():
            momentum = new["momentum"][name] = momentum + (gradients[name] - momentum) * (1.0 - options.momentum)
            ahead[name] = gradients[name] + (momentum - gradients[name]) * options.momentum  # Nesterov's look ahead
        for name, update in _orthogonal(ahead, layout).items():
            shrink = 1.0 - rates.learning_rate * options.weight_decay
            after[name] = weights[name] * shrink - rates.learning_rate * update
    return {name: after[name] for name in weights}, new


def _orthogonal(updates: Weights, layout: ShardingLayout) -> Weights:
    """Takes this device's shards of the updates and returns the same shards, orthogonalized. Query, key and value are
    moved apart, and so are both halves of a gated layer."""
    inner = layout.shapes["layers.down.weight"][-1]
    result = {}
    for name, update in updates.items():
        role = next(role for role in HIDDEN_ROLES if name.endswith(role))
        rows = rows_of_matrices(role, *layout.shapes[name][-2:], inner)
        whole = _of_whole_layers(update.astype(layout.dtype), layout.dims[name], layout.devices)
        stacks = jnp.split(whole, list(accumulate(rows))[:-1], axis=-2)
        whole = jnp.concatenate([_scaled_orthogonal(stack) for stack in stacks], axis=-2)
        result[name] = _of_shards(whole, layout.dims[name], len(update) if update.ndim == 3 else None)
    return result


def _of_whole_layers(shards: Array, dim: int | None, devices: int) -> Array:
    """[L, r, c], or a matrix [r, c] for L = 1, of which this device has a shard along `dim` -> [ceil(L / devices), r,
    c], the whole matrices of its own layers, filled up with zeros."""
    if dim is None:
        return shards.reshape(-1, *shards.shape[-2:])
    dim, shards = (dim, shards) if shards.ndim == 3 else (dim + 1, shards[None])
    filled = jnp.pad(shards, ((0, -len(shards) % devices), (0, 0), (0, 0)))
    return jax.lax.all_to_all(filled, AXIS, 0, dim, tiled=True)


def _of_shards(whole: Array, dim: int | None, layers: int | None) -> Array:
    """The reverse, to shards of `layers` layers, or of one matrix [r, c] where they are None."""
    if dim is not None:
        whole = jax.lax.all_to_all(whole, AXIS, dim + (layers is None), 0, tiled=True)
    return whole[0] if layers is None else whole[:layers]


def _scaled_orthogonal(matrices: Array) -> Array:
    """[n, r, c] -> fp32, in the size of AdamW's updates."""
    rows, columns = matrices.shape[-2:]
    turned = matrices.mT if rows > columns else matrices
    results = orthogonalize(turned).astype(jnp.float32) * (UPDATE_RMS * max(rows, columns) ** 0.5)
    return results.mT if rows > columns else results


def orthogonalize(matrices: Array) -> Array:
    """[n, r, c] -> about U V^T of each matrix's singular value decomposition, as in `torch/optimizers.py`."""
    a, b, c = NEWTON_SCHULZ
    squares = jnp.square(matrices.astype(jnp.float32)).sum((-2, -1), keepdims=True)
    x = matrices / (jnp.sqrt(squares) + 1e-7).astype(matrices.dtype)

    def once(x: Array, _: None) -> tuple[Array, None]:
        gram = x @ x.mT
        return a * x + (b * gram + c * (gram @ gram)) @ x, None

    return jax.lax.scan(once, x, None, length=NEWTON_SCHULZ_STEPS)[0]
