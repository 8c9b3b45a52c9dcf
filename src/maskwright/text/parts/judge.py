"""Pass 1: drop codes and dedup keys of one part's documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from maskwright.core.errors import InputError
from maskwright.processes import runner
from maskwright.text.cleaning.contamination import read_evaluations
from maskwright.text.cleaning.limits import KEEP, Limits, Reasons
from maskwright.text.cleaning.steps import Cleaner, CleaningOptions
from maskwright.text.document import Document, Fault
from maskwright.text.parts import duplicates
from maskwright.text.parts.columns import ColumnWriter, Note, written
from maskwright.text.parts.cut import Part
from maskwright.text.parts.phase import fault_note
from maskwright.text.sources import Sources
from maskwright.text.text_form import TextForm

BATCH_CHARACTERS = 2_000_000
SHOWN_FAULTS = 10


class Observer(Protocol):
    """Gets a part's documents while they are judged."""

    def fault(self, fault: Fault) -> None: ...

    def dropped(self, document: Document, reason: str, detail: str) -> None:
        """Called for each document that a rule drops, not for duplicates."""
        ...

    def batch(self, documents: Sequence[Document]) -> None: ...

    def write(self, writer: ColumnWriter, part: Part, first: int) -> None:
        """Writes columns of the documents since the last call. `first`: number of the first of them."""
        ...


@dataclass(frozen=True)
class Judge:
    """Writes a part's drop codes, dedup keys and faults. `cleaning_digest`: of the options and their files."""

    cleaning: CleaningOptions
    cleaning_digest: str
    limits: Limits

    def __call__(self, task: tuple[Part, str]) -> Note:
        part, path = task
        try:
            with written(path) as writer:
                for _ in Judging(self, part, writer).batches():
                    pass
                writer.note["files"] = part.records()
                return writer.note
        except InputError as error:
            return fault_note(error)


class Judging:
    """Judges one part."""

    def __init__(self, judge: Judge, part: Part, writer: ColumnWriter, observer: Observer | None = None) -> None:
        self.judge, self.part, self.writer, self.observer = judge, part, writer, observer
        self._faults: list[Fault] = []
        self._reasons = Reasons()

    def batches(self) -> Iterator[tuple[list[Document], NDArray[np.uint16], NDArray[np.uint64]]]:
        """Yields documents, their drop codes [documents] and dedup keys [documents, columns], 0 for dropped ones. After
        the last batch, the part's note is complete."""
        judge, documents, sources = self.judge, 0, self.part.open(self._fault)
        cleaner = _cleaner(judge.cleaning, judge.cleaning_digest, judge.limits.compared)
        codes, keys = list[Any](), list[Any]()
        for batch in batches(read(sources)):
            batch_codes, batch_keys = self._judge(cleaner, batch)
            codes.append(batch_codes)
            keys.append(batch_keys)
            documents += len(batch)
            if self.observer:
                self.observer.batch(batch)
            if sum(map(len, codes)) >= duplicates.RUN_DOCUMENTS:
                self._write(codes, keys)
                codes, keys = [], []
            yield batch, batch_codes, batch_keys
        self._write(codes, keys)
        self.part.require_unchanged()
        self.writer.note |= {
            "documents": documents,
            "names": self._reasons.names,
            "without_text": [sources.without_text, sources.places_without_text],
            "notations": sources.notations,
            "faults": [[fault.kind, fault.where, fault.what, ""] for fault in self._faults],
        }

    def _judge(self, cleaner: Cleaner, batch: Sequence[Document]) -> tuple[NDArray[np.uint16], NDArray[np.uint64]]:
        codes = np.array([*map(self.judge.limits.code, batch)], "<u2")
        kept_idxs = np.flatnonzero(codes == KEEP).tolist()
        decisions = cleaner.judge([batch[index] for index in kept_idxs])
        for index, reason, detail in zip(kept_idxs, decisions.reasons, decisions.details, strict=True):
            if reason:
                codes[index] = self._reasons.code(reason)
                if self.observer:
                    self.observer.dropped(batch[index], reason, detail)
        keys = np.zeros((len(batch), decisions.keys.shape[1]), "<u8")
        keys[codes == KEEP] = decisions.keys
        return codes, keys

    def _write(self, codes: list[Any], keys: list[Any]) -> None:
        """Writes a run of documents, possibly empty."""
        first, names = self.writer.count("codes"), duplicates.bands(self.judge.cleaning)
        self.writer.append("codes", np.concatenate([np.zeros(0, "<u2"), *codes]))
        matrix = np.concatenate([np.zeros((0, 2 + len(names)), "<u8"), *keys])
        duplicates.write_keys(self.writer, duplicates.EXACT, first, matrix[:, 0], matrix[:, 1])
        for band, name in enumerate(names):
            duplicates.write_keys(self.writer, name, first, matrix[:, 2 + band])
        if self.observer:
            self.observer.write(self.writer, self.part, first)

    def _fault(self, fault: Fault) -> None:
        if self.observer:
            self.observer.fault(fault)
        elif len(self._faults) < SHOWN_FAULTS:
            self._faults.append(fault)


def read(sources: Sources) -> Iterator[Document]:
    """A part's documents. Reports progress to the runner."""
    reported = 0
    for document in sources:
        yield document
        if sources.bytes_read > reported:
            runner.advance(sources.bytes_read - reported)
            reported = sources.bytes_read


def batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """The documents in batches, each judged at once."""
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += document.characters
        if characters >= BATCH_CHARACTERS or len(batch) >= BATCH_CHARACTERS // 100:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


@lru_cache(maxsize=1)
def _cleaner(options: CleaningOptions, digest: str, compared: TextForm) -> Cleaner:
    """Cached for the process's next part. `digest` tells changed files apart."""
    files = options.evaluation_files
    return Cleaner(options, read_evaluations(files, options.contamination_words) if files else None, compared)
