"""Encoders with rotary positions in JAX: the twin of `torch/modernbert.py`, on the same numbers under the same names.

M rows, T tokens, D width, H heads, G of them of keys and values, h width of a head.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from maskwright.model import rotary
from maskwright.model.config import TRAINED_MASK_SHARE, ModelConfig
from maskwright.model.jax.attention import attention
from maskwright.model.jax.parts import (
    Gather,
    Weights,
    dropout,
    gelu,
    linear,
    look_up,
    norm,
    rows_of,
    run_layers,
    silu,
    site,
)

Rotation = tuple[Array, Array]
"""Cosines and sines, each [M, T, 1, h / 2]."""


def rotate(x: Array, rotation: Rotation) -> Array:
    """Turns each pair (x_i, x_{i + h/2}) of the last dimension of [M, T, H, h] by its position's angle."""
    cos, sin = rotation
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate((first * cos - second * sin, second * cos + first * sin), -1)


def rotation_of(config: ModelConfig, position_ids: Array, theta: float, dtype: jnp.dtype) -> Rotation:
    h = config.head_width
    # In fp32, for each position once: bf16 cannot count beyond 256.
    speeds = theta ** (-jnp.arange(0, h, 2, dtype=jnp.float32) / h)
    if config.rope_rounding:  # XLA may leave out a conversion to fewer bits and back
        speeds = jnp.asarray(rotary.speeds(config, theta))
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
    p = config.attention_probs_dropout_prob
    normed = _norm(x, weights, "norm1", config) if config.norm_first else x
    if config.norm_first and config.norms_embeddings:
        normed = jnp.where(number == 0, x, normed)
    H, G = config.num_attention_heads, config.key_value_heads
    q, k, v = jnp.split(linear(normed, weights, "qkv").reshape(M, T, H + 2 * G, -1), (H, H + G), axis=2)

    def mix(rotation: Rotation, window: int | None) -> Array:
        dropped = p if key is not None else 0.0
        turned = rotate(q, rotation), rotate(k, rotation)
        return attention(*turned, v, segment_ids, way=way, window=window, dropout=dropped, key=site(key, 0))

    if config.local_layers:
        whole = (number - config.first_global_layer) % config.global_attn_every_n_layers == 0
        mixed = jax.lax.cond(whole, lambda: mix(everywhere, None), lambda: mix(nearby, config.window))
    else:
        mixed = mix(everywhere, None)
    x, mixed = rows_of(x, only), rows_of(mixed.reshape(M, T, D), only)
    x = x + dropout(linear(mixed, weights, "out"), config.out_dropout_prob, site(key, 1))
    if config.norm_first:
        return x + _inner(_norm(x, weights, "norm2", config), weights, key, config)
    x = _norm(x, weights, "norm1", config)
    return _norm(x + _inner(x, weights, key, config), weights, "norm2", config)


def _inner(x: Array, weights: Weights, key: Array | None, config: ModelConfig) -> Array:
    """The part after attention without its norm, [..., D] -> [..., D]."""
    up = linear(x, weights, "up")
    if not config.gated:
        return dropout(linear(gelu(up), weights, "down"), config.hidden_dropout_prob, site(key, 2))
    value, gate = jnp.split(up, 2, -1)
    active = silu(value) if config.activation == "silu" else gelu(value)
    down = linear(dropout(active * gate, config.inner_dropout_prob, site(key, 2)), weights, "down")
    return dropout(down, config.down_dropout_prob, site(key, 3))


def _norm(x: Array, weights: Weights, name: str, config: ModelConfig) -> Array:
    return norm(x, weights, name, config.layer_norm_eps, centred=config.centred)


def without_masks(x: Array, input_ids: Array, position_ids: Array, config: ModelConfig) -> Array:
    """As in torch."""
    is_mask = input_ids == config.mask_token_id
    begin = jnp.arange(input_ids.size).reshape(input_ids.shape) - position_ids

    def of_segment(holds: Array) -> Array:
        return jnp.zeros(input_ids.size, jnp.int32).at[begin].add(holds.astype(jnp.int32))[begin]

    real, masks = of_segment(input_ids != config.pad_token_id), of_segment(is_mask)
    scale = (1.0 - TRAINED_MASK_SHARE) * real / jnp.maximum(real - masks, 1)
    return x * jnp.where(is_mask, 0.0, scale)[..., None]


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
    begins = ("norm.", "final_norm.", "token_type.")
    outer = {name: gather(name, array) for name, array in weights.items() if name.startswith(begins)}
    word_VD = weights["word.weight"]
    x = look_up(word_VD, input_ids)
    if stride := config.token_type_stride:
        x, position_ids = x + look_up(outer["token_type.weight"], position_ids // stride), position_ids % stride
    elif config.has_token_types:
        x = x + outer["token_type.weight"][0]
    if config.token_dropout:
        x = without_masks(x, input_ids, position_ids, config)
    if config.norms_embeddings:
        x = _norm(x, outer, "norm", config)
    x = x.astype(word_VD.dtype)
    if config.norms_embeddings:
        x = dropout(x, config.hidden_dropout_prob, site(key, config.num_hidden_layers))
    bases = config.rope_theta, config.local_rope_theta
    everywhere, nearby = (rotation_of(config, position_ids, theta, x.dtype) for theta in bases)
    layer_fn = partial(layer, config=config, segment_ids=segment_ids, everywhere=everywhere, nearby=nearby, way=way)
    x = run_layers(layer_fn, x, weights, gather, key, only)
    return _norm(x, outer, "final_norm", config) if config.norm_first else x
