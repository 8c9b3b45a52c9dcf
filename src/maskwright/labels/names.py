"""The labels of the training split, in a stable order, and their checks in every split."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from maskwright.config.finetuning import LABELLED, LabelledData, Task
from maskwright.core.console import several
from maskwright.core.errors import InputError, SourceError
from maskwright.labels.example import Example, Reading
from maskwright.labels.spans import OUTSIDE, kind_of, mark_spans, prefix_of
from maskwright.text.names import folded_name

CLASSES = ("single_label_classification", "token_classification")
"""Kinds of task in which each text or word has exactly one label."""
INTEGER = re.compile(r"-?[0-9]+")
MISSING = ("nan", "null", "<na>", "n/a", "na", "#n/a", "#nv", "\\n", "unknown", "_")
"""Spellings of a missing value, in small letters: of pandas, of English and German Excel, and \\N of MySQL's dumps."""
NO_CLASS = ("-1", "-100")
"""A missing value among numbers: as in GLUE, and as in the loss of `transformers`."""
SEPARATORS = (",", ";", "|", "\n", "\t", " / ")
"""Possible separators between several labels in one cell."""


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Numeric order if all are integers, else by code point. The order of the examples does not count."""
    names = set(names)
    if all(INTEGER.fullmatch(name) for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def find_labels(
    train: Sequence[Example], data: LabelledData, task: Task, class_names: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """The labels in the order of their ids; none for regression and questions. `class_names`: see `Reading`.

    Raises `InputError` (exit 2) if nothing can be learned: for a single class, or as many classes as examples.
    """
    if task.kind == "regression":
        _require_several_values(train)
    if task.kind not in LABELLED:
        return ()
    found = class_names or _columns(data, task)
    labels = task.fixed_labels or found or in_order(name for example in train for name in example.labels)
    counts = Counter(name for example in train for name in example.labels)
    labelled = counts.total() if task.kind == "token_classification" else len(train)
    is_free = not task.fixed_labels and not class_names and task.kind == "single_label_classification"
    if (len(labels) > labelled and not class_names) or (is_free and len(labels) == labelled > 2):
        amount = f"more labels than the {labelled}" if len(labels) > labelled else f"as many labels as the {labelled}"
        raise InputError(
            f"has {amount} examples ({shortened(labels)})",
            where=train[0].where,
            fix="name the label's column under data.label, or set task.kind: regression for numbers",
        )
    if task.kind in CLASSES and len(counts) == 1:
        raise InputError(
            f"has only the label '{next(iter(counts))}' in all {len(train)} examples",
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
            f"has only the label {next(iter(values)):g} in all {len(train)} examples",
            where=train[0].where,
            fix="name the right column under data.label",
        )


def with_known(split: str, examples: Sequence[Example], labels: Sequence[str], reading: Reading) -> list[Example]:
    """The examples whose labels are all in `labels`. Raises `InputError` for others; those without a label of
    `task.labels` are left out with `data.on_bad_input: skip`."""
    known, kept = _spellings(labels), []
    for example in examples:
        what = _unknown(example, known)
        if what is None:
            kept.append(example)
        elif reading.task.fixed_labels:
            what = f"{what} is not in task.labels ({shortened(labels)})"
            reading.fault(example.where, what, "add it there, or repair the file")
        else:
            what = f"{what} is in the {split} split, but no training example has it ({shortened(labels)})"
            fix = "repair the file, add training examples, or name all labels in task.labels"
            raise InputError(what, where=example.where, fix=fix)
    if examples and not kept:
        raise SourceError("holds no example with a label of task.labels", where=examples[0].file, fix="correct them")
    return kept


def in_terms_of(labels: Sequence[str], examples: Sequence[Example], reading: Reading) -> list[Example]:
    """The examples with labels of a model. If these are LABEL_0, LABEL_1, …, the file's numbers, or its schema's names,
    are their positions. Raises `InputError` for a label that the model lacks."""
    names: dict[str, str] = {}
    if [*labels] == [f"LABEL_{place}" for place in range(len(labels))]:
        names = {str(place): name for place, name in enumerate(labels)}
        if len(reading.class_names) == len(labels):
            names |= dict(zip(reading.class_names, labels, strict=True))
    found = [replace(one, labels=tuple(names.get(label, label) for label in one.labels)) for one in examples]
    known = _spellings(labels)
    for example in found:
        if what := _unknown(example, known):
            fix = (
                f"write the positions of the model's labels, from 0 to {len(labels) - 1}"
                if names
                else "write the labels of the model"
            )
            raise InputError(f"{what} is none of the model's ({shortened(labels)})", where=example.where, fix=fix)
    if names and found != [*examples]:
        reading.note(f"the model's labels are {shortened(labels, 2)}: the file's are their positions, from 0")
    return found


def _spellings(labels: Sequence[str]) -> dict[str, str]:
    """Each label by its `folded_name` and by itself."""
    return {folded_name(name): name for name in labels} | {name: name for name in labels}


def _unknown(example: Example, known: Mapping[str, str]) -> str | None:
    """Names the label of the example that is unknown; None for none. `known`: see `_spellings`."""
    for word, name in enumerate(example.labels, 1):
        if known.get(name) != name:
            more = ", which means none," if name in NO_CLASS and all(map(str.isdigit, known)) else ""
            if like := known.get(folded_name(name)):
                more = f", unlike '{_apart([name, like])[1]}',"
            return f"label '{name}'{more}" + (f" of word {word}, '{example.words[word - 1]}'," if example.words else "")
    return None


def odd_labels(labels: Sequence[str], task: Task, examples: Sequence[Example] = ()) -> list[str]:
    """Sentences on labels that are most likely one label, several, or a missing label. No label is changed. `examples`:
    the training split."""
    spellings_of: dict[str, list[str]] = {}
    for name in labels:
        spellings_of.setdefault(folded_name(name), []).append(name)
    notes = [
        f"the labels {shortened(_apart(spellings))} count as {len(spellings)} different ones. "
        "If they are one, write them alike"
        for spellings in spellings_of.values()
        if len(spellings) > 1
    ]
    empty = [name for name in labels if _says_nothing(name, labels, task)]
    others = json.dumps([name for name in labels if name not in empty], ensure_ascii=False)
    for name in empty:
        having = [example for example in examples if name in example.labels]
        places = f" ({several(len(having), 'example')}, the first at {having[0].where})" if having else ""
        notes.append(
            f"the label {name}{places} counts as a class like others. If it marks a missing label, leave its "
            f"records out with data.on_bad_input: skip and task.labels: {others if len(labels) < 8 else 'the others'}"
        )
    if task.kind == "multi_label_classification":
        notes += _odd_lists(labels, task, examples)
    return notes + _other_names(examples)


def _other_names(examples: Sequence[Example]) -> list[str]:
    """A sentence on the first file with as many labels as the first, but none of the same. Files of one label may be a
    class each, and the files of sorted records seldom have as many."""
    of_file: dict[str, set[str]] = {}
    for example in examples:
        of_file.setdefault(example.file, set()).update(example.labels)
    first = next(iter(of_file), "")
    for file, names in of_file.items():
        if len(names) == len(of_file[first]) > 1 and names.isdisjoint(of_file[first]):
            theirs, ours = (shortened(in_order(some)) for some in (names, of_file[first]))
            return [f"{file} has other labels ({theirs}) than {first} ({ours}). If they are the same, write them alike"]
    return []


def _apart(names: Sequence[str]) -> list[str]:
    """Spellings of one name, by their code points if a reader would see no difference."""
    seen = {"".join(one for one in unicodedata.normalize("NFC", name) if one.isprintable()) for name in names}
    return [*names] if len(seen) == len(names) else [ascii(name)[1:-1] for name in names]


def _says_nothing(name: str, labels: Sequence[str], task: Task) -> bool:
    """Whether a label likely marks a missing one: by its spelling, as `NO_CLASS` among numbers from 0 on, or as
    punctuation alone, which is a tag for words. With a +, a - is a judgement."""
    if name in NO_CLASS:
        return "0" in labels and all(label.isdigit() for label in labels if label != name)
    is_marks = all(unicodedata.category(character).startswith("P") for character in name)
    return name.casefold() in MISSING or (is_marks and task.kind != "token_classification" and "+" not in labels)


def _odd_lists(labels: Sequence[str], task: Task, examples: Sequence[Example]) -> list[str]:
    """Sentences on several labels in one, and on examples that all have equally many."""
    notes = []
    for name in labels:
        if mark := next((mark for mark in SEPARATORS if mark != task.separator and mark in name), None):
            said = f"the label {shortened([name])!r} is one label: task.separator is {task.separator!r}"
            notes.append(f"{said}; if {mark!r} separates labels, set it to that")
            break
    counts = {len(example.labels) for example in examples}
    if counts == {len(labels)}:
        notes.append(f"every training example has all {several(len(labels), 'label')}, so it learns nothing")
    elif not notes and counts and max(counts) < 2 < len(examples):
        notes.append(
            "no training example has two labels: is task.separator right, or single_label_classification meant?"
        )
    return notes


def shortened(names: Sequence[str], limit: int = 6) -> str:
    listed = ", ".join(name[:30] for name in names[:limit])
    return listed + (f" and {len(names) - limit:,} more" if len(names) > limit else "")


def _why_without_prefix(tag: str, tags: set[str]) -> str:
    """A guess at what a `tag` was meant to be; empty for tags that mark no spans, such as parts of speech."""
    first, last = re.fullmatch("([BIMESLUbimeslu])[-_:/](.+)", tag), re.fullmatch("(.+)[-_]([BIMESLU])", tag)
    marked = [other for other in tags if prefix_of(other)]
    if first or last or (marked and tag in ("0", "o")):
        prefix, name = first.groups() if first else last.groups()[::-1] if last else ("", "")
        meant = f"'{prefix.upper()}-{name}'" if prefix else "the letter O"
        return f". If it means {meant}, write that to judge entities"
    if not any("-" in other for other in marked):
        return ""
    return f", though {len(marked)} of {len(tags)} tags have one. Give each tag but O a prefix to judge entities"


def tag_scheme(examples: Sequence[Example]) -> str:
    """A sentence on how the tags mark spans, since metrics over spans depend on it: IOB2, IOB1, IOBES, BILOU, BMES
    or IO."""
    tags = dict.fromkeys(tag for example in examples for tag in example.labels)
    if all(map(INTEGER.fullmatch, tags)):
        return (
            "the tags are integers: name them in task.labels, as in {0: O, 1: B-PER}; until then, each word is judged "
            "by itself, and no entities"
        )
    if not mark_spans([*tags]):
        tag = min(tags, key=lambda tag: (tag == OUTSIDE, prefix_of(tag) != ""))
        why = _why_without_prefix(tag, {*tags})
        return f"tag '{tag}' has no prefix such as B- or I-: each word is judged by itself{why}"
    loose: list[str] = []
    """Places of spans that begin with I-, unlike in IOB2."""
    for example in examples:
        previous = OUTSIDE, ""
        for word_idx, tag in enumerate(example.labels):
            prefix, kind = prefix_of(tag), kind_of(tag)
            if prefix == "I" and previous not in (("B", kind), ("I", kind)):
                loose.append(f"{example.where} word {word_idx + 1}")
            previous = prefix, kind
    prefixes = set(map(prefix_of, tags)) - {""}
    if prefixes == {"I"}:
        return "tags follow IO: neighbouring spans of one kind count as one"
    if prefixes & {"M", "E", "S"}:
        return f"tags follow {'BMES' if 'M' in prefixes else 'IOBES'}"
    if prefixes & {"L", "U"}:
        return "tags follow BILOU"
    if loose:
        return f"{len(loose):,} spans begin with I-, as in IOB1 and not in IOB2 (first: {loose[0]})"
    return "tags follow IOB2"
