"""A model's shape as a Hugging Face `config.json`, and back, for each architecture."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from maskwright.core import storage
from maskwright.core.errors import ConfigError, ModelError
from maskwright.model import rotary
from maskwright.model.config import (
    POOLINGS,
    ROBERTAS,
    ROTARY_BERTS,
    SEQUENCE_TASKS,
    WITHOUT_QUESTIONS,
    Architecture,
    ModelConfig,
)
from maskwright.model.hf.families import FAMILIES, Family
from maskwright.model.hf.other_folders import model_above, require_folder, without_config
from maskwright.model.hf.safetensors_file import find

CLASS_ENDS: dict[str, str] = {
    "masked_lm": "ForMaskedLM",
    "token_classification": "ForTokenClassification",
    "question_answering": "ForQuestionAnswering",
    **dict.fromkeys(SEQUENCE_TASKS, "ForSequenceClassification"),
}
"""Endings of the class names of a task in `transformers`."""
PIPELINES = {
    "masked_lm": "fill-mask",
    "token_classification": "token-classification",
    "question_answering": "question-answering",
    **dict.fromkeys(SEQUENCE_TASKS, "text-classification"),
}
"""Names of the pipelines of `transformers`, by which the hub sorts models."""
LABELLED = ("single_label_classification", "multi_label_classification", "token_classification")
"""Tasks whose outputs have names."""
LARGEST_DIMENSION = 2**26
HEAD_FIELDS = ("task", "num_labels", "classifier_dropout_prob")
OF_CLASSIFIERS = ("classifier_pooling", "classifier_dropout", "seq_classif_dropout", "qa_dropout", "cls_dropout")
ROPE_FIELDS = ("rope_theta", "local_rope_theta")
ROPE_BASES = {"eurobert": 10_000.0, "gte": 160_000.0, "nomic_bert": 1000.0}
"""The base of rotary positions for which config.json has none, in families whose layers have one base."""
DEBERTA_NEEDS = {"relative_attention": True, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
CONVOLUTION_NEEDS = {"conv_act": "gelu", "conv_groups": 1}
"""Keys that must have these values. Left out, they mean something else in `transformers`, except `conv_groups`."""
POSITION_TERMS = ("c2p", "p2c")


def to_hf_config(config: ModelConfig, labels: Sequence[str] = (), *, bare: bool = False) -> dict[str, Any]:
    """`config.json` of a Hugging Face folder; `labels`: the names of a classifier's outputs, in order. `bare`: of an
    encoder without a head."""
    head = {"architectures": [encoder_class_name(config)]} if bare else _task_config(config, labels)
    return _encoder_config(config) | head


def dropout_keys(architecture: Architecture, name: str) -> list[str]:
    """Keys of config.json that hold `hidden_dropout_prob` or `attention_probs_dropout_prob`."""
    key = FAMILIES[architecture].keys.get(name)  # EuroBERT's class has none for hidden states
    return [key, "embedding_dropout"] if key == "mlp_dropout" else [key] if key else []


def family_dropout(model: ModelConfig) -> float:
    """The dropout in fine-tuning with which such models are published: RoBERTa's 0.1, ModernBERT's 0."""
    return 0.0 if model.rotary else 0.1


def fine_tuning_values(folder: str, model: ModelConfig) -> dict[str, Any]:
    """Values of config.json that `transformers` uses in fine-tuning alone, under its keys there: dropouts, and how a
    classifier reads the text. `model`: the result of `read_hf_config` for the folder."""
    written, values = _encoder_config(model), storage.read_json(os.path.join(folder, "config.json"))
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    dropouts = {key: written[key] for name in names for key in dropout_keys(model.architecture, name)}
    return dropouts | {key: values[key] for key in OF_CLASSIFIERS if key in values}


def class_name(config: ModelConfig) -> str:
    """Name of the class of `transformers` that computes the same."""
    return FAMILIES[config.architecture].class_begins + CLASS_ENDS[config.task]


def encoder_class_name(config: ModelConfig) -> str:
    """Name of the class of `transformers` that is the encoder without a head."""
    return FAMILIES[config.architecture].class_begins + "Model"


def _task_config(config: ModelConfig, labels: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {"architectures": [class_name(config)]}
    if config.task == "masked_lm":
        return values
    names = list(labels) or [f"LABEL_{number}" for number in range(config.num_labels)]
    values |= {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {n: i for i, n in enumerate(names)},
    }
    values |= dict.fromkeys(_dropout_keys(config.architecture), config.classifier_dropout_prob)
    if config.architecture == "modernbert":
        values["classifier_pooling"] = "cls"
    if config.task in SEQUENCE_TASKS:
        values["problem_type"] = config.task
    return values


def _encoder_config(config: ModelConfig) -> dict[str, Any]:
    family = FAMILIES[config.architecture]
    values = {"model_type": config.architecture, "tie_word_embeddings": True, "dtype": "float32"}
    values |= {key: getattr(config, name) for name, key in family.keys.items()} | family.needs
    makers = {
        "modernbert": _modernbert_values,
        "esm": _esm_values,
        "deberta-v2": _deberta_values,
        "eurobert": _eurobert_values,
        "ultrabert": _ultrabert_values,
        **dict.fromkeys(ROTARY_BERTS, _plain_rope),
    }
    more = makers.get(config.architecture)
    return values | more(config) if more else values


def _esm_values(config: ModelConfig) -> dict[str, Any]:
    return {
        "emb_layer_norm_before": False,
        "mask_token_id": config.mask_token_id,
        "position_embedding_type": "rotary",
        "token_dropout": config.token_dropout,
    }


def _eurobert_values(config: ModelConfig) -> dict[str, Any]:
    return _plain_rope(config) | {"num_key_value_heads": config.key_value_heads}


def _plain_rope(config: ModelConfig) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta}}


def _ultrabert_values(config: ModelConfig) -> dict[str, Any]:
    return _local_values(config) | {
        "classifier_pooling": "cls" if config.classifier_pooling == "bos" else config.classifier_pooling,
        "num_key_value_heads": config.key_value_heads,
        "sliding_window": config.window,
    }


def _deberta_values(config: ModelConfig) -> dict[str, Any]:
    convolution = CONVOLUTION_NEEDS | {"conv_kernel_size": config.conv_kernel_size}
    return DEBERTA_NEEDS | {
        "position_buckets": config.position_buckets or -1,
        "max_relative_positions": config.max_relative_positions,
        "pos_att_type": config.pos_att_type,
        "pooler_hidden_size": config.hidden_size,
        **(convolution if config.conv_kernel_size else {}),
    }


def _modernbert_values(config: ModelConfig) -> dict[str, Any]:
    every = config.global_attn_every_n_layers
    return _local_values(config) | {
        "cls_token_id": config.bos_token_id,
        "embedding_dropout": config.hidden_dropout_prob,
        "global_attn_every_n_layers": every,
        "local_attention": config.local_attention if every > 1 else 128,
        "sep_token_id": config.eos_token_id,
    }


def _local_values(config: ModelConfig) -> dict[str, Any]:
    layers = range(config.num_hidden_layers)
    return {
        "layer_types": ["sliding_attention" if config.is_local(number) else "full_attention" for number in layers],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": config.rope_theta},
            "sliding_attention": {"rope_type": "default", "rope_theta": config.local_rope_theta},
        },
    }


def read_hf_config(folder: str, *, head: bool = True) -> ModelConfig:
    """Reads a folder's shape. Raises `ModelError` unless this code computes the folder's model exactly. Without `head`,
    that is the encoder, and the task is masked_lm whatever head the folder has."""
    path = os.path.join(folder, "config.json")
    if not os.path.isfile(path):
        require_folder(folder)
        raise without_config(folder)
    values = storage.read_json(path)
    kind = values.get("model_type") if isinstance(values, dict) else None
    if kind not in list(FAMILIES):  # a list, because `kind` may be unhashable
        what = f"model_type is {kind!r:.40}; those that can be read are {', '.join(FAMILIES)}"
        parent = model_above(folder) if kind is None else None
        fix = f"give the folder above it: {parent}" if parent else "see docs/encoders.md for others"
        raise ModelError(what, where=path, fix=fix)
    family: Family = FAMILIES[kind]
    if values.get("auto_map") and not _is_former_code(values["auto_map"], family):
        fix = f"take a folder that {family.class_begins}ForMaskedLM of transformers reads without trust_remote_code"
        raise ModelError("its model is code of its own (auto_map), which is never run", where=path, fix=fix)
    for key, needed in family.needs.items():
        if values.get(key, needed) not in (needed, None):
            fix = "only models with this setting can be read"
            raise ModelError(f"{key} is {values[key]!r}, only {needed!r} is supported", where=path, fix=fix)
    if values.get("quantization_config") is not None:
        raise ModelError("has quantised weights", where=path, fix="take the folder that it was made from")
    if values.get("tie_word_embeddings") is False and "tie_word_embeddings" not in family.keys:
        fix = "only models whose head shares the embeddings can be read"
        raise ModelError("tie_word_embeddings is False", where=path, fix=fix)
    written = {name: values[key] for name, key in family.keys.items() if values.get(key) is not None}
    shape = family.defaults | family.fixed | written
    if kind == "modernbert":
        shape |= _modernbert_shape(values, path)
    elif kind == "esm":
        shape |= _esm_shape(values, path)
    elif kind == "deberta-v2":
        shape |= _deberta_shape(values, path)
    elif kind == "eurobert":
        shape |= {"rope_theta": _rope_base(values, path), "num_key_value_heads": _key_value_heads(values, path)}
    elif kind in ROTARY_BERTS:
        shape |= _rotary_bert_shape(values, path)
    elif kind == "ultrabert":
        shape |= _ultrabert_shape(values, path)
    # The tokenizer defines these ids (`with_ids`); config.json has none for some models, or several.
    size = shape.get("vocab_size") if type(shape.get("vocab_size")) is int else 0
    ids = ("bos_token_id", "eos_token_id", *(() if kind in ROBERTAS else ("pad_token_id",)))
    for name in (*ids, "mask_token_id") if "mask_token_id" in family.keys else ids:
        if not _plausible(name, shape.get(name)) or shape[name] >= size:
            shape[name] = ModelConfig.eos_token_id if name == "eos_token_id" else 0
    for name, key in _read_keys(kind).items():
        value = shape.get(name)
        beyond = name.endswith("_token_id") and _plausible(name, value) and value >= shape["vocab_size"]
        if beyond or not _plausible(name, value):
            raise ModelError(f"{key} is {value!r:.40}, which it cannot be", where=path, fix="restore config.json")
    head_fields = _head(values, path) if head else {}
    try:
        model = ModelConfig(**shape, architecture=kind, **head_fields)
    except ConfigError as error:
        raise ModelError(error.what, where=path, fix="restore config.json") from None
    return replace(model, rope_rounding=_rounding_of_speeds(folder, model)) if kind == "esm" else model


def _is_former_code(auto_map: Any, family: Family) -> bool:
    """Whether the code that a folder names is what its class in `transformers` was made from."""
    names = list(auto_map.values()) if isinstance(auto_map, dict) else []
    former = re.compile(rf"([\w./-]+--)?(configuration|modeling)_{re.escape(family.former_code)}\w+")
    return bool(family.former_code) and all(isinstance(name, str) and former.fullmatch(name) for name in names)


def _read_keys(kind: Architecture) -> dict[str, str]:
    """Fields of `ModelConfig` in its order -> keys of config.json; the vocabulary's first, since others must stay below
    its size."""
    fields = {"modernbert": ROPE_FIELDS, "ultrabert": ROPE_FIELDS}
    rope = (fields | dict.fromkeys(("eurobert", *ROTARY_BERTS), ROPE_FIELDS[:1])).get(kind, ())
    keys = dict.fromkeys(rope, "rope_parameters") | FAMILIES[kind].keys
    return {name: keys[name] for name in ModelConfig.__dataclass_fields__ if name in keys}


def _head(values: dict[str, Any], path: str) -> dict[str, Any]:
    """`HEAD_FIELDS` as `transformers` reads them; empty for a masked-LM head and for a class without a head."""
    listed = values.get("architectures")
    name = str(listed[0]) if isinstance(listed, list) and listed else ""
    task = next((task for task, end in CLASS_ENDS.items() if name.endswith(end)), "masked_lm")
    if task == "masked_lm":
        return {}
    outputs = len(_outputs(values, path))
    if task in SEQUENCE_TASKS:
        problem_type = values.get("problem_type") or ("regression" if outputs == 1 else "single_label_classification")
        if problem_type not in SEQUENCE_TASKS:
            raise ModelError(
                f"problem_type is {problem_type!r:.40}", where=path, fix=f"set one of {', '.join(SEQUENCE_TASKS)}"
            )
        task = problem_type
    kind, pooling = values["model_type"], values.get("classifier_pooling", "cls")
    if task in SEQUENCE_TASKS and kind == "modernbert" and pooling != "cls":
        fix = "only classifiers of the first token can be read; pretrain takes the encoder with model.new_head=true"
        raise ModelError(f"classifier_pooling is {pooling!r:.40}, only 'cls' is supported", where=path, fix=fix)
    if task == "question_answering" and kind in WITHOUT_QUESTIONS:
        fix = "take the folder that it was fine-tuned from"
        raise ModelError(f"is a {name}, which transformers does not have", where=path, fix=fix)
    if outputs != {"regression": 1, "question_answering": 2}.get(task, outputs):
        raise ModelError(f"has {outputs} outputs for {task}", where=path, fix="restore config.json")
    key = _dropout_keys(kind)[task == "question_answering"]
    dropout = values.get(key)
    if dropout is None:
        known = {"modernbert": 0.0, "eurobert": 0.0, "ultrabert": 0.0, "distilbert": 0.2}
        unset = FAMILIES[kind].defaults.get("hidden_dropout_prob", 0.0)
        dropout = known.get(kind, values.get("hidden_dropout_prob", unset))
    if not _plausible("classifier_dropout_prob", dropout):
        raise ModelError(f"{key} is {dropout!r:.40}, which it cannot be", where=path, fix="restore it")
    return {"task": task, "num_labels": outputs, "classifier_dropout_prob": float(dropout)}


def _dropout_keys(architecture: str) -> tuple[str, str]:
    """Keys of the dropout before the matrices of a classifier, and of a head for questions."""
    if architecture == "esm":  # its classes have one dropout for all
        return ("hidden_dropout_prob", "hidden_dropout_prob")
    if architecture == "deberta-v2":
        return ("cls_dropout", "cls_dropout")
    distilbert = architecture == "distilbert"
    return ("seq_classif_dropout", "qa_dropout") if distilbert else ("classifier_dropout", "classifier_dropout")


def _outputs(values: dict[str, Any], path: str) -> tuple[str, ...]:
    """Names of a head's outputs in order: `id2label`, or the names that `transformers` uses without it."""
    names = values.get("id2label")
    if names is None:
        count = values.get("num_labels", 2)
        names = {str(number): f"LABEL_{number}" for number in range(count if type(count) is int else 0)}
    keys = [str(number) for number in range(len(names))] if isinstance(names, dict) else []
    if not keys or set(keys) != set(names) or not all(isinstance(name, str) for name in names.values()):
        fix = 'write {"0": "first name", "1": "second name"}'
        raise ModelError("id2label does not name the outputs from 0 on", where=path, fix=fix)
    if len(set(names.values())) < len(keys):
        raise ModelError("id2label gives two outputs one name", where=path, fix="give each its own")
    return tuple(names[key] for key in keys)


