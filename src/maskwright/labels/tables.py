"""Records with named columns: CSV, TSV, JSON lines, a JSON list, Parquet."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from maskwright.core import storage
from maskwright.core.errors import SourceError
from maskwright.labels.example import Reading
from maskwright.text.compression import COMPRESSIONS, guarded, open_text, refuse_utf16
from maskwright.text.sources import BYTE_ORDER_MARK

Record = dict[int | str, Any]
Rows = Iterator[tuple[int, Record]]
TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")
PICKLES = (".pickle", ".pkl")
COPY_AGAIN = "copy it again from its origin"


@dataclass
class Table:
    """The columns of one file, and its records as (line, {column: value}); a cell of CSV is a `str`."""

    columns: list[int | str]
    header: str
    """Where the columns are named, for errors: file, or file and line."""
    rows: Callable[[list[int | str]], Rows]
    """Takes the columns that are wanted; a record may hold more, and one of JSON lines may hold fewer."""


def ending(name: str) -> str:
    """In small letters and without compression: `a/B.CSV.gz` -> `.csv`. Raises `SourceError` for a pickle."""
    plain = storage.without_query(name).lower()
    for compression in COMPRESSIONS:
        plain = plain.removesuffix(compression)
    kind = os.path.splitext(plain)[1]
    if kind in PICKLES:
        raise _pickle(name)
    return kind


def _pickle(name: str) -> SourceError:
    jsonl = os.path.basename(name).partition(".")[0] + ".jsonl"
    code = f"import pandas; pandas.read_pickle('{name}').to_json('{jsonl}', orient='records', lines=True)"
    return SourceError(
        "is a pickle, which can run any program when it is opened",
        where=name,
        fix=f'if you trust it, convert it once: python -c "{code}"',
    )


def _whole(name: str) -> bytes:
    with open_text(name) as stream:
        return b"".join(guarded(name, iter(lambda: stream.read(storage.READ_BYTES), b"")))


def whole_text(name: str) -> str:
    """A file's text without byte-order mark. Raises `SourceError` with file, line and byte for what is not UTF-8."""
    raw = _whole(name)
    if raw[:1] == b"\x80" and raw[1:2] in (b"\2", b"\3", b"\4", b"\5"):  # pickle's protocols that pandas writes
        raise _pickle(name)
    refuse_utf16(name, raw)
    if not raw.strip():
        raise SourceError("is empty", where=name, fix="check the path, or write the file again")
    try:
        return raw.removeprefix(BYTE_ORDER_MARK).decode("utf-8")
    except UnicodeDecodeError as error:
        at = error.start + (len(BYTE_ORDER_MARK) if raw.startswith(BYTE_ORDER_MARK) else 0)
        raise SourceError(
            f"byte 0x{raw[at]:02x} is not UTF-8",
            where=f"{name}:{raw.count(bytes([10]), 0, at) + 1}:{at}",
            fix="convert the file: iconv -f latin1 -t utf8",
        ) from None


def lines_of(name: str) -> list[str]:
    """Lines without their ends; only a line feed ends a line."""
    return [line.removesuffix("\r") for line in whole_text(name).split("\n")]


def read_table(name: str, reading: Reading) -> Table:
    kind = ending(name)
    if kind == ".parquet":
        return _parquet(name)
    if kind in (".csv", ".tsv"):
        return _csv(name, "\t" if kind == ".tsv" else ",", reading)
    return _json(name, reading)


# ---- CSV and TSV -------------------------------------------------------------------------------------------------


def _csv(name: str, delimiter: str, reading: Reading) -> Table:
    """CSV with quotes as RFC 4180; TSV without, as its registration says and as GLUE's files are."""
    rows = _csv_rows(name, delimiter)
    first_line, first = next(rows, (1, []))
    columns: list[int | str] = [*first] if reading.data.has_header else [*range(len(first))]

    def records(_: list[int | str]) -> Rows:
        if not reading.data.has_header:
            yield first_line, dict(zip(columns, first, strict=True))
        for line, row in rows:
            if len(row) == len(columns):
                yield line, dict(zip(columns, row, strict=True))
            else:  # a quote, tab or line end that was meant otherwise, most often
                what = f"has {len(row)} columns, the first row has {len(columns)}"
                reading.fault(f"{name}:{line}", what, "repair the row; in .tsv a quote is an ordinary character")

    return Table(columns, f"{name}:{first_line}", records)


def _csv_rows(name: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """(line at which it begins, cells) of each row that is not empty."""
    csv.field_size_limit(1 << 30)
    lines = (line + "\n" for line in lines_of(name))
    rows = csv.reader(
        lines,
        delimiter=delimiter,
        strict=True,
        quoting=csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL,
    )
    start = 1
    try:
        for row in rows:
            if row:
                yield start, row
            start = rows.line_num + 1
    except csv.Error as error:
        raise SourceError(
            f"is not CSV: {error}, in the record that begins here",
            where=f"{name}:{start}",
            fix='repair its quotes ("" inside quotes means one), or save it as .tsv or .jsonl',
        ) from None


# ---- JSON --------------------------------------------------------------------------------------------------------


def _json(name: str, reading: Reading) -> Table:
    text = whole_text(name)
    if text.lstrip().startswith("["):
        return records_table(name, [*enumerate(parsed_json(text.strip(), name)[0], 1)], reading)
    records = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                records.append((number, json.loads(line)))
            except (ValueError, RecursionError) as error:
                reading.fault(f"{name}:{number}", f"is not JSON: {_detail(error)}", "write one object on each line")
    return records_table(name, records, reading)


def records_table(name: str, records: list[tuple[int, Any]], reading: Reading) -> Table:
    """A table of JSON objects; its columns are the keys of the first."""
    first_line, first = records[0] if records else (1, {})
    columns: list[int | str] = [*first] if isinstance(first, dict) else []

    def rows(_: list[int | str]) -> Rows:
        for number, record in records:
            if isinstance(record, dict):
                yield number, record
            else:
                reading.fault(f"{name}:{number}", "is not an object with keys", 'write {"text": …, "label": …}')

    return Table(columns, f"{name}:{first_line}", rows)


def parsed_json(text: str, name: str) -> tuple[Any, int]:
    """The first value of a text that begins with it, and where it ends. Raises `SourceError`."""
    try:
        return json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError) as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else 1
        raise SourceError(f"is not JSON: {_detail(error)}", where=f"{name}:{line}", fix=COPY_AGAIN) from None


def _detail(error: Exception) -> str:
    return error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply, or a number is too long"


# ---- Parquet -----------------------------------------------------------------------------------------------------


def _parquet(name: str) -> Table:
    """The whole file is in memory: Parquet needs random access, which archives and some URLs do not give."""
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(_whole(name)))
    except (pyarrow.ArrowException, OSError) as error:
        raise SourceError(f"is not Parquet: {error}", where=name, fix=COPY_AGAIN) from None

    def rows(wanted: list[int | str]) -> Rows:
        number = 0
        try:
            for batch in file.iter_batches(columns=[str(column) for column in wanted]):
                for record in batch.to_pylist():
                    number += 1
                    yield number, record
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise SourceError(f"is damaged: {error}", where=f"{name}:{number + 1}", fix=COPY_AGAIN) from None

    return Table([*file.schema_arrow.names], name, rows)
