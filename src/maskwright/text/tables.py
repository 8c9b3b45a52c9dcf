"""Tables to numbered records, with one strictness: CSV, TSV, JSON, JSON lines, Parquet and Arrow, each also compressed.

Reads text, labels and evaluation examples. JSON holds one value, so it is read whole. The others are read in blocks.
"""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from maskwright.core.console import several
from maskwright.core.errors import SourceError
from maskwright.text.arrow import arrow_records, class_names, open_arrow
from maskwright.text.compression import COPY_AGAIN, ByteSpan, Watch, ending, open_text
from maskwright.text.document import Column, Counted, Fault, FaultHandler, Record, Records, place, strict
from maskwright.text.encodings import Encoding
from maskwright.text.lines import ALWAYS_UTF8, lines_of
from maskwright.text.mds import mds_records, shard_at
from maskwright.text.parquet import open_parquet, parquet_records

Lines = Iterator[tuple[int, str]]
JSON_LINES = (".jsonl", ".ndjson")
COLUMNAR = (".parquet", ".arrow")
TABLES = (".csv", ".tsv", *JSON_LINES, ".json", *COLUMNAR)
DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
"""Delimiters of .csv, tried in this order."""
EXCEL = re.compile(r"""(["']?)sep=(.)\1[;,\t]*""")
"""Excel's first line, which names the delimiter."""
HEAD_LINES = 20
"""Lines by which a delimiter is guessed."""
QUOTES_LINES = 200
"""Lines of TSV that are searched for cells in quotes."""
IN_QUOTES = re.compile(r'"(?:[^"]|"")+"')
"""A cell of CSV, as Excel and pandas also write to files of tabs."""
LARGEST_CELL = 1 << 30
"""Characters; Python's own limit is 131,072."""
SURROGATE = re.compile("[\ud800-\udfff]")
OBJECTS = 'write an object such as {"text": …} on each line'


@dataclass(frozen=True)
class Table:
    """An open file's columns and records."""

    name: str
    columns: list[Column] = field(default_factory=list)
    """Names. For CSV and TSV without a header line, numbers from 0; for JSON, the keys of the first record."""
    read: Callable[[list[Column]], Records] = lambda _: iter(())
    counted: Counted = "line"
    """Unit of the records' numbers."""
    header: str = ""
    """The file, or the line of it, that names the columns; empty for a file without records."""
    delimiter: str = ""
    """For CSV and TSV. Only their columns can have numbers."""
    note: str = ""
    """A sentence on a guessed delimiter, or on quotes that TSV keeps."""
    class_names: dict[Column, tuple[str, ...]] = field(default_factory=dict)
    """Names of the classes 0, 1, … of a column, from the file's schema."""

    @property
    def is_empty(self) -> bool:
        return not self.header

    @property
    def is_json(self) -> bool:
        """Whether each record has keys of its own."""
        return not self.delimiter and ending(self.name) not in (*COLUMNAR, ".mds")

    def require(self, column: Column, fix: str) -> None:
        """Raises `SourceError` with the `fix` for a missing column."""
        if column not in self.columns:
            raise SourceError(f"has no column {column!r} (columns: {listed(self.columns)})", where=self.header, fix=fix)

    def rows(self, columns: list[Column] | None = None) -> Records:
        """Numbered records of `columns`, by default of all. Cells of CSV are `str`; records of JSON may have more or
        fewer keys. Call it once; an earlier call may take the first record. Raises `SourceError` for a column that
        occurs twice."""
        wanted = self.columns if columns is None else columns
        for column in wanted:
            if self.columns.count(column) > 1:  # the last one would silently win
                raise SourceError(f"has several columns {column!r}", where=self.header, fix="rename one of them")
        return self.read(wanted)


def listed(columns: Sequence[Column]) -> str:
    return ", ".join(str(column)[:40] for column in columns)


def first_record(table: Table, wanted: Collection[Column]) -> Record:
    """The `wanted` columns of the first record, since others need not be readable. CSV and TSV, whose rows can be read
    only once, give empty cells."""
    if table.delimiter:
        return dict.fromkeys(table.columns, "")
    columns = [column for column in table.columns if column in wanted and table.columns.count(column) == 1]
    return next((record for _, record in table.rows(columns)), {})