def read_labels(folder: str, config: ModelConfig) -> tuple[str, ...]:
    """Names of a classifier's outputs; empty for other tasks. Raises `ModelError`."""
    path = os.path.join(folder, "config.json")
    return _outputs(storage.read_json(path), path) if config.task in LABELLED else ()


def read_use(folder: str, config: ModelConfig) -> dict[str, Any]:
    """Settings with which texts were encoded in fine-tuning, as `export` writes them under `task_specific_params`, by
    the names of the question-answering pipeline's parameters: `max_seq_len`, `doc_stride`, `max_answer_len` and, 0 or
    1, `handle_impossible_answer`; and the `threshold` of several labels. Empty for folders of other tools."""
    params: Any = storage.read_json(os.path.join(folder, "config.json"))
    for key in ("task_specific_params", PIPELINES[config.task]):
        params = params.get(key) if isinstance(params, dict) else None
    use = params if isinstance(params, dict) else {}
    least = {"max_seq_len": 8, "doc_stride": 0, "max_answer_len": 1, "handle_impossible_answer": 0}
    found = {key: int(use[key]) for key, low in least.items() if isinstance(use.get(key), int) and use[key] >= low}
    share = use.get("threshold")
    return found | ({"threshold": share} if isinstance(share, float) and 0.0 < share < 1.0 else {})


