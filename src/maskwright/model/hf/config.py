"""A model's shape as a Hugging Face `config.json`, and back, for each architecture."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from maskwright.core import storage
from maskwright.core.errors import ConfigError, ModelError
from maskwright.model.config import POSITION_OFFSET, SEQUENCE_TASKS, ModelConfig

CLASS_BEGINS = {"roberta": "Roberta", "modernbert": "ModernBert"}
CLASS_ENDS: dict[str, str] = {
    "masked_lm": "ForMaskedLM",
    "token_classification": "ForTokenClassification",
    "question_answering": "ForQuestionAnswering",
    **dict.fromkeys(SEQUENCE_TASKS, "ForSequenceClassification"),
}
"""How the names of a task's classes in `transformers` end."""
PIPELINES = {
    "masked_lm": "fill-mask",
    "token_classification": "token-classification",
    "question_answering": "question-answering",
    **dict.fromkeys(SEQUENCE_TASKS, "text-classification"),
}
"""Names of the pipelines of `transformers`, by which the hub sorts models."""
LABELLED = ("single_label_classification", "multi_label_classification", "token_classification")
"""Tasks whose outputs have names."""
# Defaults of `RobertaConfig` for keys that config.json leaves out.
ROBERTA_DEFAULTS: dict[str, Any] = {
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 2,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
# Defaults of `ModernBertConfig`, under our names.
MODERNBERT_DEFAULTS: dict[str, Any] = {
    "layer_norm_eps": 1e-5,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.02,
    "pad_token_id": 50283,
    "bos_token_id": 50281,
    "eos_token_id": 50282,
    "rope_theta": 160_000.0,
}
# This model computes the same only if these keys have these values or are left out.
ROBERTA_NEEDS: dict[str, Any] = {"hidden_act": "gelu", "position_embedding_type": "absolute", "is_decoder": False}
MODERNBERT_NEEDS: dict[str, Any] = {
    "hidden_activation": "gelu",
    "classifier_activation": "gelu",
    "norm_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "classifier_bias": False,
    "decoder_bias": True,
}
OWNERS = {"roberta-base": "FacebookAI", "roberta-large": "FacebookAI", "distilroberta-base": "distilbert"}
"""Owners on the Hub of the models that many call by their old short names."""
LARGEST_DIMENSION = 2**26
SAME_KEYS = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"),
    *("max_position_embeddings", "initializer_range", "bos_token_id", "eos_token_id", "pad_token_id"),
)
"""Keys that have the same name for both architectures, there and here."""
HEAD_FIELDS = ("task", "num_labels", "classifier_dropout_prob")
ROBERTA_KEYS = ("layer_norm_eps", "hidden_dropout_prob", "attention_probs_dropout_prob", "type_vocab_size")


def to_hf_config(config: ModelConfig, labels: Sequence[str] = ()) -> dict[str, Any]:
    """`config.json` of a Hugging Face folder; `labels`: the names of a classifier's outputs, in order."""
    return _encoder_config(config) | _task_config(config, labels)


def class_name(config: ModelConfig) -> str:
    """The class of `transformers` that computes the same."""
    return CLASS_BEGINS[config.architecture] + CLASS_ENDS[config.task]


