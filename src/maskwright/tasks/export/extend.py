"""`maskwright tokenizer extend --model`: a masked-LM model with rows for the new tokens of its tokenizer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from maskwright.core.errors import InputError
from maskwright.model.hf.names import Parameters
from maskwright.tasks.export.hugging_face import export
from maskwright.tasks.models.load import load_model
from maskwright.text.extend import Extension
from maskwright.text.vocabulary import Vocabulary


def grow(model: str, before: Vocabulary, after: Vocabulary, extension: Extension, tokenizer: str, folder: str) -> float:
    """Writes a model folder with the extended tokenizer. A new token's rows are the means of those of its old pieces.
    Returns the largest difference of a logit from transformers, as `export` does.

    Raises `InputError` for a model that has another tokenizer or another head."""
    trained = load_model(model)
    trained.require_masked_lm()
    if trained.vocabulary.fingerprint != before.fingerprint:
        fix = "extend the tokenizer that lies in the model's folder"
        raise InputError("has another tokenizer than the one that was extended", where=model, fix=fix)
    size = max(trained.config.vocab_size, after.size)  # a model may have more rows than its tokenizer has tokens
    grown = replace(
        trained,
        config=replace(trained.config, vocab_size=size),
        parameters={
            name: _grown(value, size, before.size, extension) if len(value) == trained.config.vocab_size else value
            for name, value in trained.parameters.items()
        },
        tokenizer_folder=tokenizer,
        vocabulary=after,
        run=None,
        step=None,
    )
    require_alone(trained.parameters, trained.config.vocab_size, model)
    return export(grown, folder)


def require_alone(parameters: Parameters, vocab_size: int, where: str) -> None:
    """Raises `InputError` unless only the embeddings and the head's bias have `vocab_size` rows: other tensors with as
    many would be extended too."""
    rows = [name for name, value in parameters.items() if len(value) == vocab_size]
    if len(rows) != 2 or sorted(parameters[name].ndim for name in rows) != [1, 2]:
        what = f"has several tensors with {vocab_size:,} rows: {', '.join(rows[:4])}"
        raise InputError(what, where=where, fix="grow it with transformers' resize_token_embeddings")


def _grown(value: np.ndarray, size: int, first: int, extension: Extension) -> np.ndarray:
    rows = np.zeros((size, *value.shape[1:]), np.float32)
    rows[: len(value)] = value
    for number, pieces in enumerate(extension.pieces):
        rows[first + number] = value[pieces].mean(axis=0, dtype=np.float64)
    return rows
