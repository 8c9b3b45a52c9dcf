"""Logits to predictions, and predictions to scores, under the field's names.

Scores are shares from 0 to 1 (correlations: -1 to 1). The sums behind them are those of `labels.scoring`, which a
comparison resamples: a run's own score and the verdict's cannot differ. The values are scikit-learn's, seqeval's in its
default mode and those of SQuAD's script; where scikit-learn warns of an undefined score, it is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.config.finetuning import Task
from maskwright.labels.answers import best_answers, exact_match, overlap_f1
from maskwright.labels.encode import EncodedRows, WordTargets
from maskwright.labels.example import Example
from maskwright.labels.scoring import METRICS, ClassCounts, Floats, Kind, Scoring, scorer
from maskwright.labels.spans import OUTSIDE, mark_spans, spans

Outcomes = tuple[Any, ...]
"""[examples], by the kind of task: a label's id; ids of labels in order; a number; ids of words' tags; an answer."""
LOWER_IS_BETTER = ("mse",)
NO_LABEL = -1
"""The prediction for a word that `max_seq_len` cut off, when the tags have no O."""


@dataclass(frozen=True)
class Predictions:
    outcomes: Outcomes
    probabilities: NDArray[np.float32] | None
    """[N, C]: of the classes, or of each label by itself when there may be several. [words, C] for words. None for
    numbers and answers."""
    words: NDArray[np.int32] | None = None
    """Only for words, [words, 2]: the example and the word in it of each row of `probabilities`."""


def default_metric(task: Task, labels: Sequence[str] = ()) -> str:
    """A run's metric if its user names none. `labels` tell whether tags mark spans."""
    if task.kind == "token_classification" and labels and not mark_spans(labels):
        return "accuracy"
    return {
        "single_label_classification": "accuracy",
        "multi_label_classification": "f1_micro",
        "regression": "pearson",
        "token_classification": "f1",
        "question_answering": "f1",
    }[task.kind]


def metric_names(task: Task, labels: Sequence[str]) -> tuple[str, ...]:
    """The metrics of `measure`, without the parts that it adds for questions without answer."""
    if task.kind == "single_label_classification":
        return ("accuracy", "f1_macro", "matthews_corrcoef", *(("f1",) if len(labels) == 2 else ()))
    if task.kind == "token_classification":
        return ("accuracy", *(("precision", "recall", "f1") if mark_spans(labels) else ("f1_macro",)))
    return {
        "multi_label_classification": ("accuracy", "f1_micro", "f1_macro"),
        "regression": ("pearson", "spearman", "mse"),
        "question_answering": ("exact_match", "f1"),
    }[task.kind]


# ---- logits to predictions ---------------------------------------------------------------------------------------


def decode(
    task: Task,
    encoded: EncodedRows,
    examples: Sequence[Example],
    logits: NDArray[np.float32],
    labels: Sequence[str],
    *,
    may_be_none: bool | None = None,
) -> Predictions:
    """`logits`: [rows, C] (numbers: C = 1); for words [words, C], in the order of `encoded.targets.position`; for
    questions [ids, 2], in the order of `encoded.ids`. `may_be_none`: whether a question may have no answer; None to see
    whether one of `examples` has none."""
    if task.kind == "question_answering":
        none = any(not one.answers for one in examples) if may_be_none is None else may_be_none
        starts, ends = logits[:, 0], logits[:, 1]
        found = best_answers(encoded, examples, starts, ends, task.max_answer_length, may_be_none=none)
        return Predictions(tuple(found), None)
    if task.kind == "regression":
        return Predictions(tuple(logits[:, 0].astype(np.float64).tolist()), None)
    exact = logits.astype(np.float64)
    if task.kind == "multi_label_classification":
        hot = exact > 0.0
        shares = 0.5 * (1.0 + np.tanh(0.5 * exact))  # the sigmoid, without overflow
        return Predictions(tuple(tuple(np.flatnonzero(row).tolist()) for row in hot), shares.astype(np.float32))
    shares = np.exp(exact - exact.max(-1, keepdims=True))
    shares = (shares / shares.sum(-1, keepdims=True)).astype(np.float32)
    chosen = exact.argmax(-1)
    if task.kind == "single_label_classification":
        return Predictions(tuple(chosen.tolist()), shares)
    targets = encoded.targets
    assert isinstance(targets, WordTargets)
    owner = np.repeat(encoded.example, np.diff(targets.offsets))
    unread = labels.index(OUTSIDE) if OUTSIDE in labels else NO_LABEL
    tags = [[unread] * len(one.words) for one in examples]
    for example, word, tag in zip(owner.tolist(), targets.word.tolist(), chosen.tolist(), strict=True):
        tags[example][word] = tag
    return Predictions(tuple(map(tuple, tags)), shares, np.stack([owner, targets.word], 1).astype(np.int32))


