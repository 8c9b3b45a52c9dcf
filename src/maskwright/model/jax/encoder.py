"""The encoder of all families in JAX, except DeBERTa's: the twin of `torch/encoder.py`, on the same numbers and names.

M rows, T tokens, D width, H heads, G of them of keys and values, h width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from maskwright.model import rotary
from maskwright.model.config import TRAINED_MASK_SHARE, ModelConfig
from maskwright.model.jax.attention import attention
from maskwright.model.jax.parts import (
    ACTIVATIONS,
    Gather,
    Weights,
    dropout,
    gelu,
    linear,
    look_up,
    norm,
    rows_of,
    run_layers,
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
    rotations: Sequence[Rotation],
    way: str,
) -> Array:
    """`only` [K]: the result is [K, D], and the part after attention is computed only for those positions. `rotations`:
    rotary positions of layers that attend to all, and of local ones; empty for a family without."""
    (M, T, D), facts = x.shape, config.facts
    p = config.attention_probs_dropout_prob if key is not None else 0.0
    normed = _norm(x, weights, "norm1", config) if facts.norm_first else x
    if facts.norm_first and facts.norms_embeddings:
        normed = jnp.where(number == 0, x, normed)
    H, G = config.num_attention_heads, config.key_value_heads
    q, k, v = jnp.split(linear(normed, weights, "qkv").reshape(M, T, H + 2 * G, -1), (H, H + G), axis=2)

    def mix(local: bool) -> Array:
        turned_q, turned_k = (rotate(x, rotations[local]) if rotations else x for x in (q, k))
        window = config.window if local else None
        return attention(turned_q, turned_k, v, segment_ids, way=way, window=window, dropout=p, key=site(key, 0))

    if config.local_layers:
        whole = (number - config.first_global_layer) % config.global_attn_every_n_layers == 0
        mixed = jax.lax.cond(whole, lambda: mix(False), lambda: mix(True))
    else:
        mixed = mix(False)
    x, mixed = rows_of(x, only), rows_of(mixed.reshape(M, T, D), only)
    x = x + dropout(linear(mixed, weights, "out"), config.layer_dropouts[0], site(key, 1))
    if facts.norm_first:
        return x + _inner(_norm(x, weights, "norm2", config), weights, key, config)
    x = _norm(x, weights, "norm1", config)
    return _norm(x + _inner(x, weights, key, config), weights, "norm2", config)


def _inner(x: Array, weights: Weights, key: Array | None, config: ModelConfig) -> Array:
    """The part after attention without its norm, [..., D] -> [..., D]."""
    up, (_, inner_rate, down_rate) = linear(x, weights, "up"), config.layer_dropouts
    if not config.facts.gated:
        return dropout(linear(gelu(up), weights, "down"), down_rate, site(key, 2))
    value, gate = jnp.split(up, 2, -1)
    inner = ACTIVATIONS[config.facts.activation](value) * gate
    down = linear(dropout(inner, inner_rate, site(key, 2)), weights, "down")
    return dropout(down, down_rate, site(key, 3))


def _norm(x: Array, weights: Weights, name: str, config: ModelConfig) -> Array:
    return norm(x, weights, name, config.layer_norm_eps, centred=config.facts.centred)


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
    """int32 [M, T] each -> hidden states [M, T, D], or [K, D] at `only` [K] of the flattened positions. `position_ids`
    start at 0. `weights` hold the full `word.weight`, and this device's shards of the others, for `gather`. Without a
    `key` nothing is dropped."""
    facts, stride, word_VD = config.facts, config.token_type_stride, weights["word.weight"]
    begins = ("norm.", "final_norm.", "position.", "token_type.")
    outer = {name: gather(name, array) for name, array in weights.items() if name.startswith(begins)}
    x, types = look_up(word_VD, input_ids), outer.get("token_type.weight")
    if config.learned_positions:
        position_PD = outer["position.weight"]
        if types is not None:
            position_PD = (
                (types[:, None] + position_PD).reshape(-1, config.hidden_size) if stride else position_PD + types[0]
            )
        x = x + look_up(position_PD, position_ids + config.position_offset)
    elif types is not None:
        x = x + (look_up(types, position_ids // stride) if stride else types[0])
    position_ids = position_ids % stride if stride else position_ids
    if config.token_dropout:
        x = without_masks(x, input_ids, position_ids, config)
    if facts.norms_embeddings:
        x = _norm(x, outer, "norm", config)
    x = x.astype(word_VD.dtype)
    if facts.norms_embeddings:
        x = dropout(x, config.hidden_dropout_prob, site(key, config.num_hidden_layers))
    bases = (config.rope_theta, config.local_rope_theta) if facts.rotary else ()
    rotations = [rotation_of(config, position_ids, theta, x.dtype) for theta in bases]
    layer_fn = partial(layer, config=config, segment_ids=segment_ids, rotations=rotations, way=way)
    x = run_layers(layer_fn, x, weights, gather, key, only)
    return _norm(x, outer, "final_norm", config) if facts.norm_first else x
