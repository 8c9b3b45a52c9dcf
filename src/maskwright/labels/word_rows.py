"""Tables with one word in each row and a column that numbers the sentences, as pandas writes them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from maskwright.core.console import several
from maskwright.core.errors import SourceError
from maskwright.labels.columns import TAGS, WORDS, renamed, roles_of, string, with_tags
from maskwright.labels.example import Example, Reading, Unusable
from maskwright.text.document import place
from maskwright.text.lines import numbered_lines
from maskwright.text.names import cell_name
from maskwright.text.tables import Column, Record, Table, first_record

SENTENCE = re.compile(r"sent(ence)?s?(id|idx|index|no|num|nr|number)?")
"""The letters of a name such as `sentence_id` or `Sentence #`."""


def numbers_sentences(name: Column) -> bool:
    return isinstance(name, str) and bool(SENTENCE.fullmatch("".join(filter(str.isalpha, name.casefold()))))


def is_header(cells: Sequence[str]) -> bool:
    """Whether a line names columns of words and tags."""
    names = [cell.strip() for cell in cells]
    return not ({*WORDS}.isdisjoint(names) or {*TAGS}.isdisjoint(names)) and len({*names}) == len(names)


def has_sentence_column(name: str, reading: Reading) -> bool:
    """Whether the first line of a .tsv names a column of sentences."""
    _, line = next(numbered_lines(name, reading.encoding), (0, ""))
    return reading.data.has_header and any(map(numbers_sentences, line.split("\t")))


def sentence_column(table: Table, reading: Reading) -> Column | None:
    """The column that numbers the sentences of the words; None if a record holds a whole sentence."""
    wanted = reading.data.text_columns or WORDS
    first = first_record(table, wanted)
    words = [column for column in wanted if isinstance(first.get(column), str)]
    if table.delimiter and reading.labelled:  # tags are in no other CSV, and `roles_of` asks for the words' column
        words = [*words, ""]
    return next((column for column in table.columns if numbers_sentences(column) and words not in ([], [column])), None)


def word_examples(table: Table, sentence: Column, reading: Reading) -> Iterator[Example]:
    """One example for each sentence: successive rows with the same cell in its column, or with an empty cell, as below
    the first word in Kaggle's files. Raises `SourceError` for a sentence in two places."""
    roles = roles_of(table, reading)
    word, tag = roles.text[0], roles.label[0] if roles.label else None
    rows: list[Record] = []
    start, current, count = 0, "", 0
    ended: set[str] = set()

    def example() -> Iterator[Example]:
        where = Example(table.name, start, counted=table.counted)
        with reading.record(where):
            missing = [column for row in rows for column in roles.all if column not in row]
            if missing:
                raise Unusable(f"has a word without '{missing[0]}'", "add it")
            words = tuple(string(row[word], word) for row in rows)
            tags = () if tag is None else tuple(renamed(cell_name(row[tag]), roles, reading) for row in rows)
            yield with_tags(where, words, tags, labelled=tag is not None)

    for number, row in table.rows([sentence, *roles.all]):
        key = cell_name(row.get(sentence)) or current
        if key != current:
            if key in ended:
                what = f"continues the sentence '{key}' of column '{sentence}', after a word of '{current}'"
                fix = f"correct the number, or sort the rows by '{sentence}'; if the numbers start again, keep counting"
                raise SourceError(what, where=place(table.name, number, table.counted), fix=fix)
            if rows:
                yield from example()
            rows, start, current, count = [], number, key, count + 1
            ended.add(key)
        if not key:
            what, fix = f"has no sentence in column '{sentence}'", "number the sentences from the first row on"
            raise SourceError(what, where=place(table.name, number, table.counted), fix=fix)
        rows.append(row)
    if rows:
        yield from example()
    reading.note(f"{table.name}: one word per row; column '{sentence}' splits them into {several(count, 'sentence')}")
