"""The labels of the training split, in a stable order, and their checks in every split."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from maskwright.config.finetuning import LabelledData, Task
from maskwright.core.errors import ConfigError, InputError
from maskwright.labels.example import Example
from maskwright.labels.spans import PREFIXES

CLASSES = ("single_label_classification", "token_classification")
"""Kinds of task in which each text or word has exactly one label."""
INTEGER = re.compile(r"-?[0-9]+")
WHOLE = re.compile(r"-?[0-9]+\.0")
MISSING = ("nan", "null", "<na>", "n/a")
"""Spellings of a missing value, in small letters."""


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Numeric order if all are integers, else by code point. The order of the examples does not count."""
    names = set(names)
    if all(INTEGER.fullmatch(name) for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def find_labels(train: Sequence[Example], data: LabelledData, task: Task) -> tuple[str, ...]:
    """The labels in the order of their ids; none for regression and questions.

    Raises `InputError` (exit 2) if nothing can be learned: for a single class, or as many classes as examples.
    """
    if task.kind == "regression":
        _require_several_values(train)
    if task.kind in ("regression", "question_answering"):
        return ()
    labels = task.fixed_labels or _columns(data, task) or in_order(name for example in train for name in example.labels)
    counts = Counter(name for example in train for name in example.labels)
    labelled = counts.total() if task.kind == "token_classification" else len(train)
    is_free = task.fixed_labels is None and task.kind == "single_label_classification"
    if len(labels) > labelled or (is_free and len(labels) == labelled > 2):
        amount = f"more labels than the {labelled}" if len(labels) > labelled else f"as many labels as the {labelled}"
        raise InputError(
            f"has {amount} examples ({shortened(labels)})",
            where=train[0].where,
            fix="name the label's column under data.label; numbers are task.kind: regression",
        )
    if task.kind in CLASSES and len(counts) == 1:
        raise InputError(
            f"has the label '{next(iter(counts))}' only, in all {len(train)} examples",
            where=train[0].where,
            fix="give examples of at least two labels, or name the right column under data.label",
        )
    if not counts:
        raise InputError("has no label in any example", where=train[0].where, fix="check data.label")
    return labels


def _columns(data: LabelledData, task: Task) -> tuple[str, ...]:
    """The label columns, in the configuration's order, if each label has a column; else none."""
    several = task.kind == "multi_label_classification" and len(data.label_columns) > 1
    return tuple(map(str, data.label_columns)) if several else ()


def _require_several_values(train: Sequence[Example]) -> None:
    values = {example.value for example in train}
    if len(values) == 1:
        raise InputError(
            f"has the label {next(iter(values)):g} only, in all {len(train)} examples",
            where=train[0].where,
            fix="name the right column under data.label",
        )


def check_labels(split: str, examples: Sequence[Example], labels: Sequence[str], task: Task) -> None:
    """Raises `InputError` for the first example with a label that is not in `labels`."""
    known = set(labels)
    for example in examples:
        for word, name in enumerate(example.labels, 1):
            if name in known:
                continue
            what = f"label '{name}'" + (f" of word {word}, '{example.words[word - 1]}'," if example.words else "")
            if task.fixed_labels:
                what = f"{what} is not in task.labels ({shortened(labels)})"
                raise ConfigError(what, where=example.where, fix="add it there, or repair the file")
            raise InputError(
                f"{what} is in the {split} split, but no training example has it ({shortened(labels)})",
                where=example.where,
                fix="repair the file, add training examples, or name all labels in task.labels",
            )


def odd_labels(labels: Sequence[str], task: Task) -> list[str]:
    """Sentences on labels that are most likely one label, or a missing one. Nothing is changed."""
    spellings_of: dict[str, list[str]] = {}
    for name in labels:
        words = " ".join(name.casefold().split())
        spellings_of.setdefault(words.removesuffix(".0") if WHOLE.fullmatch(words) else words, []).append(name)
    notes = [
        f"the labels {shortened(spellings)} count as {len(spellings)} different ones: if they are one, write them alike"
        for spellings in spellings_of.values()
        if len(spellings) > 1
    ]
    if missing := [name for name in labels if name.casefold() in MISSING]:
        notes.append(
            f"the label {missing[0]} counts as a class like others: if it says that a label is missing, leave its "
            "records out"
        )
    if task.kind == "multi_label_classification":
        with_marks = [name for name in labels if any(mark in name for mark in ",;|" if mark != task.separator)]
        if with_marks:
            notes.append(f"the label '{shortened(with_marks[:1])}' is one label: task.separator is '{task.separator}'")
    return notes


def shortened(names: Sequence[str], limit: int = 6) -> str:
    listed = ", ".join(name[:30] for name in names[:limit])
    return listed + (f" and {len(names) - limit:,} more" if len(names) > limit else "")


def _why_without_prefix(tag: str, tags: set[str]) -> str:
    """What a `tag` among others may have been meant for; empty for tags that mark no spans, as of parts of speech."""
    first, last = re.fullmatch("([BIESLUbieslu])[-_:/](.+)", tag), re.fullmatch("(.+)[-_]([BIESLU])", tag)
    marked = [other for other in tags if other[:1] in PREFIXES and other[1:2] == "-"]
    if first or last or (marked and tag in ("0", "o")):
        prefix, name = first.groups() if first else last.groups()[::-1] if last else ("", "")
        meant = f"'{prefix.upper()}-{name}'" if prefix else "the letter O"
        return f". If {meant} is meant, write it so, and entities are judged"
    if not marked:
        return ""
    return f", though {len(marked)} of {len(tags)} tags have one. Give each tag but O a prefix, and entities are judged"


def tag_scheme(examples: Sequence[Example]) -> str:
    """A sentence on how the tags mark spans, since metrics over spans depend on it: IOB2, IOB1, IOBES, BILOU, IO."""
    prefixes: set[str] = set()
    loose: list[str] = []
    """Places of spans that begin with I-, which IOB2 does not have."""
    for example in examples:
        previous = "O"
        for word_idx, tag in enumerate(example.labels):
            prefix, dash, kind = tag.partition("-")
            if tag != "O" and (not dash or prefix not in "BIOESLU" or len(prefix) != 1):
                why = _why_without_prefix(tag, {tag for example in examples for tag in example.labels})
                return f"tag '{tag}' has no prefix such as B- or I-: each word is judged by itself{why}"
            prefixes.add(prefix)
            if prefix == "I" and previous not in (f"B-{kind}", f"I-{kind}"):
                loose.append(f"{example.where} word {word_idx + 1}")
            previous = tag
    if prefixes <= {"O", "I"}:
        return "tags follow IO: neighbouring spans of one kind cannot be told apart"
    if prefixes & {"E", "S"}:
        return "tags follow IOBES"
    if prefixes & {"L", "U"}:
        return "tags follow BILOU"
    if loose:
        return f"{len(loose):,} spans begin with I-, as in IOB1 and not in IOB2 (first: {loose[0]})"
    return "tags follow IOB2"
