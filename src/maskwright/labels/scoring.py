"""Metrics of predictions, computed from sums over examples, so that resamples need only new weights.

The form of gold and predictions follows the kind of task:

    kind             gold and predictions, for each example               metrics
    single_label     the label's index                                    accuracy, matthews_corrcoef, f1, f1_macro
    multi_label      the indices of its labels                            f1_micro, f1_macro
    tokens           the label's index of each word; predicted -1: none   accuracy, f1_micro, f1_macro
    spans            (start, end, label) of each span                     f1_micro, f1_macro
    regression       a number                                             pearson, spearman
    scores           the example's own score; no gold                     mean

Names and values of metrics are scikit-learn's. `scores` is for means over examples, such as the
exact match and the F1 of answers. A higher score is always better.

A resample of the test set is a row of weights: how often each example was drawn. Every metric but Spearman's is a
function of weighted sums (of hits, of predictions and of gold labels by class; of products), so that many resamples of
many runs are one product of matrices. Values agree with scikit-learn and scipy with their defaults. If these warn,
a score is 0 here: F1 without hits, MCC of constant predictions, and the correlation with a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

METRICS = {
    "single_label": ("accuracy", "matthews_corrcoef", "f1", "f1_macro"),
    "multi_label": ("f1_micro", "f1_macro"),
    "tokens": ("accuracy", "f1_micro", "f1_macro"),
    "spans": ("f1_micro", "f1_macro"),
    "regression": ("pearson", "spearman"),
    "scores": ("mean",),
}
"""The metrics of each kind of task."""
Kind = Literal["single_label", "multi_label", "tokens", "spans", "regression", "scores"]
Metric = Literal["accuracy", "matthews_corrcoef", "f1", "f1_macro", "f1_micro", "pearson", "spearman", "mean"]
Outcomes = (
    tuple[int, ...] | tuple[float, ...] | tuple[tuple[int, ...], ...] | tuple[tuple[tuple[int, int, int], ...], ...]
)
"""[examples], in the forms of the table above."""
Floats = NDArray[np.float64]
Scorer = Callable[[NDArray[np.float32]], Floats]
"""Weights (resamples × examples) to scores (resamples × runs)."""


@dataclass(frozen=True)
class Scoring:
    """A metric and its gold outcomes."""

    kind: Kind
    metric: Metric
    labels: tuple[str, ...]
    """Names by index; empty for `regression` and `scores`."""
    gold: Outcomes
    """Empty for `scores`."""
    positive: int = 1
    """The label of the metric `f1`."""


def scorer(scoring: Scoring, runs: Sequence[Outcomes]) -> Scorer:
    """The metric for the predictions of each run."""
    if scoring.metric == "spearman":
        return _Spearman(scoring.gold, runs)
    if scoring.metric == "pearson":
        return _pearson(np.asarray(scoring.gold, np.float64), np.asarray(runs, np.float64).T)
    if scoring.metric == "mean":
        scores = np.asarray(runs, np.float64).T
        return lambda weights: _sums(weights, scores) / weights.sum(1, dtype=np.float64)[:, None]
    if scoring.metric == "accuracy" and scoring.kind == "single_label":  # without the columns of each class
        right = (np.asarray(scoring.gold)[:, None] == np.asarray(runs).T).astype(np.float32)
        return lambda weights: _sums(weights, right) / weights.sum(1, dtype=np.float64)[:, None]
    counts = ClassCounts(scoring, runs, range(len(scoring.labels)))
    if scoring.metric in ("accuracy", "f1_micro"):
        counts = counts.merge_classes()
    metric = {
        "accuracy": _accuracy,
        "matthews_corrcoef": _matthews,
        "f1": lambda hits, predicted, gold: f1(hits, predicted, gold)[..., scoring.positive],
        "f1_macro": _f1_of_all if scoring.kind == "multi_label" else _f1_macro,
        "f1_micro": lambda hits, predicted, gold: f1(hits, predicted, gold)[..., 0],
    }[scoring.metric]
    return lambda weights: metric(*counts.sums(weights))


class ClassCounts:
    """Hits, predictions and gold labels of each class, for each example.

    Shapes: `hits` and `predicted` examples × runs × classes, `gold` examples × classes.
    """

    def __init__(self, scoring: Scoring, runs: Sequence[Outcomes], classes: range) -> None:
        gold, *predictions = [_items(scoring, outcomes, classes) for outcomes in (scoring.gold, *runs)]
        n, size = len(scoring.gold), len(classes)
        self.gold = np.zeros((n, size), np.float32)
        self.hits = np.zeros((n, len(runs), size), np.float32)
        self.predicted = np.zeros((n, len(runs), size), np.float32)
        np.add.at(self.gold, (gold[:, 0], gold[:, -1]), 1)
        for number, items in enumerate(predictions):
            hits = items[_among(items, gold)]
            np.add.at(self.predicted[:, number], (items[:, 0], items[:, -1]), 1)
            np.add.at(self.hits[:, number], (hits[:, 0], hits[:, -1]), 1)

    def merge_classes(self) -> ClassCounts:
        """All classes as one."""
        for name in ("hits", "predicted", "gold"):
            setattr(self, name, getattr(self, name).sum(-1, keepdims=True))
        return self

    def sums(self, weights: NDArray[np.float32]) -> tuple[Floats, Floats, Floats]:
        """Hits, predictions and gold labels: resamples × runs (1 for gold) × classes."""
        gold = _sums(weights, self.gold)[:, None]
        hits, predicted = (
            _sums(weights, part.reshape(len(part), -1)).reshape(len(weights), *part.shape[1:])
            for part in (self.hits, self.predicted)
        )
        return hits, predicted, gold


def f1(hits: Floats, predicted: Floats, gold: Floats) -> Floats:
    """F1 by class; 0 for a class that occurs neither in predictions nor in gold."""
    return _ratio(2 * hits, predicted + gold)


def _f1_macro(hits: Floats, predicted: Floats, gold: Floats) -> Floats:
    """Mean F1 over the classes in predictions or gold, as in `f1_score(average="macro")` for one label each."""
    return _ratio(f1(hits, predicted, gold).sum(-1), (predicted + gold > 0).sum(-1))


def _f1_of_all(hits: Floats, predicted: Floats, gold: Floats) -> Floats:
    """Mean F1 over all classes, as in `f1_score(average="macro")` for several labels each."""
    return f1(hits, predicted, gold).mean(-1)


def _accuracy(hits: Floats, predicted: Floats, gold: Floats) -> Floats:
    return _ratio(hits[..., 0], gold[..., 0])


def _matthews(hits: Floats, predicted: Floats, gold: Floats) -> Floats:
    """R_K of Gorodkin (2004), doi 10.1016/j.compbiolchem.2004.09.006; for two classes it is Matthews' coefficient."""
    total = gold.sum(-1)
    joint = hits.sum(-1) * total - (predicted * gold).sum(-1)
    spread = (total**2 - (predicted**2).sum(-1)) * (total**2 - (gold**2).sum(-1))
    return _ratio(joint, np.sqrt(spread))


