"""Logits to predictions, and predictions to scores, under the field's names.

Scores are shares from 0 to 1 (correlations: -1 to 1). Their sums come from `labels.scoring`, which a comparison
resamples, so a run's own score and the verdict's cannot differ. The values equal scikit-learn's, seqeval's in its
default mode, and SQuAD's script's; undefined scores, with scikit-learn's warning, are 0.
"""

from __future__ import annotations

import math
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
from maskwright.labels.spans import OUTSIDE, kind_of, mark_spans, spans

Outcomes = tuple[Any, ...]
"""[examples], by the kind of task: a label's id; ids of labels in order; a number; ids of words' tags; an answer."""
LOWER_IS_BETTER = ("loss", "mse")
THRESHOLDS = (*(n / 1000 for n in range(1, 10)), *(n / 100 for n in range(1, 100)))
NO_LABEL = -1
"""The prediction for a word that `max_seq_len` cut off, if the tags have no O."""


@dataclass(frozen=True)
class Predictions:
    outcomes: Outcomes
    probabilities: NDArray[np.float32] | None
    """[N, C]: of the classes, or of each label by itself if there may be several; [words, C] for words; else None."""
    words: NDArray[np.int32] | None = None
    """Only for words, [words, 2]: the example and the word in it of each row of `probabilities`."""


