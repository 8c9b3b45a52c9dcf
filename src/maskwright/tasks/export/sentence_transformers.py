"""A folder that `sentence-transformers` loads, and that computes the vectors of `maskwright embed`."""

from __future__ import annotations

import os
from functools import partial

from maskwright.core import storage
from maskwright.tasks.export.hugging_face import export
from maskwright.tasks.models.load import TrainedModel


def export_for_sentence_transformers(model: TrainedModel, folder: str) -> float:
    """The exported folder with what `sentence-transformers` needs beside it. Returns what `export` does."""
    model.require_masked_lm()
    return export(model, folder, write_more=partial(_write_modules, model))


def _write_modules(model: TrainedModel, folder: str) -> None:
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    pooling = {"word_embedding_dimension": model.config.hidden_size, "pooling_mode_mean_tokens": True}
    length = {"max_seq_length": model.config.max_seq_len, "do_lower_case": False}
    storage.make_folder(os.path.join(folder, "1_Pooling"))
    storage.write_json(os.path.join(folder, "1_Pooling", "config.json"), pooling)
    storage.write_json(os.path.join(folder, "sentence_bert_config.json"), length)
    storage.write_json(os.path.join(folder, "modules.json"), modules)
