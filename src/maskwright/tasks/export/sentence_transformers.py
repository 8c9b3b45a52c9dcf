"""Folders for the four kinds of model of `sentence-transformers`: `modules.json` names the modules, and each has its
settings. A dense one is in the form of before version 5.4, which later versions read as well, and the only one in which
servers such as vLLM and text-embeddings-inference find the pooling. The others have the form that version 6 saves.

Only `rerank` may add weights to the model's: a new head if it has learned no task."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from maskwright.config.finetuning import Task
from maskwright.core import storage
from maskwright.core.console import warn
from maskwright.core.errors import InputError
from maskwright.model.config import SEQUENCE_TASKS
from maskwright.model.hf.config import class_name
from maskwright.model.hf.names import Parameters, encoder_pieces, pieces
from maskwright.model.initial import with_new_head
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
    warn_of_modules,
)

Kind = Literal["dense", "sparse", "late", "rerank"]
HEADLESS: tuple[Kind, ...] = ("dense", "late", "rerank")
"""Kinds for which an encoder without a head suffices."""
WITHOUT_POOLER = ("deberta-v2", "distilbert", "eurobert", "modernbert", "ultrabert")
"""Families whose encoder has no matrix for the first token in `transformers`."""
HEAD_SEED = 0
"""The seed of a new head's weights."""


@dataclass(frozen=True)
class _Kind:
    model_class: str
    """Its class in `sentence_transformers`, and `model_type` of a folder."""
    task: str
    """`transformer_task`, which decides the class of `transformers`."""
    reads: str
    """The output of that class which the first module reads."""
    gives: str
    """The name under which the first module passes it on."""
    similarity: str | None
    pipeline: str
    """The Hub sorts models by it."""
    use: str


_KINDS: dict[Kind, _Kind] = {
    "dense": _Kind(
        *("SentenceTransformer", "feature-extraction", "last_hidden_state", "token_embeddings", "cosine"),
        "sentence-similarity",
        "a text is {pooling} of its tokens' last hidden states",
    ),
    "sparse": _Kind(
        *("SparseEncoder", "fill-mask", "logits", "token_embeddings", "dot"),
        "feature-extraction",
        "a text is a weight for each token of the vocabulary: log(1 + max(0, logit)) of the masked-LM head, the "
        "largest over the text (SPLADE)",
    ),
    "late": _Kind(
        *("MultiVectorEncoder", "feature-extraction", "last_hidden_state", "token_embeddings", "maxsim"),
        "feature-extraction",
        "a text is its tokens' last hidden states, each of length 1 (late interaction)",
    ),
    "rerank": _Kind(
        *("CrossEncoder", "sequence-classification", "logits", "scores", None),
        "text-ranking",
        "two texts get one score",
    ),
}


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
    if onnx and kind in ("dense", "late"):
        fix = "leave ONNX out, and use backend='onnx' of sentence-transformers"
        raise InputError(f"ONNX files need a model with a head, which {kind} lacks", fix=fix)
    activation = None
    if kind == "rerank":
        written, activation = _reranker(model, relevant)
    elif kind == "sparse":
        model.require_masked_lm()
        written = model
    else:
        written = _encoder_alone(model)
    form = _KINDS[kind]
    version = "" if kind == "dense" else " (from version 6.0 on)"
    first = kind == "dense" and pooling_of(model.tokenizer_folder)[0]
    what = form.use.format(pooling="the first" if first else "the mean")
    use = f"`sentence_transformers.{form.model_class}` loads it{version}: {what}."
    purpose = Purpose(written, "sentence-transformers", form.pipeline, kind, use)
    write_more = partial(write_modules, written, kind, activation)
    difference = export(model, folder, onnx=onnx, purpose=purpose, write_more=write_more)
    what = compared(written)
    if not quiet:
        announce(difference, folder, what)
        if kind == "rerank" and model.task is None:
            warn(f"{folder}: its head is new and untrained; train it with sentence-transformers")
    return {f"largest_{what.replace(' ', '_')}_difference": difference}


