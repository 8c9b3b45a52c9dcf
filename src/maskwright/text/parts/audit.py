"""`text audit` in parts: the report that one machine gives."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import numpy as np

from maskwright.core import storage
from maskwright.core.errors import InputError
from maskwright.core.runner import Runner
from maskwright.core.secrets import redact
from maskwright.text import audit as one_machine
from maskwright.text.audit import EXAMPLES, Audit, Changes
from maskwright.text.cleaning import survey
from maskwright.text.cleaning.steps import CleaningOptions
from maskwright.text.cleaning.survey import NEAR_DUPLICATE, STAYS, Limits
from maskwright.text.compression import changed_while_read
from maskwright.text.kept import kept_by
from maskwright.text.layout import Layout
from maskwright.text.parts.audited import AS_READ, add_examples, add_part
from maskwright.text.parts.columns import Columns, Note, written
from maskwright.text.parts.cut import Part, cut, digest_of, split
from maskwright.text.parts.judge import Judge
from maskwright.text.parts.phase import compute, fault_note, remove_others
from maskwright.text.parts.repeats import Resolved, repeated_in
from maskwright.text.parts.search import found_in, resolve
from maskwright.text.records import Letters
from maskwright.text.sources import Sources

VERSION = 2
"""Of what the phases note: another one's notes are not read."""


def audit_in_parts(
    patterns: list[str],
    runner: Runner,
    folder: str,
    *,
    layout: Layout = "auto",
    text_column: str = "text",
    tokenizer: str | None = None,
    cleaning: CleaningOptions | None = None,
    letters: Letters = "upper",
) -> Audit:
    """What `audit` finds. `folder` is seen by all machines that compute, and keeps what is found about each part: the
    same call goes on from there."""
    cleaning = cleaning if cleaning and cleaning.any else None
    storage.make_folder(folder)
    with storage.locked(os.path.join(folder, "audit.lock"), remove=True):
        limits = Limits(compared=kept_by(tokenizer))
        place = os.path.abspath(folder)
        return _Audit(patterns, runner, place, layout, text_column, cleaning, letters, limits).run(tokenizer)