def _task_config(config: ModelConfig, labels: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {"architectures": [class_name(config)]}
    if config.task == "masked_lm":
        return values
    names = list(labels) or [f"LABEL_{number}" for number in range(config.num_labels)]
    values |= {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {n: i for i, n in enumerate(names)},
    }
    values["classifier_dropout"] = config.classifier_dropout_prob
    if config.architecture == "modernbert":
        values["classifier_pooling"] = "cls"
    if config.task in SEQUENCE_TASKS:
        values["problem_type"] = config.task
    return values


def _encoder_config(config: ModelConfig) -> dict[str, Any]:
    common = {
        "model_type": config.architecture,
        "tie_word_embeddings": True,
        "dtype": "float32",
        **{key: getattr(config, key) for key in SAME_KEYS},
    }
    if config.architecture == "roberta":
        return common | {"hidden_act": "gelu"} | {key: getattr(config, key) for key in ROBERTA_KEYS}
    rope = {"rope_type": "default", "rope_theta": config.rope_theta}
    own = {
        "attention_dropout": config.attention_probs_dropout_prob,
        "cls_token_id": config.bos_token_id,
        "embedding_dropout": config.hidden_dropout_prob,
        "layer_types": ["full_attention"] * config.num_hidden_layers,
        "mlp_dropout": config.hidden_dropout_prob,
        "norm_eps": config.layer_norm_eps,
        "rope_parameters": {"full_attention": rope, "sliding_attention": rope},
        "sep_token_id": config.eos_token_id,
    }
    return common | MODERNBERT_NEEDS | own


def read_hf_config(folder: str) -> ModelConfig:
    """Raises `ModelError` unless this code computes the folder's model exactly."""
    path = os.path.join(folder, "config.json")
    if not os.path.isfile(path):
        if os.path.exists(os.path.join(folder, "config.resolved.json")):
            raise ModelError("is a run directory", where=folder, fix=f"maskwright export {folder} --to FOLDER first")
        if not os.path.isdir(folder):
            raise ModelError("no such folder", where=folder, fix=_how_to_get(folder))
        near = storage.near(folder, "config.resolved.json")
        fix = f"did you mean {near}?" if near else "give a folder with config.json and model.safetensors"
        raise ModelError("has no config.json, and is not a run directory", where=folder, fix=fix)
    values = storage.read_json(path)
    kind = values.get("model_type") if isinstance(values, dict) else None
    if kind not in list(CLASS_BEGINS):  # a list, because `kind` may be unhashable
        known = " or ".join(map(repr, CLASS_BEGINS))
        raise ModelError(f"model_type is {kind!r}, not {known}", where=path, fix="only such models can be read")
    for key, needed in (ROBERTA_NEEDS if kind == "roberta" else MODERNBERT_NEEDS).items():
        if values.get(key, needed) not in (needed, None):
            fix = "only models with this setting can be read"
            raise ModelError(f"{key} is {values[key]!r}, only {needed!r} is supported", where=path, fix=fix)
    named = values if kind == "roberta" else _modernbert_names(values, path)
    names = set(ModelConfig.__dataclass_fields__) - {"architecture", *HEAD_FIELDS}
    defaults = ROBERTA_DEFAULTS if kind == "roberta" else MODERNBERT_DEFAULTS
    shape = defaults | {key: named[key] for key in sorted(names) if named.get(key) is not None}
    head = _head(values, path)
    for key in ModelConfig.__dataclass_fields__:
        if key in names and (key in shape or key not in ("type_vocab_size", "rope_theta")):
            value = shape.get(key)
            beyond = key.endswith("_token_id") and _plausible(key, value) and value >= shape["vocab_size"]
            if beyond or not _plausible(key, value):
                raise ModelError(f"{key} is {value!r:.40}, which it cannot be", where=path, fix="restore config.json")
    try:
        return ModelConfig(**shape, architecture=kind, **head)
    except ConfigError as error:
        raise ModelError(error.what, where=path, fix="restore config.json") from None


def _head(values: dict[str, Any], path: str) -> dict[str, Any]:
    """`HEAD_FIELDS` as `transformers` reads them; none for a masked-LM head, nor for a class without one."""
    listed = values.get("architectures")
    name = str(listed[0]) if isinstance(listed, list) and listed else ""
    task = next((task for task, end in CLASS_ENDS.items() if name.endswith(end)), "masked_lm")
    if task == "masked_lm":
        return {}
    outputs = len(_outputs(values, path))
    if task in SEQUENCE_TASKS:
        said = values.get("problem_type") or ("regression" if outputs == 1 else "single_label_classification")
        if said not in SEQUENCE_TASKS:
            raise ModelError(f"problem_type is {said!r:.40}", where=path, fix=f"set one of {', '.join(SEQUENCE_TASKS)}")
        task = said
    pooling = values.get("classifier_pooling", "cls")
    if task in SEQUENCE_TASKS and values["model_type"] == "modernbert" and pooling != "cls":
        fix = "only classifiers of the first token can be read"
        raise ModelError(f"classifier_pooling is {pooling!r:.40}, only 'cls' is supported", where=path, fix=fix)
    if outputs != {"regression": 1, "question_answering": 2}.get(task, outputs):
        raise ModelError(f"has {outputs} outputs for {task}", where=path, fix="restore config.json")
    dropout = values.get("classifier_dropout")
    if dropout is None:
        dropout = values.get("hidden_dropout_prob", 0.1) if values["model_type"] == "roberta" else 0.0
    if not _plausible("classifier_dropout_prob", dropout):
        raise ModelError(f"classifier_dropout is {dropout!r:.40}, which it cannot be", where=path, fix="restore it")
    return {"task": task, "num_labels": outputs, "classifier_dropout_prob": float(dropout)}


def _outputs(values: dict[str, Any], path: str) -> tuple[str, ...]:
    """Names of a head's outputs in order: `id2label`, or what `transformers` calls them where that is left out."""
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
    """Names of a classifier's outputs; none for other tasks. Raises `ModelError`."""
    path = os.path.join(folder, "config.json")
    return _outputs(storage.read_json(path), path) if config.task in LABELLED else ()


def read_use(folder: str, config: ModelConfig) -> dict[str, int]:
    """How texts were encoded in fine-tuning, as `export` notes it under `task_specific_params`, by the names that the
    question-answering pipeline's parameters have: `max_seq_len`, `doc_stride`, `max_answer_len` and, 0 or 1,
    `handle_impossible_answer`. Empty for folders of others."""
    found: Any = storage.read_json(os.path.join(folder, "config.json"))
    for key in ("task_specific_params", PIPELINES[config.task]):
        found = found.get(key) if isinstance(found, dict) else None
    given = found if isinstance(found, dict) else {}
    least = {"max_seq_len": 8, "doc_stride": 0, "max_answer_len": 1, "handle_impossible_answer": 0}
    return {key: int(given[key]) for key, low in least.items() if isinstance(given.get(key), int) and given[key] >= low}


def _how_to_get(name: str) -> str:
    """What is no folder is often a model's name on the Hugging Face Hub."""
    owner, _, short = name.rpartition("/")
    name = short if owner == "models" and short in OWNERS else name
    here = name != short and (owner == "models" or os.path.isdir(owner))
    if here or re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) is None:
        return "correct the path"
    full = name if "/" in name else f"{OWNERS.get(name, 'OWNER')}/{name}"
    folder = f"models/{name.rpartition('/')[2]}"
    get = f"hf download {full} --local-dir {folder}"
    return f"correct the path; or get a model of the Hugging Face Hub, {get}, and give {folder}"


