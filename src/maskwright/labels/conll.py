"""Words and tags in columns, one word a line and a blank line between sentences (CoNLL, WikiANN, WNUT)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from maskwright.core.errors import SourceError
from maskwright.labels.columns import tagged
from maskwright.labels.example import Example, Reading, Unusable
from maskwright.labels.tables import lines_of

DOCUMENT = "-DOCSTART-"
LANGUAGE = re.compile(r"([a-z]{2,3}(?:-[a-z]+)*):(.+)", re.DOTALL)
"""WikiANN puts the language before each word, as in `en:Paris`."""

Row = tuple[int, list[str]]


def read_conll(name: str, reading: Reading) -> Iterator[Example]:
    """The word is the first column and the tag the last, unless the configuration gives numbers.

    Columns are parted by tabs if the first line with words has one, else by spaces and tabs. Raises `SourceError`.
    """
    sentences = list(_sentences(lines_of(name)))
    first = next((row for sentence in sentences for row in sentence), None)
    if first is None:
        raise SourceError("holds no sentence", where=name, fix="write a word and its tag on each line")
    word, tag = _columns(name, first, reading)
    prefix = _language(sentences, word)
    if prefix:
        reading.note(f"each word begins with '{prefix}:', as in WikiANN: it is taken off")
    translation = reading.task.translation
    for sentence in sentences:
        start = line = sentence[0][0]
        try:
            for line, cells in sentence:  # noqa: B007 - the line is named when one is refused
                if len(cells) != len(first[1]):
                    raise Unusable(f"has {len(cells)} columns, the first word has {len(first[1])}", "repair the line")
                if not cells[word].strip() or (reading.labelled and not cells[tag].strip()):
                    raise Unusable("has no word" if not cells[word].strip() else "has no tag", "repair the line")
            words = tuple(cells[word].removeprefix(f"{prefix}:") if prefix else cells[word] for _, cells in sentence)
            tags = tuple(cells[tag].strip() for _, cells in sentence) if reading.labelled else ()
            translated = tuple(translation.get(one, one) for one in tags)
            yield tagged(Example(name, start), words, translated, labelled=reading.labelled)
        except Unusable as error:
            reading.fault(f"{name}:{line}", error.what, error.fix)


def _sentences(lines: list[str]) -> Iterator[list[Row]]:
    """Numbered rows of cells. Left out: `-DOCSTART-`, and comments (`# …` without a tab among lines with tabs)."""
    tabs: bool | None = None
    sentence: list[Row] = []
    for number, line in enumerate([*lines, ""], 1):
        if not line.strip(" \t"):
            if sentence:
                yield sentence
            sentence = []
        elif not line.startswith(DOCUMENT) and not (line.startswith("#") and "\t" not in line and tabs is not False):
            tabs = "\t" in line if tabs is None else tabs
            cells = line.split("\t") if tabs else re.split(r"[ \t]+", line.strip(" \t"))
            sentence.append((number, cells))


def _columns(name: str, first: Row, reading: Reading) -> tuple[int, int]:
    """Where the word and its tag stand in a row."""
    width = len(first[1])
    word = (reading.data.text_columns or [0])[0]
    tag = (reading.data.label_columns or [width - 1])[0]
    for column in (word, tag) if reading.labelled else (word,):
        if not isinstance(column, int):
            raise SourceError(
                f"has columns without names, so none is {column!r}",
                where=f"{name}:{first[0]}",
                fix=f"give {'data.text and data.label' if reading.labelled else '--text'} as numbers from 0, or leave "
                "them out",
            )
        if column >= width:
            raise SourceError(
                f"has {width} columns, no column {column}", where=f"{name}:{first[0]}", fix="columns count from 0"
            )
    if reading.labelled and word == tag:
        raise SourceError(
            "has one column, no tags",
            where=f"{name}:{first[0]}",
            fix="write a word and its tag on each line, with a tab between them",
        )
    return int(word), int(tag)


def _language(sentences: list[list[Row]], word: int) -> str:
    """The prefix that every word of the file has; empty when there is none."""
    prefix = ""
    for sentence in sentences:
        for _, cells in sentence:
            match = LANGUAGE.fullmatch(cells[word]) if word < len(cells) else None
            if match is None or prefix not in ("", match[1]):
                return ""
            prefix = match[1]
    return prefix
