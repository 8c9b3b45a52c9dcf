"""`maskwright tokenizer extend --model` and `tokenizer trim --model`: the model with the rows of another vocabulary."""

from __future__ import annotations

import os
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


def resized(
    model: str, before: Vocabulary, after: Vocabulary, change: Extension | Trimming, tokenizer: str, folder: str
) -> float:
    """Writes a model folder with the changed `tokenizer` and the rows of its tokens. A new token's rows are the means
    of its old pieces' rows; the logits of tokens that stay are the same. A fine-tuned model only loses rows of its
    embeddings. Returns the largest difference of a logit from transformers, as `export` does.

    Raises `InputError` for a model that has another tokenizer or, to be extended, no masked-LM head."""
    trained = load_model(model)
    if isinstance(change, Extension):
        trained.require_masked_lm()
    if trained.vocabulary.fingerprint != before.fingerprint:
        fix = "name the tokenizer in the model's folder"
        raise InputError("has another tokenizer than the one that was changed", where=model, fix=fix)
    warn_of_modules(model, trained.tokenizer_folder)

    def rows_of(value: NDArray[np.float32]) -> NDArray[np.float32]:
        if isinstance(change, Trimming):
            return np.ascontiguousarray(value[change.old_ids])
        rows = np.zeros((max(len(value), after.size), *value.shape[1:]), np.float32)  # there may be spare rows
        rows[: len(value)] = value
        for number, pieces in enumerate(change.pieces):
            rows[before.size + number] = value[pieces].mean(axis=0, dtype=np.float64)
        return rows

    def write_old_ids(place: str) -> None:
        if isinstance(change, Trimming):
            storage.write_json(os.path.join(place, OLD_IDS), change.old_ids)

    names = vocabulary_rows(trained.config)
    parameters = trained.parameters | {name: rows_of(trained.parameters[name]) for name in names}
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
    return export(changed, folder, write_more=write_old_ids)