def truth(task: Task, labels: Sequence[str], examples: Sequence[Example]) -> Outcomes:
    """The right outcomes; for questions, all accepted answers of each."""
    id_of = {name: number for number, name in enumerate(labels)}
    of: dict[str, Callable[[Example], Any]] = {
        "single_label_classification": lambda one: id_of[one.labels[0]],
        "multi_label_classification": lambda one: tuple(sorted(id_of[name] for name in one.labels)),
        "regression": lambda one: one.value,
        "token_classification": lambda one: tuple(id_of[tag] for tag in one.labels),
        "question_answering": lambda one: tuple(answer.text for answer in one.answers),
    }
    return tuple(map(of[task.kind], examples))


# ---- predictions to scores ---------------------------------------------------------------------------------------


def measure(
    task: Task, labels: Sequence[str], examples: Sequence[Example], predictions: Predictions
) -> dict[str, float]:
    """Every metric of the task. Words: entities as precision, recall and f1, beside the words' accuracy."""
    if task.kind == "question_answering":
        return _answers(examples, predictions.outcomes)
    gold, found = truth(task, labels, examples), predictions.outcomes
    if task.kind == "token_classification":
        measured = {"accuracy": score("tokens", "accuracy", labels, gold, found)}
        if not mark_spans(labels):
            return measured | {"f1_macro": score("tokens", "f1_macro", labels, gold, found)}
        hits, predicted, there = (float(part.sum()) for part in entity_counts(labels, gold, found)[1:])
        return measured | rates(hits, predicted, there)
    kind = KINDS[task.kind]
    names = metric_names(task, labels)
    measured = {name: score(kind, name, labels, gold, found) for name in names if name in METRICS[kind]}
    if task.kind == "regression":
        measured["mse"] = float(np.mean((np.array(gold) - np.array(found)) ** 2))
    if task.kind == "multi_label_classification":
        measured["accuracy"] = sum(a == b for a, b in zip(gold, found, strict=True)) / len(gold)
    return measured


KINDS: dict[str, Kind] = {
    "single_label_classification": "single_label",
    "multi_label_classification": "multi_label",
    "regression": "regression",
}
"""Names in `labels.scoring`."""


def score(kind: Kind, metric: Any, labels: Sequence[str], gold: Outcomes, found: Outcomes) -> float:
    scoring = Scoring(kind, metric, tuple(labels), gold)
    return float(scorer(scoring, [found])(np.ones((1, len(gold)), np.float32))[0, 0])


def label_counts(kind: Kind, labels: Sequence[str], gold: Outcomes, found: Outcomes) -> tuple[Floats, Floats, Floats]:
    """(hits, predictions, gold labels) of each label, [labels]."""
    scoring = Scoring(kind, "f1_macro", tuple(labels), gold)
    counts = ClassCounts(scoring, [found], range(len(labels)))
    hits, predicted, there = counts.sums(np.ones((1, len(gold)), np.float32))
    return hits[0, 0], predicted[0, 0], there[0, 0]


def entity_counts(
    labels: Sequence[str], gold: Outcomes, found: Outcomes
) -> tuple[tuple[str, ...], Floats, Floats, Floats]:
    """(kinds of spans in order, hits, predictions, gold spans), the last three [kinds]."""
    kinds = span_kinds(labels)
    in_spans = [spans_of(labels, kinds, outcomes) for outcomes in (gold, found)]
    return kinds, *label_counts("spans", kinds, *in_spans)


def span_kinds(labels: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted({label[2:] for label in labels if label != OUTSIDE}))


def spans_of(labels: Sequence[str], kinds: Sequence[str], outcomes: Outcomes) -> Outcomes:
    """Tags of words as spans of `labels.scoring`: (start, end, index of the kind)."""
    named = [[OUTSIDE if tag == NO_LABEL else labels[tag] for tag in tags] for tags in outcomes]
    return tuple(tuple((begin, end, kinds.index(kind)) for begin, end, kind in spans(tags)) for tags in named)


def rates(hits: float, predicted: float, there: float) -> dict[str, float]:
    """Precision, recall and F1; 0 where one is undefined."""
    return {
        "precision": hits / predicted if predicted else 0.0,
        "recall": hits / there if there else 0.0,
        "f1": 2.0 * hits / (predicted + there) if predicted + there else 0.0,
    }


def _answers(examples: Sequence[Example], answers: Outcomes) -> dict[str, float]:
    """Scores of answers, with the official script's parts if some questions have no answer."""
    pairs = list(zip(examples, answers, strict=True))
    exact = np.array([exact_match(one, answer) for one, answer in pairs])
    f1 = np.array([overlap_f1(one, answer) for one, answer in pairs])
    measured = {"exact_match": float(exact.mean()), "f1": float(f1.mean())}
    has = np.array([bool(one.answers) for one in examples])
    if has.all():
        return measured
    for name, part in (("HasAns", has), ("NoAns", ~has)):
        if part.any():
            measured |= {f"{name}_exact": float(exact[part].mean()), f"{name}_f1": float(f1[part].mean())}
    return measured
