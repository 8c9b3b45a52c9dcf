"""Rows of CSV and TSV, and values of JSON, read with one strictness wherever a table is read."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from maskwright.core.console import several
from maskwright.core.errors import SourceError

LARGEST_CELL = 1 << 30
"""Characters; Python's own limit is 131,072."""


def csv_rows(name: str, lines: Iterable[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """(line at which it begins, cells) of each row that is not empty. `lines`: of the file `name`, without their ends.

    CSV has quotes as RFC 4180. TSV has none, as its registration says and as GLUE's files are: there a quote is a
    character. Raises `SourceError` for a row whose quotes do not fit."""
    csv.field_size_limit(LARGEST_CELL)
    line = ""

    def fed() -> Iterator[str]:
        nonlocal line
        for line in lines:
            yield line + "\n"

    rows = csv.reader(
        fed(),
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
        if "\r" in line:
            what = "has a carriage return (CR) inside a cell without quotes, in the record that begins here"
            fix = "where CR ends the lines, as of old Macs: tr '\\r' '\\n' < FILE > NEW"
            raise SourceError(what, where=f"{name}:{start}", fix=fix) from None
        what = f"is not CSV: {error}, in the record that begins here"
        fix = 'repair its quotes ("" inside quotes means one), or save it as .tsv or .jsonl'
        raise SourceError(what, where=f"{name}:{start}", fix=fix) from None


def are_numbers(header: Sequence[str]) -> bool:
    """Whether it is the header that pandas writes for columns without names: 0, 1 … and an empty name for the index."""
    names = header[1:] if header[0] == "" else header
    return [*names] == [str(number) for number in range(len(names))] and bool(names)


def ragged(width: int, first: int, delimiter: str) -> tuple[str, str]:
    """What is wrong with a row that has not as many columns as the first, and the fix. Most often a quote, a delimiter
    or a line end in it was meant otherwise."""
    what = f"has {several(width, 'column')}, the first row has {first}"
    if delimiter == "\t":
        return what, "repair the row: no cell holds a tab, and a quote is an ordinary character"
    return what, "repair the row: a cell with a comma, a quote or a line end stands in quotes"


def other_delimiter(header: Sequence[object]) -> str | None:
    """The fix for a header line of one column that holds what parts columns elsewhere; None for any other."""
    found = next((mark for mark in ";\t|," if len(header) == 1 and mark in str(header[0])), None)
    return found and f"save it as .csv with commas, or as .tsv with tabs: {found!r} parts no columns here"


def require_one(column: int | str, columns: Sequence[object], where: str, fix: str) -> None:
    """Raises `SourceError` where a column that is read is there twice: the last one would silently win."""
    if columns.count(column) > 1:
        raise SourceError(f"has several columns '{column}'", where=where, fix=fix)


class NotJSON(ValueError):
    """Its words are for the user. `line`: of the text."""

    def __init__(self, error: Exception) -> None:
        self.line, detail = 1, "nested too deeply, or a number is too long"
        if isinstance(error, json.JSONDecodeError):
            self.line, detail = error.lineno, error.msg
        super().__init__(f"is not JSON: {detail}")


def json_value(text: str | bytes) -> Any:
    """Raises `NotJSON`, also for a number of over 4,300 digits."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotJSON(error) from None


def first_json_value(text: str) -> tuple[Any, int]:
    """The value that a text begins with, after white space, and where it ends. Raises `NotJSON`."""
    try:
        return json.JSONDecoder().raw_decode(text, len(text) - len(text.lstrip()))
    except (ValueError, RecursionError) as error:
        raise NotJSON(error) from None
