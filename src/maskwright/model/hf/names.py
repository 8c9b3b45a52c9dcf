"""The one table from Hugging Face's parameter names to this model's, for each architecture.

Checkpoints, engines and export pass parameters as fp32 numpy arrays under Hugging Face names. Inside the model, query,
key and value are one matrix, and the vocabulary is padded. `pieces` says which rows of which inner parameter belong to
a name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from maskwright.model import rotary
from maskwright.model.config import EUROBERTS, SEQUENCE_TASKS, ModelConfig

Parameters = dict[str, NDArray[np.float32]]
OF_VOCABULARY = frozenset({"word.weight", "head.decoder.weight", "head.bias"})
"""Inner parameters with a row for each token, which are padded."""


@dataclass(frozen=True)
class WeightSlice:
    hf_name: str
    name: str
    """The inner parameter."""
    rows: slice
    """The rows of `name` that are `hf_name`."""
    shape: tuple[int, ...]
    """Shape of `hf_name`."""


def pieces(config: ModelConfig) -> Iterator[WeightSlice]:
    """Every trainable parameter of the architecture's class for `config.task`; tied weights come once."""
    if config.architecture == "modernbert":
        return _modernbert(config)
    return _eurobert(config) if config.architecture in EUROBERTS else _bert(config)


def count_parameters(config: ModelConfig) -> int:
    """All trainable numbers; tied weights count once."""
    return sum(math.prod(piece.shape) for piece in pieces(config))


def encoder_pieces(config: ModelConfig) -> Iterator[WeightSlice]:
    """`pieces` without those of the head."""
    return (piece for piece in pieces(config) if not piece.name.startswith("head."))


def has_head(config: ModelConfig, parameters: Parameters) -> bool:
    """Whether the parameters have the head of `config.task`; without it they are a bare encoder."""
    return all(piece.hf_name in parameters for piece in pieces(config))


def encoder_prefix(config: ModelConfig) -> str:
    """What the names of an encoder's parameters begin with inside a class with a head, such as `roberta.`. A bare
    encoder is saved without it."""
    return next(pieces(config)).hf_name.partition(".")[0] + "."


def has_pooler(config: ModelConfig) -> bool:
    """Whether the first matrix of a whole text's head is the encoder's pooler in `transformers`, as in BERT."""
    return any(".pooler." in piece.hf_name for piece in pieces(replace(config, task="regression", num_labels=1)))


def vocabulary_rows(config: ModelConfig) -> list[str]:
    """The Hugging Face names of the parameters that have a row for each token."""
    return [piece.hf_name for piece in pieces(config) if piece.name in OF_VOCABULARY]


def _all_rows(hf_name: str, name: str, *shape: int) -> WeightSlice:
    return WeightSlice(hf_name, name, slice(0, shape[0]), shape)


@dataclass(frozen=True)
class Names:
    """The parameter names of a family that has BERT's layers."""

    encoder: str
    layer: str
    qkv: tuple[str, str, str]
    out: str
    norm1: str
    up: str
    down: str
    norm2: str
    head: tuple[str, str, str]
    """The masked-LM head's matrix, norm and bias."""
    classifier: tuple[str, str]
    """A whole text's two matrices."""
    final_norm: str = ""
    """Only for a family with LayerNorm before each sub-layer: the last one."""
    gate: str = ""
    """Only for a family with gated layers: the matrix whose half is activated."""


