"""A trained model from a run directory (its newest good checkpoint) or from a Hugging Face folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from maskwright.core.errors import InputError
from maskwright.model.config import ModelConfig, recorded_config
from maskwright.model.hf.folder import read_model_folder
from maskwright.model.hf.names import Parameters
from maskwright.run.directory import RunDirectory
from maskwright.text.vocabulary import Vocabulary, read_vocabulary
from maskwright.training import checkpoint


@dataclass(frozen=True)
class TrainedModel:
    """`run` is the run's record (see `RunDirectory.read_config`) and `step` its updates; both None for a folder."""

    location: str
    config: ModelConfig
    parameters: Parameters
    tokenizer_folder: str
    vocabulary: Vocabulary
    run: dict[str, Any] | None = None
    step: int | None = None


def load_model(location: str) -> TrainedModel:
    """Raises `InputError`, `ModelError` or `CheckpointError` if there is no usable model."""
    directory = RunDirectory(location)
    if directory.exists():
        record = directory.read_config()
        config = recorded_config(record["model"], directory.config)
        loaded = checkpoint.load_newest(directory.checkpoints, set_aside=False)
        if loaded is None:
            raise InputError("has no checkpoint yet", where=location, fix="let `maskwright pretrain` save one first")
        parameters, step = loaded[0].parameters, loaded[0].step
        tokenizer = directory.path("tokenizer")
        return TrainedModel(location, config, parameters, tokenizer, read_vocabulary(tokenizer), record, step)
    if not os.path.isdir(location):
        raise InputError("is not a folder", where=location, fix="give a run directory or a Hugging Face folder")
    config, parameters = read_model_folder(location)
    vocabulary = read_vocabulary(location)
    if vocabulary.size > config.vocab_size:
        what = f"its tokenizer has {vocabulary.size:,} tokens, the model only {config.vocab_size:,}"
        raise InputError(what, where=location, fix="put the tokenizer that belongs to the model into its folder")
    return TrainedModel(location, config, parameters, location, vocabulary)