def _modernbert_names(values: dict[str, Any], path: str) -> dict[str, Any]:
    """ModernBERT's values under our keys. Raises `ModelError` for local attention, which public ModernBERTs have."""
    kinds = values.get("layer_types")
    if not isinstance(kinds, list) or not kinds or any(kind != "full_attention" for kind in kinds):
        fix = "only ModernBERTs whose layer_types are all 'full_attention', as exported here, can be read"
        raise ModelError("has layers of local attention, which this model does not compute", where=path, fix=fix)
    dropouts = {key: values.get(key, 0.0) for key in ("embedding_dropout", "mlp_dropout")}
    if dropouts["embedding_dropout"] != dropouts["mlp_dropout"]:
        raise ModelError(f"has two dropouts: {dropouts}", where=path, fix="set both to one value")
    rope = values.get("rope_parameters")
    rope = rope.get("full_attention") if isinstance(rope, dict) else None
    if not isinstance(rope, dict) or rope.get("rope_type") != "default":
        raise ModelError("has no plain rope_parameters.full_attention", where=path, fix="restore config.json")
    ours = {key: value for key, value in values.items() if key not in ("layer_norm_eps", "type_vocab_size")}
    return ours | {
        "attention_probs_dropout_prob": values.get("attention_dropout"),
        "hidden_dropout_prob": dropouts["mlp_dropout"],
        "layer_norm_eps": values.get("norm_eps"),
        "rope_theta": rope.get("rope_theta"),
    }


def _plausible(key: str, value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if key.endswith("_prob") or key in ("layer_norm_eps", "initializer_range"):
        return 0.0 <= value < 1.0
    if key == "rope_theta":
        return 1.0 < value < 1e12
    if not isinstance(value, int):
        return False
    if key.endswith("_token_id"):
        return value >= 0
    return (POSITION_OFFSET if key == "max_position_embeddings" else 0) < value < LARGEST_DIMENSION
