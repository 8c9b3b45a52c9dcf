"""A classifier's results label by label, as plain data: a report, a confusion matrix and calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.config.finetuning import LABELLED, Task
from maskwright.labels.example import Example
from maskwright.labels.metrics import KINDS, Predictions, entity_counts, gold_outcomes, label_counts, rates
from maskwright.labels.spans import mark_spans

BINS = 15


@dataclass(frozen=True)
class ReportRow:
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
    """The share of right predictions; 0 for an empty bin."""


@dataclass(frozen=True)
class Calibration:
    """Confidence is the highest probability of classes, of each yes or no of several labels, and of the tag
    of each word that `max_seq_len` left in."""

    expected_calibration_error: float
    """Mean over predictions of their bin's |accuracy - confidence| (Guo et al. 2017, arXiv 1706.04599)."""
    bins: tuple[Bin, ...]


def classification_report(
    task: Task, labels: Sequence[str], examples: Sequence[Example], predictions: Predictions
) -> list[ReportRow]:
    """Rows of labels (or of kinds of spans), then averages, as in scikit-learn's and seqeval's reports. `macro avg` is
    over labels that occur in predictions or gold, but with several per text over all. Empty for numbers and answers."""
    if task.kind not in LABELLED:
        return []
    gold, outcomes = gold_outcomes(task, labels, examples), predictions.outcomes
    names, (hits, predicted, gold_counts) = tuple(labels), (np.zeros(0),) * 3
    if task.kind == "token_classification" and mark_spans(labels):
        names, hits, predicted, gold_counts = entity_counts(labels, gold, outcomes)
    else:
        hits, predicted, gold_counts = label_counts(KINDS.get(task.kind, "tokens"), labels, gold, outcomes)
    counts = zip(hits.tolist(), predicted.tolist(), gold_counts.tolist(), strict=True)
    rows = [ReportRow(name, **rates(*sums), support=round(sums[2])) for name, sums in zip(names, counts, strict=True)]
    support = round(float(gold_counts.sum()))
    sums = (float(part.sum()) for part in (hits, predicted, gold_counts))
    micro = ReportRow("micro avg", **rates(*sums), support=support)
    occurs = ((predicted + gold_counts) > 0).astype(np.float64)
    if task.kind == "multi_label_classification":
        occurs = np.ones_like(occurs)
    return [*rows, micro, _mean("macro avg", rows, occurs, support), _mean("weighted avg", rows, gold_counts, support)]


def _mean(name: str, rows: Sequence[ReportRow], weights: NDArray[np.float64], support: int) -> ReportRow:
    values = np.array([(row.precision, row.recall, row.f1) for row in rows])
    precision, recall, f1 = (weights @ values / max(weights.sum(), 1.0)).tolist()
    return ReportRow(name, precision, recall, f1, support)


def confusion_matrix(
    task: Task, labels: Sequence[str], examples: Sequence[Example], predictions: Predictions
) -> NDArray[np.int64] | None:
    """[gold, predicted] counts of examples or words; None for tasks without exactly one label for each."""
    if task.kind not in ("single_label_classification", "token_classification"):
        return None
    gold, outcomes = gold_outcomes(task, labels, examples), predictions.outcomes
    if task.kind == "token_classification":
        gold, outcomes = (tuple(tag for tags in side for tag in tags) for side in (gold, outcomes))
    table = np.zeros((len(labels), len(labels)), np.int64)
    pairs = np.array([gold, outcomes], np.int64).reshape(2, -1)
    np.add.at(table, tuple(pairs[:, pairs[1] >= 0]), 1)
    return table


