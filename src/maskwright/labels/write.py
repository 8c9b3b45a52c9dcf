"""Records to the files that `text.tables` reads, each whole or not at all."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.core import output, storage
from maskwright.core.errors import InputError
from maskwright.text.compression import ending
from maskwright.text.parquet import write_parquet

WRITTEN = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
COLUMNS = (".conll", ".txt", ".tsv")
"""Endings of files with one word on each line."""


def require_writable(location: str, endings: Sequence[str]) -> None:
    """Raises `InputError` if the file cannot be written; call it before the work."""
    storage.require_local(location)
    if os.path.splitext(location)[1].lower() not in endings:
        fix = f"give a name that ends in {' or '.join(endings)}"
        raise InputError("is of a kind that cannot be written", where=location, fix=fix)
    storage.make_folder(os.path.dirname(os.path.abspath(location)))
    output.require_place(location)


def write_records(location: str, records: Sequence[dict[str, Any]], separator: str = ",") -> None:
    """Writes one or more records, all with the keys of the first. In CSV and TSV, a list is one cell with `separator`,
    and an object has a column for each key. TSV has no quotes, so tabs and line ends become spaces."""
    kind = ending(location)
    with output.writer(location) as file:
        if kind == ".parquet":
            write_parquet(file, records)
        elif kind in (".csv", ".tsv"):
            file.write(_table([_flat(record, separator) for record in records], tabs=kind == ".tsv").encode())
        else:
            file.write("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode())


def _flat(record: dict[str, Any], separator: str) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, dict):
            cells |= {f"{key}_{name}": cell for name, cell in value.items()}
        else:
            cells[key] = separator.join(map(str, value)) if isinstance(value, list) else value
    return cells


def _table(rows: Sequence[dict[str, Any]], *, tabs: bool) -> str:
    if tabs:
        lines = [rows[0], *(row.values() for row in rows)]
        return "".join("\t".join(" ".join(str(cell).split()) for cell in line) + "\n" for line in lines)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(rows[0])
    writer.writerows(row.values() for row in rows)
    return text.getvalue()


def write_conll(location: str, sentences: Sequence[Sequence[tuple[str, str]]]) -> None:
    """Writes (word, tag) of each sentence, with a tab between them."""
    lines = ("".join(f"{word}\t{tag}\n" for word, tag in sentence) for sentence in sentences)
    with output.writer(location) as file:
        file.write("\n".join(lines).encode())


def write_vectors(location: str, vectors: NDArray[np.float32], records: Sequence[dict[str, Any]]) -> None:
    """Writes vectors [records, D]. `.npy` holds them alone, `.parquet` in a column `embedding` next to `records`."""
    with output.writer(location) as file:
        if ending(location) == ".npy":
            np.save(file, vectors, allow_pickle=False)
        else:
            write_parquet(file, records, embedding=vectors)
