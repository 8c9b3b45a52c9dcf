"""A model's shape as a Hugging Face `config.json`, and back, for each architecture."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from maskwright.config.finetuning import LABELLED
from maskwright.core import storage
from maskwright.core.errors import ConfigError, ModelError
from maskwright.model import rotary
from maskwright.model.config import OUTPUTS, POOLINGS, SEQUENCE_TASKS, ModelConfig
from maskwright.model.facts import FACTS, Architecture
from maskwright.model.hf.families import FAMILIES, LARGEST_DIMENSION, Family, Written
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
OF_CLASSIFIERS = ("classifier_dropout", "seq_classif_dropout", "qa_dropout", "cls_dropout")
ROPE_FIELDS = ("rope_theta", "local_rope_theta")


def to_hf_config(config: ModelConfig, labels: Sequence[str] = (), *, bare: bool = False) -> dict[str, Any]:
    """`config.json` of a Hugging Face folder; `labels`: the names of a classifier's outputs, in order. `bare`: of an
    encoder without a head."""
    head = {"architectures": [class_name(config, bare=True)]} if bare else _task_config(config, labels)
    return _encoder_config(config) | head


def dropout_keys(architecture: Architecture, name: str) -> list[str]:
    """Keys of config.json that hold `hidden_dropout_prob` or `attention_probs_dropout_prob`."""
    key = FAMILIES[architecture].keys.get(name)  # EuroBERT's class has none for hidden states
    return [key, "embedding_dropout"] if key == "mlp_dropout" else [key] if key else []


def family_dropout(model: ModelConfig) -> float:
    """The dropout in fine-tuning with which such models are published: RoBERTa's 0.1, ModernBERT's 0."""
    return 0.0 if model.facts.rotary else 0.1


def fine_tuning_values(folder: str, model: ModelConfig) -> dict[str, Any]:
    """Values of config.json that `transformers` uses in fine-tuning alone, under its keys there: dropouts. `model`: the
    result of `read_hf_config` for the folder."""
    written, values = _encoder_config(model), storage.read_json(os.path.join(folder, "config.json"))
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    dropouts = {key: written[key] for name in names for key in dropout_keys(model.architecture, name)}
    return dropouts | {key: values[key] for key in OF_CLASSIFIERS if key in values}


def class_name(config: ModelConfig, *, bare: bool = False) -> str:
    """Name of the class of `transformers` that computes the same. `bare`: without a head."""
    return FAMILIES[config.architecture].class_begins + ("Model" if bare else CLASS_ENDS[config.task])


def _task_config(config: ModelConfig, labels: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {"architectures": [class_name(config)]}
    if config.task == "masked_lm":
        return values
    names = list(labels) or [f"LABEL_{number}" for number in range(config.num_labels)]
    values |= {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {n: i for i, n in enumerate(names)},
    }
    family = FAMILIES[config.architecture]
    values |= dict.fromkeys(family.head_dropouts, config.classifier_dropout_prob)
    if config.task in SEQUENCE_TASKS:
        values["problem_type"] = config.task
    return values


def _encoder_config(config: ModelConfig) -> dict[str, Any]:
    family = FAMILIES[config.architecture]
    values = {"model_type": config.architecture, "tie_word_embeddings": True, "dtype": "float32"}
    values |= {key: getattr(config, name) for name, key in family.keys.items()}
    return values | family.needs | family.write(config)


def read_hf_config(folder: str, *, head: bool = True) -> ModelConfig:
    """Reads a folder's shape. Raises `ModelError` unless this code computes the folder's model exactly. Without `head`,
    reads the encoder alone, as masked_lm, with any head in the folder."""
    path = os.path.join(folder, "config.json")
    if not os.path.isfile(path):
        require_folder(folder)
        raise without_config(folder)
    values = storage.read_json(path)
    kind = values.get("model_type") if isinstance(values, dict) else None
    if kind not in list(FAMILIES):  # a list, because `kind` may be unhashable
        what = f"model_type is {kind!r:.40}, but supported are {', '.join(FAMILIES)}"
        parent = model_above(folder) if kind is None else None
        fix = f"give the folder above it: {parent}" if parent else "see docs/recipes.md#encoders for others"
        raise ModelError(what, where=path, fix=fix)
    family: Family = FAMILIES[kind]
    if values.get("auto_map") and not _is_former_code(values["auto_map"], family):
        fix = f"use a folder that {family.class_begins}ForMaskedLM of transformers reads without trust_remote_code"
        raise ModelError("its model is code of its own (auto_map), which is never run", where=path, fix=fix)
    written = Written(values, path)
    set_values = {key: value for key, value in values.items() if value is not None}
    written.require(family.needs | set_values, family.needs, "use a model with this setting")
    if values.get("quantization_config") is not None:
        raise ModelError("has quantised weights", where=path, fix="use the folder that it was made from")
    if values.get("tie_word_embeddings") is False and "tie_word_embeddings" not in family.keys:
        fix = "use a model whose head shares the embeddings"
        raise ModelError("tie_word_embeddings is False", where=path, fix=fix)
    given = {name: values[key] for name, key in family.keys.items() if values.get(key) is not None}
    shape = family.defaults | family.fixed | given | family.read(written)
    # The tokenizer defines these ids (`with_ids`); config.json has none for some models, or several.
    size = shape.get("vocab_size") if type(shape.get("vocab_size")) is int else 0
    ids = ("bos_token_id", "eos_token_id", *(() if FACTS[kind].first_position_after_padding else ("pad_token_id",)))
    for name in (*ids, "mask_token_id") if "mask_token_id" in family.keys else ids:
        if not _plausible(name, shape.get(name)) or shape[name] >= size:
            shape[name] = ModelConfig.eos_token_id if name == "eos_token_id" else 0
    keys = dict.fromkeys((name for name in ROPE_FIELDS if name in shape), "rope_parameters") | family.keys
    # The vocabulary's size comes first: ids must stay below it.
    for name in (name for name in ModelConfig.__dataclass_fields__ if name in keys):
        value = shape.get(name)
        beyond = name.endswith("_token_id") and _plausible(name, value) and value >= shape["vocab_size"]
        if beyond or not _plausible(name, value):
            raise written.cannot_be(keys[name], value)
    head_fields = _head(written, family) if head else {}
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


def _head(written: Written, family: Family) -> dict[str, Any]:
    """The fields of a head as `transformers` reads them; empty for a masked-LM head and for a class without a head."""
    listed, values = written["architectures"], written.values
    name = str(listed[0]) if isinstance(listed, list) and listed else ""
    task = next((task for task, end in CLASS_ENDS.items() if name.endswith(end)), "masked_lm")
    if task == "masked_lm":
        return {}
    outputs = len(_outputs(written))
    if task in SEQUENCE_TASKS:
        task = written["problem_type"] or ("regression" if outputs == 1 else "single_label_classification")
        if task not in SEQUENCE_TASKS:
            raise written.refused(f"problem_type is {task!r:.40}", f"set one of {', '.join(SEQUENCE_TASKS)}")
        if task == SEQUENCE_TASKS[0] and outputs == 1:
            raise written.refused(f"has one output for {task}, so all texts get it", "set problem_type to regression")
    if task == "question_answering" and not FACTS[values["model_type"]].answers_questions:
        what = f"is a {name}, which transformers lacks"
        raise written.refused(what, "use the folder that it was fine-tuned from")
    if outputs != OUTPUTS.get(task, outputs):
        raise written.refused(f"has {outputs} outputs for {task}")
    key = family.head_dropouts[task == "question_answering"]
    dropout = values.get(key)
    if dropout is None:
        of_hidden = values.get("hidden_dropout_prob", family.defaults.get("hidden_dropout_prob", 0.0))
        dropout = of_hidden if family.head_dropout is None else family.head_dropout
    if not _plausible("classifier_dropout_prob", dropout):
        raise written.cannot_be(key, dropout)
    return {"task": task, "num_labels": outputs, "classifier_dropout_prob": float(dropout)}


def _outputs(written: Written) -> tuple[str, ...]:
    """Names of a head's outputs in order: `id2label`, or the names that `transformers` uses without it."""
    names = written["id2label"]
    if names is None:
        count = written.values.get("num_labels", 2)
        names = {str(number): f"LABEL_{number}" for number in range(count if type(count) is int else 0)}
    keys = [str(number) for number in range(len(names))] if isinstance(names, dict) else []
    if not keys or set(keys) != set(names) or not all(isinstance(name, str | int) for name in names.values()):
        fix = 'write {"0": "first name", "1": "second name"}'
        raise written.refused("id2label does not name the outputs from 0 on", fix)
    if len(set(names.values())) < len(keys):
        raise written.refused("id2label gives two outputs one name", "give each its own")
    return tuple(str(names[key]) for key in keys)


