"""Fine-tuning as an objective: batches of labelled examples, metrics on the validation split, the best step so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.config.finetuning import FinetuneConfig, Task
from maskwright.core import storage
from maskwright.core.console import note, progress
from maskwright.core.errors import ConfigError
from maskwright.data.batch import Batch
from maskwright.engines.base import Engine
from maskwright.labels.encode import EncodedRows, SpanTargets, WordTargets, encode
from maskwright.labels.example import Example
from maskwright.labels.metrics import LOWER_IS_BETTER, Predictions, decode, measure, metric_names
from maskwright.labels.rows import ExampleStream, Packed, Packer, in_order
from maskwright.model.config import ModelConfig
from maskwright.run.best import Best
from maskwright.run.directory import RunDirectory
from maskwright.training.objective import UpdateCounts


def encoded_for(
    model: ModelConfig,
    examples: Sequence[Example],
    tokenizer_folder: str,
    task: Task,
    labels: Sequence[str],
    max_seq_len: int,
    *,
    labelled: bool = True,
) -> EncodedRows:
    """`encode` for a model."""
    return encode(
        *(examples, tokenizer_folder, task, labels, max_seq_len),
        labelled=labelled,
        token_type_stride=model.token_type_stride,
        longest=model.max_seq_len,
    )


def write_predictions(
    directory: RunDirectory, split: str, predictions: Predictions, examples: Sequence[Example]
) -> None:
    record = {"outcomes": predictions.outcomes, "where": [example.where for example in examples]}
    storage.write_json(directory.path(f"predictions-{split}.json"), record)


@dataclass(frozen=True)
class EvaluationSplit:
    """Examples that a model is judged by, encoded and packed once."""

    examples: Sequence[Example]
    packer: Packer
    packed: Sequence[Packed]
    unit: tuple[float, float] | None
    may_be_none: bool | None
    """See `RunRecord`; whatever these examples are, a model that learned to give no answer may give none."""

    def logits(self, engine: Engine, look: Callable[[], bool]) -> NDArray[np.float32] | None:
        """See `rows.in_order`; numbers are labels. None if `look` asks to give up."""
        outputs = []
        with progress("evaluate", len(self.packed), "batches") as bar:
            for begin in range(0, len(self.packed), engine.dp_degree):
                if look():
                    return None
                batches = [packed.batch for packed in self.packed[begin : begin + engine.dp_degree]]
                outputs.append(engine.predict(batches))
                bar.advance(len(batches))
        logits = in_order(self.packer, self.packed, np.concatenate(outputs))
        if self.unit is None:
            return logits
        mean, deviation = self.unit
        return logits * deviation + mean


class LabelledObjective:
    """See `Objective`. `config` is resolved. `split`: the examples that the run is judged by, None for none."""

    evaluates_at_start = False
    held_out: Sequence[Batch] = ()

    def __init__(
        self,
        config: FinetuneConfig,
        train: ExampleStream,
        split: EvaluationSplit | None,
        labels: tuple[str, ...],
        num_labels: int,
    ) -> None:
        self.config, self.train, self.split, self.labels = config, train, split, labels
        self.chance = chance(config.task, num_labels)
        self.metric = chosen_metric(config, labels)
        self.best = Best(config.evaluation.patience, self.metric in LOWER_IS_BETTER)

    def batches(self, step: int, virtual_workers: Sequence[int]) -> list[Batch]:
        return self.train.batches(step, virtual_workers)

    def rope_theta(self, step: int) -> float | None:
        return None

    def trials(self, step: int, virtual_workers: Sequence[int]) -> list[tuple[int, list[Batch]]]:
        """The longest examples together."""
        train = self.train
        longest = np.argsort(-np.diff(train.packer.encoded.offsets), kind="stable")
        each = train.per_step // train.virtual_workers
        rows = np.resize(longest[:each], each)
        return [(step, [train.packer.pack(rows).batch for _ in virtual_workers])]

    def work(self, step: int) -> UpdateCounts:
        tokens, pairs = self.train.work(step)
        targets = self.train.packer.encoded.targets
        words = isinstance(targets, WordTargets | SpanTargets)
        return UpdateCounts(tokens, pairs, float(tokens if words else self.train.per_step))

    def epoch(self, step: int) -> float:
        return step * self.train.per_step / len(self.train.packer.encoded)

    def logged(self, step: int) -> dict[str, float]:
        return {}

    def evaluate(self, engine: Engine, step: int, look: Callable[[], bool]) -> dict[str, float] | None:
        if self.split is None:
            return {}
        logits = self.split.logits(engine, look)
        if logits is None:
            return None
        _, scores = score_split(self.config.task, self.labels, self.split, logits)
        metrics = {f"valid_{name}": value for name, value in scores.items()}
        self.best.seen.append((step, metrics[f"valid_{self.metric}"]))
        best = " (the best so far)" if self.best_step == step else ""
        shown = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
        note(f"step {step}: validation {shown}{best}")
        return metrics

    def remember(self, lines: Sequence[Mapping[str, Any]], saved: Collection[int]) -> None:
        self.best.remember(((line["step"], line[f"valid_{self.metric}"]) for line in lines), saved)

    @property
    def best_step(self) -> int | None:
        return self.best.step


def chance(task: Task, num_labels: int) -> float | None:
    """The loss of a uniform guess in nats; None for regression and questions."""
    if task.kind in ("single_label_classification", "token_classification"):
        return math.log(num_labels)
    return math.log(2.0) if task.kind == "multi_label_classification" else None


def chosen_metric(config: FinetuneConfig, labels: Sequence[str]) -> str:
    """The metric that chooses the best checkpoint. Raises `ConfigError` for a metric that the task lacks."""
    names = metric_names(config.task, labels)
    metric = config.evaluation.metric or names[0]
    if metric not in (*names, "loss"):
        fix = f"choose one of {', '.join(names)}, loss"
        raise ConfigError(f"{config.task.kind} has no metric {metric}", where="evaluation.metric", fix=fix)
    return metric


def score_split(
    task: Task, labels: Sequence[str], split: EvaluationSplit, logits: NDArray[np.float32]
) -> tuple[Predictions, dict[str, float]]:
    """Predictions, and the loss and every metric of the task. The loss of numbers is in variances, as in training."""
    encoded, variance = split.packer.encoded, split.unit[1] ** 2 if split.unit else 1.0
    predictions = decode(task, encoded, split.examples, logits, labels, may_be_none=split.may_be_none or None)
    loss = mean_loss(task, encoded, logits) / variance
    return predictions, {"loss": loss, **measure(task, labels, split.examples, predictions)}


def mean_loss(task: Task, encoded: EncodedRows, logits: NDArray[np.float32]) -> float:
    """The loss of training, without class weights and smoothing; in float64."""
    exact, targets = logits.astype(np.float64), encoded.targets
    if isinstance(targets, SpanTargets):
        losses = []
        for row in range(len(encoded)):
            row_logits = exact[encoded.offsets[row] : encoded.offsets[row + 1]]
            ends = np.array([targets.start[row], targets.end[row]])
            losses.append((_log_sum(row_logits.T) - row_logits[ends, [0, 1]]).mean())
        return float(np.mean(losses))
    if isinstance(targets, WordTargets):
        known = targets.tag >= 0
        return float((_log_sum(exact[known]) - exact[known, targets.tag[known]]).mean())
    assert targets is not None
    if task.kind == "regression":
        return float(np.square(exact[:, 0] - targets).mean())
    if task.kind == "multi_label_classification":
        return float((np.logaddexp(0.0, exact) - exact * targets).mean())
    return float((_log_sum(exact) - exact[np.arange(len(exact)), targets]).mean())


def _log_sum(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """logsumexp over the last axis."""
    highest = logits.max(-1, keepdims=True)
    return np.asarray(np.log(np.exp(logits - highest).sum(-1)) + highest[..., 0])