@contextmanager
def open_table(
    name: str,
    handle: FaultHandler = strict,
    *,
    has_header: bool = True,
    watch: Watch = None,
    span: ByteSpan | None = None,
    encoding: Encoding = ALWAYS_UTF8,
) -> Iterator[Table]:
    """Opens the file `name`, of one of the kinds in `TABLES`, or a shard of MDS.

    `has_header`: whether CSV and TSV begin with a line of names; a line of the numbers 0, 1 … always counts as one.
    `span`: the part of JSON lines or Parquet to read. `encoding`: of all but Parquet, Arrow and MDS, which hold UTF-8.
    Raises `SourceError`, and for a faulty record or line the handler's error."""
    kind = ending(name)
    if kind in COLUMNAR:
        spanned = partial(parquet_records, span=span)
        open_file, records = (open_parquet, spanned) if kind == ".parquet" else (open_arrow, arrow_records)
        with open_file(name) as (file, schema):
            read = partial(records, name, file, handle=handle, watch=watch)
            yield Table(name, [*schema.names], read, "record", name, class_names=class_names(schema))
        return
    if kind == ".mds":
        shard = shard_at(name)
        yield Table(name, [*shard.names], lambda cols: mds_records(shard, cols, handle, watch), "record", name)
        return
    with open_text(name, watch, span) as stream:
        lines = lines_of(name, stream, handle, span, encoding)
        if kind in (".csv", ".tsv"):
            yield _csv_table(name, kind, lines, handle, has_header)
        elif kind == ".json":
            yield _json_table(name, "\n".join(line for _, line in lines), handle)
        else:
            yield _json_lines_table(name, lines, handle)


# ---- CSV and TSV ---------------------------------------------------------------------------------------------------


def _csv_table(name: str, kind: str, lines: Lines, handle: FaultHandler, has_header: bool) -> Table:
    head = [*itertools.islice(lines, QUOTES_LINES if kind == ".tsv" else HEAD_LINES)]
    if kind == ".csv" and head and (declared := EXCEL.fullmatch(head[0][1])):
        delimiter, head = declared[2], head[1:]
    else:
        delimiter = "\t" if kind == ".tsv" else _delimiter([line for _, line in head], has_header)
    rows = _csv_rows(name, itertools.chain(head, lines), delimiter, kind)
    first_line, first = next(rows, (0, []))
    if not first:
        return Table(name)
    is_named = has_header or _are_numbers(first)
    columns: list[Column] = [*map(str.strip, first)] if is_named else [*range(len(first))]
    if is_named and not has_header:
        columns = [int(column) if column else "" for column in columns]

    def read(wanted: list[Column]) -> Records:
        width, places = len(columns), [(column, columns.index(column)) for column in wanted]
        for line, row in rows if is_named else itertools.chain([(first_line, first)], rows):
            if len(row) == width:
                record: Record = {}
                for column, index in places:  # a comprehension is a call, and takes twice as long
                    record[column] = row[index]
                yield line, record
            else:
                handle(Fault("record", f"{name}:{line}", *_ragged(len(row), width, delimiter, kind)))

    return Table(
        name, columns, read, "line", f"{name}:{first_line}", delimiter, note=_note(name, kind, delimiter, head)
    )


def _note(name: str, kind: str, delimiter: str, head: list[tuple[int, str]]) -> str:
    if kind == ".csv":
        return "" if delimiter == "," else f"{name}: columns are separated by {_title(delimiter)}s"
    quoted = next((number for number, line in head if any(map(IN_QUOTES.fullmatch, line.split("\t")))), 0)
    fix = "which are characters of the text in a .tsv; if a program put them there, rename the file to end in .csv"
    return f"{name}:{quoted}: has a cell in quotes, {fix}" if quoted else ""


def _delimiter(head: list[str], has_header: bool) -> str:
    """The delimiter that gives all `head` lines the same number of columns, two or more; else one that splits the
    header line; else the comma. A single line without a header gets the comma too; its semicolons may be text."""
    csv.field_size_limit(LARGEST_CELL)
    widths: dict[str, list[int]] = {}
    for mark in DELIMITERS:
        with suppress(csv.Error):  # raised when the row is read
            widths[mark] = [len(row) for row in csv.reader([line + "\n" for line in head], delimiter=mark) if row]
    if len(head) == HEAD_LINES:  # the last row may continue
        widths = {mark: counts[:-1] for mark, counts in widths.items()}
    splitting = [mark for mark, counts in widths.items() if counts and counts[0] > 1]
    even = [mark for mark in splitting if len({*widths[mark]}) == 1 and (has_header or len(widths[mark]) > 1)]
    return next(iter([*even, *(splitting if has_header else []), ","]))


def _title(delimiter: str) -> str:
    return DELIMITERS.get(delimiter, repr(delimiter))


def _csv_rows(name: str, lines: Lines, delimiter: str, kind: str) -> Iterator[tuple[int, list[str]]]:
    """(first line, cells) of each row that is not empty. Raises `SourceError` for a row whose quotes do not fit.

    CSV has quotes as in RFC 4180. In TSV a quote is a character, by TSV's registration and in GLUE's files."""
    csv.field_size_limit(LARGEST_CELL)
    start, line = 0, ""

    def line_feeds() -> Iterator[str]:
        nonlocal start, line
        for number, line in lines:
            if not start:
                start = number
            yield line + "\n"

    rows = csv.reader(
        line_feeds(), delimiter=delimiter, strict=True, quoting=csv.QUOTE_NONE if kind == ".tsv" else csv.QUOTE_MINIMAL
    )
    try:
        for row in rows:
            if row:
                yield start, row
            start = 0
    except csv.Error as error:
        if "\r" in line:
            what = "has a carriage return (CR) inside a cell without quotes, in the record that begins here"
            fix = "convert it if CR ends the lines, as on old Macs: tr '\\r' '\\n' < FILE > NEW"
            raise SourceError(what, where=f"{name}:{start}", fix=fix) from None
        what = f"is not CSV: {error}, in the record that begins here"
        fix = 'repair its quotes ("" inside quotes means one), or save it as .tsv or .jsonl'
        raise SourceError(what, where=f"{name}:{start}", fix=fix) from None


