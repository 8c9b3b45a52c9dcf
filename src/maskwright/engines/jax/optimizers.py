"""Optimizers in JAX, on dictionaries of fp32 arrays: twins of `torch/optimizers.py`, for one device's shards.

AdamW (Loshchilov and Hutter 2019) updates everything, or, beside Muon, everything except hidden matrices.
Muon (Jordan et al. 2024): the matrices are shared out over the devices, and each is orthogonalized once and gathered.
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
    """Orthogonalizes each hidden matrix, from this device's shard to the same one. Query, key and value are apart, and
    so are both halves of a gated layer."""
    full = {name: layout.gathered(name, update, jnp.float32) for name, update in updates.items()}
    inner = full["layers.down.weight"].shape[-1]
    groups: dict[tuple[int, int], list[tuple[str, int, Array]]] = {}
    for name, update in full.items():
        *_, all_rows, columns = update.shape
        role = next(role for role in HIDDEN_ROLES if name.endswith(role))
        each = rows_of_matrices(role, all_rows, columns, inner)
        stacks = [update.reshape(-1, each[0], columns)]
        if len(set(each)) > 1:
            stacks = jnp.split(update.reshape(-1, all_rows, columns), list(accumulate(each))[:-1], axis=1)
        for number, stack in enumerate(stacks):
            groups.setdefault((stack.shape[1], columns), []).append((name, number, stack))
    parts: dict[str, dict[int, Array]] = {name: {} for name in full}
    for (rows, columns), named in groups.items():
        matrices = jnp.concatenate([stack for *_, stack in named])
        scale = UPDATE_RMS * max(rows, columns) ** 0.5
        turned = matrices.mT if rows > columns else matrices
        results = shared_orthogonalize(turned.astype(layout.dtype), layout.devices).astype(jnp.float32) * scale
        results = results.mT if rows > columns else results
        begin = 0
        for name, number, stack in named:
            parts[name][number] = results[begin : begin + len(stack)]
            begin += len(stack)
    result = {}
    for name, of in parts.items():
        whole = of[0] if len(of) == 1 else jnp.concatenate([of[number] for number in sorted(of)], 1)
        result[name] = layout.shard(name, whole.reshape(full[name].shape))
    return result


def shared_orthogonalize(matrices: Array, devices: int) -> Array:
    """Orthogonalizes [n, r, c] matrices, the same on every device: one device computes each, and all are gathered."""
    n = len(matrices)
    each = -(-n // devices)
    if devices == 1:
        return orthogonalize(matrices)
    padded = jnp.pad(matrices, ((0, each * devices - n), (0, 0), (0, 0)))
    share = jax.lax.dynamic_slice_in_dim(padded, jax.lax.axis_index(AXIS) * each, each)
    return jax.lax.all_gather(orthogonalize(share), AXIS, tiled=True)[:n]


def orthogonalize(matrices: Array) -> Array:
    """[n, r, c] -> about U V^T of each matrix's singular value decomposition, as in `torch/optimizers.py`."""
    a, b, c = NEWTON_SCHULZ
    squares = jnp.square(matrices.astype(jnp.float32)).sum((-2, -1), keepdims=True)
    x = matrices / (jnp.sqrt(squares) + 1e-7).astype(matrices.dtype)

    def once(x: Array, _: None) -> tuple[Array, None]:
        gram = x @ x.mT
        return a * x + (b * gram + c * (gram @ gram)) @ x, None

    return jax.lax.scan(once, x, None, length=NEWTON_SCHULZ_STEPS)[0]
