"""Documents of a text, and faults in it, which a handler raises or reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from maskwright.core.errors import SourceError

Counted = Literal["line", "record"]
"""Unit of the numbers in a file, from 1: its lines, or the records of Parquet and of a JSON list."""


Column = int | str
Record = dict[Column, Any]
Records = Iterator[tuple[int, Record]]
"""Records of a table with their numbers from 1."""


def place(file: str, number: int, counted: Counted) -> str:
    return f"{file}:{number}" if counted == "line" else f"{file} record {number}"


@dataclass(frozen=True)
class Document:
    parts: tuple[str, ...]
    """Its sentences if the source marks them, to be joined by one space; otherwise its text alone."""
    has_sentences: bool
    source: str
    line: int
    """1-based line, record or row where it begins."""
    group: str = ""
    """The value of its record's group column: documents of one group are held out together."""

    @cached_property
    def characters(self) -> int:
        return sum(map(len, self.parts)) + len(self.parts) - 1

    @cached_property
    def text(self) -> str:
        return " ".join(self.parts)

    @cached_property
    def utf8_lines(self) -> bytes:
        """Sentences with line feeds between them; without sentences, the text."""
        return "\n".join(self.parts).encode()

    @cached_property
    def utf8(self) -> bytes:
        return self.utf8_lines.replace(b"\n", b" ") if self.has_sentences else self.utf8_lines


@dataclass(frozen=True)
class Fault:
    """An error in a file: `kind` for counting, `where` as file:line:column."""

    kind: Literal["encoding", "other_encoding", "empty_file", "record"]
    where: str
    what: str
    fix: str | Callable[[], str]
    """A function if it takes long to find."""

    @property
    def advice(self) -> str:
        return self.fix if isinstance(self.fix, str) else self.fix()


FaultHandler = Callable[[Fault], bool]
"""Raises `SourceError`, or returns whether bytes that do not decode become U+FFFD. False drops the line or record."""


def strict(fault: Fault) -> bool:
    """The handler that raises `SourceError` for each fault."""
    raise SourceError(fault.what, where=fault.where, fix=fault.advice)
