"""The one table from Hugging Face's parameter names to this model's, for each architecture.

Checkpoints, engines and export pass parameters as fp32 numpy arrays under Hugging Face names. Inside the model, query,
key and value are one matrix, and the vocabulary is padded. `pieces` lists, for each name, its rows and their inner
parameter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from maskwright.model import rotary
from maskwright.model.config import SEQUENCE_TASKS, ModelConfig
from maskwright.model.facts import Architecture

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
    names = NAMES[config.architecture]
    yield from _embeddings(config, names)
    for number in range(config.num_hidden_layers):
        yield from _layer(config, names, number)
    if config.facts.norm_first:
        yield from _norm(config, f"{names.encoder}.{names.final_norm}", "final_norm")
    if config.facts.relative == "terms":
        yield from _disentangled(config)
    if config.facts.relative == "bias":
        shape = config.position_buckets, config.num_attention_heads
        yield _whole(f"{names.encoder}.encoder.relative_attention_bias.weight", "relative.weight", *shape)
    yield from (_masked_lm_head if config.task == "masked_lm" else _classifier)(config, names)


def count_parameters(config: ModelConfig) -> int:
    """All trainable numbers; tied weights count once."""
    return sum(math.prod(piece.shape) for piece in pieces(config))


def encoder_pieces(config: ModelConfig) -> Iterator[WeightSlice]:
    """`pieces` without the head's."""
    return (piece for piece in pieces(config) if not piece.name.startswith("head."))


def has_head(config: ModelConfig, parameters: Parameters) -> bool:
    """Whether the parameters have the head of `config.task`; without it they are a bare encoder."""
    return all(piece.hf_name in parameters for piece in pieces(config))


def encoder_prefix(config: ModelConfig) -> str:
    """The prefix of an encoder's parameters inside a class with a head, such as `roberta.`. A bare encoder is saved
    without it."""
    return next(pieces(config)).hf_name.partition(".")[0] + "."


def has_pooler(config: ModelConfig) -> bool:
    """Whether the first matrix of a whole text's head is the encoder's pooler in `transformers`, as in BERT."""
    return any(".pooler." in piece.hf_name for piece in pieces(replace(config, task="regression", num_labels=1)))


def vocabulary_rows(config: ModelConfig) -> list[str]:
    """The Hugging Face names of the parameters that have a row for each token."""
    return [piece.hf_name for piece in pieces(config) if piece.name in OF_VOCABULARY]


def tied_names(config: ModelConfig) -> dict[str, str]:
    """Names under which `transformers` writes a tied output matrix and its bias, or leaves them out -> names in
    `pieces`."""
    names, word = NAMES[config.architecture], next(pieces(config)).hf_name
    if not config.tie_word_embeddings:
        return {}
    tied = {f"{names.decoder}.weight": word, f"{names.decoder}.bias": names.bias}
    return {name: ours for name, ours in tied.items() if ours and name != ours}


def buffers(config: ModelConfig) -> Parameters:
    """The arrays of the architecture's class that are not trained, under Hugging Face names: the speeds of ESM-2's
    rotary positions."""
    if config.architecture != "esm":
        return {}
    speeds = rotary.speeds(config, config.rope_theta)
    # One a layer: transformers 4 reads no other name, and 5 reads these too.
    layers = range(config.num_hidden_layers)
    return {f"esm.encoder.layer.{i}.attention.self.rotary_embeddings.inv_freq": speeds.copy() for i in layers}


# ---- the families' names ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Names:
    """A family's names of parameters, without `.weight` and `.bias`. The defaults are BERT's."""

    encoder: str
    """The prefix of all names of the encoder; it precedes the names down to `final_norm`."""
    word: str = "embeddings.word_embeddings"
    norm: str = "embeddings.LayerNorm"
    layer: str = "encoder.layer"
    """Followed by a layer's number, and then by the names down to `norm2`."""
    qkv: tuple[str, ...] = ("attention.self.query", "attention.self.key", "attention.self.value")
    out: str = "attention.output.dense"
    norm1: str = "attention.output.LayerNorm"
    up: tuple[str, ...] = ("intermediate.dense",)
    """The matrix, or of a gated layer the one whose half is activated, and the other."""
    down: str = "output.dense"
    norm2: str = "output.LayerNorm"
    final_norm: str = ""
    """The last norm of a family with norms before each sub-layer."""
    head: tuple[str, str] = ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm")
    """The masked-LM head's matrix and norm."""
    decoder: str = "cls.predictions.decoder"
    """Its output matrix."""
    bias: str = "cls.predictions.bias"
    """Its output bias, whole."""
    classifier: tuple[str, str] = ("bert.pooler.dense", "classifier")
    """A whole text's two matrices."""
    questions: str = "qa_outputs"
    """The matrix of a head for questions."""


