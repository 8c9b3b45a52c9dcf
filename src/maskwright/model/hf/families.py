"""Each family's conventions in `transformers`: names of classes, keys of config.json for its shape and their defaults,
and `read` and `write` for keys that give a field in another form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from maskwright.core.errors import ModelError
from maskwright.model.config import ModelConfig
from maskwright.model.facts import Architecture

LARGEST_DIMENSION = 2**26

SAME_KEYS = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"),
    *("max_position_embeddings", "initializer_range", "pad_token_id"),
)
"""Fields of `ModelConfig` that every family except distilbert has under their own names."""
BERT_KEYS = ("layer_norm_eps", "hidden_dropout_prob", "attention_probs_dropout_prob", "type_vocab_size")
DEBERTA_NEEDS = {"relative_attention": True, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
CONVOLUTION_NEEDS = {"conv_act": "gelu", "conv_groups": 1}
"""Keys that must have these values. Except for `conv_groups`, their defaults in `transformers` differ."""


@dataclass(frozen=True)
class Written:
    """The values of a config.json, and its path."""

    values: dict[str, Any]
    path: str

    def __getitem__(self, key: str) -> Any:
        return self.values.get(key)

    def refused(self, what: str, fix: str = "restore config.json") -> ModelError:
        return ModelError(what, where=self.path, fix=fix)

    def cannot_be(self, key: str, value: Any) -> ModelError:
        return self.refused(f"{key} is {value!r:.40}, which is invalid")

    def require(self, given: Mapping[str, Any], needs: Mapping[str, Any], fix: str) -> None:
        """Raises `ModelError` unless `given` has these values."""
        for key, needed in needs.items():
            if given.get(key) != needed:
                raise self.refused(f"{key} is {given.get(key)!r:.40}, only {needed!r} is supported", fix)


def _nothing(_: object) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Family:
    title: str
    """The usual name."""
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
    """The end of the module's name, and the beginning of its classes', of code in folders (`auto_map`) from before
    `transformers` included it."""
    head_dropouts: tuple[str, str] = ("classifier_dropout", "classifier_dropout")
    """Keys of the dropout before the matrices of a classifier, and of a head for questions."""
    head_dropout: float | None = None
    """The value if config.json leaves it out; None for the value of hidden states."""
    read: Callable[[Written], dict[str, Any]] = _nothing
    """Fields of `ModelConfig` beyond `keys`, of a config.json. Raises `ModelError`."""
    write: Callable[[ModelConfig], dict[str, Any]] = _nothing
    """Keys of config.json beyond `keys`."""


# ---- keys that mean a field by another form --------------------------------------------------------------------------


def _read_esm(written: Written) -> dict[str, Any]:
    """Raises `ModelError` for ESM-1b and ESM-1v, which also have this type."""
    if written["position_embedding_type"] != "rotary" or written["emb_layer_norm_before"]:
        what = "is not ESM-2's, which has rotary positions and no norm after the embeddings"
        raise written.refused(what, "use an ESM-2, such as facebook/esm2_t6_8M_UR50D")
    drops, mask, size = bool(written["token_dropout"]), written["mask_token_id"], written["vocab_size"]
    if drops and (type(mask) is not int or type(size) is not int or not 0 <= mask < size):
        raise written.cannot_be("mask_token_id", mask)
    return {"token_dropout": drops, "mask_token_id": mask if drops else 0}


def _write_esm(config: ModelConfig) -> dict[str, Any]:
    return {
        "emb_layer_norm_before": False,
        "mask_token_id": config.mask_token_id,
        "position_embedding_type": "rotary",
        "token_dropout": config.token_dropout,
    }


def _read_deberta(written: Written) -> dict[str, Any]:
    """Raises `ModelError` for settings that no published v2 or v3 has."""
    values, width, heads = written.values, written["hidden_size"], written["num_attention_heads"]
    longest = values.get("max_position_embeddings", 512)
    unset = {"position_buckets": -1, "max_relative_positions": -1, "conv_kernel_size": 0}
    buckets, furthest, kernel = sizes = [values.get(key, default) for key, default in unset.items()]
    for key, size in zip(unset, sizes, strict=True):
        is_even = type(size) is int and size > 0 and size % 2 == 0
        if type(size) is not int or size >= LARGEST_DIMENSION or (key == "conv_kernel_size" and is_even):
            raise written.cannot_be(key, size)
    needs: dict[str, Any] = DEBERTA_NEEDS | (CONVOLUTION_NEEDS if kernel > 0 else {})
    if type(width) is int and type(heads) is int and heads > 0:
        of_width = {"embedding_size": width, "pooler_hidden_size": width, "attention_head_size": width // heads}
        needs |= {key: size for key, size in of_width.items() if written[key] is not None}
    fix = "use a model with this setting, as in all published DeBERTas v2 and v3"
    written.require({"conv_groups": 1, **values}, needs, fix)
    terms = values.get("pos_att_type")
    terms = [term.strip() for term in terms.lower().split("|")] if isinstance(terms, str) else terms
    if not isinstance(terms, list) or not terms or not all(term in ("c2p", "p2c") for term in terms):
        raise written.refused(
            f"pos_att_type is {values.get('pos_att_type')!r:.40}", "use a model with c2p, p2c or both"
        )
    return {
        "max_position_embeddings": longest,
        "position_biased_input": values.get("position_biased_input", True),
        "pos_att_type": "|".join(sorted(set(terms))),
        "position_buckets": max(buckets, 0),
        "max_relative_positions": furthest if furthest > 0 else longest,
        "conv_kernel_size": max(kernel, 0),
    }


def _write_deberta(config: ModelConfig) -> dict[str, Any]:
    convolution = CONVOLUTION_NEEDS | {"conv_kernel_size": config.conv_kernel_size}
    return DEBERTA_NEEDS | {
        "position_buckets": config.position_buckets or -1,
        "max_relative_positions": config.max_relative_positions,
        "pos_att_type": config.pos_att_type,
        "pooler_hidden_size": config.hidden_size,
        **(convolution if config.conv_kernel_size else {}),
    }


def _read_one_rope(written: Written, *, unset: float) -> dict[str, Any]:
    """The base of rotary positions that are the same in all layers, from the keys of transformers 5 or from the older
    ones of published folders; `unset` without one."""
    if "n_embd" in written.values and "hidden_size" not in written.values:
        fix = "load and save it with NomicBertModel of transformers 5; see docs/recipes.md#nomicbert-and-gte"
        raise written.refused("has the keys of the code that it was published with", fix)
    _require_head_width(written)
    key = "rope_parameters" if written["rope_parameters"] else "rope_scaling"
    rope = written[key] or {}
    if not isinstance(rope, dict) or rope.get("rope_type", rope.get("type", "default")) != "default":
        raise written.refused(f"{key} is not of the default kind", "use a model with plain rotary positions")
    base = rope.get("rope_theta", written["rope_theta"])
    return {"rope_theta": unset if base is None else base}


def _write_one_rope(config: ModelConfig) -> dict[str, Any]:
    """With the keys of transformers 5 and of older ones, which would take their default base."""
    return {
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "rope_theta": config.rope_theta,
    }


def _read_eurobert(written: Written) -> dict[str, Any]:
    return _read_one_rope(written, unset=10_000.0) | _key_value_heads(written)


def _write_eurobert(config: ModelConfig) -> dict[str, Any]:
    return _write_one_rope(config) | {"num_key_value_heads": config.key_value_heads}


def _key_value_heads(written: Written) -> dict[str, Any]:
    heads = written["num_key_value_heads"]
    return {"num_key_value_heads": written["num_attention_heads"] if heads is None else heads}


def _require_head_width(written: Written) -> None:
    """Raises `ModelError` if the heads do not share out the width."""
    width, heads, head_width = (written[key] for key in ("hidden_size", "num_attention_heads", "head_dim"))
    if type(width) is int and type(heads) is int and heads > 0 and head_width not in (None, width // heads):
        fix = "use a model whose heads share out the width"
        raise written.refused(f"head_dim is {head_width!r:.40}, only {width // heads} is supported", fix)


def _read_modernbert(written: Written) -> dict[str, Any]:
    """Local layers and rotary positions, from the keys of transformers 5 or from the older ones of the published
    folders. Raises `ModelError`."""
    dropouts = {key: written.values.get(key, 0.0) for key in ("embedding_dropout", "mlp_dropout")}
    if dropouts["embedding_dropout"] != dropouts["mlp_dropout"]:
        raise written.refused(f"has two dropouts: {dropouts}", "set both to one value")
    everywhere, nearby = written["global_rope_theta"], written["local_rope_theta"]
    bases = (160_000.0 if everywhere is None else everywhere, 10_000.0 if nearby is None else nearby)
    every = _global_every(written, written["layer_types"], written.values.get("global_attn_every_n_layers", 3))
    return _local_shape(every, _rope_bases(written, *bases), {}) | _pooling(written)


def _write_modernbert(config: ModelConfig) -> dict[str, Any]:
    every = config.global_attn_every_n_layers
    return _write_local(config) | {
        "cls_token_id": config.bos_token_id,
        "embedding_dropout": config.hidden_dropout_prob,
        "global_attn_every_n_layers": every,
        "global_rope_theta": config.rope_theta,  # of transformers before 5, which would take its default base
        "local_attention": config.local_attention if every > 1 else 128,
        "local_rope_theta": config.local_rope_theta,
        "sep_token_id": config.eos_token_id,
    }


def _read_ultrabert(written: Written) -> dict[str, Any]:
    """From the keys of `transformers`, or from lists with a window and a base for each layer, which older folders have.
    Raises `ModelError`."""
    _require_head_width(written)
    windows, thetas, kinds = written["attention_windows"], written["rope_theta"], written["layer_types"]
    window = written.values.get("sliding_window", 128)
    if isinstance(windows, list):
        window = next((each for each in windows if each), window)
        kinds = kinds or ["sliding_attention" if each else "full_attention" for each in windows]
    if type(window) is not int or not 0 < window < LARGEST_DIMENSION // 2:
        raise written.cannot_be("sliding_window", window)
    every = _global_every(written, kinds, 3, last=True)
    bases = {"full_attention": 2_560_000.0, "sliding_attention": 10_000.0}
    if isinstance(kinds, list) and isinstance(thetas, list):
        bases |= dict(zip(kinds, thetas, strict=False))
    shape = _local_shape(every, _rope_bases(written, *bases.values()), {"local_attention": 2 * window})
    return shape | _key_value_heads(written) | _pooling(written)


def _write_ultrabert(config: ModelConfig) -> dict[str, Any]:
    return _write_local(config) | {
        "num_key_value_heads": config.key_value_heads,
        "sliding_window": config.window,
    }


def _pooling(written: Written) -> dict[str, Any]:
    """Nothing for classifiers of the first token. Raises `ModelError`."""
    pooling = written.values.get("classifier_pooling") or "cls"
    if pooling not in ("cls", "mean"):
        fix = "use a classifier of the first token or of the mean"
        raise written.refused(f"classifier_pooling is {pooling!r:.40}", fix)
    return {"classifier_pooling": pooling} if pooling == "mean" else {}


def _rope_bases(written: Written, everywhere: Any, nearby: Any) -> tuple[Any, Any]:
    """The bases of rotary positions in layers that attend to all and in local ones, from rope_parameters or else the
    given ones. Raises `ModelError`."""
    bases, ropes = {"full_attention": everywhere, "sliding_attention": nearby}, written["rope_parameters"] or {}
    if isinstance(ropes, dict) and not set(ropes) <= set(bases):
        fix = 'write {"full_attention": {…}, "sliding_attention": {…}}'
        raise written.refused("rope_parameters does not name both kinds of layers", fix)
    for kind, base in bases.items():
        rope = (ropes.get(kind) or {}) if isinstance(ropes, dict) else None
        scaled = written["rope_scaling"] is not None
        if not isinstance(rope, dict) or rope.get("rope_type", "default") != "default" or scaled:
            fix = "use a model with plain rotary positions"
            raise written.refused(f"rope_parameters.{kind} is not of the default kind", fix)
        bases[kind] = base if rope.get("rope_theta") is None else rope["rope_theta"]
    return bases["full_attention"], bases["sliding_attention"]


def _local_shape(every: int, bases: tuple[Any, Any], nearby: dict[str, Any]) -> dict[str, Any]:
    """`nearby`: further values for local layers. Without local layers, these and their base are unused."""
    shape = {"rope_theta": bases[0], "global_attn_every_n_layers": every}
    if every == 1:
        return shape | {"local_rope_theta": ModelConfig.local_rope_theta, "local_attention": 0}
    return shape | nearby | {"local_rope_theta": bases[1]}


def _write_local(config: ModelConfig) -> dict[str, Any]:
    layers = range(config.num_hidden_layers)
    return {
        "classifier_pooling": "mean" if config.classifier_pooling == "mean" else "cls",
        "layer_types": ["sliding_attention" if config.is_local(number) else "full_attention" for number in layers],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": config.rope_theta},
            "sliding_attention": {"rope_type": "default", "rope_theta": config.local_rope_theta},
        },
    }


def _global_every(written: Written, kinds: Any, every: Any, *, last: bool = False) -> int:
    """The n for which one of each n layers, the first or the `last`, attends to all, and the others to tokens nearby.
    It follows from `kinds`, the kind of each layer, or else is `every`. Raises `ModelError`."""
    if kinds is None:
        if type(every) is not int or every < 1:
            raise written.cannot_be("global_attn_every_n_layers", every)
        return int(every)
    if isinstance(kinds, list) and len(kinds) == written["num_hidden_layers"] and kinds:
        full = [number for number, kind in enumerate(kinds) if kind == "full_attention"]
        if last:
            every = full[0] + 1 if full else len(kinds) + 1
        else:
            every = full[1] if len(full) > 1 else len(kinds)
        first = every - 1 if last else 0
        is_local = [(number - first) % every != 0 for number in range(len(kinds))]
        if kinds == ["sliding_attention" if local else "full_attention" for local in is_local]:
            return every
    fix = f"use a model in which the {'last' if last else 'first'} of each n layers is 'full_attention'"
    raise written.refused("layer_types has another pattern, or another length than num_hidden_layers", fix)


# ---- the families ----------------------------------------------------------------------------------------------------


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


def _ids(pad: int, bos: int, eos: int) -> dict[str, int]:
    return {"pad_token_id": pad, "bos_token_id": bos, "eos_token_id": eos}


_BERT_NEEDS = {"hidden_act": "gelu", "position_embedding_type": "absolute", "is_decoder": False}
_DROPPED = {"initializer_range": 0.02, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
_UNDROPPED = {"initializer_range": 0.02, "attention_probs_dropout_prob": 0.0}
_BERT_DEFAULTS = _DROPPED | {"layer_norm_eps": 1e-12, "type_vocab_size": 2, "pad_token_id": 0}
_ROBERTA_DEFAULTS = _BERT_DEFAULTS | _ids(1, 0, 2)
_ROTARY_BERT_DEFAULTS = _UNDROPPED | {"layer_norm_eps": 1e-12}
_IDS = ("bos_token_id", "eos_token_id")
_ROBERTA_KEYS = _same(*SAME_KEYS, *BERT_KEYS, *_IDS)
_EUROBERT_NEEDS = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
_EUROBERT_KEYS = _same(*SAME_KEYS, *_IDS, "num_key_value_heads", "tie_word_embeddings") | {
    "layer_norm_eps": "rms_norm_eps",
    "attention_probs_dropout_prob": "attention_dropout",
}

FAMILIES: dict[Architecture, Family] = {
    "roberta": Family("RoBERTa", "Roberta", _ROBERTA_DEFAULTS, _BERT_NEEDS, _ROBERTA_KEYS),
    "xlm-roberta": Family("XLM-RoBERTa", "XLMRoberta", _ROBERTA_DEFAULTS, _BERT_NEEDS, _ROBERTA_KEYS),
    "camembert": Family("CamemBERT", "Camembert", _ROBERTA_DEFAULTS, _BERT_NEEDS, _ROBERTA_KEYS),
    "bert": Family("BERT", "Bert", _BERT_DEFAULTS, _BERT_NEEDS, _same(*SAME_KEYS, *BERT_KEYS)),
    "distilbert": Family(
        "DistilBERT",
        "DistilBert",
        _DROPPED | {"pad_token_id": 0},
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
        head_dropouts=("seq_classif_dropout", "qa_dropout"),
        head_dropout=0.2,
    ),
    "modernbert": Family(
        "ModernBERT",
        "ModernBert",
        {"layer_norm_eps": 1e-5, "hidden_dropout_prob": 0.0, "local_attention": 128}
        | _UNDROPPED
        | _ids(50_283, 50_281, 50_282),
        {"hidden_activation": "gelu", "classifier_activation": "gelu", "decoder_bias": True}
        | dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), False),
        {
            **_same(*SAME_KEYS, *_IDS, "local_attention"),
            "layer_norm_eps": "norm_eps",
            "attention_probs_dropout_prob": "attention_dropout",
            "hidden_dropout_prob": "mlp_dropout",
        },
        head_dropout=0.0,
        read=_read_modernbert,
        write=_write_modernbert,
    ),
    "esm": Family(
        "ESM-2",
        "Esm",
        _DROPPED | {"layer_norm_eps": 1e-12, "rope_theta": 10_000.0},
        {"is_decoder": False, "add_cross_attention": False, "is_folding_model": False},
        _same(*SAME_KEYS, *BERT_KEYS[:3], *_IDS, "rope_theta"),
        {"type_vocab_size": 0},
        head_dropouts=("hidden_dropout_prob", "hidden_dropout_prob"),  # one dropout for all
        read=_read_esm,
        write=_write_esm,
    ),
    "mpnet": Family(
        "MPNet",
        "MPNet",
        _DROPPED | _ids(1, 0, 2) | {"layer_norm_eps": 1e-12, "max_position_embeddings": 512},
        # With any config.json, its class numbers positions from 2 on, and has 32 numbers of distances.
        {"hidden_act": "gelu", "pad_token_id": 1, "relative_attention_num_buckets": 32},
        _same(*SAME_KEYS, *BERT_KEYS[:3], *_IDS),
        {"type_vocab_size": 0, "position_buckets": 32},
    ),
    "deberta-v2": Family(
        "DeBERTa",
        "DebertaV2",
        _BERT_DEFAULTS | {"layer_norm_eps": 1e-7, "type_vocab_size": 0},
        {"hidden_act": "gelu", "legacy": True, "pooler_dropout": 0, "pooler_hidden_act": "gelu"},
        _same(*SAME_KEYS, *BERT_KEYS, "position_biased_input"),
        head_dropouts=("cls_dropout", "cls_dropout"),
        read=_read_deberta,
        write=_write_deberta,
    ),
    "eurobert": Family(
        "EuroBERT",
        "EuroBert",
        _UNDROPPED
        | _ids(128_001, 128_000, 128_001)
        | {"layer_norm_eps": 1e-5, "max_position_embeddings": 8192, "mask_token_id": 128_002}
        | {"tie_word_embeddings": False, "classifier_pooling": "late"},
        _EUROBERT_NEEDS,
        _EUROBERT_KEYS | _same("mask_token_id", "classifier_pooling"),
        {"type_vocab_size": 0},
        former_code="eurobert.EuroBert",
        head_dropout=0.0,
        read=_read_eurobert,
        write=_write_eurobert,
    ),
    "ultrabert": Family(
        "UltraBERT",
        "Ultrabert",
        _UNDROPPED
        | _ids(0, 0, 0)
        | {"layer_norm_eps": 1e-6, "max_position_embeddings": 32_768, "tie_word_embeddings": False}
        | {"head_hidden_size": 768},
        _EUROBERT_NEEDS,
        _EUROBERT_KEYS | {"head_hidden_size": "prediction_head_size"},
        {"type_vocab_size": 0},
        head_dropout=0.0,
        read=_read_ultrabert,
        write=_write_ultrabert,
    ),
    "nomic_bert": Family(
        "NomicBERT",
        "NomicBert",
        _ROTARY_BERT_DEFAULTS
        | {"hidden_dropout_prob": 0.0, "max_position_embeddings": 2048, "pad_token_id": 0, "type_vocab_size": 2},
        {"hidden_act": "silu"},
        _same(*SAME_KEYS, *BERT_KEYS),
        former_code="hf_nomic_bert.NomicBert",
        read=partial(_read_one_rope, unset=1000.0),
        write=_write_one_rope,
    ),
    "gte": Family(
        "GTE",
        "Gte",
        _ROTARY_BERT_DEFAULTS
        | {"hidden_dropout_prob": 0.1, "max_position_embeddings": 8192, "pad_token_id": 1, "type_vocab_size": 1},
        {"hidden_act": "gelu"},
        _same(*SAME_KEYS, *BERT_KEYS),
        read=partial(_read_one_rope, unset=160_000.0),
        write=_write_one_rope,
    ),
}
