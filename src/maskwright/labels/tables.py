"""Records with named columns: CSV, TSV, JSON lines, a JSON list, Parquet."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from maskwright.core import storage
from maskwright.core.errors import SourceError
from maskwright.labels.example import Counted, Reading, place
from maskwright.text.compression import COMPRESSIONS, guarded, open_text, refuse_utf16
from maskwright.text.records import parquet_columns, parquet_rows
from maskwright.text.sources import BYTE_ORDER_MARK
from maskwright.text.tables import NotJSON, are_numbers, csv_rows, first_json_value, json_value, ragged, require_one

Record = dict[int | str, Any]
Rows = Iterator[tuple[int, Record]]
TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")
PICKLES = (".pickle", ".pkl")
COPY_AGAIN = "copy it again from its origin"


@dataclass
class Table:
    """The columns of one file, and its records as (number, {column: value}); a cell of CSV is a `str`."""

    columns: list[int | str]
    header: str
    """Where the columns are named, for errors: file, or file and line."""
    rows: Callable[[list[int | str]], Rows]
    """Takes the columns that are wanted; a record may hold more, and one of JSON lines may hold fewer."""
    counted: Counted = "line"
    """What the numbers of `rows` are."""
    numbered: bool = False
    """Whether columns have numbers where a file of this kind has no header line."""


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
    rows = csv_rows(name, lines_of(name), delimiter)
    first_line, first = next(rows, (1, []))
    named = reading.data.has_header or (bool(first) and are_numbers(first))
    columns: list[int | str] = [_column(cell.strip(), reading) for cell in first] if named else [*range(len(first))]

    def records(wanted: list[int | str]) -> Rows:
        for column in wanted:
            require_one(column, columns, f"{name}:{first_line}", "rename one of them in the header line")
        if not named:
            yield first_line, dict(zip(columns, first, strict=True))
        for line, row in rows:
            if len(row) == len(columns):
                yield line, dict(zip(columns, row, strict=True))
            else:
                reading.fault(f"{name}:{line}", *ragged(len(row), len(columns), delimiter))

    return Table(columns, f"{name}:{first_line}", records, numbered=True)


def _column(name: str, reading: Reading) -> int | str:
    """A name of the header line, as the configuration has it: numbers where it gives numbers."""
    return name if reading.data.has_header or not name else int(name)


# ---- JSON --------------------------------------------------------------------------------------------------------


def _json(name: str, reading: Reading) -> Table:
    text = whole_text(name)
    if text.lstrip().startswith("["):
        found, end = parsed_json(text, name)
        if more := text[end:].lstrip():
            where = f"{name}:{text.count(chr(10), 0, len(text) - len(more)) + 1}"
            fix = "write one list, or one object on each line"
            raise SourceError("has more after the end of its list", where=where, fix=fix)
        return records_table(name, [*enumerate(found, 1)], reading, "record")
    records = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                records.append((number, json_value(line)))
            except NotJSON as error:
                reading.fault(f"{name}:{number}", str(error), "write one object on each line")
    return records_table(name, records, reading, "line")


def records_table(name: str, records: list[tuple[int, Any]], reading: Reading, counted: Counted) -> Table:
    """A table of JSON objects; its columns are the keys of the first. Raises `SourceError` where there is none, and for
    one object of whole columns."""
    objects = [(line, record) for line, record in records if isinstance(record, dict)]
    fix = 'write {"text": …, "label": …} for each example; with pandas: to_json(FILE, orient="records", lines=True)'
    if records and not objects:
        raise SourceError("is not an object with keys", where=place(name, records[0][0], counted), fix=fix)
    number, first = objects[0] if objects else (1, {})
    header = place(name, number, counted)
    kinds = {*map(type, first.values())} if len(records) == 1 < len(first) else set()
    if kinds in ({list}, {dict}) and reading.task.kind != "token_classification":
        raise SourceError("is one object of whole columns", where=header, fix=fix)
    columns: list[int | str] = [*first]

    def rows(_: list[int | str]) -> Rows:
        for number, record in records:
            if isinstance(record, dict):
                yield number, record
            else:
                reading.fault(
                    place(name, number, counted), "is not an object with keys", 'write {"text": …, "label": …}'
                )

    return Table(columns, header, rows, counted)


def parsed_json(text: str, name: str) -> tuple[Any, int]:
    """The first value of a text, and where it ends. Raises `SourceError`."""
    try:
        return first_json_value(text)
    except NotJSON as error:
        raise SourceError(str(error), where=f"{name}:{error.line}", fix=COPY_AGAIN) from None


# ---- Parquet -----------------------------------------------------------------------------------------------------


def _parquet(name: str) -> Table:
    columns: list[int | str] = [*parquet_columns(name)]

    def rows(wanted: list[int | str]) -> Rows:
        names = [*dict.fromkeys(str(column) for column in wanted)]
        for number, scalars in parquet_rows(name, names):
            try:
                yield number, {column: scalar.as_py() for column, scalar in zip(names, scalars, strict=True)}
            except UnicodeDecodeError as error:
                where = place(name, number, "record")
                raise SourceError(f"is damaged: {error}", where=where, fix=COPY_AGAIN) from None

    return Table(columns, name, rows, "record")