def _modernbert_shape(values: dict[str, Any], path: str) -> dict[str, Any]:
    """ModernBERT's fields beyond `Family.keys`: local layers and rotary positions, from the keys of transformers 5 or
    from the older ones of the published folders. Raises `ModelError`."""
    dropouts = {key: values.get(key, 0.0) for key in ("embedding_dropout", "mlp_dropout")}
    if dropouts["embedding_dropout"] != dropouts["mlp_dropout"]:
        raise ModelError(f"has two dropouts: {dropouts}", where=path, fix="set both to one value")
    bases: dict[str, Any] = {"full_attention": 160_000.0, "sliding_attention": 10_000.0}
    for kind, old in zip(bases, ("global_rope_theta", "local_rope_theta"), strict=True):
        if values.get(old) is not None:
            bases[kind] = values[old]
    every = _global_every(values.get("layer_types"), values.get("global_attn_every_n_layers", 3), values, path)
    return _local_shape(every, _rope_bases(values, path, bases), {})


def _ultrabert_shape(values: dict[str, Any], path: str) -> dict[str, Any]:
    """UltraBERT's fields beyond `Family.keys`, from the keys of `transformers` or from lists with a window and a base
    for each layer, which older folders have. Raises `ModelError`."""
    heads = _key_value_heads(values, path)
    windows, thetas = values.get("attention_windows"), values.get("rope_theta")
    kinds = values.get("layer_types")
    window = values.get("sliding_window", 128)
    if isinstance(windows, list):
        window = next((each for each in windows if each), window)
        kinds = kinds or ["sliding_attention" if each else "full_attention" for each in windows]
    if type(window) is not int or not 0 < window < LARGEST_DIMENSION // 2:
        raise ModelError(f"sliding_window is {window!r:.40}, which it cannot be", where=path, fix="restore config.json")
    every = _global_every(kinds, 3, values, path, last=True)
    bases = {"full_attention": 2_560_000.0, "sliding_attention": 10_000.0}
    if isinstance(kinds, list) and isinstance(thetas, list):
        bases |= dict(zip(kinds, thetas, strict=False))
    pooling = values.get("classifier_pooling", "cls")
    if pooling not in ("cls", "mean"):
        fix = "only classifiers of the first token and of the mean can be read"
        raise ModelError(f"classifier_pooling is {pooling!r:.40}", where=path, fix=fix)
    shape = _local_shape(every, _rope_bases(values, path, bases), {"local_attention": 2 * window})
    return shape | {"num_key_value_heads": heads, "classifier_pooling": "bos" if pooling == "cls" else pooling}


