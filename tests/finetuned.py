"""Fine-tuned models that no training made: a run directory for each kind of task; and the smallest of what
`maskwright compare` takes."""

import json
import os
import random
import shutil
from collections.abc import Callable
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
from maskwright.model.hf.names import Parameters, buffers
from maskwright.model.initial import initial_parameters
from maskwright.run.directory import RunDirectory
from maskwright.training import checkpoint

TASKS = [task for task in get_args(TaskKind) if task != "masked_lm"]
LABELS = ("O", "B-PER", "I-PER")
ROBERTA = ModelConfig(400, 32, 2, 2, 64, 66)


def small(kind: Any, **own: Any) -> ModelConfig:
    return replace(ROBERTA, **{"architecture": kind, "max_position_embeddings": 64, "type_vocab_size": 0} | own)


MODERNBERT = small("modernbert", type_vocab_size=1)
DEBERTA = {"position_biased_input": False, "pos_att_type": "c2p|p2c", "position_buckets": 16, "conv_kernel_size": 3}
SHAPES = {
    "roberta": ROBERTA,
    "modernbert": replace(MODERNBERT, global_attn_every_n_layers=2, local_attention=16),
    "bert": small("bert", type_vocab_size=2),
    "distilbert": small("distilbert", layer_norm_eps=1e-12),
    "mpnet": small("mpnet", max_position_embeddings=66, layer_norm_eps=1e-12, position_buckets=32),
    "deberta-v2": small("deberta-v2", layer_norm_eps=1e-7, max_relative_positions=64, **DEBERTA),
    "eurobert": small("eurobert", num_key_value_heads=1, tie_word_embeddings=False, mask_token_id=399),
    "ultrabert": small(
        "ultrabert",
        num_key_value_heads=1,
        tie_word_embeddings=False,
        head_hidden_size=24,
        global_attn_every_n_layers=2,
        local_attention=16,
    ),
    "nomic_bert": small("nomic_bert", type_vocab_size=2, layer_norm_eps=1e-12, rope_theta=1000.0),
    "gte": small("gte", type_vocab_size=1, layer_norm_eps=1e-12, rope_theta=160_000.0),
}


def shape(kind: str, task: TaskKind) -> ModelConfig:
    """EuroBERTs have another pooling for each task of whole texts; ModernBERTs and UltraBERTs the mean for numbers."""
    outputs = OUTPUTS.get(task, 3)
    pooling = {"regression": "mean", "multi_label_classification": "bos"}.get(task, "late")
    own = {"classifier_pooling": pooling} if kind == "eurobert" else {}
    if kind in ("modernbert", "ultrabert") and task == "regression":
        own = {"classifier_pooling": "mean"}
    return replace(SHAPES[kind], task=task, num_labels=outputs, classifier_dropout_prob=0.25, **own)


def drawn(config: ModelConfig, noise: float = 0.2) -> Parameters:
    """`noise`: of weights, so large that every head says something, and none is 0 or 1: two that are exchanged show."""
    generator = np.random.default_rng(5)
    return {
        name: (value + noise * generator.standard_normal(value.shape)).astype(np.float32)
        for name, value in initial_parameters(config, 1).items()
    }


def save_model(folder: Path, parameters: Parameters, config: ModelConfig, **changes: Any) -> str:
    """As `transformers` saves it. `changes`: of config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(parameters | buffers(config), str(folder / "model.safetensors"), {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(to_hf_config(config) | changes))
    return str(folder)


def finished_run(folder: Path, config: ModelConfig, tokenizer: str, noise: float = 0.2) -> Path:
    """A run directory as fine-tuning leaves it."""
    parameters = drawn(config, noise)
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


STORY = ["the", "fox", "saw", "a", "garden", "and", "the", "old", "house", "was", "near", "river", "with", "trees"]


def texts(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(STORY, k=draw.randint(2, 12))) for _ in range(count)]


def write_examples(folder: Path, kind: TaskKind, name: str, count: int, seed: int) -> str:
    """A file of the task in which the text tells the label: how often it says `the`, or where `fox` stands."""
    found = texts(count, seed)
    if kind == "token_classification":
        path = folder / f"{name}.conll"
        tag = {"fox": "B-PER", "garden": "B-PER", "and": "I-PER"}
        path.write_text("\n".join("".join(f"{w}\t{tag.get(w, 'O')}\n" for w in text.split()) for text in found))
        return str(path)
    if kind == "question_answering":
        path, paragraphs = folder / f"{name}.json", []
        for number, text in enumerate(found):
            context = f"{text} fox {text}"
            answer = {"text": "fox", "answer_start": context.index("fox")}
            question = {
                "id": f"{name}-{number}",
                "question": "what animal",
                "answers": [answer],
                "is_impossible": False,
            }
            paragraphs.append({"context": context, "qas": [question]})
        path.write_text(json.dumps({"version": "v1", "data": [{"title": "t", "paragraphs": paragraphs}]}))
        return str(path)
    path = folder / f"{name}.jsonl"
    label: dict[str, Callable[[str], Any]] = {
        "single_label_classification": lambda text: "good" if text.count("the") > 1 else "bad",
        "multi_label_classification": lambda text: [
            n for n, w in (("good", "the"), ("bad", "fox")) if w in text.split()
        ],
        "regression": lambda text: float(text.count("the")),
    }
    path.write_text("".join(json.dumps({"text": text, "label": label[kind](text)}) + "\n" for text in found))
    return str(path)


def pretrained_folder(folder: Path, tokenizer: str) -> str:
    """What a pretrained model is to a comparison: a folder whose weights are the same for every seed."""
    shutil.copytree(tokenizer, folder)
    return save_model(folder, initial_parameters(ROBERTA, 7), ROBERTA)


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
