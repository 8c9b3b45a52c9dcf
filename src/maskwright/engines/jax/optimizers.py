"""Optimizers in JAX, on dictionaries of fp32 arrays: twins of `torch/optimizers.py`, for one device's shards.

AdamW (Loshchilov and Hutter 2019) updates everything or, together with Muon, everything except hidden matrices.
Muon (Jordan et al. 2024): the layers are shared out over the devices, each of which gets the whole matrices of its own
and gives their shards back.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from maskwright.config.pretraining import Optimizer
from maskwright.engines.groups import is_decayed, rate_scale
from maskwright.engines.jax.layout import AXIS, ShardingLayout
from maskwright.engines.muon import HIDDEN_ROLES, NEWTON_SCHULZ, ROOM, UPDATE_RMS, rows_of_matrices
from maskwright.model.jax.parts import LAYERS, Weights

Moments = dict[str, Weights]


def is_hidden(name: str) -> bool:
    return name.endswith(HIDDEN_ROLES)


def moment_names(kind: str, names: Iterable[str]) -> dict[str, list[str]]:
    """Names of the parameters for each moment."""
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


def rates_of(options: Optimizer, learning_rate: float, step: int) -> np.ndarray:
    """fp32 [3] of update number `step`, from 1, computed by the host in double precision: the learning rate, and
    AdamW's bias corrections 1 - beta1^t and sqrt(1 - beta2^t)."""
    return np.array([learning_rate, 1.0 - options.beta1**step, (1.0 - options.beta2**step) ** 0.5], np.float32)


def apply(
    options: Optimizer, rates: Array, weights: Weights, gradients: Weights, moments: Moments, layout: ShardingLayout
) -> tuple[Weights, Moments]:
    """(new weights, new moments). `rates`: see `rates_of`."""
    learning_rate, correction1, correction2 = rates
    after, new = {}, {kind: dict(named) for kind, named in moments.items()}
    layers = layout.shapes["layers.down.weight"][0]
    for name, m in moments["exp_avg"].items():
        gradient, v = gradients[name], moments["exp_avg_sq"][name]
        m = new["exp_avg"][name] = m + (gradient - m) * (1.0 - options.beta1)
        v = new["exp_avg_sq"][name] = v * options.beta2 + jnp.square(gradient) * (1.0 - options.beta2)
        decay = options.weight_decay if is_decayed(m.ndim - name.startswith(LAYERS)) else 0.0
        denominator = jnp.sqrt(v) / correction2 + options.eps
        rate = learning_rate
        if options.layer_decay < 1.0:
            rate = rate * rate_scales(name, m.ndim, layers, options.layer_decay)
        after[name] = weights[name] * (1.0 - rate * decay) - rate / correction1 * m / denominator
    if options.kind == "muon":
        ahead = {}
        for name, momentum in moments["momentum"].items():
            momentum = new["momentum"][name] = momentum + (gradients[name] - momentum) * (1.0 - options.momentum)
            ahead[name] = gradients[name] + (momentum - gradients[name]) * options.momentum  # Nesterov's look ahead
        for name, update in _orthogonal(ahead, layout).items():
            after[name] = weights[name] * (1.0 - learning_rate * options.weight_decay) - learning_rate * update
    return {name: after[name] for name in weights}, new


def _orthogonal(updates: Weights, layout: ShardingLayout) -> Weights:
    """Takes this device's shards of the updates and returns the same shards, orthogonalized. Query, key and value are
    moved apart, and so are both halves of a gated layer."""
    inner, result = layout.shapes["layers.down.weight"][-1], {}
    for name, update in updates.items():
        *_, all_rows, columns = layout.shapes[name]
        role = next(role for role in HIDDEN_ROLES if name.endswith(role))
        rows = rows_of_matrices(role, all_rows, columns, inner)
        layers, dim = update.astype(layout.dtype).reshape(-1, *update.shape[-2:]), layout.dims[name]
        count, dim = len(layers), None if dim is None else dim + 3 - update.ndim
        if dim is not None:  # a shard of all layers -> the whole matrices of some, filled up with zeros
            layers = jnp.pad(layers, ((0, -count % layout.devices), (0, 0), (0, 0)))
            layers = jax.lax.all_to_all(layers, AXIS, 0, dim, tiled=True)
        stacks = jnp.split(layers, list(accumulate(rows))[:-1], axis=1)
        layers = jnp.concatenate([_scaled_orthogonal(stack) for stack in stacks], axis=1)
        if dim is not None:
            layers = jax.lax.all_to_all(layers, AXIS, dim, 0, tiled=True)[:count]
        result[name] = layers.reshape(update.shape)
    return result


def _scaled_orthogonal(matrices: Array) -> Array:
    """[n, r, c] -> fp32, in the size of AdamW's updates."""
    rows, columns = matrices.shape[-2:]
    turned = matrices.mT if rows > columns else matrices
    results = orthogonalize(turned).astype(jnp.float32) * (UPDATE_RMS * max(rows, columns) ** 0.5)
    return results.mT if rows > columns else results


def orthogonalize(matrices: Array) -> Array:
    """[n, r, c] -> about U V^T of each matrix's singular value decomposition, as in `torch/optimizers.py`."""
    x = matrices / (_norm(matrices) + 1e-7).astype(matrices.dtype)
    gram = x @ x.mT
    square = (_norm(gram) * ROOM**2 + 1e-7).astype(matrices.dtype)

    def once(x: Array, gram: Array, coefficients: Array) -> Array:
        a, b, c = coefficients  # fp32, since bf16 would round them by up to 0.4 %
        polynomial = (b * gram + c * (gram @ gram)).astype(x.dtype)
        return (a * x + polynomial @ x).astype(x.dtype)

    first, *others = jnp.asarray(NEWTON_SCHULZ, jnp.float32)
    x = once(x / jnp.sqrt(square), gram / square, first)
    return jax.lax.scan(lambda x, each: (once(x, x @ x.mT, each), None), x, jnp.stack(others))[0]


def _norm(matrices: Array) -> Array:
    """[n, r, c] -> fp32 [n, 1, 1]."""
    return jnp.sqrt(jnp.square(matrices.astype(jnp.float32)).sum((-2, -1), keepdims=True))
