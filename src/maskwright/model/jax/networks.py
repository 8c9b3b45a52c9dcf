"""Code that all architectures share in JAX: parameters in and out, heads, losses.

Parameters are a dictionary of fp32 arrays under the torch network's inner names, with all layers stacked in one array:
`layers.0.qkv.weight`, `layers.1.qkv.weight`, … [3D, D] are `layers.qkv.weight` [L, 3D, D]. So only one layer is traced
and compiled, at any depth.

M rows, T tokens, D width, K predicted positions, V vocabulary (padded).
"""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from maskwright.model.config import NEVER_PREDICTED, ModelConfig, TaskKind
from maskwright.model.hf.names import OF_VOCABULARY, Parameters, WeightSlice, pieces
from maskwright.model.jax.encoder import encode
from maskwright.model.jax.parts import ACTIVATIONS, LAYERS, Gather, Weights, dropout, gelu, linear, norm, rows_of, site

Stacked = dict[str, NDArray[np.float32]]


def _places(config: ModelConfig) -> Iterator[tuple[WeightSlice, str, int | None]]:
    """Yields each piece with the name of its array, and its layer."""
    for piece in pieces(config):
        if not piece.name.startswith(LAYERS):
            yield piece, piece.name, None
        else:
            _, number, name = piece.name.split(".", 2)
            yield piece, LAYERS + name, int(number)


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every array. In modernbert, `layers.norm1.weight` has an unused row for the first layer."""
    result: dict[str, tuple[int, ...]] = {}
    for piece, name, layer in _places(config):
        rows = piece.rows.stop if piece.name not in OF_VOCABULARY else config.padded_vocab_size
        shape = (rows, *piece.shape[1:])
        result[name] = max(result.get(name, ()), shape if layer is None else (config.num_hidden_layers, *shape))
    return result


def stack(parameters: Parameters, config: ModelConfig, padding: float = 0.0) -> Stacked:
    """Converts arrays under Hugging Face names to this engine's arrays, if `parameters` has them.

    `padding` fills the padded rows of the head's bias: `NEVER_PREDICTED` for weights, 0 for optimizer moments.
    """
    sizes, stacked = shapes(config), {}
    for piece, name, layer in _places(config):
        if piece.hf_name not in parameters:
            continue
        if name not in stacked:
            stacked[name] = np.full(sizes[name], padding if name == "head.bias" else 0.0, np.float32)
        into = stacked[name] if layer is None else stacked[name][layer]
        into[piece.rows] = parameters[piece.hf_name]
    return stacked


def unstack(stacked: Stacked, config: ModelConfig) -> Parameters:
    """The reverse of `stack`: copies under Hugging Face names."""
    return {
        piece.hf_name: (stacked[name] if layer is None else stacked[name][layer])[piece.rows].copy()
        for piece, name, layer in _places(config)
        if name in stacked
    }


def logits(
    weights: Weights,
    config: ModelConfig,
    input_ids: Array,
    position_ids: Array,
    segment_ids: Array,
    predict_index: Array,
    *,
    gather: Gather,
    way: str,
    key: Array | None = None,
) -> Array:
    """Logits [K, V], or [K, num_labels], at `predict_index` int32 [K] of the flattened rows; other arguments as in
    `encode`."""
    weights = weights | {"word.weight": gather("word.weight", weights["word.weight"])}
    only = predict_index if len(predict_index) < input_ids.size and not config.pools else None
    inputs = input_ids, position_ids, segment_ids
    x = encode(weights, config, *inputs, gather=gather, way=way, key=key, only=only)
    head = {name: gather(name, array) for name, array in weights.items() if name.startswith("head.")}
    if not config.pools:
        x_KD = x if only is not None else rows_of(x, predict_index)
        if config.task == "masked_lm":
            return _of_vocabulary(x_KD, head, weights["word.weight"], config)
        return _classified(x_KD, head, key, config)
    x_ND = x.reshape(-1, config.hidden_size)
    if config.classifier_pooling == "mean":
        return _classified(_means(x_ND, position_ids, predict_index), head, key, config)
    return _means(_classified(x_ND, head, key, config), position_ids, predict_index)


def _of_vocabulary(x_KD: Array, head: Weights, word_VD: Array, config: ModelConfig) -> Array:
    """Logits [K, V] of masked_lm."""
    if config.facts.masked_lm_transforms:
        active = ACTIVATIONS[config.facts.masked_lm_activation](linear(x_KD, head, "head.dense"))
        x_KD = norm(active, head, "head.norm", config.layer_norm_eps)
        return jnp.einsum("kd,vd->kv", x_KD, word_VD) + head["head.bias"]
    for name in ("head.first", "head.second") if config.head_hidden_size else ():
        x_KD = gelu(linear(x_KD, head, name), approximate=True)
    decoder = word_VD if config.tie_word_embeddings else head["head.decoder.weight"]
    beyond = jnp.arange(config.padded_vocab_size) >= config.vocab_size
    return jnp.where(beyond, NEVER_PREDICTED, jnp.einsum("kd,vd->kv", x_KD, decoder)).astype(x_KD.dtype)


def _classified(x_KD: Array, head: Weights, key: Array | None, config: ModelConfig) -> Array:
    """Logits [K, num_labels] of the other tasks."""
    rate, place = config.classifier_dropout_prob, config.num_hidden_layers + 1
    if config.facts.classifier_has_norm:
        x_KD = norm(gelu(linear(x_KD, head, "head.dense")), head, "head.norm", config.layer_norm_eps)
    elif config.classifier_has_dense:
        x_KD = dropout(x_KD, rate if config.facts.classifier_drops_twice else 0.0, site(key, place))
        dense = linear(x_KD, head, "head.dense").astype(jnp.float32)
        x_KD = ACTIVATIONS[config.facts.classifier_activation](dense).astype(x_KD.dtype)
    x_KD = dropout(x_KD, rate, site(key, place + 1))
    return linear(x_KD.astype(jnp.float32) if config.task == "regression" else x_KD, head, "head.classifier")


def _means(x_NC: Array, position_ids: Array, first_K: Array) -> Array:
    """The mean over each text's tokens, [K, C]; texts are found as in `torch.heads.shares_of_texts`."""
    holds_KN = jnp.arange(position_ids.size) - position_ids.reshape(-1) == first_K[:, None]
    sums = jnp.einsum("kn,nc->kc", holds_KN.astype(jnp.float32), x_NC.astype(jnp.float32), precision="highest")
    return (sums / holds_KN.sum(1, keepdims=True)).astype(x_NC.dtype)


def losses(task: TaskKind, logits: Array, labels: Array, smoothing: float = 0.0) -> Array:
    """The loss of each example or position in fp32: the twin of `torch.heads.loss_sum`, before its weights."""
    if smoothing and task == "masked_lm":
        raise ValueError("label smoothing would raise the logits of the vocabulary's padding")
    logits = logits.astype(jnp.float32)
    if task == "multi_label_classification":
        binary = jnp.maximum(logits, 0.0) - logits * labels + jnp.log1p(jnp.exp(-jnp.abs(logits)))
        return binary.mean(-1)
    if task == "regression":
        return jnp.square(logits - labels).mean(-1)
    if task == "question_answering":
        both = jnp.swapaxes(logits.reshape(len(labels), -1, 2), 1, 2)  # [M, 2, T]
        return _cross_entropy(both, labels, 0.0).mean(-1)
    return _cross_entropy(logits, labels, smoothing)


def _cross_entropy(logits: Array, labels: Array, smoothing: float) -> Array:
    """Cross-entropy of logits [..., C] and labels [...] -> [...]."""
    total = jax.nn.logsumexp(logits, axis=-1)
    loss = total - jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return loss if not smoothing else (1.0 - smoothing) * loss + smoothing * (total - logits.mean(-1))
