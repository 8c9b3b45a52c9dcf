"""Folders for `sentence-transformers`: `modules.json` names the modules, and each has its settings. A dense one has the
form of before version 5.4, which later versions read as well, and the only one in which servers such as vLLM and
text-embeddings-inference find the pooling. A reranker has the form that version 6 saves."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np

from maskwright.config.finetuning import Task
from maskwright.core import storage
from maskwright.core.errors import InputError
from maskwright.model.config import SEQUENCE_TASKS
from maskwright.model.hf.config import class_name
from maskwright.model.hf.names import Parameters, encoder_pieces, pieces
from maskwright.tasks.export.hugging_face import Purpose, announce, compared, export
from maskwright.tasks.models.load import TrainedModel
from maskwright.tasks.models.modules import (
    IDENTITY,
    MODULES,
    PROMPTS,
    SIGMOID,
    activation_of,
    pooling_of,
    prompts_of,
    similarity_of,
    warn_of_modules,
)

Kind = Literal["dense", "rerank"]
WITHOUT_POOLER = ("deberta-v2", "distilbert", "eurobert", "modernbert", "ultrabert")
"""Families whose encoder has no matrix for the first token in `transformers`."""


CLASSES: dict[Kind, tuple[str, str]] = {
    "dense": ("SentenceTransformer", "sentence-similarity"),
    "rerank": ("CrossEncoder", "text-ranking"),
}
"""Class in `sentence_transformers`, which is the `model_type` of a folder, and the pipeline by which the Hub sorts."""


def export_as(
    kind: Kind | None,
    model: TrainedModel,
    folder: str,
    *,
    relevant: str | None = None,
    onnx: bool = False,
    quiet: bool = False,
) -> dict[str, float]:
    """`export` of a model as it is, or as a folder that the class of `kind` loads; unless `quiet`, prints the
    verification. Returns the measurement: `largest_logit_difference`, or `largest_hidden_state_difference` of a kind
    without logits.

    `relevant`, only for rerank: the label whose log-odds are the score; a number is the score itself. Raises
    `InputError` for a model that cannot be of this kind."""
    if relevant is not None and kind != "rerank":
        raise InputError("a relevant label is for rerank alone", fix="leave it out, or choose rerank")
    if kind is None:
        warn_of_modules(model.location, model.tokenizer_folder)
        difference = export(model, folder, onnx=onnx)
        if not quiet:
            announce(difference, folder)
        return {"largest_logit_difference": difference}
    if onnx and kind == "dense":
        fix = "leave ONNX out, and use backend='onnx' of sentence-transformers"
        raise InputError("ONNX files need a model with a head, which dense lacks", fix=fix)
    written, activation = _reranker(model, relevant) if kind == "rerank" else (_encoder_alone(model), None)
    model_class, pipeline = CLASSES[kind]
    if kind == "dense":
        pooled = "the first" if pooling_of(model.tokenizer_folder)[0] else "the mean"
        use = f"`sentence_transformers.{model_class}` loads it: a text is {pooled} of its tokens' last hidden states."
    else:
        use = f"`sentence_transformers.{model_class}` loads it (from version 6.0 on): two texts get one score."
    purpose = Purpose(written, "sentence-transformers", pipeline, kind, use)
    write_more = partial(write_modules, written, kind, activation)
    difference = export(model, folder, onnx=onnx, purpose=purpose, write_more=write_more)
    what = compared(written)
    if not quiet:
        announce(difference, folder, what)
    return {f"largest_{what.replace(' ', '_')}_difference": difference}


def _encoder_alone(model: TrainedModel) -> TrainedModel:
    config = replace(model.config, task="masked_lm", num_labels=0)
    kept = {piece.hf_name for piece in encoder_pieces(config)}
    # transformers' BERT encoder contains the pooler, though vectors do not need it.
    parameters = {name: value for name, value in model.parameters.items() if name in kept or ".pooler." in name}
    return replace(model, config=config, parameters=parameters, task=None, labels=())


def _reranker(model: TrainedModel, relevant: str | None) -> tuple[TrainedModel, str]:
    """The model with one output for a pair of texts, and the activation that makes a score of it."""
    if model.task is None:
        fix = "fine-tune it on pairs; sentence_transformers.CrossEncoder adds an untrained head by itself"
        raise InputError("has learned to score no pairs", where=model.location, fix=fix)
    kind, labels = model.task.kind, model.labels
    if kind not in SEQUENCE_TASKS:
        fix = "use a model that was fine-tuned on pairs, or the model that this one was fine-tuned from"
        raise InputError(f"is a {class_name(model.config)}, which scores no pairs", where=model.location, fix=fix)
    if kind == "regression":
        if relevant is not None:
            raise InputError("predicts a number, and has no labels", where=model.location, fix="name no relevant label")
        return model, activation_of(model.tokenizer_folder) or IDENTITY
    if kind == "single_label_classification" and len(labels) != 2:
        what = f"chooses among {len(labels)} labels, which make no single score"
        raise InputError(what, where=model.location, fix="fine-tune with two labels, or with a number (task.kind)")
    if relevant not in labels:
        what = "does not name the relevant label" if relevant is None else f"has no label {relevant!r}"
        fix = f"name it with --relevant, or relevant in Python: {_listed(labels)}"
        raise InputError(what, where=model.location, fix=fix)
    config, task = replace(model.config, task="regression", num_labels=1), Task(kind="regression")
    parameters = model.parameters | _one_output(model, labels.index(relevant))
    return replace(model, config=config, parameters=parameters, task=task, labels=(relevant,)), SIGMOID


def _listed(labels: Sequence[str]) -> str:
    return ", ".join(repr(label) for label in labels[:10]) + (", …" if len(labels) > 10 else "")


def _one_output(model: TrainedModel, chosen: int) -> Parameters:
    """The last matrix and bias with the log-odds of one label as their only row. Of two labels that exclude each other,
    softmax is the sigmoid of the logits' difference; others are a sigmoid each."""
    result: Parameters = {}
    for piece in pieces(model.config):
        if piece.name.startswith("head.classifier."):
            rows = model.parameters[piece.hf_name]
            one = rows[chosen]
            if model.config.task == "single_label_classification":
                one = one - rows[1 - chosen]
            result[piece.hf_name] = np.ascontiguousarray(one[None])
    return result


