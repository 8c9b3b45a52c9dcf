"""Files to examples: which reader a file needs."""

from __future__ import annotations

from collections.abc import Iterator

from maskwright.core import storage
from maskwright.core.errors import SourceError
from maskwright.labels.columns import examples_of
from maskwright.labels.conll import read_conll
from maskwright.labels.example import Example, Reading
from maskwright.labels.squad import read_squad
from maskwright.labels.tables import TABLES, ending, read_table

LISTS = (".jsonl", ".ndjson", ".json", ".parquet")
"""Files whose records can hold lists: one of words, one of tags."""


def read_examples(location: str, reading: Reading) -> list[Example]:
    """The examples of a file or glob, files sorted by name. Raises `InputError` (exit 2) with file and line."""
    found = [example for name in storage.expand([location]) for example in _read(name, reading)]
    if not found:
        skipping = reading.spelt.skip if reading.data.on_bad_input == "skip" else None
        fix = "check the file" + (f", or leave out {skipping}" if skipping else "")
        raise SourceError("holds no examples", where=location, fix=fix)
    return found


def _read(name: str, reading: Reading) -> Iterator[Example]:
    kind, task = ending(name), reading.task.kind
    if task == "token_classification" and kind not in LISTS:
        if kind == ".csv":
            fix = "use CoNLL columns (.conll, .txt, .tsv), or lists in .jsonl or .parquet"
            raise SourceError("is CSV, which holds no words and tags", where=name, fix=fix)
        return read_conll(name, reading)
    if task == "question_answering" and kind == ".json":
        return read_squad(name, reading)
    if kind not in TABLES or (task == "question_answering" and kind not in LISTS):
        wanted = LISTS if task == "question_answering" else TABLES
        raise SourceError(
            "is of a kind that cannot be read", where=name, fix=f"use {' '.join(wanted)}, each also .gz or .zst"
        )
    return examples_of(name, read_table(name, reading), reading)
