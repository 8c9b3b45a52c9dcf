"""Fine-tuned models that no training made: a run directory for each kind of task; and the smallest of what
`maskwright compare` takes."""

from __future__ import annotations

import json
import os
import random
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import yaml
from made_record import made_record
from safetensors.numpy import save_file

from maskwright.config.finetuning import LABELLED
from maskwright.engines.base import TrainState
from maskwright.model.config import OUTPUTS, ModelConfig, TaskKind
from maskwright.model.hf.config import to_hf_config
from maskwright.model.initial import initial_parameters
from maskwright.run.directory import RunDirectory
from maskwright.training import checkpoint

TASKS = [task for task in get_args(TaskKind) if task != "masked_lm"]
LABELS = ("O", "B-PER", "I-PER")
ROBERTA = ModelConfig(400, 32, 2, 2, 64, 66)
MODERNBERT = replace(ROBERTA, architecture="modernbert", max_position_embeddings=64)
SHAPES = {
    "roberta": ROBERTA,
    "modernbert": replace(MODERNBERT, global_attn_every_n_layers=2, local_attention=16),
    "bert": replace(ROBERTA, architecture="bert", max_position_embeddings=64, type_vocab_size=2),
    "distilbert": replace(
        ROBERTA, architecture="distilbert", max_position_embeddings=64, type_vocab_size=0, layer_norm_eps=1e-12
    ),
    "mpnet": replace(ROBERTA, architecture="mpnet", type_vocab_size=0, layer_norm_eps=1e-12, position_buckets=32),
    "deberta-v2": replace(
        ROBERTA,
        architecture="deberta-v2",
        max_position_embeddings=64,
        type_vocab_size=0,
        layer_norm_eps=1e-7,
        position_biased_input=False,
        pos_att_type="c2p|p2c",
        position_buckets=16,
        max_relative_positions=64,
        conv_kernel_size=3,
    ),
    "eurobert": replace(
        ROBERTA,
        architecture="eurobert",
        max_position_embeddings=64,
        type_vocab_size=0,
        num_key_value_heads=1,
        tie_word_embeddings=False,
        mask_token_id=399,
    ),
    "ultrabert": replace(
        ROBERTA,
        architecture="ultrabert",
        max_position_embeddings=64,
        type_vocab_size=0,
        num_key_value_heads=1,
        tie_word_embeddings=False,
        head_hidden_size=24,
        global_attn_every_n_layers=2,
        local_attention=16,
        classifier_pooling="bos",
    ),
    "nomic_bert": replace(
        ROBERTA,
        architecture="nomic_bert",
        max_position_embeddings=64,
        type_vocab_size=2,
        layer_norm_eps=1e-12,
        rope_theta=1000.0,
    ),
    "gte": replace(ROBERTA, architecture="gte", max_position_embeddings=64, layer_norm_eps=1e-12, rope_theta=160_000.0),
}


def shape(kind: str, task: TaskKind) -> ModelConfig:
    """EuroBERTs have another pooling for each task of whole texts."""
    outputs = OUTPUTS.get(task, 3)
    pooling = {"regression": "mean", "multi_label_classification": "bos"}.get(task, "late")
    own = {"classifier_pooling": pooling} if kind == "eurobert" else {}
    if kind == "ultrabert" and task == "regression":
        own = {"classifier_pooling": "mean"}
    return replace(SHAPES[kind], task=task, num_labels=outputs, classifier_dropout_prob=0.25, **own)


def finished_run(folder: Path, config: ModelConfig, tokenizer: str, noise: float = 0.2) -> Path:
    """A run directory as fine-tuning leaves it. `noise`: of weights, so large that every head says something."""
    generator = np.random.default_rng(5)
    parameters = {
        name: (value + noise * generator.standard_normal(value.shape)).astype(np.float32)
        for name, value in initial_parameters(config, 1).items()
    }
    own = {} if config.task == "masked_lm" else {"task.kind": config.task, "task.doc_stride": 8}
    record = made_record(
        "finetune" if own else "pretrain",
        own,
        model=asdict(config),
        labels=tuple(LABELS[: config.num_labels]) if config.task in LABELLED else (),
        may_be_none=True if config.task == "question_answering" else None,
    )
    directory = RunDirectory(str(folder))
    os.makedirs(directory.location)
    shutil.copytree(tokenizer, directory.path("tokenizer"))
    checkpoint.save(directory.checkpoints, TrainState(7, parameters), record.to_json(), keep=1)
    directory.write_record(record)
    return folder


WORDS = ["the", "fox", "saw", "a", "garden", "and", "old", "house", "was", "near", "river", "with", "trees"]


def pretrained_folder(folder: Path, tokenizer: str) -> str:
    """What a pretrained model is to a comparison: a folder whose weights are the same for every seed."""
    shutil.copytree(tokenizer, folder)
    (folder / "config.json").write_text(json.dumps(to_hf_config(ROBERTA)))
    save_file(initial_parameters(ROBERTA, 7), str(folder / "model.safetensors"))
    return str(folder)


def foxes(folder: Path) -> Path:
    """The YAML of texts that are `good` when they name a fox. There is no `model` in it."""
    values: dict[str, Any] = {
        "data": {"max_seq_len": 32},
        "schedule": {"steps": 10},
        "batch": {"examples": 16},
        "engine": {"device": "cpu", "dtype": "fp32", "threads": 1},
        "logging": {"every_steps": 2},
        "checkpoint": {"save_every_steps": 4},
    }
    draw = random.Random(3)
    for split, count in (("train", 90), ("test", 60)):
        path = folder / f"{split}.csv"
        lines = [" ".join(draw.choices(WORDS, k=draw.randint(3, 14))) for _ in range(count)]
        path.write_text("text,label\n" + "".join(f"{x},{'good' if 'fox' in x.split() else 'bad'}\n" for x in lines))
        values["data"][split] = str(path)
    path = folder / "foxes.yaml"
    path.write_text(yaml.safe_dump(values))
    return path
