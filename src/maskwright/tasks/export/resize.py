"""`maskwright tokenizer extend --model` and `tokenizer trim --model`: the model with the rows of another vocabulary."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from maskwright.core import storage
from maskwright.core.errors import InputError
from maskwright.model.hf.names import vocabulary_rows
from maskwright.tasks.export.hugging_face import export
from maskwright.tasks.models.load import load_model, with_ids
from maskwright.tasks.models.modules import warn_of_modules
from maskwright.text.extend import Extension
from maskwright.text.trim import OLD_IDS, Trimming
from maskwright.text.vocabulary import Vocabulary

Rows = NDArray[np.float32]


def resized(
    model: str, before: Vocabulary, after: Vocabulary, change: Extension | Trimming, tokenizer: str, folder: str
) -> float:
    """`grow` or `shrink`, as the tokenizer was changed."""
    if isinstance(change, Extension):
        return grow(model, before, after, change, tokenizer, folder)
    return shrink(model, before, after, change, tokenizer, folder)


def grow(model: str, before: Vocabulary, after: Vocabulary, extension: Extension, tokenizer: str, folder: str) -> float:
    """Writes a model folder with the extended tokenizer. A new token's rows are the means of its old pieces' rows.
    Returns the largest difference of a logit from transformers, as `export` does.

    Raises `InputError` for a model that has another tokenizer, or no masked-LM head."""

    def grown(value: Rows) -> Rows:
        rows = np.zeros((max(len(value), after.size), *value.shape[1:]), np.float32)  # there may be spare rows
        rows[: len(value)] = value
        for number, pieces in enumerate(extension.pieces):
            rows[before.size + number] = value[pieces].mean(axis=0, dtype=np.float64)
        return rows

    return _resized(model, before, after, grown, tokenizer, folder, masked_lm=True)


def shrink(model: str, before: Vocabulary, after: Vocabulary, trimming: Trimming, tokenizer: str, folder: str) -> float:
    """Writes a model folder with the trimmed tokenizer and the rows of its tokens, whose logits stay the same. A
    fine-tuned model only loses rows of its embeddings. Returns and raises as `grow` does."""

    def note(place: str) -> None:
        storage.write_json(os.path.join(place, OLD_IDS), trimming.old_ids)

    def cut(value: Rows) -> Rows:
        return np.ascontiguousarray(value[trimming.old_ids])

    return _resized(model, before, after, cut, tokenizer, folder, write_more=note)


def _resized(
    model: str,
    before: Vocabulary,
    after: Vocabulary,
    resize: Callable[[Rows], Rows],
    tokenizer: str,
    folder: str,
    *,
    masked_lm: bool = False,
    write_more: Callable[[str], object] = lambda folder: None,
) -> float:
    trained = load_model(model)
    if masked_lm:
        trained.require_masked_lm()
    if trained.vocabulary.fingerprint != before.fingerprint:
        fix = "name the tokenizer in the model's folder"
        raise InputError("has another tokenizer than the one that was changed", where=model, fix=fix)
    warn_of_modules(model, trained.tokenizer_folder)
    names = vocabulary_rows(trained.config)
    parameters = trained.parameters | {name: resize(trained.parameters[name]) for name in names}
    config = replace(trained.config, vocab_size=len(parameters[names[0]]))
    changed = replace(
        trained,
        config=with_ids(config, after, tokenizer),
        parameters=parameters,
        tokenizer_folder=tokenizer,
        vocabulary=after,
        run=None,
        step=None,
    )
    return export(changed, folder, write_more=write_more)
