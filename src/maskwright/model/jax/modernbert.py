"""ModernBERT (Warner et al. 2024) in JAX: the twin of `torch/modernbert.py`, on the same numbers under the same names.

M rows, T tokens, D width, H heads, h width of a head.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from maskwright.model.config import ModelConfig
from maskwright.model.jax.attention import attention
from maskwright.model.jax.parts import Gather, Weights, dropout, gelu, linear, look_up, norm, rows_of, run_layers, site

Rotation = tuple[Array, Array]
"""Cosines and sines, each [M, T, 1, h / 2]."""


def rotate(x: Array, rotation: Rotation) -> Array:
    """Turns each pair (x_i, x_{i + h/2}) of the last dimension of [M, T, H, h] by its position's angle."""
    cos, sin = rotation
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate((first * cos - second * sin, second * cos + first * sin), -1)


def rotation_of(config: ModelConfig, position_ids: Array, theta: float, dtype: jnp.dtype) -> Rotation:
    h = config.hidden_size // config.num_attention_heads
    # In fp32, for each position once: bf16 cannot count beyond 256.
    speeds = theta ** (-jnp.arange(0, h, 2, dtype=jnp.float32) / h)
    angles = jnp.arange(position_ids.shape[1], dtype=jnp.float32)[:, None] * speeds
    cos, sin = (table.astype(dtype)[position_ids][:, :, None] for table in (jnp.cos(angles), jnp.sin(angles)))
    return cos, sin


def layer(
    weights: Weights,
    x: Array,
    number: Array | int,
    key: Array | None,
    only: Array | None,
    *,
    config: ModelConfig,
    segment_ids: Array,
    everywhere: Rotation,
    nearby: Rotation,
    way: str,
) -> Array:
    """As `roberta.layer`. `everywhere` and `nearby`: rotary positions of layers that attend to all, and of local
    ones."""
    M, T, D = x.shape
    eps, p = config.layer_norm_eps, config.attention_probs_dropout_prob
    # The embeddings are normalised already.
    normed = jnp.where(number == 0, x, norm(x, weights, "norm1", eps))
    q, k, v = jnp.unstack(linear(normed, weights, "qkv").reshape(M, T, 3, config.num_attention_heads, -1), axis=2)

    def mix(rotation: Rotation, window: int | None) -> Array:
        rate = p if key is not None else 0.0
        turned = rotate(q, rotation), rotate(k, rotation)
        return attention(*turned, v, segment_ids, way=way, window=window, dropout=rate, key=site(key, 0))

    if config.local_layers:
        whole = number % config.global_attn_every_n_layers == 0
        mixed = jax.lax.cond(whole, lambda: mix(everywhere, None), lambda: mix(nearby, config.window))
    else:
        mixed = mix(everywhere, None)
    x, mixed = rows_of(x, only), rows_of(mixed.reshape(M, T, D), only)
    x = x + dropout(linear(mixed, weights, "out"), p, site(key, 1))
    value, gate = jnp.split(linear(norm(x, weights, "norm2", eps), weights, "up"), 2, -1)
    return x + linear(dropout(gelu(value) * gate, config.hidden_dropout_prob, site(key, 2)), weights, "down")


def encode(
    weights: Weights,
    config: ModelConfig,
    input_ids: Array,
    position_ids: Array,
    segment_ids: Array,
    *,
    gather: Gather,
    way: str,
    key: Array | None = None,
    only: Array | None = None,
) -> Array:
    """Hidden states; arguments and result as in `roberta.encode`."""
    outer = {name: gather(name, weights[name]) for name in ("norm.weight", "final_norm.weight")}
    word_VD = weights["word.weight"]
    x = norm(look_up(word_VD, input_ids), outer, "norm", config.layer_norm_eps).astype(word_VD.dtype)
    x = dropout(x, config.hidden_dropout_prob, site(key, config.num_hidden_layers))
    bases = config.rope_theta, config.local_rope_theta
    everywhere, nearby = (rotation_of(config, position_ids, theta, x.dtype) for theta in bases)
    layer_fn = partial(layer, config=config, segment_ids=segment_ids, everywhere=everywhere, nearby=nearby, way=way)
    return norm(run_layers(layer_fn, x, weights, gather, key, only), outer, "final_norm", config.layer_norm_eps)