def _pearson(gold: Floats, runs: Floats) -> Scorer:
    y = gold - gold.mean()
    x = runs - runs.mean(0)

    def score(weights: NDArray[np.float32]) -> Floats:
        return _correlation(
            weights.sum(1, dtype=np.float64)[:, None],
            *(_sums(weights, part) for part in (x, y[:, None], x * y[:, None], x * x, (y * y)[:, None])),
        )

    return score


def _correlation(n: Floats, x: Floats, y: Floats, xy: Floats, xx: Floats, yy: Floats) -> Floats:
    """Pearson's correlation from sums; 0 for values that are constant except for rounding."""
    across, along = n * xx - x * x, n * yy - y * y
    flat = (across <= 1e-12 * n * xx) | (along <= 1e-12 * n * yy)
    return _ratio(n * xy - x * y, np.sqrt(np.where(flat, 0, across * along)))


class _Spearman:
    """Ranks are not sums, but after sorting each run once they follow from the running sums of the weights."""

    def __init__(self, gold: Outcomes, runs: Sequence[Outcomes]) -> None:
        self.gold, *self.runs = (_in_order(np.asarray(values, np.float64)) for values in (gold, *runs))

    def __call__(self, weights: NDArray[np.float32]) -> Floats:
        y = _ranks(weights, *self.gold)
        w = weights.astype(np.float64)
        n, sum_y, sum_yy = w.sum(1), (w * y).sum(1), (w * y * y).sum(1)
        columns = []
        for run in self.runs:
            x = _ranks(weights, *run)
            wx = w * x
            columns.append(_correlation(n, wx.sum(1), sum_y, (wx * y).sum(1), (wx * x).sum(1), sum_yy))
        return np.stack(columns, 1)


def _in_order(values: Floats) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
    """(order of the examples by value, begins of groups of equal values, [examples] group of each)"""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.argsort(values, kind="stable"), counts.cumsum() - counts, group


def _ranks(
    weights: NDArray[np.float32], order: NDArray[np.intp], starts: NDArray[np.intp], group: NDArray[np.intp]
) -> Floats:
    """Mean ranks from 0, centred: small numbers lose less in products."""
    size = np.add.reduceat(weights[:, order], starts, axis=1, dtype=np.float64)
    middle = size.cumsum(1) - (size + weights.sum(1, dtype=np.float64)[:, None]) / 2
    return cast(Floats, middle[:, group])


def _sums(weights: NDArray[np.float32], columns: NDArray[Any]) -> Floats:
    """Exact in float32 if columns are counts, since the sums stay below 2^24."""
    if columns.dtype != np.float32:
        weights = weights.astype(np.float64)
    return cast(Floats, (weights @ columns).astype(np.float64))


def _ratio(above: Floats, below: NDArray[Any]) -> Floats:
    return np.divide(above, below, out=np.zeros(np.broadcast(above, below).shape), where=below > 0)


def _items(scoring: Scoring, outcomes: Any, classes: range) -> NDArray[np.int64]:
    """Rows (example, place in it …, class less the first of `classes`) of the labels in `classes`. Two outcomes agree
    on an item if their rows are equal."""
    if scoring.kind == "single_label":
        rows = np.stack([np.arange(len(outcomes)), np.asarray(outcomes, np.int64)], 1)
    else:
        by_position = scoring.kind == "tokens"
        items = [
            (example_idx, *((position,) if by_position else ()), *(label if isinstance(label, tuple) else (label,)))
            for example_idx, labels in enumerate(outcomes)
            for position, label in enumerate(labels if by_position else dict.fromkeys(labels))
        ]
        rows = np.array(items, np.int64).reshape(len(items), {"multi_label": 2, "tokens": 3, "spans": 4}[scoring.kind])
    rows = rows[(rows[:, -1] >= classes.start) & (rows[:, -1] < classes.stop)]
    rows[:, -1] -= classes.start
    return rows


def _among(rows: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[rows]: whether each is among the others."""
    size = tuple(np.concatenate([rows, others]).max(0, initial=0) + 1)
    return np.isin(np.ravel_multi_index(tuple(rows.T), size), np.ravel_multi_index(tuple(others.T), size))
