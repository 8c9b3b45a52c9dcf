"""A classifier's results label by label, as plain data: a report, a confusion matrix and calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.config.finetuning import Task
from maskwright.labels.example import Example
from maskwright.labels.metrics import (
    KINDS,
    Predictions,
    entity_counts,
    label_counts,
    rates,
    truth,
)
from maskwright.labels.spans import mark_spans

BINS = 15
CLASSES = ("single_label_classification", "multi_label_classification", "token_classification")
"""Kinds of task whose results have labels."""


@dataclass(frozen=True)
class Row:
    label: str
    """A label, a kind of span, `micro avg`, `macro avg` or `weighted avg`."""
    precision: float
    recall: float
    f1: float
    support: int
    """Gold labels."""


@dataclass(frozen=True)
class Bin:
    """Predictions whose confidence lies in (low, high]; the first bin has 0 too."""

    low: float
    high: float
    count: int
    confidence: float
    """Their mean; 0 for an empty bin."""
    accuracy: float
    """The share that is right; 0 for an empty bin."""


@dataclass(frozen=True)
class Calibration:
    """Confidence is the highest probability of classes, that of each yes or no of several labels, and that of the tag
    of each word that `max_seq_len` left in."""

    expected_calibration_error: float
    """Mean over predictions of their bin's |accuracy - confidence| (Guo et al. 2017, arXiv 1706.04599)."""
    bins: tuple[Bin, ...]


def classification_report(
    task: Task, labels: Sequence[str], examples: Sequence[Example], predictions: Predictions
) -> list[Row]:
    """Rows of labels (or of kinds of spans), then averages, as in scikit-learn's and seqeval's reports. `macro avg` is
    over labels that are predicted or there. Empty for numbers and answers."""
    if task.kind not in CLASSES:
        return []
    gold, found = truth(task, labels, examples), predictions.outcomes
    names, (hits, predicted, there) = tuple(labels), (np.zeros(0),) * 3
    if task.kind == "token_classification" and mark_spans(labels):
        names, hits, predicted, there = entity_counts(labels, gold, found)
    else:
        hits, predicted, there = label_counts(KINDS.get(task.kind, "tokens"), labels, gold, found)
    counts = zip(hits.tolist(), predicted.tolist(), there.tolist(), strict=True)
    rows = [Row(name, **rates(*of), support=round(of[2])) for name, of in zip(names, counts, strict=True)]
    support = round(float(there.sum()))
    micro = Row("micro avg", **rates(*(float(part.sum()) for part in (hits, predicted, there))), support=support)
    seen = ((predicted + there) > 0).astype(np.float64)
    return [*rows, micro, _mean("macro avg", rows, seen, support), _mean("weighted avg", rows, there, support)]


def _mean(name: str, rows: Sequence[Row], weights: NDArray[np.float64], support: int) -> Row:
    values = np.array([(row.precision, row.recall, row.f1) for row in rows])
    precision, recall, f1 = (weights @ values / max(weights.sum(), 1.0)).tolist()
    return Row(name, precision, recall, f1, support)


def confusion_matrix(
    task: Task, labels: Sequence[str], examples: Sequence[Example], predictions: Predictions
) -> NDArray[np.int64] | None:
    """[gold, predicted] counts of examples or words; None for tasks without exactly one label for each."""
    if task.kind not in ("single_label_classification", "token_classification"):
        return None
    gold, found = truth(task, labels, examples), predictions.outcomes
    if task.kind == "token_classification":
        gold, found = (tuple(tag for tags in outcomes for tag in tags) for outcomes in (gold, found))
    table = np.zeros((len(labels), len(labels)), np.int64)
    pairs = np.array([gold, found], np.int64).reshape(2, -1)
    np.add.at(table, tuple(pairs[:, pairs[1] >= 0]), 1)
    return table


def calibration(
    task: Task, labels: Sequence[str], examples: Sequence[Example], predictions: Predictions
) -> Calibration | None:
    """None for numbers and answers."""
    shares = predictions.probabilities
    if task.kind not in CLASSES or shares is None:
        return None
    gold, found = truth(task, labels, examples), predictions.outcomes
    confidence = shares.max(-1)
    if task.kind == "multi_label_classification":
        confidence = np.maximum(shares, 1.0 - shares).ravel()
        gold, found = (tuple(label in ids for ids in of for label in range(len(labels))) for of in (gold, found))
    elif predictions.words is not None:
        places = predictions.words.tolist()
        gold, found = (tuple(of[example][word] for example, word in places) for of in (gold, found))
    right = np.array(gold) == np.array(found)
    return reliability(confidence, right)


def reliability(confidence: NDArray[Any], right: NDArray[np.bool_]) -> Calibration:
    """`confidence`, `right`: one for each prediction."""
    edges = np.linspace(0.0, 1.0, BINS + 1)
    exact = confidence.astype(np.float64)
    number = np.clip(np.searchsorted(edges, exact, side="left") - 1, 0, BINS - 1)
    count = np.bincount(number, minlength=BINS)
    least = np.maximum(count, 1)
    means = np.bincount(number, exact, BINS) / least
    accuracy = np.bincount(number, right.astype(np.float64), BINS) / least
    error = float((count * np.abs(accuracy - means)).sum() / max(count.sum(), 1))
    columns = (edges[:-1], edges[1:], count, means, accuracy)
    return Calibration(error, tuple(Bin(*row) for row in zip(*(column.tolist() for column in columns), strict=True)))