class _Audit:
    def __init__(
        self,
        patterns: list[str],
        runner: Runner,
        folder: str,
        layout: Layout,
        text_column: str,
        cleaning: CleaningOptions | None,
        letters: Letters,
        limits: Limits,
    ) -> None:
        self.runner, self.folder, self.cleaning, self.limits = runner, folder, cleaning, limits
        self.sources, self.result = one_machine.begun(patterns, layout, text_column, letters)
        self.again = Sources(
            patterns, layout=self.sources.layout, text_column=text_column, on_bad_input="skip", letters=letters
        )
        self.scripts = Counter[str]()

    def run(self, tokenizer: str | None) -> Audit:
        self.runner.require_seen(self.folder, self.sources.files)
        self.parts = split(self.runner, self.folder, cut([self.sources]))
        self.sizes = [part.bytes for part in self.parts]
        judged = self._judge()
        paths = tuple(path for path, _ in judged)
        for _, note in judged:
            add_part(self.result, note)
            self.scripts.update(note["scripts"])
        self._count_repeated(paths)
        samples = islice(self.again, one_machine.SAMPLE_DOCUMENTS)
        texts = [document.text[: one_machine.SAMPLE_CHARACTERS] for document in samples]
        one_machine.look_at(texts, self.result, tokenizer, self.sources)
        if self.cleaning:
            self._clean(self.cleaning, judged)
        self.result.scripts = one_machine.shares(self.scripts)
        return self.result

    def _paths(self, phase: str, *decided_by: Any) -> list[str]:
        paths = [
            os.path.join(self.folder, f"{phase}-{part.number:06}-{digest_of(VERSION, part.identity(), *decided_by)}")
            for part in self.parts
        ]
        remove_others(self.folder, f"{phase}-", paths)
        return paths

    def _judge(self) -> list[tuple[str, Note]]:
        cleaning = self.cleaning or CleaningOptions()
        record = cleaning.record()
        paths = self._paths("audit", record, asdict(self.limits))
        work = Judge(cleaning, digest_of(record), self.limits, audits=True)
        notes = compute(self.runner, work, [*zip(self.parts, paths, strict=True)], "audit", self.sizes)
        return [*zip(paths, notes, strict=True)]

    def _count_repeated(self, judged: tuple[str, ...]) -> None:
        searched = found_in(self.runner, self.folder, judged, (AS_READ,), self.result.documents, None)
        examples: list[str] = []
        for part in range(len(judged)):
            if len(examples) < EXAMPLES:
                places = np.sort(repeated_in(searched, part)["place"])[: EXAMPLES - len(examples)]
                examples += [self._where(judged, part, int(place)) for place in places]
        count = sum(Columns(path).note["repeated"] for path in searched)
        self.result.findings[one_machine.REPEATED].add_all(count, examples)

    def _where(self, judged: Sequence[str], part: int, place: int) -> str:
        file = Columns(judged[part])
        name = self.parts[part].files[int(file.column("file", place, place + 1)[0])]
        return redact(f"{name}:{int(file.column('line', place, place + 1)[0])}")

    # ---- cleaning --------------------------------------------------------------------------------------------

    def _clean(self, cleaning: CleaningOptions, judged: list[tuple[str, Note]]) -> None:
        paths = tuple(path for path, _ in judged)
        resolved = resolve(self.runner, self.folder, judged, self.parts, cleaning, self.limits)
        names = [os.path.basename(path) for path in paths]
        looked = self._paths("look", names)
        work = Look(cleaning, resolved)
        notes = compute(self.runner, work, [*zip(self.parts, looked, strict=True)], "look", self.sizes)
        reasons, examples, changes = survey.Reasons(), dict[str, list[str]](), Changes(cleaning)
        found, near = Counter[int](), list[tuple[int, list[int]]]()
        for part, ((_, note), end) in enumerate(zip(judged, notes, strict=True)):
            for code, count in enumerate(end["codes"]):
                found[reasons.code(note["names"][code])] += count
            near += [(part, pair) for pair in end["near"]]
            add_examples(examples, note["examples"])
            changes.counts.update(end["changes"])
            add_examples(changes.examples, end["examples"])
        for part, (place, first_part, first) in near[:EXAMPLES]:
            document = next(islice(self.parts[part].open(), place, None))
            detail = f"like {self._where(paths, first_part, first)}"
            one_machine.show(examples, survey.NAMES[NEAR_DUPLICATE], document, detail)
        totals = np.array([found[code] for code in range(len(reasons.names))])
        self.result.left_out = one_machine.left_out(survey.by_cleaning(survey.ranked(reasons.names, totals)), examples)
        self.result.changed = changes.findings()


@dataclass(frozen=True)
class Look:
    """Counts what becomes of a part's documents, and what cleaning changes in those that stay."""

    cleaning: CleaningOptions
    resolved: Resolved

    def __call__(self, task: tuple[Part, str]) -> Note:
        part, path = task
        try:
            changes, codes = Changes(self.cleaning), self.resolved.codes(part.number)
            for number, document in enumerate(part.open()) if changes.kinds else ():
                if number == len(codes):
                    raise changed_while_read(document.source)
                if codes[number] == STAYS:
                    changes.add(document)
        except InputError as error:
            return fault_note(error)
        with written(path) as writer:
            writer.note = {
                "codes": np.bincount(codes, minlength=1).tolist(),
                "near": self._near(part.number, codes),
                "changes": dict(changes.counts),
                "examples": changes.examples,
            }
        return writer.note

    def _near(self, part: int, codes: Any) -> list[list[int]]:
        """[place, part and place of the first document that it is like] of the first near duplicates."""
        rows = repeated_in(self.resolved.near, part)
        rows = np.sort(rows[codes[rows["place"]] == NEAR_DUPLICATE], order=["place", "part", "first"])
        _, begins = np.unique(rows["place"], return_index=True)
        return [list(map(int, row)) for row in rows[begins[:EXAMPLES]]]