def write_modules(model: TrainedModel, kind: Kind, activation: str | None, folder: str) -> None:
    """Writes the files of `sentence-transformers` into the folder of a model."""
    config = model.config
    first: dict[str, Any] = {"max_seq_length": model.max_seq_len or config.max_seq_len}
    modules: list[tuple[str, dict[str, Any]]] = []
    own: dict[str, Any] = {"default_prompt_name": None, "activation_fn": activation, "prompts": {}}
    reader = "base.modules.transformer.Transformer"
    if kind == "dense":
        reader, (prompts, default) = "models.Transformer", prompts_of(model.tokenizer_folder)
        prompts = {"query": "", "document": prompts.get("passage", "")} | prompts
        similarity = similarity_of(model.tokenizer_folder)
        own = {"default_prompt_name": default, "similarity_fn_name": similarity, "prompts": prompts}
        first |= {"do_lower_case": False}
        # Otherwise transformers draws an unused matrix, or leaves one out, and warns of it.
        has, has_unasked = any(".pooler." in name for name in model.parameters), not config.facts.rotary
        if config.architecture not in WITHOUT_POOLER and has != has_unasked:
            first["model_args"] = {"add_pooling_layer": has}
        of_first, normalized = pooling_of(model.tokenizer_folder)
        settings: dict[str, Any] = {"pooling_mode_cls_token": of_first, "pooling_mode_mean_tokens": not of_first}
        settings |= {f"pooling_mode_{name}_tokens": False for name in ("max", "mean_sqrt_len")}
        modules = [("models.Pooling", {"word_embedding_dimension": config.hidden_size, **settings})]
        modules += [("models.Normalize", {})] if normalized else []
    else:
        first |= {
            "transformer_task": "sequence-classification",
            "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
            "module_output_name": "scores",
        }
    storage.write_json(os.path.join(folder, "sentence_bert_config.json"), first)
    listed = [{"idx": 0, "name": "0", "path": "", "type": f"sentence_transformers.{reader}"}]
    for number, (place, settings) in enumerate(modules, start=1):
        path = f"{number}_{place.rpartition('.')[2]}"
        listed.append({"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.{place}"})
        storage.make_folder(os.path.join(folder, path))
        storage.write_json(os.path.join(folder, path, "config.json"), settings)
    storage.write_json(os.path.join(folder, MODULES), listed)
    storage.write_json(os.path.join(folder, PROMPTS), {"model_type": CLASSES[kind][0], **own})
