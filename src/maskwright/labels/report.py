"""Report on labelled files before training: sizes, duplicates, conflicts, leaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from maskwright.config.finetuning import Task
from maskwright.core.console import several
from maskwright.labels.example import Example, Skipped
from maskwright.labels.names import shortened
from maskwright.text.dedup import text_key

LEAST_EXAMPLES = 10
"""Examples from which one answer to all of them is odd, and another number far from theirs."""
LEAST_CHANCE = 0.001
"""Probability of one answer to all examples, by its share in training, up to which it is odd."""
PLACES = 3
"""Places named for each finding."""


@dataclass(frozen=True)
class LabelFinding:
    kind: Literal["duplicate", "conflict", "leak"]
    """duplicate: the same text and label again. conflict: the same text with another label, in one split. leak: a text
    of one split in a later one (train, validation, test)."""
    splits: tuple[str, ...]
    """One split, or the earlier and the later one."""
    count: int
    """Examples of the last of `splits` that repeat an earlier one."""
    relabelled: int
    """Repeats with another label than the earlier example."""
    places: tuple[str, ...]
    """The first few, as `a.csv:9 'yes' as line 3 'no'`."""
    varied: int
    """Repeats that differ in case, white space, punctuation or the order of a pair; only of a leak."""

    def __str__(self) -> str:
        split, number = self.splits[-1], several(self.count, "example")
        verb = "repeat" if self.count != 1 else "repeats"
        sentence = {
            "duplicate": f"{split}: {number} {verb} an earlier one with its label",
            "conflict": f"{split}: {number} {verb} an earlier text with another label",
            "leak": f"{split}: {number} {verb} a text of the {self.splits[0]} split",
        }[self.kind]
        if self.varied:
            sentence += f", {self.varied:,} with other case, spaces, punctuation or order"
        if self.kind == "leak" and self.relabelled:
            sentence += f", {self.relabelled:,} with another label"
        rest = ", …" if self.count > len(self.places) else ""
        return f"{sentence} ({', '.join(self.places)}{rest})"


@dataclass(frozen=True)
class Report:
    sizes: dict[str, int]
    """Used examples of each split."""
    counts: dict[str, dict[str, int]]
    """By split, examples of each label; for tags, words."""
    findings: tuple[LabelFinding, ...]
    """Findings in the files, before a share was held out or used."""
    skipped: tuple[Skipped, ...]
    """Records left out (`data.on_bad_input: skip`)."""
    notes: tuple[str, ...]
    """Sentences on automatic decisions."""
    unused: tuple[str, ...]
    """Labels of `task.labels` without a training example."""
    odd: tuple[str, ...] = ()
    """Sentences on labels that are most likely one label, or missing, and on groups in two splits."""

    def warnings(self) -> list[str]:
        lines = list(map(str, self.findings))
        if self.skipped:
            places = ", ".join(f"{record.where} {record.what}" for record in self.skipped[:PLACES])
            rest = ", …" if len(self.skipped) > PLACES else ""
            lines.append(f"{len(self.skipped):,} records are left out ({places}{rest})")
        if self.unused:
            lines.append(f"no training example has the label {shortened(self.unused)}")
        return [*lines, *self.odd]


def examine(splits: Mapping[str, Sequence[Example]], task: Task) -> list[LabelFinding]:
    """Duplicates and conflicts inside each split, by `Example.content`, and leaks into later splits, by
    `Example.folded`; 300 bytes an example."""
    keys = {split: [text_key(example.content.encode()) for example in examples] for split, examples in splits.items()}
    findings: list[LabelFinding] = []
    for split, examples in splits.items():
        findings += _inside(split, examples, keys[split], task)
    keys = {split: [text_key(example.folded.encode()) for example in examples] for split, examples in splits.items()}
    for earlier, later in combinations(splits, 2):
        first: dict[bytes, Example] = {}
        for key, example in zip(keys[earlier], splits[earlier], strict=True):
            first.setdefault(key, example)
        later_examples = zip(keys[later], splits[later], strict=True)
        repeats = [(example, first[key]) for key, example in later_examples if key in first]
        findings += _finding("leak", (earlier, later), repeats, task)
    return findings


def groups_of(examples: Iterable[Example]) -> set[str]:
    return {example.group for example in examples} - {""}


def shared_groups(splits: Mapping[str, Sequence[Example]]) -> list[str]:
    """Sentences on groups of an earlier split in a later one."""
    lines = []
    for earlier, later in combinations(splits, 2):
        known = groups_of(splits[earlier])
        if shared := [example for example in splits[later] if example.group in known]:
            number = several(len(shared), "example")
            lines.append(f"{later}: {number} of groups of the {earlier} split (the first at {shared[0].where})")
    return lines


def odd_targets(splits: Mapping[str, Sequence[Example]], task: Task) -> list[str]:
    """Sentences on files that likely hide their labels, and on numbers that likely mark a missing one, or are on
    another scale than the training split's."""
    lines: list[str] = []
    train = splits["train"]
    for split, examples in splits.items():
        if split == "train":
            continue
        if said := one_answer(examples, task, train):
            lines.append(f"{split}: {said}: leave it out with data.{split}: null")
        elif task.kind == "regression" and len(examples) >= LEAST_EXAMPLES:
            ours, theirs = (np.array([example.value for example in side]) for side in (examples, train))
            if _on_another_scale(ours, theirs):
                scales = [f"{values.min():g} to {values.max():g}" for values in (ours, theirs)]
                lines.append(f"{split}: its numbers are {scales[0]}, and {scales[1]} in the training split: one scale?")
    if task.kind == "regression":
        lines += _odd_numbers(train)
    return lines


