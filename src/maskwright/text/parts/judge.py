"""Pass 1: drop codes and dedup keys of one part's documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from maskwright.processes import runner
from maskwright.text.cleaning.contamination import read_evaluations
from maskwright.text.cleaning.limits import KEEP, Limits, Reasons
from maskwright.text.cleaning.steps import Cleaner, CleaningOptions
from maskwright.text.document import Document, Fault
from maskwright.text.parts import duplicates
from maskwright.text.parts.columns import ColumnWriter, Note, written
from maskwright.text.parts.cut import Part
from maskwright.text.sources import Sources

BATCH_CHARACTERS = 2_000_000
CHARACTERS_PER_DOCUMENT = 100
"""A batch also ends if its documents are shorter than this on average, since each needs memory of its own."""
SHOWN_FAULTS = 10


class PartReader:
    """One reading of a part. Faults go to `on_fault`; without it, the first ones are kept for `note`."""

    def __init__(self, part: Part, on_fault: Callable[[Fault], None] | None = None) -> None:
        self._part, self._faults, self.documents = part, list[Fault](), 0
        self._sources = part.open(on_fault or self._keep)

    def __iter__(self) -> Iterator[Document]:
        for document in read(self._sources):
            self.documents += 1
            yield document

    def _keep(self, fault: Fault) -> None:
        if len(self._faults) < SHOWN_FAULTS:
            self._faults.append(fault)

    def note(self) -> Note:
        """The driver's message about the part when it is done. Raises `SourceError` if it has changed."""
        self._part.require_unchanged()
        sources = self._sources
        return {
            "documents": self.documents,
            "without_text": [sources.without_text, sources.places_without_text],
            "notations": sources.notations,
            "faults": [[fault.kind, fault.where, fault.what, ""] for fault in self._faults],
            "files": self._part.records(),
        }


@dataclass(frozen=True)
class Judged:
    """A batch of judged documents."""

    documents: list[Document]
    dropped: list[tuple[Document, str, str]]
    """(document, reason, detail of the reason) of documents that a rule of cleaning drops."""


@dataclass(frozen=True)
class Judge:
    """Writes a part's drop codes and dedup keys. `cleaning_digest`: of the options and their files."""

    cleaning: CleaningOptions
    cleaning_digest: str
    limits: Limits

    def __call__(self, task: tuple[Part, str]) -> Note:
        part, path = task
        with written(path) as writer:
            for _ in self.batches(part, writer):
                pass
        return writer.note

    def batches(
        self, part: Part, writer: ColumnWriter, on_fault: Callable[[Fault], None] | None = None
    ) -> Iterator[Judged]:
        """Yields judged batches. After the last batch, the columns and the note are complete."""
        reading, reasons, codes = PartReader(part, on_fault), Reasons(), [np.zeros(0, "<u2")]
        cleaner, names = _cleaner(self.cleaning, self.cleaning_digest), duplicates.bands(self.cleaning)
        runs, short = duplicates.KeyRuns(writer, duplicates.EXACT, names), 0
        for batch in batches(reading, BATCH_CHARACTERS):
            batch_codes, keys, dropped = self._judge(cleaner, reasons, batch)
            codes.append(batch_codes)
            short += int(((batch_codes == KEEP) & ~keys[:, 2:].any(axis=1)).sum()) if names else 0
            runs.add(keys)
            yield Judged(batch, dropped)
        runs.close()
        writer.append("codes", np.concatenate(codes))
        writer.note |= {"names": reasons.names, "too_short_to_be_near": short, **reading.note()}

    def _judge(
        self, cleaner: Cleaner, reasons: Reasons, batch: list[Document]
    ) -> tuple[NDArray[np.uint16], NDArray[np.uint64], list[tuple[Document, str, str]]]:
        """([documents] drop codes, [documents, columns] dedup keys, 0 for dropped ones, `Judged.dropped`)"""
        codes, dropped = np.array([*map(self.limits.code, batch)], "<u2"), []
        kept_idxs = np.flatnonzero(codes == KEEP).tolist()
        decisions = cleaner.judge([batch[index] for index in kept_idxs])
        for index, reason, detail in zip(kept_idxs, decisions.reasons, decisions.details, strict=True):
            if reason:
                codes[index] = reasons.code(reason)
                dropped.append((batch[index], reason, detail))
        keys = np.zeros((len(batch), decisions.keys.shape[1]), "<u8")
        keys[codes == KEEP] = decisions.keys
        return codes, keys, dropped


def read(sources: Sources) -> Iterator[Document]:
    """A part's documents. Reports progress to the runner."""
    reported = 0
    for document in sources:
        yield document
        if sources.bytes_read > reported:
            runner.advance(sources.bytes_read - reported)
            reported = sources.bytes_read


def batches(documents: Iterable[Document], most_characters: int) -> Iterator[list[Document]]:
    """The documents in batches, each handled at once."""
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += document.characters
        if characters >= most_characters or len(batch) >= most_characters // CHARACTERS_PER_DOCUMENT:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


@lru_cache(maxsize=1)
def _cleaner(options: CleaningOptions, digest: str) -> Cleaner:
    """Cached for the process's next part. `digest` changes with the files."""
    files = options.evaluation_files
    return Cleaner(options, read_evaluations(files, options.contamination_words) if files else None)