def metric_names(task: Task, labels: Sequence[str]) -> tuple[str, ...]:
    """The metrics of `measure`, without the parts that it adds for questions without answer. The first chooses a run's
    checkpoint if its user names none: for numbers the squared error, since a correlation is blind to their scale."""
    if task.kind == "single_label_classification":
        return ("accuracy", "f1_macro", "matthews_corrcoef", *(("f1",) if len(labels) == 2 else ()))
    if task.kind == "token_classification":
        return ("f1", "precision", "recall", "accuracy") if mark_spans(labels) else ("accuracy", "f1_macro")
    return {
        "multi_label_classification": ("f1_micro", "f1_macro", "accuracy"),
        "regression": ("mse", "pearson", "spearman"),
        "question_answering": ("f1", "exact_match"),
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
    """Decodes logits: [rows, C] (numbers: C = 1); for words [words, C], in the order of `encoded.targets.position`; for
    questions [ids, 2], in the order of `encoded.ids`. `may_be_none`: whether a question may have no answer; None to
    follow `examples`."""
    if task.kind == "question_answering":
        allows_none = any(not example.answers for example in examples) if may_be_none is None else may_be_none
        starts, ends = logits[:, 0], logits[:, 1]
        answers = best_answers(encoded, examples, starts, ends, task.max_answer_length, may_be_none=allows_none)
        return Predictions(tuple(answers), None)
    if task.kind != "token_classification":
        return decode_examples(task, logits)
    shares, chosen = _shares(logits), logits.argmax(-1)
    targets = encoded.targets
    assert isinstance(targets, WordTargets)
    example_of_word = np.repeat(encoded.example, np.diff(targets.offsets))
    tag_of_unread = labels.index(OUTSIDE) if OUTSIDE in labels else NO_LABEL
    tags = [[tag_of_unread] * len(example.words) for example in examples]
    for example_idx, word, tag in zip(example_of_word.tolist(), targets.word.tolist(), chosen.tolist(), strict=True):
        tags[example_idx][word] = tag
    return Predictions(tuple(map(tuple, tags)), shares, np.stack([example_of_word, targets.word], 1).astype(np.int32))


def decode_examples(task: Task, logits: NDArray[np.float32]) -> Predictions:
    """Decodes logits [examples, C] of a task with one outcome for each example (numbers: C = 1)."""
    if task.kind == "regression":
        return Predictions(tuple(logits[:, 0].astype(np.float64).tolist()), None)
    if task.kind == "multi_label_classification":
        exact = logits.astype(np.float64)
        shares = 0.5 * (1.0 + np.tanh(0.5 * exact))  # the sigmoid, without overflow
        is_label = exact > math.log(task.threshold / (1.0 - task.threshold))
        return Predictions(tuple(tuple(np.flatnonzero(row).tolist()) for row in is_label), shares.astype(np.float32))
    return Predictions(tuple(logits.argmax(-1).tolist()), _shares(logits))


def _shares(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """The softmax over the last axis."""
    exact = logits.astype(np.float64)
    shares = np.exp(exact - exact.max(-1, keepdims=True))
    return (shares / shares.sum(-1, keepdims=True)).astype(np.float32)


def gold_outcomes(task: Task, labels: Sequence[str], examples: Sequence[Example]) -> Outcomes:
    """The right outcomes; for questions, all accepted answers of each."""
    id_of = {name: index for index, name in enumerate(labels)}
    outcome_of: dict[str, Callable[[Example], Any]] = {
        "single_label_classification": lambda example: id_of[example.labels[0]],
        "multi_label_classification": lambda example: tuple(sorted(id_of[name] for name in example.labels)),
        "regression": lambda example: example.value,
        "token_classification": lambda example: tuple(id_of[tag] for tag in example.labels),
        "question_answering": lambda example: tuple(answer.text for answer in example.answers),
    }
    return tuple(map(outcome_of[task.kind], examples))


def best_threshold(gold: Outcomes, shares: NDArray[np.float32]) -> tuple[float, float]:
    """(threshold, f1_micro) of the best of `THRESHOLDS`; of equals, the one nearest to one half. `shares`: fp32
    [examples, C]."""
    is_gold = np.zeros(shares.shape, np.bool_)
    for row, labels in zip(is_gold, gold, strict=True):
        row[[*labels]] = True

    def f1(threshold: float) -> float:
        chosen = shares > threshold
        return 2.0 * float((chosen & is_gold).sum()) / max(1, int(chosen.sum() + is_gold.sum()))

    best = max(THRESHOLDS, key=lambda threshold: (f1(threshold), -abs(threshold - 0.5)))
    return best, f1(best)


# ---- predictions to scores ---------------------------------------------------------------------------------------


def measure(
    task: Task, labels: Sequence[str], examples: Sequence[Example], predictions: Predictions
) -> dict[str, float]:
    """Every metric of the task. Words: entities as precision, recall and f1, and the words' accuracy."""
    if task.kind == "question_answering":
        return _answers(examples, predictions.outcomes)
    gold, outcomes = gold_outcomes(task, labels, examples), predictions.outcomes
    if task.kind == "token_classification":
        scores = {"accuracy": score("tokens", "accuracy", labels, gold, outcomes)}
        if not mark_spans(labels):
            return scores | {"f1_macro": score("tokens", "f1_macro", labels, gold, outcomes)}
        hits, predicted, gold_spans = (float(part.sum()) for part in entity_counts(labels, gold, outcomes)[1:])
        return scores | rates(hits, predicted, gold_spans)
    kind = KINDS[task.kind]
    names = metric_names(task, labels)
    scores = {name: score(kind, name, labels, gold, outcomes) for name in names if name in METRICS[kind]}
    if task.kind == "regression":
        scores["mse"] = float(np.mean((np.array(gold) - np.array(outcomes)) ** 2))
    if task.kind == "multi_label_classification":
        scores["accuracy"] = sum(a == b for a, b in zip(gold, outcomes, strict=True)) / len(gold)
    return scores


KINDS: dict[str, Kind] = {
    "single_label_classification": "single_label",
    "multi_label_classification": "multi_label",
    "regression": "regression",
}
"""Names in `labels.scoring`."""


def score(kind: Kind, metric: Any, labels: Sequence[str], gold: Outcomes, outcomes: Outcomes) -> float:
    scoring = Scoring(kind, metric, tuple(labels), gold)
    return float(scorer(scoring, [outcomes])(np.ones((1, len(gold)), np.float32))[0, 0])


def label_counts(
    kind: Kind, labels: Sequence[str], gold: Outcomes, outcomes: Outcomes
) -> tuple[Floats, Floats, Floats]:
    """(hits, predictions, gold labels) of each label, [labels]."""
    scoring = Scoring(kind, "f1_macro", tuple(labels), gold)
    counts = ClassCounts(scoring, [outcomes], range(len(labels)))
    hits, predicted, gold_counts = counts.sums(np.ones((1, len(gold)), np.float32))
    return hits[0, 0], predicted[0, 0], gold_counts[0, 0]


def entity_counts(
    labels: Sequence[str], gold: Outcomes, predicted: Outcomes
) -> tuple[tuple[str, ...], Floats, Floats, Floats]:
    """(kinds of spans in order, hits, predictions, gold spans), the last three [kinds]."""
    kinds = span_kinds(labels)
    in_spans = [spans_of(labels, kinds, outcomes) for outcomes in (gold, predicted)]
    return kinds, *label_counts("spans", kinds, *in_spans)


def span_kinds(labels: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted({kind_of(label) for label in labels if label != OUTSIDE}))


def spans_of(labels: Sequence[str], kinds: Sequence[str], outcomes: Outcomes) -> Outcomes:
    """Tags of words as spans of `labels.scoring`: (start, end, index of the kind)."""
    named = [[OUTSIDE if tag == NO_LABEL else labels[tag] for tag in tags] for tags in outcomes]
    return tuple(tuple((begin, end, kinds.index(kind)) for begin, end, kind in spans(tags)) for tags in named)


def rates(hits: float, predicted: float, gold: float) -> dict[str, float]:
    """Precision, recall and F1; 0 where one is undefined."""
    return {
        "precision": hits / predicted if predicted else 0.0,
        "recall": hits / gold if gold else 0.0,
        "f1": 2.0 * hits / (predicted + gold) if predicted + gold else 0.0,
    }


def _answers(examples: Sequence[Example], answers: Outcomes) -> dict[str, float]:
    """Scores of answers, with the official script's parts if some questions have no answer."""
    pairs = list(zip(examples, answers, strict=True))
    exact = np.array([exact_match(example, answer) for example, answer in pairs])
    f1 = np.array([overlap_f1(example, answer) for example, answer in pairs])
    scores = {"exact_match": float(exact.mean()), "f1": float(f1.mean())}
    has_answer = np.array([bool(example.answers) for example in examples])
    if has_answer.all():
        return scores
    for name, selected in (("HasAns", has_answer), ("NoAns", ~has_answer)):
        if selected.any():
            scores |= {f"{name}_exact": float(exact[selected].mean()), f"{name}_f1": float(f1[selected].mean())}
    return scores
