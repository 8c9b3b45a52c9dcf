"""Files to examples, each with the reader for its kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from maskwright.core.errors import SourceError
from maskwright.core.splits import Split
from maskwright.labels.annotations import WORDS_ARE, annotated_examples, find_layout, in_words
from maskwright.labels.columns import examples_of
from maskwright.labels.conll import has_texts, read_conll
from maskwright.labels.example import Example, Reading
from maskwright.labels.fasttext import has_lines, line_examples
from maskwright.labels.files import files_of
from maskwright.labels.squad import squad_examples
from maskwright.labels.vectors import named
from maskwright.labels.word_rows import has_sentence_column, sentence_column, word_examples
from maskwright.text.compression import ending, require_content, unreadable
from maskwright.text.records import SEQUENCE_ENDINGS
from maskwright.text.sources import Sources
from maskwright.text.tables import COLUMNAR, JSON_LINES, TABLES, listed, open_table

LISTS = (*JSON_LINES, ".json", *COLUMNAR)
"""Files whose records can hold lists of words and tags, or spans."""


def read_examples(location: str, reading: Reading, wanted: Sequence[Split] = ()) -> list[Example]:
    """The examples of a file, folder or glob, files sorted by name. `wanted`: splits to read from a folder whose files
    are named for splits; the first that exists counts. Raises `InputError` (exit 2) with file and line."""
    return read_files(files_of(location, wanted, reading), location, reading)


def read_files(names: Sequence[str], location: str, reading: Reading) -> list[Example]:
    """The examples of files that `location` names, in their order."""
    examples: list[Example] = []
    for name in names:
        examples += _read(name, reading)
        reading.end_file()
    if examples and reading.labelled and reading.task.kind == "multi_label_classification":
        examples = named(examples, reading)
    if reading.labelled and reading.data.group is not None and not all(example.group for example in examples):
        what = f"data.group is {reading.data.group!r}, but these files give no groups"
        if reading.split == "train":
            raise SourceError(what, where=location, fix="write a table with a record for each example (.csv, .jsonl)")
        reading.note(f"{location}: {what}, so none is looked for in the training split")
    if not examples:
        skipping = reading.data.on_bad_input == "skip"
        fix = "check the file" + ", or leave out data.on_bad_input: skip" * skipping
        raise SourceError("holds no examples", where=location, fix=fix)
    return examples


def _read(name: str, reading: Reading) -> Iterator[Example]:
    kind, task = ending(name), reading.task.kind
    require_content(name)
    if kind in SEQUENCE_ENDINGS:
        if reading.labelled:
            raise SourceError("holds sequences without labels", where=name, fix="write a table (.csv, .jsonl) of both")
        data = reading.data
        for document in Sources(
            [name], on_bad_input=data.on_bad_input, on_fault=reading.handle, encoding=data.encoding
        ):
            if task == "token_classification":
                yield Example(name, document.line, words=tuple(document.text))
            else:
                yield Example(name, document.line, text=document.text)
        return
    is_table = kind in (*LISTS, ".csv") or (kind == ".tsv" and has_sentence_column(name, reading))
    if task == "token_classification" and kind == ".txt" and not reading.labelled and has_texts(name, reading):
        reading.note(f"its texts are {WORDS_ARE}")
        yield from (in_words(example, example.text) for example in line_examples(name, reading))
        return
    if task == "token_classification" and not is_table:
        yield from read_conll(name, reading)
        return
    kinds = LISTS if task == "question_answering" else TABLES
    if kind not in kinds and has_lines(name, reading):
        yield from line_examples(name, reading)
        return
    if kind not in kinds:
        raise unreadable(name, kinds)
    with open_table(name, reading.handle, has_header=reading.data.has_header, encoding=reading.encoding) as table:
        if table.note:
            reading.note(table.note)
        if not table.is_empty:
            sentence = sentence_column(table, reading) if task == "token_classification" else None
            if sentence is not None:
                yield from word_examples(table, sentence, reading)
                return
            if task == "token_classification" and table.delimiter and reading.labelled:
                what = f"has no column that numbers the sentences of its words (columns: {listed(table.columns)})"
                fix = "add one, named sentence_id; or use CoNLL columns (.conll, .txt), or lists in .jsonl or .parquet"
                raise SourceError(what, where=table.header, fix=fix)
            layout = find_layout(table, reading) if task == "token_classification" else None
            is_squad = task == "question_answering" and "paragraphs" in table.columns
            if layout is not None:
                yield from annotated_examples(table, layout, reading)
            else:
                yield from (squad_examples if is_squad else examples_of)(table, reading)
