"""Labelled examples as in a user's files, before any tokenizer."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from maskwright.config.finetuning import LabelledData, Task
from maskwright.core.errors import SourceError
from maskwright.core.splits import Split
from maskwright.text.document import Counted, Fault, place, strict
from maskwright.text.encodings import Encoding


class Answer(NamedTuple):
    text: str
    start: int
    """Index of its first character in the context."""


@dataclass(frozen=True, slots=True)
class Example:
    """`labels`: one class, any number of them, or a tag for each word. Texts are as in the file."""

    file: str
    line: int
    """Its number in the file: see `counted`."""
    text: str = ""
    """The text, the first of a pair, or the question."""
    text_pair: str | None = None
    """The second of a pair, or the context."""
    words: tuple[str, ...] = ()
    """Only for token classification."""
    labels: tuple[str, ...] = ()
    value: float = 0.0
    """Only for regression."""
    answers: tuple[Answer, ...] = ()
    """Only for questions; empty if the context has no answer."""
    key: str = ""
    """A question's id in SQuAD."""
    group: str = ""
    """What it shares with other examples; empty if it is in no group."""
    counted: Counted = "line"

    @property
    def where(self) -> str:
        return place(self.file, self.line, self.counted)

    @property
    def content(self) -> str:
        """The text with single spaces. Examples with equal content are duplicates."""
        parts = [*self.words] if self.words else [self.text, self.text_pair or ""]
        return "\0".join(" ".join(part.split()) for part in parts)

    @property
    def folded(self) -> str:
        """`content` without the order of a pair and without what `folded` leaves out."""
        parts = [" ".join(self.words)] if self.words else [self.text, self.text_pair or ""]
        return "\0".join(sorted(map(folded, parts)))


@cache
def _left_out() -> dict[int, None]:
    characters = map(chr, range(sys.maxunicode + 1))
    return {ord(one): None for one in characters if one.isspace() or unicodedata.category(one)[0] == "P"}


def folded(text: str) -> str:
    """A text without case, white space and punctuation, unless it has nothing else: what nearly equal texts share. A
    single word of ASCII stays, since case and brackets are all that tells some molecules in SMILES apart."""
    if text.isascii() and len(text.split()) == 1:
        return text.strip()
    return unicodedata.normalize("NFKC", text).casefold().translate(_left_out()) or text


class Unusable(Exception):
    """A record that cannot be used, and the fix. `Reading.fault` decides whether it is an error."""

    def __init__(self, what: str, fix: str, kind: str = "") -> None:
        """`kind`: of a mistake that may affect a whole file, whose records are counted."""
        self.what, self.fix, self.kind = what, fix, kind
        super().__init__(what)


class Skipped(NamedTuple):
    where: str
    what: str


@dataclass
class Reading:
    """Options of a reading, with its notes and skipped records. Its errors name the keys of a run's YAML."""

    data: LabelledData
    task: Task
    labelled: bool = True
    """False for texts to predict: no label is read."""
    split: Split = "train"
    """The split that is read: later ones need not give `data.group`."""
    names: tuple[str, ...] = ()
    """Labels in the order of their ids, if they are known from `task.labels` or the model."""
    class_names: tuple[str, ...] = ()
    """Labels in the order of their ids from the files: from a schema, or as positions of vectors."""
    places: int | None = None
    """Positions of the label vectors of 0 and 1; 0 for lists of names, None before a split is read."""
    notes: dict[str, None] = field(default_factory=dict)
    """Sentences on automatic decisions, each once."""
    skipped: list[Skipped] = field(default_factory=list)
    _first: tuple[str, str, str, str] | None = None
    """The first fault, which is kept until the file's end: kind, error, place and fix."""
    _alike: int = 0
    """Faults of its kind."""

    @property
    def encoding(self) -> Encoding:
        return Encoding.named(self.data.encoding, "data.encoding: ")

    def __post_init__(self) -> None:
        self.names = self.names or self.task.fixed_labels or ()

    def note(self, sentence: str) -> None:
        self.notes.setdefault(sentence)

    def fault(self, where: str, what: str, fix: str, kind: str = "") -> None:
        """Raises `SourceError` for a record that cannot be used, or skips it (`data.on_bad_input: skip`). A fault of a
        `kind` is raised by `end_file`, with the number of its records."""
        if self.data.on_bad_input == "skip":
            self.skipped.append(Skipped(where, what))
        elif self._first is None:
            self._first, self._alike = (kind, what, where, fix), 1
            if not kind:
                self.end_file()
        elif self._first[0] == kind:
            self._alike += 1

    @contextmanager
    def record(self, example: Example) -> Iterator[None]:
        """Turns `Unusable` inside the context into a fault of the example's record."""
        try:
            yield
        except Unusable as error:
            self.fault(example.where, error.what, error.fix, error.kind)

    def end_file(self) -> None:
        """Raises `SourceError` for the fault that `fault` has kept."""
        if self._first is not None:
            _, what, where, fix = self._first
            alike = f" (the first of {self._alike:,} such records)" if self._alike > 1 else ""
            raise SourceError(what + alike, where=where, fix=f"{fix}, or data.on_bad_input: skip")

    def handle(self, fault: Fault) -> bool:
        """The `FaultHandler` of a file. Bytes that do not decode are always an error."""
        if fault.kind != "record":
            return strict(fault)
        self.fault(fault.where, fault.what, fault.advice)
        return False
