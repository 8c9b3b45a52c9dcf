"""RoBERTa (Liu et al. 2019) and its kin in JAX: the twin of `torch/roberta.py`, on the same numbers and names.

M rows, T tokens, D width, H heads, h width of a head.
"""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp
from jax import Array

from maskwright.model.config import ModelConfig
from maskwright.model.jax.attention import attention
from maskwright.model.jax.parts import Gather, Weights, dropout, gelu, linear, look_up, norm, rows_of, run_layers, site


def layer(
    weights: Weights,
    x: Array,
    number: Array | int,
    key: Array | None,
    only: Array | None,
    *,
    config: ModelConfig,
    segment_ids: Array,
    way: str,
) -> Array:
    """`only` [K]: the result is [K, D], and the part after attention is computed only for those positions."""
    M, T, D = x.shape
    eps, rate = config.layer_norm_eps, config.hidden_dropout_prob
    q, k, v = jnp.unstack(linear(x, weights, "qkv").reshape(M, T, 3, config.num_attention_heads, -1), axis=2)
    p = config.attention_probs_dropout_prob if key is not None else 0.0
    mixed = attention(q, k, v, segment_ids, way=way, dropout=p, key=site(key, 0)).reshape(M, T, D)
    x, mixed = rows_of(x, only), rows_of(mixed, only)
    x = norm(x + dropout(linear(mixed, weights, "out"), rate, site(key, 1)), weights, "norm1", eps)
    inner = linear(gelu(linear(x, weights, "up")), weights, "down")
    return norm(x + dropout(inner, rate, site(key, 2)), weights, "norm2", eps)


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
    tables = ("position.weight", *(["token_type.weight"] if config.type_vocab_size else []))
    outer = {name: gather(name, weights[name]) for name in (*tables, "norm.weight", "norm.bias")}
    position_PD = outer["position.weight"]
    if config.token_type_stride:
        position_PD = (outer["token_type.weight"][:, None] + position_PD).reshape(-1, config.hidden_size)
    elif config.type_vocab_size:
        position_PD = position_PD + outer["token_type.weight"][0]
    x = look_up(weights["word.weight"], input_ids) + look_up(position_PD, position_ids + config.position_offset)
    x = norm(x, outer, "norm", config.layer_norm_eps).astype(position_PD.dtype)
    x = dropout(x, config.hidden_dropout_prob, site(key, config.num_hidden_layers))
    return run_layers(partial(layer, config=config, segment_ids=segment_ids, way=way), x, weights, gather, key, only)
