"""Exact and near duplicates over all parts: sorted dedup keys in each part's file, searched by ranges of keys."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from maskwright.core.console import warn
from maskwright.processes.runner import Runner
from maskwright.text.cleaning.limits import DUPLICATE, KEEP, NEAR_DUPLICATE, Limits
from maskwright.text.cleaning.near_duplicates import SHINGLE_WORDS, bands_and_rows
from maskwright.text.cleaning.steps import CleaningOptions
from maskwright.text.parts.columns import Columns, ColumnWriter, Note, written
from maskwright.text.parts.cut import Part, digest_of
from maskwright.text.parts.phase import compute, paths_of

EXACT, IDS = "exact", "ids"
"""Key columns: of cleaned texts, of ids."""
RANGES = 1_024
"""Key ranges into which each run of documents is sorted; a search reads one or more of them at a time."""
RUN_DOCUMENTS = 1_000_000
"""Documents of a part whose keys are sorted and written together, up to 200 bytes each."""
KEYS_AT_ONCE = 1 << 21
"""Keys of a column that a search sorts in memory at once, about 90 bytes each, 0.2 GB in all. Four times as many held
0.76 GB and took 2.8 instead of 2.4 CPU seconds for 32 million keys."""
KEY_BYTES = 12
"""A key and its document's number."""
MANY = 0.1
"""Share of documents that are too short to have near duplicates, from which there is a warning."""
Repeated = NDArray[np.void]
REPEATED = np.dtype([("place", "<u4"), ("part", "<u4"), ("first", "<u4")])
"""`place`: the repeated document's number in its part. `part`, `first`: part and number of the first one like it."""


# ---- keys of a part ------------------------------------------------------------------------------------------------


def bands(cleaning: CleaningOptions) -> list[str]:
    """Names of the key columns of near duplicates."""
    similarity = cleaning.near_duplicates
    return [f"band-{band:03}" for band in range(bands_and_rows(similarity)[0])] if similarity else []


class KeyRuns:
    """Writes the dedup keys of a part's documents, in sorted runs.

    Columns of a name: `NAME.begins` (of each key range in each run), `NAME.keys`, `NAME.places` (each key's document
    number). `name`: of the exact keys, whose second halves are in `NAME.second`; `bands`: of more columns."""

    def __init__(self, writer: ColumnWriter, name: str, bands: Sequence[str] = ()) -> None:
        self._writer, self._name, self._bands = writer, name, bands
        self._keys, self._waiting, self._first = list[NDArray[np.uint64]](), 0, 0

    def add(self, keys: NDArray[np.uint64]) -> None:
        """`keys` [documents, 2 + bands]: of the next documents, 0 for no key."""
        self._keys.append(keys)
        self._waiting += len(keys)
        if self._waiting >= RUN_DOCUMENTS:
            self._write()

    def close(self) -> None:
        """Writes the last run. A part has one run or more, in the order of reading."""
        if self._waiting or not self._first:
            self._write()

    def _write(self) -> None:
        matrix = np.concatenate([np.zeros((0, 2 + len(self._bands)), "<u8"), *self._keys])
        self._column(self._name, matrix[:, 0], matrix[:, 1])
        for band, name in enumerate(self._bands):
            self._column(name, matrix[:, 2 + band])
        self._first, self._keys, self._waiting = self._first + len(matrix), [], 0

    def _column(self, name: str, keys: NDArray[np.uint64], second: NDArray[np.uint64] | None = None) -> None:
        writer, document_idxs = self._writer, np.flatnonzero(keys)
        document_idxs = document_idxs[np.argsort(keys[document_idxs], kind="stable")]
        keys = keys[document_idxs]
        borders = np.arange(1, RANGES, dtype=np.uint64) << np.uint64(64 - RANGES.bit_length() + 1)
        begins = np.concatenate([[0], np.searchsorted(keys, borders), [len(keys)]])
        writer.append(f"{name}.begins", (writer.count(f"{name}.keys") + begins).astype("<u8"))
        writer.append(f"{name}.keys", keys)
        writer.append(f"{name}.places", (self._first + document_idxs).astype("<u4"))
        if second is not None:
            writer.append(f"{name}.second", second[document_idxs])