_ROBERTA = Names(
    "roberta",
    head=("lm_head.dense", "lm_head.layer_norm"),
    decoder="lm_head.decoder",
    bias="lm_head.bias",
    classifier=("classifier.dense", "classifier.out_proj"),
)
_EUROBERT = Names(
    "model",
    word="embed_tokens",
    layer="layers",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    out="self_attn.o_proj",
    norm1="input_layernorm",
    up=("mlp.gate_proj", "mlp.up_proj"),
    down="mlp.down_proj",
    norm2="post_attention_layernorm",
    final_norm="norm",
    decoder="lm_head",
    bias="",
    classifier=("dense", "classifier"),
)
_NOMIC = replace(
    _EUROBERT,
    encoder="nomic_bert",
    word=Names.word,
    norm1="post_attention_layernorm",
    norm2="post_mlp_layernorm",
    head=("cls.predictions.transform.dense", "cls.predictions.transform.layer_norm"),
    decoder="cls.predictions.decoder",
    bias="cls.predictions.bias",
    classifier=("nomic_bert.pooler.dense", "classifier"),
)
NAMES: dict[Architecture, Names] = {
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "bert": Names("bert"),
    "distilbert": Names(
        "distilbert",
        layer="transformer.layer",
        qkv=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        out="attention.out_lin",
        norm1="sa_layer_norm",
        up=("ffn.lin1",),
        down="ffn.lin2",
        norm2="output_layer_norm",
        head=("vocab_transform", "vocab_layer_norm"),
        decoder="vocab_projector",
        bias="vocab_projector.bias",
        classifier=("pre_classifier", "classifier"),
    ),
    "modernbert": Names(
        "model",
        word="embeddings.tok_embeddings",
        norm="embeddings.norm",
        layer="layers",
        qkv=("attn.Wqkv",),
        out="attn.Wo",
        norm1="attn_norm",
        up=("mlp.Wi",),
        down="mlp.Wo",
        norm2="mlp_norm",
        final_norm="final_norm",
        head=("head.dense", "head.norm"),
        decoder="decoder",
        bias="decoder.bias",
        questions="classifier",
    ),
    "esm": replace(
        _ROBERTA,
        encoder="esm",
        norm1="attention.LayerNorm",
        norm2="LayerNorm",
        final_norm="encoder.emb_layer_norm_after",
    ),
    "mpnet": replace(
        _ROBERTA,
        encoder="mpnet",
        qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
        out="attention.attn.o",
        norm1="attention.LayerNorm",
    ),
    "deberta-v2": Names(
        "deberta",
        qkv=("attention.self.query_proj", "attention.self.key_proj", "attention.self.value_proj"),
        classifier=("pooler.dense", "classifier"),
    ),
    "eurobert": _EUROBERT,
    "ultrabert": replace(_EUROBERT, decoder="head.decoder"),
    "nomic_bert": _NOMIC,
    "gte": replace(
        _NOMIC,
        encoder="gte",
        head=("lm_head.dense", "lm_head.layer_norm"),
        decoder="lm_head.decoder",
        bias="lm_head.decoder.bias",
        classifier=("gte.pooler.dense", "classifier"),
    ),
}


# ---- one generator for all -------------------------------------------------------------------------------------------


def _whole(hf_name: str, name: str, *shape: int) -> WeightSlice:
    return WeightSlice(hf_name, name, slice(0, shape[0]), shape)


def _linear(name: str, columns: int, biased: bool, *parts: tuple[str, int]) -> Iterator[WeightSlice]:
    """Matrices `parts` (name, rows), which are one inner parameter, one below the other, and their biases."""
    begin = 0
    for hf_name, rows in parts:
        place = slice(begin, begin := begin + rows)
        yield WeightSlice(f"{hf_name}.weight", f"{name}.weight", place, (rows, columns))
        if biased:
            yield WeightSlice(f"{hf_name}.bias", f"{name}.bias", place, (rows,))


