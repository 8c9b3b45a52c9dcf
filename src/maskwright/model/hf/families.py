"""Each family's conventions in `transformers`: keys of `config.json` for its shape, their defaults, and names of
classes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from maskwright.model.facts import Architecture

SAME_KEYS = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"),
    *("max_position_embeddings", "initializer_range", "pad_token_id"),
)
"""Fields of `ModelConfig` that every family except distilbert has under their own names."""
BERT_KEYS = ("layer_norm_eps", "hidden_dropout_prob", "attention_probs_dropout_prob", "type_vocab_size")


@dataclass(frozen=True)
class Family:
    title: str
    """The name that people write."""
    class_begins: str
    """Beginning of the names of its classes."""
    defaults: dict[str, Any]
    """Values, under the names of `ModelConfig`, of keys that config.json leaves out."""
    needs: dict[str, Any]
    """Keys that must have these values, or be left out, for our model to compute the same."""
    keys: dict[str, str]
    """Names of `ModelConfig` -> keys of config.json."""
    fixed: dict[str, Any] = field(default_factory=dict)
    """Fields of `ModelConfig` for which the family has no key."""
    former_code: str = ""
    """The end of a module's name, and the beginning of its classes', of the code that folders had (`auto_map`) before
    `transformers` took it over."""


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_BERT_NEEDS = {"hidden_act": "gelu", "position_embedding_type": "absolute", "is_decoder": False}
_BERT_DEFAULTS = {
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 2,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
    "pad_token_id": 0,
}
_ROBERTA_DEFAULTS = _BERT_DEFAULTS | {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
_ROTARY_BERT_DEFAULTS = {"layer_norm_eps": 1e-12, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.02}
_IDS = ("bos_token_id", "eos_token_id")
_ROBERTA_KEYS = _same(*SAME_KEYS, *BERT_KEYS, *_IDS)

FAMILIES: dict[Architecture, Family] = {
    "roberta": Family("RoBERTa", "Roberta", _ROBERTA_DEFAULTS, _BERT_NEEDS, _ROBERTA_KEYS),
    "xlm-roberta": Family("XLM-RoBERTa", "XLMRoberta", _ROBERTA_DEFAULTS, _BERT_NEEDS, _ROBERTA_KEYS),
    "camembert": Family("CamemBERT", "Camembert", _ROBERTA_DEFAULTS, _BERT_NEEDS, _ROBERTA_KEYS),
    "bert": Family("BERT", "Bert", _BERT_DEFAULTS, _BERT_NEEDS, _same(*SAME_KEYS, *BERT_KEYS)),
    "distilbert": Family(
        "DistilBERT",
        "DistilBert",
        {
            "initializer_range": 0.02,
            "pad_token_id": 0,
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1,
        },
        {"activation": "gelu", "sinusoidal_pos_embds": False},
        {
            **_same("vocab_size", "max_position_embeddings", "initializer_range", "pad_token_id"),
            "hidden_size": "dim",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "intermediate_size": "hidden_dim",
            "hidden_dropout_prob": "dropout",
            "attention_probs_dropout_prob": "attention_dropout",
        },
        {"layer_norm_eps": 1e-12, "type_vocab_size": 0},
    ),
    "modernbert": Family(
        "ModernBERT",
        "ModernBert",
        {
            "layer_norm_eps": 1e-5,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "initializer_range": 0.02,
            "pad_token_id": 50283,
            "bos_token_id": 50281,
            "eos_token_id": 50282,
            "local_attention": 128,
        },
        {
            "hidden_activation": "gelu",
            "classifier_activation": "gelu",
            "norm_bias": False,
            "attention_bias": False,
            "mlp_bias": False,
            "classifier_bias": False,
            "decoder_bias": True,
        },
        {
            **_same(*SAME_KEYS, *_IDS, "local_attention"),
            "layer_norm_eps": "norm_eps",
            "attention_probs_dropout_prob": "attention_dropout",
            "hidden_dropout_prob": "mlp_dropout",
        },
    ),
    "esm": Family(
        "ESM-2",
        "Esm",
        {
            "layer_norm_eps": 1e-12,
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1,
            "initializer_range": 0.02,
            "rope_theta": 10_000.0,
        },
        {"is_decoder": False, "add_cross_attention": False, "is_folding_model": False},
        _same(*SAME_KEYS, *BERT_KEYS[:3], *_IDS, "rope_theta"),
        {"type_vocab_size": 0},
    ),
    "deberta-v2": Family(
        "DeBERTa",
        "DebertaV2",
        _BERT_DEFAULTS | {"layer_norm_eps": 1e-7, "type_vocab_size": 0},
        {"hidden_act": "gelu", "legacy": True, "pooler_dropout": 0, "pooler_hidden_act": "gelu"},
        _same(*SAME_KEYS, *BERT_KEYS, "position_biased_input"),
    ),
    "eurobert": Family(
        "EuroBERT",
        "EuroBert",
        {
            "layer_norm_eps": 1e-5,
            "attention_probs_dropout_prob": 0.0,
            "initializer_range": 0.02,
            "max_position_embeddings": 8192,
            "pad_token_id": 128_001,
            "bos_token_id": 128_000,
            "eos_token_id": 128_001,
            "mask_token_id": 128_002,
            "tie_word_embeddings": False,
            "classifier_pooling": "late",
        },
        {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
        {
            **_same(
                *SAME_KEYS, *_IDS, "mask_token_id", "num_key_value_heads", "tie_word_embeddings", "classifier_pooling"
            ),
            "layer_norm_eps": "rms_norm_eps",
            "attention_probs_dropout_prob": "attention_dropout",
        },
        {"type_vocab_size": 0},
        former_code="eurobert.EuroBert",
    ),
    "ultrabert": Family(
        "UltraBERT",
        "Ultrabert",
        {
            "layer_norm_eps": 1e-6,
            "attention_probs_dropout_prob": 0.0,
            "initializer_range": 0.02,
            "max_position_embeddings": 32_768,
            "pad_token_id": 0,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "tie_word_embeddings": False,
            "head_hidden_size": 768,
        },
        {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
        {
            **_same(*SAME_KEYS, *_IDS, "num_key_value_heads", "tie_word_embeddings"),
            "layer_norm_eps": "rms_norm_eps",
            "attention_probs_dropout_prob": "attention_dropout",
            "head_hidden_size": "prediction_head_size",
        },
        {"type_vocab_size": 0},
    ),
    "nomic_bert": Family(
        "NomicBERT",
        "NomicBert",
        _ROTARY_BERT_DEFAULTS
        | {
            "hidden_dropout_prob": 0.0,
            "max_position_embeddings": 2048,
            "pad_token_id": 0,
            "type_vocab_size": 2,
        },
        {"hidden_act": "silu"},
        _same(*SAME_KEYS, *BERT_KEYS),
        former_code="hf_nomic_bert.NomicBert",
    ),
    "gte": Family(
        "GTE",
        "Gte",
        _ROTARY_BERT_DEFAULTS
        | {
            "hidden_dropout_prob": 0.1,
            "max_position_embeddings": 8192,
            "pad_token_id": 1,
            "type_vocab_size": 1,
        },
        {"hidden_act": "gelu"},
        _same(*SAME_KEYS, *BERT_KEYS),
    ),
}
