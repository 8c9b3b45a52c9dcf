"""The small parts that layers in JAX are made of.

A layer marks by name (`kept`) the arrays that it keeps for its backward pass: the outputs of its matrix products and of
attention. Norms, activations and gathered weights are computed again, which costs few operations and saves most of
the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name

LAYERS = "layers."
KEPT = "kept"
RESIDUALS = "attention"
"""Name of the arrays that splash attention keeps for its own backward kernel."""

Weights = dict[str, Array]
Gather = Callable[[str, Array], Array]
"""(name, this device's shard of a parameter) -> the full parameter, in the dtype of the multiplications."""


def kept(x: Array) -> Array:
    return checkpoint_name(x, KEPT)


def look_up(table: Array, ids: Array) -> Array:
    """Rows of a table [V, D] in fp32, from any dtype. In bf16, the gradient of a row that is looked up a thousand
    times, such as `<mask>`'s, would lose most of its terms (27 % of the full gradient, measured)."""
    return table.astype(jnp.float32)[ids]


def linear(x: Array, weights: Weights, name: str) -> Array:
    """Multiplies x [..., D] by a weight [F, D], stored as in torch -> [..., F]."""
    y = jnp.einsum("...d,fd->...f", x, weights[f"{name}.weight"])
    bias = weights.get(f"{name}.bias")
    if bias is None:
        return kept(y)
    # By way of fp32, in which its gradient, a sum over all tokens, is then added up. In bf16, the gradient of the
    # values' bias was 12 to 17 % off (4,096 tokens, on a CPU). The result is the same, bit for bit.
    return kept(y + jnp.broadcast_to(bias.astype(jnp.float32), y.shape).astype(y.dtype))


def norm(x: Array, weights: Weights, name: str, eps: float, *, centred: bool = True) -> Array:
    """LayerNorm over the last dimension, in fp32 for any dtype; RMSNorm unless it is `centred`."""
    y = x.astype(jnp.float32)
    y = y - y.mean(-1, keepdims=True) if centred else y
    y = y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + eps) * weights[f"{name}.weight"]
    bias = weights.get(f"{name}.bias")
    return (y if bias is None else y + bias).astype(x.dtype)


def gelu(x: Array, *, approximate: bool = False) -> Array:
    """Exact GELU, or its form by a tanh, in fp32 for any dtype."""
    return jax.nn.gelu(x.astype(jnp.float32), approximate=approximate).astype(x.dtype)


def silu(x: Array) -> Array:
    """x times its sigmoid, in fp32 for any dtype."""
    return jax.nn.silu(x.astype(jnp.float32)).astype(x.dtype)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"gelu": gelu, "relu": jax.nn.relu, "silu": silu, "tanh": jnp.tanh}


def dropout(x: Array, rate: float, key: Array | None) -> Array:
    """Zeroes numbers at `rate` and scales the others by 1 / (1 - rate). Without a `key` nothing is dropped."""
    if key is None or rate == 0.0:
        return x
    return jnp.where(jax.random.bernoulli(key, 1.0 - rate, x.shape), x / (1.0 - rate), 0.0).astype(x.dtype)


def site(key: Array | None, number: Any) -> Array | None:
    """Dropout's key for one place of the network."""
    return None if key is None else jax.random.fold_in(key, number)


def rows_of(x: Array, only: Array | None) -> Array:
    """[M, T, D] -> the rows [K, D] at `only` [K] of the flattened positions, or as it is."""
    return x if only is None else x.reshape(-1, x.shape[-1])[only]


def run_layers(
    layer: Callable[[Weights, Array, Array | int, Array | None, Array | None], Array],
    x: Array,
    weights: Weights,
    gather: Gather,
    key: Any,
    only: Array | None,
) -> Array:
    """Runs all layers one after the other. `layer(weights, x, number, key, only)` gets one layer's weights, under names
    without `layers.`. They are gathered inside the loop, so that only one layer is gathered at a time. `only`: the
    positions that the last layer computes after attention; None for all."""
    stacked = {name.removeprefix(LAYERS): array for name, array in weights.items() if name.startswith(LAYERS)}
    count = len(next(iter(stacked.values())))

    policy = jax.checkpoint_policies.save_only_these_names(KEPT, RESIDUALS)

    def gathered(layer_weights: Weights) -> Weights:
        return {name: gather(LAYERS + name, array) for name, array in layer_weights.items()}

    @partial(jax.checkpoint, policy=policy, prevent_cse=False)  # which `scan` prevents
    def body(x: Array, numbered_weights: tuple[Array, Weights]) -> tuple[Array, None]:
        number, layer_weights = numbered_weights
        return layer(gathered(layer_weights), x, number, site(key, number), None), None

    @partial(jax.checkpoint, policy=policy)
    def last(x: Array, layer_weights: Weights) -> Array:
        return layer(gathered(layer_weights), x, count - 1, site(key, count - 1), only)

    if only is None:
        return jax.lax.scan(body, x, (jnp.arange(count), stacked))[0]
    x = jax.lax.scan(body, x, (jnp.arange(count - 1), {name: array[:-1] for name, array in stacked.items()}))[0]
    return last(x, {name: array[-1] for name, array in stacked.items()})