def _norm(config: ModelConfig, hf_name: str, name: str) -> Iterator[WeightSlice]:
    for part in ("weight", "bias") if config.facts.norms_biased else ("weight",):
        yield _whole(f"{hf_name}.{part}", f"{name}.{part}", config.hidden_size)


def _embeddings(config: ModelConfig, names: Names) -> Iterator[WeightSlice]:
    D = config.hidden_size
    yield _whole(f"{names.encoder}.{names.word}.weight", "word.weight", config.vocab_size, D)
    tables = f"{names.encoder}.embeddings"
    if config.learned_positions:
        yield _whole(f"{tables}.position_embeddings.weight", "position.weight", config.max_position_embeddings, D)
    if config.has_token_types:
        yield _whole(f"{tables}.token_type_embeddings.weight", "token_type.weight", config.type_vocab_size, D)
    if config.facts.norms_embeddings:
        yield from _norm(config, f"{names.encoder}.{names.norm}", "norm")


def _layer(config: ModelConfig, names: Names, number: int) -> Iterator[WeightSlice]:
    D, F, facts = config.hidden_size, config.intermediate_size, config.facts
    theirs, ours = f"{names.encoder}.{names.layer}.{number}.", f"layers.{number}."
    rows = (D, config.key_value_width, config.key_value_width) if len(names.qkv) == 3 else (3 * D,)
    qkv = ((theirs + name, of_each) for name, of_each in zip(names.qkv, rows, strict=True))
    yield from _linear(f"{ours}qkv", D, facts.biased, *qkv)
    yield from _linear(f"{ours}out", D, facts.biased, (theirs + names.out, D))
    if number or not (facts.norm_first and facts.norms_embeddings):  # else the embeddings' norm is before it
        yield from _norm(config, theirs + names.norm1, f"{ours}norm1")
    inner = (2 * F if facts.gated else F) // len(names.up)
    yield from _linear(f"{ours}up", D, facts.biased and not facts.gated, *((theirs + up, inner) for up in names.up))
    yield from _linear(f"{ours}down", F, facts.biased, (theirs + names.down, D))
    yield from _norm(config, theirs + names.norm2, f"{ours}norm2")


def _disentangled(config: ModelConfig) -> Iterator[WeightSlice]:
    D = config.hidden_size
    yield _whole("deberta.encoder.rel_embeddings.weight", "relative.weight", 2 * config.relative_span, D)
    yield from _norm(config, "deberta.encoder.LayerNorm", "relative_norm")
    if config.conv_kernel_size:
        yield _whole("deberta.encoder.conv.conv.weight", "conv.weight", D, D, config.conv_kernel_size)
        yield _whole("deberta.encoder.conv.conv.bias", "conv.bias", D)
        yield from _norm(config, "deberta.encoder.conv.LayerNorm", "conv_norm")


def _transform(config: ModelConfig, names: Names) -> Iterator[WeightSlice]:
    """A head's matrix and norm."""
    dense, norm = names.head
    yield from _linear("head.dense", config.hidden_size, config.facts.norms_biased, (dense, config.hidden_size))
    yield from _norm(config, norm, "head.norm")


def _masked_lm_head(config: ModelConfig, names: Names) -> Iterator[WeightSlice]:
    V, D = config.vocab_size, config.hidden_size
    if config.facts.masked_lm_transforms:
        yield from _transform(config, names)
        yield _whole(names.bias, "head.bias", V)
    if inner := config.head_hidden_size:
        yield _whole("head.linear1.weight", "head.first.weight", inner, D)
        yield _whole("head.linear2.weight", "head.second.weight", D, inner)
    if not config.tie_word_embeddings:
        yield _whole(f"{names.decoder}.weight", "head.decoder.weight", V, D)


def _classifier(config: ModelConfig, names: Names) -> Iterator[WeightSlice]:
    D, (dense, name) = config.hidden_size, names.classifier
    if config.facts.classifier_has_norm:
        yield from _transform(config, names)
    elif config.classifier_has_dense:
        yield from _linear("head.dense", D, True, (dense, D))
    if config.task not in SEQUENCE_TASKS:
        name = names.questions if config.task == "question_answering" else "classifier"
    yield from _linear("head.classifier", D, True, (name, config.num_labels))