def one_answer(examples: Sequence[Example], task: Task, train: Sequence[Example] = ()) -> str:
    """A sentence on examples that likely hide their labels, by one answer to all of them, unless most of `train` has
    it; empty for others."""
    answers = {one for example in examples for one in _answers(example, task)}
    if len(examples) < LEAST_EXAMPLES or len(answers) != 1:
        return ""
    share = sum(_answers(example, task) <= answers for example in train) / max(len(train), 1)
    if share ** len(examples) > LEAST_CHANCE:
        return ""
    what = f"the label '{shortened([*answers])}'" if answers != {""} else "no label"
    return f"all {len(examples):,} examples have {what}. If they are hidden, no score on it counts"


def _answers(example: Example, task: Task) -> set[str]:
    return {*example.labels} if task.kind == "token_classification" else {label_text(example, task)}


def _on_another_scale(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> bool:
    """Whether means or deviations are far apart, and the median of one lies outside nine tenths of the other: of heavy
    tails, as of prices and counts, a few numbers decide the deviation."""
    far = abs(ours.mean() - theirs.mean()) > 3 * theirs.std()
    if not far and theirs.std() < 4 * ours.std() < 16 * theirs.std():
        return False
    (low, middle, high), (least, median, most) = (np.quantile(side, (0.05, 0.5, 0.95)) for side in (ours, theirs))
    return not (low <= median <= high and least <= middle <= most)


def _odd_numbers(examples: Sequence[Example]) -> list[str]:
    """Sentences on a number that several examples have, below or above all others: far from them, or -1 below others
    from 0 on that are not 0 and 1 alone."""
    values, lines = np.array([example.value for example in examples]), list[str]()
    for odd in (values.min(), values.max()):
        rest = values[values != odd]
        if len(rest) < LEAST_EXAMPLES or (count := len(values) - len(rest)) < 3:
            continue
        is_far = abs(rest - odd).min() > 2 * np.ptp(rest) > 0
        if is_far or (odd == -1 and rest.min() >= 0 and not {*rest} <= {0.0, 1.0}):
            first = examples[int((values == odd).argmax())].where
            said = f"the number {odd:g} ({several(count, 'example')}, the first at {first}) counts like others"
            lines.append(f"{said}. If it marks a missing one, delete its records")
    return lines


def _inside(split: str, examples: Sequence[Example], keys: list[bytes], task: Task) -> Iterator[LabelFinding]:
    by_content: dict[bytes, dict[str, Example]] = {}
    repeated: list[tuple[Example, Example]] = []
    relabelled: list[tuple[Example, Example]] = []
    for key, example in zip(keys, examples, strict=True):
        by_label = by_content.setdefault(key, {})
        label = label_text(example, task)
        if label in by_label:
            repeated.append((example, by_label[label]))
        elif by_label:
            relabelled.append((example, next(iter(by_label.values()))))
        by_label.setdefault(label, example)
    yield from _finding("duplicate", (split,), repeated, task)
    yield from _finding("conflict", (split,), relabelled, task)


def _finding(
    kind: Literal["duplicate", "conflict", "leak"],
    splits: tuple[str, ...],
    pairs: list[tuple[Example, Example]],
    task: Task,
) -> Iterator[LabelFinding]:
    if not pairs:
        return
    relabelled = [label_text(repeat, task) != label_text(first, task) for repeat, first in pairs]
    places = []
    for (repeat, first), differs in zip(pairs[:PLACES], relabelled, strict=False):
        labels = [f" '{shortened([label_text(example, task)])}'" if differs else "" for example in (repeat, first)]
        earlier = f"{first.counted} {first.line}" if first.file == repeat.file else first.where
        places.append(f"{repeat.where}{labels[0]} as {earlier}{labels[1]}")
    varied = sum(repeat.content != first.content for repeat, first in pairs)
    yield LabelFinding(kind, splits, len(pairs), sum(relabelled), tuple(places), varied)


def label_text(example: Example, task: Task) -> str:
    """The label of any kind of task as text, equal for equal labels."""
    if task.kind == "regression":
        short = f"{example.value:g}"
        return short if float(short) == example.value else repr(example.value)  # large numbers need more digits
    if task.kind == "question_answering":
        return " | ".join(sorted({answer.text for answer in example.answers})) or "no answer"
    names = sorted(example.labels) if task.kind == "multi_label_classification" else example.labels
    return " ".join(names)


def label_counts(examples: Sequence[Example], labels: Sequence[str]) -> dict[str, int]:
    counts = Counter(name for example in examples for name in example.labels)
    return {name: counts[name] for name in labels}
