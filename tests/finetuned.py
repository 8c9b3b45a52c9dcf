"""Fine-tuned models that no training made: a run directory for each kind of task."""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from maskwright.core import storage
from maskwright.core.finetuning import Task
from maskwright.engines.base import TrainState
from maskwright.model.config import ModelConfig, TaskKind
from maskwright.model.hf.config import LABELLED
from maskwright.model.initial import initial_parameters
from maskwright.run.directory import FORMAT, RunDirectory
from maskwright.training import checkpoint

TASKS = [task for task in get_args(TaskKind) if task != "masked_lm"]
LABELS = ("O", "B-PER", "I-PER")
ROBERTA = ModelConfig(400, 32, 2, 2, 64, 66)
SHAPES = {"roberta": ROBERTA, "modernbert": replace(ROBERTA, architecture="modernbert", max_position_embeddings=64)}


def shape(kind: str, task: TaskKind) -> ModelConfig:
    outputs = {"regression": 1, "question_answering": 2}.get(task, 3)
    return replace(SHAPES[kind], task=task, num_labels=outputs, classifier_dropout_prob=0.25)


def finished_run(folder: Path, config: ModelConfig, tokenizer: str, noise: float = 0.2) -> Path:
    """A run directory as fine-tuning leaves it. `noise`: of weights, so large that every head says something."""
    generator = np.random.default_rng(5)
    parameters = {
        name: (value + noise * generator.standard_normal(value.shape)).astype(np.float32)
        for name, value in initial_parameters(config, 1).items()
    }
    texts = dict.fromkeys(["digest", "store", "store_fingerprint", "tokenizer_fingerprint"], "none")
    record: dict[str, Any] = {
        "config": {"schedule.steps": 7},
        "model": asdict(config),
        "dtype": "float32",
        "labels": list(LABELS) if config.task in LABELLED else [],
        "task": None if config.task == "masked_lm" else Task(kind=config.task, doc_stride=8).model_dump(),
        **texts,
    }
    if config.task == "question_answering":
        record["may_be_none"] = True
    directory = RunDirectory(str(folder))
    os.makedirs(directory.location)
    shutil.copytree(tokenizer, directory.path("tokenizer"))
    checkpoint.save(directory.checkpoints, TrainState(7, parameters), record, keep=1)
    storage.write_json(directory.config, {"format": FORMAT, **record})
    return folder
