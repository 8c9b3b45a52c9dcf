"""fastText's lines: a text with its labels, each a word that begins with `__label__`; and lines of text alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from maskwright.core.console import several
from maskwright.core.errors import SourceError
from maskwright.labels.example import Example, Reading, Unusable
from maskwright.text.compression import ending
from maskwright.text.lines import numbered_lines

PREFIX = "__label__"
LABEL = re.compile(rf"(?<!\S){PREFIX}(\S+)\s*")
HEAD_LINES = 100


def has_lines(name: str, reading: Reading) -> bool:
    """Whether each line is an example, with labels of fastText or in a `.txt` without labels."""
    if reading.task.kind == "question_answering" or reading.data.text_pair is not None:
        return False
    if not reading.labelled and ending(name) == ".txt":
        return True
    if reading.task.kind == "regression":
        return False
    return any(PREFIX in line for _, line in islice(numbered_lines(name, reading.encoding), HEAD_LINES))


def line_examples(name: str, reading: Reading) -> Iterator[Example]:
    """The examples of all lines that are not blank. Raises `SourceError`."""
    if reading.labelled and reading.data.label_columns:
        fix = f"leave out data.label: labels begin with {PREFIX}"
        raise SourceError("has fastText's lines, not columns", where=name, fix=fix)
    reading.note(f"{name}: one text on each line" + (f", whose labels begin with {PREFIX}" if reading.labelled else ""))
    translation, blank = reading.task.translation, 0
    for number, line in numbered_lines(name, reading.encoding):
        if not line.strip():
            blank += 1
            continue
        example = Example(name, number, text=LABEL.sub("", line).strip())
        labels = tuple(translation.get(label, label) for label in LABEL.findall(line)) if reading.labelled else ()
        with reading.record(example):
            if not example.text:
                raise Unusable("has labels but no text", "write a text after them, or delete the line")
            if reading.labelled and reading.task.kind == "single_label_classification" and len(labels) != 1:
                fix = "set task.kind: multi_label_classification" if labels else f"write {PREFIX}NAME before the text"
                raise Unusable(f"has {len(labels)} labels, not one", fix)
            yield replace(example, labels=labels)
    if blank and not reading.labelled:
        reading.note(f"{name}: {several(blank, 'blank line')} left out, so the results are fewer than the lines")