def _rope_bases(values: dict[str, Any], path: str, bases: dict[str, Any]) -> dict[str, Any]:
    """By the kind of a layer, the base of its rotary positions: that of rope_parameters, or else of `bases`. Raises
    `ModelError`."""
    ropes = values.get("rope_parameters") or {}
    if isinstance(ropes, dict) and not set(ropes) <= set(bases):
        fix = 'write {"full_attention": {…}, "sliding_attention": {…}}'
        raise ModelError("rope_parameters does not name both kinds of layers", where=path, fix=fix)
    found: dict[str, Any] = {}
    for kind, base in bases.items():
        rope = (ropes.get(kind) or {}) if isinstance(ropes, dict) else None
        scaled = values.get("rope_scaling") is not None
        if not isinstance(rope, dict) or rope.get("rope_type", "default") != "default" or scaled:
            fix = "only plain rotary positions can be read"
            raise ModelError(f"rope_parameters.{kind} is not of the default kind", where=path, fix=fix)
        found[kind] = base if rope.get("rope_theta") is None else rope["rope_theta"]
    return found


def _local_shape(every: int, bases: dict[str, Any], nearby: dict[str, Any]) -> dict[str, Any]:
    """`nearby`: what local layers need besides. Without any, neither that nor their base means anything."""
    shape = {"rope_theta": bases["full_attention"], "global_attn_every_n_layers": every}
    if every == 1:
        return shape | {"local_rope_theta": ModelConfig.local_rope_theta, "local_attention": 0}
    return shape | nearby | {"local_rope_theta": bases["sliding_attention"]}