def _encoder_alone(model: TrainedModel) -> TrainedModel:
    config = replace(model.config, task="masked_lm", num_labels=0)
    kept = {piece.hf_name for piece in encoder_pieces(config)}
    # transformers' BERT encoder contains the pooler, though vectors do not need it.
    parameters = {name: value for name, value in model.parameters.items() if name in kept or ".pooler." in name}
    return replace(model, config=config, parameters=parameters, task=None, labels=())


def _reranker(model: TrainedModel, relevant: str | None) -> tuple[TrainedModel, str]:
    """The model with one output for a pair of texts, and the activation that makes a score of it."""
    config = replace(model.config, task="regression", num_labels=1)
    task = Task(kind="regression")
    if model.task is None:
        if relevant is not None:
            raise InputError("has no labels", where=model.location, fix="name no relevant label")
        parameters = with_new_head(config, model.parameters, HEAD_SEED)
        return replace(model, config=config, parameters=parameters, task=task), SIGMOID
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
    form, config = _KINDS[kind], model.config
    arguments: dict[str, Any] = {}
    if kind in ("dense", "late") and config.architecture not in WITHOUT_POOLER:
        # Otherwise transformers draws an unused matrix, or leaves one out, and warns of it.
        has, has_unasked = any(".pooler." in name for name in model.parameters), not config.facts.rotary
        arguments = {} if has == has_unasked else {"add_pooling_layer": has}
    first: dict[str, Any] = {"max_seq_length": model.max_seq_len or config.max_seq_len}
    if kind == "dense":
        first |= {"do_lower_case": False} | ({"model_args": arguments} if arguments else {})
        reader = "sentence_transformers.models.Transformer"
    else:
        first |= {
            "transformer_task": form.task,
            "modality_config": {"text": {"method": "forward", "method_output_name": form.reads}},
            "module_output_name": form.gives,
            **({"model_kwargs": arguments} if arguments else {}),
        }
        reader = "sentence_transformers.base.modules.transformer.Transformer"
    storage.write_json(os.path.join(folder, "sentence_bert_config.json"), first)
    modules: list[dict[str, Any]] = [{"idx": 0, "name": "0", "path": "", "type": reader}]
    for number, (place, settings) in enumerate(_later_modules(model, kind), start=1):
        path = f"{number}_{place.rpartition('.')[2]}"
        modules.append({"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.{place}"})
        storage.make_folder(os.path.join(folder, path))
        storage.write_json(os.path.join(folder, path, "config.json"), settings)
    storage.write_json(os.path.join(folder, MODULES), modules)
    own: dict[str, Any] = {"default_prompt_name": None, "activation_fn": activation, "prompts": {}}
    if kind != "rerank":
        prompts, default = prompts_of(model.tokenizer_folder)
        prompts = {"query": "", "document": prompts.get("passage", "")} | prompts
        own = {"default_prompt_name": default, "similarity_fn_name": form.similarity, "prompts": prompts}
    whole = {"model_type": form.model_class, **own}
    storage.write_json(os.path.join(folder, PROMPTS), whole)


def _later_modules(model: TrainedModel, kind: Kind) -> list[tuple[str, dict[str, Any]]]:
    """(class below `sentence_transformers`, settings) of the modules after the first."""
    settings: dict[str, Any]
    if kind == "dense":
        first, normalized = pooling_of(model.tokenizer_folder)
        settings = {"pooling_mode_cls_token": first, "pooling_mode_mean_tokens": not first}
        settings |= {f"pooling_mode_{name}_tokens": False for name in ("max", "mean_sqrt_len")}
        normalize: list[tuple[str, dict[str, Any]]] = [("models.Normalize", {})] if normalized else []
        return [("models.Pooling", {"word_embedding_dimension": model.config.hidden_size, **settings}), *normalize]
    if kind == "sparse":
        settings = {"embedding_dimension": model.config.vocab_size, "pooling_strategy": "max"}
        return [("sparse_encoder.modules.splade_pooling.SpladePooling", settings | {"activation_function": "relu"})]
    if kind == "late":
        mask = {"skiplist_words": [], "skiplist_tasks": ["document"], "keep_only_token_ids": None}
        tokens = "token_embeddings"
        return [
            ("multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask", mask),
            ("base.modules.normalize.Normalize", {"module_input_name": tokens, "module_output_name": tokens}),
        ]
    return []