def read_labels(folder: str, config: ModelConfig) -> tuple[str, ...]:
    """Names of a classifier's outputs; empty for other tasks. Raises `ModelError`."""
    path = os.path.join(folder, "config.json")
    return _outputs(Written(storage.read_json(path), path)) if config.task in LABELLED else ()


def read_use(folder: str, config: ModelConfig) -> dict[str, Any]:
    """Settings by which texts were encoded in fine-tuning, as `export` writes them under `task_specific_params`, by the
    names of the question-answering pipeline's parameters: `max_seq_len`, `doc_stride`, `max_answer_len` and, 0 or 1,
    `handle_impossible_answer`; the `threshold` of several labels; and `pairs` (of texts), 0 or 1. Empty for folders of
    other tools."""
    params: Any = storage.read_json(os.path.join(folder, "config.json"))
    for key in ("task_specific_params", PIPELINES[config.task]):
        params = params.get(key) if isinstance(params, dict) else None
    use = params if isinstance(params, dict) else {}
    least = {"max_seq_len": 8, "doc_stride": 0, "max_answer_len": 1, "handle_impossible_answer": 0, "pairs": 0}
    found = {key: int(use[key]) for key, low in least.items() if isinstance(use.get(key), int) and use[key] >= low}
    share = use.get("threshold")
    return found | ({"threshold": share} if isinstance(share, float) and 0.0 < share < 1.0 else {})


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
    what = f"{tensor.name} does not follow from rope_theta {model.rope_theta:g} in fp32, fp16 or bf16"
    raise ModelError(what, where=tensor.path, fix="use another copy of the model")


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
