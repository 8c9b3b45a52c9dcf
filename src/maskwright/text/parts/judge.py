"""The first reading of a part: why each of its documents goes, and the keys by which repeated ones are found."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from maskwright.core.errors import InputError
from maskwright.text.cleaning.contamination import read_evaluations
from maskwright.text.cleaning.near_duplicates import bands_and_rows
from maskwright.text.cleaning.steps import Cleaner, CleaningOptions
from maskwright.text.cleaning.survey import Limits, Reasons, batches, entered
from maskwright.text.document import Fault
from maskwright.text.kept import Kept
from maskwright.text.parts import keys as run_of_keys
from maskwright.text.parts.audited import AuditedPart
from maskwright.text.parts.columns import ColumnWriter, Note, written
from maskwright.text.parts.cut import Part
from maskwright.text.parts.phase import fault_note

EXACT = "exact"
SHOWN_FAULTS = 10


@dataclass(frozen=True)
class Judge:
    """Judges a part. `cleaning_digest` is of the options and the files that they name."""

    cleaning: CleaningOptions
    cleaning_digest: str
    limits: Limits
    audits: bool = False
    """Whether it is for an audit, which counts and shows, and has nothing for a manifest."""

    def __call__(self, task: tuple[Part, str]) -> Note:
        part, path = task
        try:
            with written(path) as writer:
                _Judging(self, part, writer).run()
                return writer.note
        except InputError as error:
            return fault_note(error)


@dataclass
class _Judging:
    work: Judge
    part: Part
    writer: ColumnWriter
    faults: list[Fault] = field(default_factory=list)

    def run(self) -> None:
        work, audited = self.work, AuditedPart(self.work.limits.compared) if self.work.audits else None
        sources = self.part.open(audited.note if audited else self._note)
        cleaner, reasons = _cleaner(work.cleaning, work.cleaning_digest, work.limits.compared), Reasons()
        codes, keys, documents, utf8_bytes = list[Any](), list[Any](), 0, 0
        for batch in batches(sources):
            judged = cleaner.judge(work.limits.kept(batch))
            heard = audited.leave_out if audited else None
            own_codes, own_keys = entered(batch, judged, work.limits, reasons, heard)
            codes.append(own_codes)
            keys.append(own_keys)
            documents += len(batch)
            utf8_bytes += sum(len(document.utf8) for document in batch)
            if audited:
                audited.add(batch)
            if sum(map(len, codes)) >= run_of_keys.RUN_DOCUMENTS:
                self._write(codes, keys, audited)
                codes, keys = [], []
        self._write(codes, keys, audited)
        records = [] if audited else self.part.records()
        self.part.require_unchanged()
        self.writer.note |= {
            "documents": documents,
            "bytes": utf8_bytes,
            "names": reasons.names,
            "files": records,
            "faults": [[fault.kind, fault.where, fault.what, fault.fix] for fault in self.faults],
        }

    def _write(self, codes: list[Any], keys: list[Any], audited: AuditedPart | None) -> None:
        """A run of documents, which may have none."""
        first, names = self.writer.count("codes"), bands(self.work.cleaning)
        self.writer.append("codes", np.concatenate([np.zeros(0, "<u2"), *codes]))
        matrix = np.concatenate([np.zeros((0, 2 + len(names)), "<u8"), *keys])
        run_of_keys.write_keys(self.writer, EXACT, first, matrix[:, 0], matrix[:, 1])
        for place, name in enumerate(names):
            run_of_keys.write_keys(self.writer, name, first, matrix[:, 2 + place])
        if audited:
            audited.write(self.writer, self.part, first)

    def _note(self, fault: Fault) -> None:
        if len(self.faults) < SHOWN_FAULTS:
            self.faults.append(fault)


def bands(cleaning: CleaningOptions) -> list[str]:
    """The names of the columns of keys of near duplicates."""
    share = cleaning.near_duplicates
    return [f"band-{number:03}" for number in range(bands_and_rows(share)[0])] if share else []


@lru_cache(maxsize=1)
def _cleaner(options: CleaningOptions, digest: str, kept: Kept) -> Cleaner:
    """Kept by a process for its next part. `digest` tells changed files apart."""
    files = options.evaluation_files
    return Cleaner(options, read_evaluations(files, options.contamination_words) if files else None, kept)