def exchanged(labels: Sequence[str], table: NDArray[np.int64]) -> str | None:
    """A sentence on labels that take each other's places in a confusion matrix, as where the model numbers them in
    another order than the file: more than half of each one's examples are predicted as the next, and more than as
    itself by twice the deviation of guesses between the two."""
    moved = {
        gold: int(row.argmax())
        for gold, row in enumerate(table)
        if 2 * row.max() > row.sum() and row.max() - row[gold] > 2 * np.sqrt(row.max() + row[gold])
    }
    while moved and (kept := {a: b for a, b in moved.items() if b in moved and a in moved.values()}) != moved:
        moved = kept
    if not moved:
        return None
    shown = ", ".join(f"'{labels[gold]}' as '{labels[other]}'" for gold, other in list(moved.items())[:3])
    right = sum(table[gold, moved.get(gold, gold)] for gold in range(len(labels))) / table.sum()
    return (
        f"most examples of {len(moved)} labels are predicted as another of them ({shown}{', …' * (len(moved) > 3)}): "
        "the file and the model seem to mean different classes by these names. Exchanged, accuracy would be "
        f"{right:.4f}"
    )


def calibration(
    task: Task, labels: Sequence[str], examples: Sequence[Example], predictions: Predictions
) -> Calibration | None:
    """The calibration of the probabilities; None for numbers and answers."""
    shares = predictions.probabilities
    if task.kind not in LABELLED or shares is None:
        return None
    gold, outcomes = gold_outcomes(task, labels, examples), predictions.outcomes
    confidence = shares.max(-1)
    if task.kind == "multi_label_classification":
        gold, outcomes = (
            tuple(label in ids for ids in side for label in range(len(labels))) for side in (gold, outcomes)
        )
        confidence = np.where(outcomes, shares.ravel(), 1.0 - shares.ravel())
    elif predictions.words is not None:
        word_places = predictions.words.tolist()
        gold, outcomes = (tuple(side[example][word] for example, word in word_places) for side in (gold, outcomes))
    right = np.array(gold) == np.array(outcomes)
    return reliability(confidence, right)


def roc_auc(task: Task, labels: Sequence[str], examples: Sequence[Example], predictions: Predictions) -> float | None:
    """The area under the ROC curve of each label's probability, in the mean over labels that some examples have and
    others lack, as `roc_auc_score` of scikit-learn (for classes, each against the rest). None if there is no such
    label, and for other tasks than classes and several labels of texts."""
    shares, areas = predictions.probabilities, list[float]()
    if task.kind not in ("single_label_classification", "multi_label_classification") or shares is None:
        return None
    having: list[list[int]] = [[] for _ in labels]
    for index, ids in enumerate(gold_outcomes(task, labels, examples)):
        for label in ids if isinstance(ids, tuple) else (ids,):
            having[label].append(index)
    for label, indices in enumerate(having):
        if pairs := len(indices) * (len(examples) - len(indices)):
            _, place, ties = np.unique(shares[:, label], return_inverse=True, return_counts=True)
            ranks = (np.cumsum(ties) - (ties - 1) / 2)[place]
            areas.append(float(ranks[indices].sum() - len(indices) * (len(indices) + 1) / 2) / pairs)
    return float(np.mean(areas)) if areas else None


def reliability(confidence: NDArray[Any], is_right: NDArray[np.bool_]) -> Calibration:
    """`confidence`, `is_right`: one for each prediction."""
    edges = np.linspace(0.0, 1.0, BINS + 1)
    exact = confidence.astype(np.float64)
    bin_idx = np.clip(np.searchsorted(edges, exact, side="left") - 1, 0, BINS - 1)
    count = np.bincount(bin_idx, minlength=BINS)
    divisors = np.maximum(count, 1)
    means = np.bincount(bin_idx, exact, BINS) / divisors
    accuracy = np.bincount(bin_idx, is_right.astype(np.float64), BINS) / divisors
    error = float((count * np.abs(accuracy - means)).sum() / max(count.sum(), 1))
    columns = (edges[:-1], edges[1:], count, means, accuracy)
    return Calibration(error, tuple(Bin(*row) for row in zip(*(column.tolist() for column in columns), strict=True)))