def _esm_shape(values: dict[str, Any], path: str) -> dict[str, Any]:
    """ESM-2's fields beyond `Family.keys`. Raises `ModelError` for ESM-1b and ESM-1v, which are of this type too."""
    if values.get("position_embedding_type") != "rotary" or values.get("emb_layer_norm_before"):
        what = "is not of ESM-2, which has rotary positions and no norm after the embeddings"
        raise ModelError(what, where=path, fix="take an ESM-2, such as facebook/esm2_t6_8M_UR50D")
    drops, mask = bool(values.get("token_dropout")), values.get("mask_token_id")
    size = values.get("vocab_size")
    if drops and (type(mask) is not int or type(size) is not int or not 0 <= mask < size):
        raise ModelError(f"mask_token_id is {mask!r:.40}, which it cannot be", where=path, fix="restore config.json")
    return {"token_dropout": drops, "mask_token_id": mask if drops else 0}


def _deberta_shape(values: dict[str, Any], path: str) -> dict[str, Any]:
    """DeBERTa's fields beyond `Family.keys`. Raises `ModelError` for what no published v2 or v3 has."""
    width, heads = values.get("hidden_size"), values.get("num_attention_heads")
    longest = values.get("max_position_embeddings", 512)
    unset = {"position_buckets": -1, "max_relative_positions": -1, "conv_kernel_size": 0}
    buckets, furthest, kernel = sizes = [values.get(key, default) for key, default in unset.items()]
    for key, size in zip(unset, sizes, strict=True):
        is_even = type(size) is int and size > 0 and size % 2 == 0
        if type(size) is not int or size >= LARGEST_DIMENSION or (key == "conv_kernel_size" and is_even):
            raise ModelError(f"{key} is {size!r:.40}, which it cannot be", where=path, fix="restore config.json")
    needs: dict[str, Any] = DEBERTA_NEEDS | (CONVOLUTION_NEEDS if kernel > 0 else {})
    given = {"conv_groups": 1, **values}
    if type(width) is int and type(heads) is int and heads > 0:
        of_width = {"embedding_size": width, "pooler_hidden_size": width, "attention_head_size": width // heads}
        needs |= {key: size for key, size in of_width.items() if values.get(key) is not None}
    for key, needed in needs.items():
        if given.get(key) != needed:
            fix = "only models with this setting can be read, as all published DeBERTas v2 and v3 have it"
            raise ModelError(f"{key} is {given.get(key)!r:.40}, only {needed!r} is supported", where=path, fix=fix)
    terms = values.get("pos_att_type")
    terms = [term.strip() for term in terms.lower().split("|")] if isinstance(terms, str) else terms
    if not isinstance(terms, list) or not terms or not all(term in POSITION_TERMS for term in terms):
        fix = "only c2p, p2c and both can be read"
        raise ModelError(f"pos_att_type is {values.get('pos_att_type')!r:.40}", where=path, fix=fix)
    return {
        "max_position_embeddings": longest,
        "position_biased_input": values.get("position_biased_input", True),
        "pos_att_type": "|".join(sorted(set(terms))),
        "position_buckets": max(buckets, 0),
        "max_relative_positions": furthest if furthest > 0 else longest,
        "conv_kernel_size": max(kernel, 0),
    }


def _rotary_bert_shape(values: dict[str, Any], path: str) -> dict[str, Any]:
    """NomicBERT's and GTE's field beyond `Family.keys`. Raises `ModelError`."""
    if "n_embd" in values and "hidden_size" not in values:
        fix = "load and save it with NomicBertModel of transformers 5; see docs/encoders.md"
        raise ModelError("has the keys of the code that it was published with", where=path, fix=fix)
    _require_head_width(values, path)
    return {"rope_theta": _rope_base(values, path)}


def _rope_base(values: dict[str, Any], path: str) -> Any:
    """The base of a model whose rotary positions are alike in all layers, from the keys of transformers 5 or from the
    older ones of published folders. Raises `ModelError`."""
    key = "rope_parameters" if values.get("rope_parameters") else "rope_scaling"
    rope = values.get(key) or {}
    if not isinstance(rope, dict) or rope.get("rope_type", rope.get("type", "default")) != "default":
        raise ModelError(f"{key} is not of the default kind", where=path, fix="only plain rotary positions can be read")
    base = rope.get("rope_theta", values.get("rope_theta"))
    return ROPE_BASES[values["model_type"]] if base is None else base


def _key_value_heads(values: dict[str, Any], path: str) -> Any:
    """Raises `ModelError` where the heads do not share out the width."""
    _require_head_width(values, path)
    heads = values.get("num_key_value_heads")
    return values.get("num_attention_heads") if heads is None else heads


def _require_head_width(values: dict[str, Any], path: str) -> None:
    width, heads, head_width = (values.get(key) for key in ("hidden_size", "num_attention_heads", "head_dim"))
    if type(width) is int and type(heads) is int and heads > 0 and head_width not in (None, width // heads):
        fix = "only models whose heads share out the width can be read"
        raise ModelError(f"head_dim is {head_width!r:.40}, only {width // heads} is supported", where=path, fix=fix)


def _rounding_of_speeds(folder: str, model: ModelConfig) -> str:
    """`ModelConfig.rope_rounding` of a folder's speeds, which `transformers` computes with. Raises `ModelError`."""
    tensor = find(folder, "rotary_embeddings.inv_freq")
    if tensor is None:
        return ""
    values = tensor.read()
    for rounding in rotary.ROUNDINGS:
        expected = rotary.speeds(replace(model, rope_rounding=rounding), model.rope_theta)
        if values.shape == expected.shape and np.allclose(values, expected, rtol=1e-6, atol=0.0):
            return rounding
    what = f"{tensor.name} is not what rope_theta {model.rope_theta:g} gives, in fp32, fp16 or bf16"
    raise ModelError(what, where=tensor.path, fix="take another copy of the model")


def _global_every(kinds: Any, every: Any, values: dict[str, Any], path: str, *, last: bool = False) -> int:
    """The n of which one layer attends to all, and the others to tokens nearby: the first, or the `last`. It is that of
    `kinds`, the kind of each layer, or `every` where that is None. Raises `ModelError`."""
    if kinds is None:
        if type(every) is not int or every < 1:
            what = f"global_attn_every_n_layers is {every!r:.40}, which it cannot be"
            raise ModelError(what, where=path, fix="restore config.json")
        return int(every)
    if isinstance(kinds, list) and len(kinds) == values.get("num_hidden_layers") and kinds:
        full = [number for number, kind in enumerate(kinds) if kind == "full_attention"]
        if last:
            every = full[0] + 1 if full else len(kinds) + 1
        else:
            every = full[1] if len(full) > 1 else len(kinds)
        first = every - 1 if last else 0
        is_local = [(number - first) % every != 0 for number in range(len(kinds))]
        if kinds == ["sliding_attention" if local else "full_attention" for local in is_local]:
            return every
    of_each = "last" if last else "first"
    fix = f"only models in which the {of_each} of each n layers is 'full_attention' can be read"
    raise ModelError("layer_types has another pattern, or another length than num_hidden_layers", where=path, fix=fix)


def _plausible(key: str, value: Any) -> bool:
    if key in ("position_biased_input", "tie_word_embeddings"):
        return isinstance(value, bool)
    if key == "classifier_pooling":
        return value in list(POOLINGS)  # a list, because `value` may be unhashable
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if key.endswith("_prob") or key in ("layer_norm_eps", "initializer_range"):
        return 0.0 <= value < 1.0
    if key in ("rope_theta", "local_rope_theta"):
        return 1.0 < value < 1e12
    if not isinstance(value, int):
        return False
    if key.endswith("_token_id"):
        return value >= 0
    if key in ("type_vocab_size", "local_attention"):
        return 0 <= value < LARGEST_DIMENSION
    return (2 if key == "max_position_embeddings" else 0) < value < LARGEST_DIMENSION