def _are_numbers(header: Sequence[str]) -> bool:
    """Whether this is pandas' header of columns without names: 0, 1 … and an empty name for the index."""
    names = header[1:] if header[0] == "" else header
    return [*names] == [str(number) for number in range(len(names))] and bool(names)


def _ragged(width: int, first: int, delimiter: str, kind: str) -> tuple[str, str]:
    """(error, fix) for a row whose number of columns differs from the first. Usually a quote, delimiter or line end was
    text."""
    what = f"has {several(width, 'column')}, but the first row has {first}"
    if kind == ".tsv":
        return what, "repair the row: cells hold no tab or line end; if quotes enclose cells, name the file .csv"
    return what, f"repair the row: put a cell with a {_title(delimiter)}, a quote or a line end in quotes"


# ---- JSON ----------------------------------------------------------------------------------------------------------


class _RepeatedKey(ValueError):
    """An object has a key twice, so the last value would silently win."""


def _without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        raise _RepeatedKey(next(name for name in names if names.count(name) > 1))
    return record


def _message(error: Exception) -> str:
    """The user's message for an error of `json`, which raises `ValueError` for a number of over 4,300 digits."""
    if isinstance(error, _RepeatedKey):
        return f"has several keys '{error}'"
    detail = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply, or a number is too long"
    return f"is not JSON: {detail}"


def _json_table(name: str, text: str, handle: FaultHandler) -> Table:
    """A list of objects, an object with such a list under `data`, one object, or objects on a line each."""
    begin, text = len(text) - len(text.lstrip()), text.rstrip()
    if not text:
        return Table(name)
    try:
        value, end = json.JSONDecoder(object_pairs_hook=_without_repeated_keys).raw_decode(text, begin)
    except (ValueError, RecursionError) as error:
        where = f"{name}:{getattr(error, 'lineno', 1)}"
        raise SourceError(_message(error), where=where, fix=COPY_AGAIN) from None
    if end < len(text):
        is_line = "\n" not in text[begin:end] and not text[end:].partition("\n")[0].strip()
        if is_line and isinstance(value, dict):
            return _json_lines_table(name, enumerate(text.split("\n"), 1), handle)
        line = text.count("\n", 0, len(text) - len(text[end:].lstrip())) + 1
        what = f"has more after the end of its {'object' if isinstance(value, dict) else 'list'}"
        raise SourceError(what, where=f"{name}:{line}", fix="write one list, or one object on each line")
    records = value.get("data") if isinstance(value, dict) else value
    return _table_of(name, enumerate(records if isinstance(records, list) else [value], 1), "record", handle)


def _json_lines_table(name: str, lines: Lines, handle: FaultHandler) -> Table:
    return _table_of(name, _parsed(name, lines, handle), "line", handle)


def _parsed(name: str, lines: Lines, handle: FaultHandler) -> Iterator[tuple[int, Any]]:
    hook: Callable[[list[tuple[str, Any]]], Any] | None = _without_repeated_keys
    for number, line in lines:
        if line and not line.isspace():
            try:
                value = json.loads(line, object_pairs_hook=hook)
            except (ValueError, RecursionError) as error:
                handle(Fault("record", f"{name}:{number}", _message(error), OBJECTS))
            else:
                hook = None  # it takes time, so only the first record is checked
                yield number, value


def _table_of(name: str, values: Iterator[tuple[int, Any]], counted: Counted, handle: FaultHandler) -> Table:
    def objects() -> Records:
        for number, value in values:
            if isinstance(value, dict):
                yield number, value
            else:
                handle(Fault("record", place(name, number, counted), "is not an object with keys", OBJECTS))

    records = objects()
    first = next(records, None)
    if first is None:
        return Table(name)
    header = place(name, first[0], counted)
    return Table(name, [*first[1]], lambda _: itertools.chain([first], records), counted, header)


def whole_characters(text: str, where: str, handle: FaultHandler) -> str:
    """The text of a cell; empty if the handler drops it. JSON can hold half a surrogate pair, but UTF-8 cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        what = f"U+{ord(text[error.start]):04X} is half a surrogate pair"
        replaced = handle(Fault("encoding", where, what, "repair the text"))
        return SURROGATE.sub("\ufffd", text) if replaced else ""
    return text