def _runs_of(file: Columns, name: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """(begin, end) in the key column, for each run, of the key ranges `begin` to `end`."""
    for run in range(file.count(f"{name}.begins") // (RANGES + 1)):
        begins = file.numbers(f"{name}.begins", run * (RANGES + 1) + begin, run * (RANGES + 1) + end + 1)
        yield int(begins[0]), int(begins[-1])


# ---- the search ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Resolved:
    """Files of the judged parts and of the search, which together decide each document's drop code."""

    judged: tuple[str, ...]
    exact: tuple[str, ...]
    near: tuple[str, ...]

    def codes(self, part: int) -> NDArray[np.uint16]:
        """[documents of the part]: drop codes, `KEEP` for kept ones."""
        # Near duplicates were searched among exact ones too, without effect: a copy has the keys of the earlier
        # document that it repeats.
        codes = Columns(self.judged[part]).column("codes").copy()
        codes[repeated_in(self.exact, part)["place"]] = DUPLICATE
        near = repeated_in(self.near, part)["place"]
        codes[near[codes[near] == KEEP]] = NEAR_DUPLICATE
        return codes

    def counts(self, part: int, codes: int) -> list[int]:
        """[codes]: the part's documents of each drop code."""
        return [int(count) for count in np.bincount(self.codes(part), minlength=codes)]


def resolve(
    runner: Runner,
    folder: str,
    judged: Sequence[tuple[str, Note]],
    parts: Sequence[Part],
    cleaning: CleaningOptions,
    limits: Limits,
) -> Resolved:
    """Finds the duplicates over all parts. `judged`: file and note of each part, in the order of reading."""
    paths = tuple(path for path, _ in judged)
    documents = sum(note["documents"] for _, note in judged)
    short = sum(note["too_short_to_be_near"] for _, note in judged)
    if short > MANY * documents:
        line = f"{short:,} of {documents:,} documents have fewer than {SHINGLE_WORDS} words, so no near duplicates of "
        warn(f"{line}them are found; cluster DNA and proteins by a program of their own, such as MMseqs2")
    exact = find_exact(runner, folder, paths, EXACT, documents, parts, limits)
    near = find_repeats(runner, folder, paths, (*bands(cleaning),), documents, None) if bands(cleaning) else ()
    return Resolved(paths, exact, near)


def are_searched(parts: Sequence[Part], limits: Limits) -> bool:
    """Whether exact duplicates are dropped, even if only of held-out documents."""
    return not limits.keep_duplicates or any(part.held_out for part in parts)


def find_exact(
    runner: Runner,
    folder: str,
    paths: tuple[str, ...],
    column: str,
    documents: int,
    parts: Sequence[Part],
    limits: Limits,
) -> tuple[str, ...]:
    """`find_repeats` of the documents to drop for their equal keys in `column`."""
    if not are_searched(parts, limits):
        return ()
    held_out = sum(part.held_out for part in parts) if limits.keep_duplicates else None
    return find_repeats(runner, folder, paths, (column,), documents, held_out)


def find_repeats(
    runner: Runner, folder: str, judged: tuple[str, ...], columns: tuple[str, ...], documents: int, held_out: int | None
) -> tuple[str, ...]:
    """The result files of the search for equal keys in the columns, one for each key range."""
    ranges = searches(documents)
    digest = digest_of([os.path.basename(path) for path in judged], columns, ranges, held_out)
    paths = tuple(paths_of(folder, f"find-{columns[0]}", [digest] * ranges))
    work = FindRepeats(judged, columns, ranges, held_out)
    size = KEY_BYTES * len(columns) * documents // ranges
    compute(runner, work, [*enumerate(paths)], f"find {'near ' * (len(columns) > 1)}duplicates", [size] * ranges)
    return paths


def searches(keys: int) -> int:
    """The number of searches for `keys` keys: a power of two, up to `RANGES`."""
    return min(RANGES, 1 << (max(keys - 1, 0) // KEYS_AT_ONCE).bit_length())


@dataclass(frozen=True)
class FindRepeats:
    """Searches one key range in each of the columns. Memory holds one column's range."""

    judged: tuple[str, ...]
    """The file of each part, in the order of reading."""
    columns: tuple[str, ...]
    ranges: int
    held_out: int | None = None
    """Number of held-out parts, which come first, if only repeats of their documents count; None to count all."""

    def __call__(self, task: tuple[int, str]) -> Note:
        range_idx, path = task
        results = [self._search(column, range_idx) for column in self.columns]
        owners = np.concatenate([owner for owner, _ in results])
        repeated = np.concatenate([rows for _, rows in results])
        order = np.argsort(owners, kind="stable")
        with written(path) as writer:
            writer.append("ends", np.cumsum(np.bincount(owners, minlength=len(self.judged)), dtype="<u8"))
            writer.append("repeated", repeated[order].view("<u4"))
            writer.note = {"repeated": len(repeated)}
        return writer.note

    def _search(self, name: str, range_idx: int) -> tuple[NDArray[np.int64], Repeated]:
        """(part of each repeated document, its row of `REPEATED`)"""
        step = RANGES // self.ranges
        keys, second, document_idxs, counts = [], [], [], []
        for path in self.judged:
            file = Columns(path)
            counts.append(0)
            for begin, end in _runs_of(file, name, range_idx * step, (range_idx + 1) * step):
                keys.append(file.numbers(f"{name}.keys", begin, end))
                document_idxs.append(file.numbers(f"{name}.places", begin, end))
                if f"{name}.second" in file:
                    second.append(file.numbers(f"{name}.second", begin, end))
                counts[-1] += end - begin
        # Runs follow each other, and a run's equal keys are in its order, so equal keys are in the order of reading.
        columns = [np.concatenate(keys), *([np.concatenate(second)] if second else [])]
        later, first = repeats(columns)
        owners = np.repeat(np.arange(len(counts)), counts)
        if self.held_out is not None:
            leaks = (owners[later] >= self.held_out) & (owners[first] < self.held_out)
            later, first = later[leaks], first[leaks]
        document_idx = np.concatenate(document_idxs)
        rows = np.empty(len(later), REPEATED)
        rows["place"], rows["part"], rows["first"] = document_idx[later], owners[first], document_idx[first]
        return owners[later], rows


def repeats(keys: Sequence[NDArray[np.uint64]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(indices of repeated keys, index of each one's first equal key). `keys`: columns; equal keys agree in all."""
    order = np.lexsort(keys[::-1])  # which leaves equal keys in the order of reading
    same = np.zeros(len(order), bool)
    same[1:] = True
    for values in keys:
        same[1:] &= values[order[1:]] == values[order[:-1]]
    begins = np.maximum.accumulate(np.where(same, 0, np.arange(len(order))))
    return order[same], order[begins[same]]


def repeated_counts(search_paths: Sequence[str], parts: int) -> NDArray[np.int64]:
    """[parts]: repeated documents of each."""
    counts = np.zeros(parts, np.int64)
    for path in search_paths:
        ends = Columns(path).column("ends").astype(np.int64)
        counts += ends - np.concatenate([[0], ends[:-1]])
    return counts


def repeated_in(search_paths: Sequence[str], part: int) -> Repeated:
    """The part's repeated documents in all key ranges."""
    rows = [np.zeros(0, REPEATED)]
    for path in search_paths:
        file = Columns(path)
        ends = file.numbers("ends", max(part - 1, 0), part + 1)
        begin, end = (0 if part == 0 else int(ends[0])), int(ends[-1])
        rows.append(file.numbers("repeated", 3 * begin, 3 * end).view(REPEATED))
    return np.concatenate(rows)
