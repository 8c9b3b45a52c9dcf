"""Documents that came before, in the order of reading: a search of all parts' keys, a range of them at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from maskwright.text.cleaning import survey
from maskwright.text.cleaning.survey import DUPLICATE, NEAR_DUPLICATE, STAYS
from maskwright.text.parts.columns import Columns, Note, written
from maskwright.text.parts.keys import RANGES, runs_of

KEYS_AT_ONCE = 1 << 24
"""Keys of a column that are sorted in memory at once, about 60 bytes each: 1 GB."""
Repeated = NDArray[np.void]
REPEATED = np.dtype([("place", "<u4"), ("part", "<u4"), ("first", "<u4")])
"""A repeated document of a part; and the part, and the place in it, of the first document that it repeats."""


def searches(keys: int) -> int:
    """How many ranges a search of so many keys is cut into: a power of two, up to `RANGES`."""
    return min(RANGES, 1 << (max(keys - 1, 0) // KEYS_AT_ONCE).bit_length())


@dataclass(frozen=True)
class FindRepeats:
    """Searches one range of keys, in each of some columns. Memory holds one column's range."""

    judged: tuple[str, ...]
    """What is noted of each part, in the order of reading."""
    columns: tuple[str, ...]
    ranges: int
    held_out: int | None = None
    """How many parts, from the first on, are of held-out files, if only what repeats one of them counts."""

    def __call__(self, task: tuple[int, str]) -> Note:
        number, path = task
        found = [self._search(column, number) for column in self.columns]
        owners = np.concatenate([owner for owner, _ in found])
        repeated = np.concatenate([rows for _, rows in found])
        order = np.argsort(owners, kind="stable")
        with written(path) as writer:
            writer.append("ends", np.cumsum(np.bincount(owners, minlength=len(self.judged)), dtype="<u8"))
            writer.append("repeated", repeated[order].view("<u4"))
            writer.note = {"repeated": len(repeated)}
        return writer.note

    def _search(self, name: str, number: int) -> tuple[NDArray[np.int64], Repeated]:
        """(the part of each repeated document, the document and what it repeats)"""
        step = RANGES // self.ranges
        keys, second, places, counts = [], [], [], []
        for path in self.judged:
            file = Columns(path)
            counts.append(0)
            for begin, end in runs_of(file, name, number * step, (number + 1) * step):
                keys.append(file.numbers(f"{name}.keys", begin, end))
                places.append(file.numbers(f"{name}.places", begin, end))
                if f"{name}.second" in file:
                    second.append(file.numbers(f"{name}.second", begin, end))
                counts[-1] += end - begin
        # Runs follow each other, and a run's equal keys are in its order: so equal keys are in the order of reading.
        columns = [np.concatenate(keys), *([np.concatenate(second)] if second else [])]
        later, first = survey.repeats(columns)
        owners = np.repeat(np.arange(len(counts)), counts)
        if self.held_out is not None:
            counts_ = (owners[later] >= self.held_out) & (owners[first] < self.held_out)
            later, first = later[counts_], first[counts_]
        place = np.concatenate(places)
        rows = np.empty(len(later), REPEATED)
        rows["place"], rows["part"], rows["first"] = place[later], owners[first], place[first]
        return owners[later], rows


@dataclass(frozen=True)
class Resolved:
    """Where it is noted what becomes of each document."""

    judged: tuple[str, ...]
    exact: tuple[str, ...]
    near: tuple[str, ...]

    def codes(self, part: int) -> NDArray[np.uint16]:
        """[documents of the part], as `Outcome` has them.

        Near duplicates were searched for among exact ones too. That changes nothing: a copy has the keys of the
        document that it repeats, which comes before it."""
        codes = Columns(self.judged[part]).column("codes").copy()
        codes[repeated_in(self.exact, part)["place"]] = DUPLICATE
        near = repeated_in(self.near, part)["place"]
        codes[near[codes[near] == STAYS]] = NEAR_DUPLICATE
        return codes


def repeated_in(searched: Sequence[str], part: int) -> Repeated:
    found = [np.zeros(0, REPEATED)]
    for path in searched:
        file = Columns(path)
        ends = file.numbers("ends", max(part - 1, 0), part + 1)
        begin, end = (0 if part == 0 else int(ends[0])), int(ends[-1])
        found.append(file.numbers("repeated", 3 * begin, 3 * end).view(REPEATED))
    return np.concatenate(found)