_BERT = Names(
    encoder="bert",
    layer="encoder.layer",
    qkv=("attention.self.query", "attention.self.key", "attention.self.value"),
    out="attention.output.dense",
    norm1="attention.output.LayerNorm",
    up="intermediate.dense",
    down="output.dense",
    norm2="output.LayerNorm",
    head=("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"),
    classifier=("bert.pooler.dense", "classifier"),
)
_ROBERTA = replace(
    _BERT,
    encoder="roberta",
    head=("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
    classifier=("classifier.dense", "classifier.out_proj"),
)
_DISTILBERT = Names(
    encoder="distilbert",
    layer="transformer.layer",
    qkv=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    out="attention.out_lin",
    norm1="sa_layer_norm",
    up="ffn.lin1",
    down="ffn.lin2",
    norm2="output_layer_norm",
    head=("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
    classifier=("pre_classifier", "classifier"),
)
_ESM = replace(
    _ROBERTA,
    encoder="esm",
    norm1="attention.LayerNorm",
    norm2="LayerNorm",
    final_norm="encoder.emb_layer_norm_after",
)
_DEBERTA = replace(
    _BERT,
    encoder="deberta",
    qkv=("attention.self.query_proj", "attention.self.key_proj", "attention.self.value_proj"),
    classifier=("pooler.dense", "classifier"),
)
_NOMIC = Names(
    encoder="nomic_bert",
    layer="layers",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    out="self_attn.o_proj",
    norm1="post_attention_layernorm",
    up="mlp.up_proj",
    down="mlp.down_proj",
    norm2="post_mlp_layernorm",
    head=("cls.predictions.transform.dense", "cls.predictions.transform.layer_norm", "cls.predictions.bias"),
    classifier=("nomic_bert.pooler.dense", "classifier"),
    gate="mlp.gate_proj",
)
_GTE = replace(
    _NOMIC,
    encoder="gte",
    head=("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder.bias"),
    classifier=("gte.pooler.dense", "classifier"),
)
_OF_BERTS = {
    "bert": _BERT,
    "distilbert": _DISTILBERT,
    "esm": _ESM,
    "deberta-v2": _DEBERTA,
    "nomic_bert": _NOMIC,
    "gte": _GTE,
}


def buffers(config: ModelConfig) -> Parameters:
    """The arrays of the architecture's class that are not trained, under Hugging Face names: the speeds of ESM-2's
    rotary positions."""
    if config.architecture != "esm":
        return {}
    speeds = rotary.speeds(config, config.rope_theta)
    # One a layer: transformers 4 reads no other name, and 5 reads these too.
    layers = range(config.num_hidden_layers)
    return {f"esm.encoder.layer.{i}.attention.self.rotary_embeddings.inv_freq": speeds.copy() for i in layers}


def _stacked(hf_names: Sequence[str], name: str, rows: int, columns: int, *, biased: bool) -> Iterator[WeightSlice]:
    """Matrices of so many rows each, which are one inner parameter, and their biases."""
    for part, hf_name in enumerate(hf_names):
        place = slice(part * rows, (part + 1) * rows)
        yield WeightSlice(f"{hf_name}.weight", f"{name}.weight", place, (rows, columns))
        if biased:
            yield WeightSlice(f"{hf_name}.bias", f"{name}.bias", place, (rows,))


def _bert(config: ModelConfig) -> Iterator[WeightSlice]:
    names = _OF_BERTS.get(config.architecture, _ROBERTA)
    V, D, F = config.vocab_size, config.hidden_size, config.intermediate_size

    def linear(hf_name: str, name: str, rows: int, columns: int, *, biased: bool = True) -> Iterator[WeightSlice]:
        yield from _stacked((hf_name,), name, rows, columns, biased=biased)

    def norm(hf_name: str, name: str) -> Iterator[WeightSlice]:
        yield _all_rows(f"{hf_name}.weight", f"{name}.weight", D)
        yield _all_rows(f"{hf_name}.bias", f"{name}.bias", D)

    embeddings = f"{names.encoder}.embeddings"
    yield _all_rows(f"{embeddings}.word_embeddings.weight", "word.weight", V, D)
    if config.learned_positions:
        positions = config.max_position_embeddings
        yield _all_rows(f"{embeddings}.position_embeddings.weight", "position.weight", positions, D)
    if config.type_vocab_size:
        yield _all_rows(f"{embeddings}.token_type_embeddings.weight", "token_type.weight", config.type_vocab_size, D)
    if config.norms_embeddings:
        yield from norm(f"{embeddings}.LayerNorm", "norm")
    for i in range(config.num_hidden_layers):
        theirs, ours = f"{names.encoder}.{names.layer}.{i}", f"layers.{i}"
        queries_keys_values = [f"{theirs}.{role}" for role in names.qkv]
        yield from _stacked(queries_keys_values, f"{ours}.qkv", D, D, biased=config.biased)
        yield from linear(f"{theirs}.{names.out}", f"{ours}.out", D, D, biased=config.biased)
        yield from norm(f"{theirs}.{names.norm1}", f"{ours}.norm1")
        ups = [f"{theirs}.{role}" for role in ((names.gate, names.up) if config.gated else (names.up,))]
        yield from _stacked(ups, f"{ours}.up", F, D, biased=config.up_biased)
        yield from linear(f"{theirs}.{names.down}", f"{ours}.down", D, F, biased=config.biased)
        yield from norm(f"{theirs}.{names.norm2}", f"{ours}.norm2")
    if config.norm_first:
        yield from norm(f"{names.encoder}.{names.final_norm}", "final_norm")
    if config.disentangled:
        yield _all_rows("deberta.encoder.rel_embeddings.weight", "relative.weight", 2 * config.relative_span, D)
        yield from norm("deberta.encoder.LayerNorm", "relative_norm")
    if config.conv_kernel_size:
        yield _all_rows("deberta.encoder.conv.conv.weight", "conv.weight", D, D, config.conv_kernel_size)
        yield _all_rows("deberta.encoder.conv.conv.bias", "conv.bias", D)
        yield from norm("deberta.encoder.conv.LayerNorm", "conv_norm")
    if config.task == "masked_lm":
        dense, layer_norm, bias = names.head
        yield from linear(dense, "head.dense", D, D)
        yield from norm(layer_norm, "head.norm")
        yield _all_rows(bias, "head.bias", V)
    elif config.task in SEQUENCE_TASKS:
        dense, classifier = names.classifier
        yield from linear(dense, "head.dense", D, D)
        yield from linear(classifier, "head.classifier", config.num_labels, D)
    else:
        name = "qa_outputs" if config.task == "question_answering" else "classifier"
        yield from linear(name, "head.classifier", config.num_labels, D)


def _modernbert(config: ModelConfig) -> Iterator[WeightSlice]:
    V, D, F = config.vocab_size, config.hidden_size, config.intermediate_size
    yield _all_rows("model.embeddings.tok_embeddings.weight", "word.weight", V, D)
    yield _all_rows("model.embeddings.norm.weight", "norm.weight", D)
    for i in range(config.num_hidden_layers):
        theirs, ours = f"model.layers.{i}", f"layers.{i}"
        if i:  # the embeddings' norm stands before the first layer
            yield _all_rows(f"{theirs}.attn_norm.weight", f"{ours}.norm1.weight", D)
        yield _all_rows(f"{theirs}.attn.Wqkv.weight", f"{ours}.qkv.weight", 3 * D, D)
        yield _all_rows(f"{theirs}.attn.Wo.weight", f"{ours}.out.weight", D, D)
        yield _all_rows(f"{theirs}.mlp_norm.weight", f"{ours}.norm2.weight", D)
        yield _all_rows(f"{theirs}.mlp.Wi.weight", f"{ours}.up.weight", 2 * F, D)
        yield _all_rows(f"{theirs}.mlp.Wo.weight", f"{ours}.down.weight", D, F)
    yield _all_rows("model.final_norm.weight", "final_norm.weight", D)
    yield _all_rows("head.dense.weight", "head.dense.weight", D, D)
    yield _all_rows("head.norm.weight", "head.norm.weight", D)
    if config.task == "masked_lm":
        yield _all_rows("decoder.bias", "head.bias", V)
    else:
        yield _all_rows("classifier.weight", "head.classifier.weight", config.num_labels, D)
        yield _all_rows("classifier.bias", "head.classifier.bias", config.num_labels)


def _eurobert(config: ModelConfig) -> Iterator[WeightSlice]:
    V, D, F = config.vocab_size, config.hidden_size, config.intermediate_size
    yield _all_rows("model.embed_tokens.weight", "word.weight", V, D)
    for i in range(config.num_hidden_layers):
        theirs, ours, begin = f"model.layers.{i}", f"layers.{i}", 0
        yield _all_rows(f"{theirs}.input_layernorm.weight", f"{ours}.norm1.weight", D)
        for role, rows in (("q", D), ("k", config.key_value_width), ("v", config.key_value_width)):
            name = f"{theirs}.self_attn.{role}_proj.weight"
            yield WeightSlice(name, f"{ours}.qkv.weight", slice(begin, begin + rows), (rows, D))
            begin += rows
        yield _all_rows(f"{theirs}.self_attn.o_proj.weight", f"{ours}.out.weight", D, D)
        yield _all_rows(f"{theirs}.post_attention_layernorm.weight", f"{ours}.norm2.weight", D)
        for part, role in enumerate(("gate", "up")):
            half = slice(part * F, (part + 1) * F)
            yield WeightSlice(f"{theirs}.mlp.{role}_proj.weight", f"{ours}.up.weight", half, (F, D))
        yield _all_rows(f"{theirs}.mlp.down_proj.weight", f"{ours}.down.weight", D, F)
    yield _all_rows("model.norm.weight", "final_norm.weight", D)
    if config.task == "masked_lm":
        if inner := config.head_hidden_size:
            yield _all_rows("head.linear1.weight", "head.first.weight", inner, D)
            yield _all_rows("head.linear2.weight", "head.second.weight", D, inner)
        if not config.tie_word_embeddings:
            decoder = "head.decoder.weight" if config.architecture == "ultrabert" else "lm_head.weight"
            yield _all_rows(decoder, "head.decoder.weight", V, D)
        return
    if config.classifier_has_dense:
        yield _all_rows("dense.weight", "head.dense.weight", D, D)
        yield _all_rows("dense.bias", "head.dense.bias", D)
    name = "qa_outputs" if config.task == "question_answering" else "classifier"
    yield _all_rows(f"{name}.weight", "head.classifier.weight", config.num_labels, D)
    yield _all_rows(f"{name}.bias", "head.classifier.bias", config.num_labels)
