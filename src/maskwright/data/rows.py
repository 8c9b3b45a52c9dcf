"""Packed rows of one side of a store, made on demand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from maskwright.core.errors import StoreError
from maskwright.data.packing import Packing, Plan, plan
from maskwright.data.store import OpenedStore, Split, SplitName

Int64 = NDArray[np.int64]
Arrays = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]


@dataclass(frozen=True)
class Rows:
    """Packed rows of one side of a store, made on demand."""

    split: Split
    plan: Plan
    bos: int
    pad: int
    eos: int
    vocab_size: int
    location: str

    def materialize(self, rows: Int64) -> Arrays:
        """(input_ids, position_ids, segment_ids), each int32 [len(rows), T], before masking. Raises `StoreError` for
        an id that is not in the vocabulary.

        A row number of -1 gives a row of padding, which fills the last micro-batch of an evaluation.
        """
        layout, M, T = self.plan, len(rows), self.plan.seq_len
        chosen = np.maximum(rows, 0)
        counts = layout.first[chosen + 1] - layout.first[chosen]
        begins = np.cumsum(counts) - counts
        number = np.arange(counts.sum()) - np.repeat(begins, counts)  # of each piece in its row
        piece = number + np.repeat(layout.first[chosen], counts)

        bos, eos = layout.bos[piece], layout.eos[piece]
        length = layout.length[piece].astype(np.int64)
        size = bos + length + eos
        used = np.add.reduceat(size, begins)  # of each row
        room = size.copy()
        room[begins + counts - 1] += T - used  # so that pieces fill all rows; blanked below
        starts = np.cumsum(room) - room
        ids = self.split.gather(layout.start[piece], length, bos, room - bos - length)
        ids[starts[bos > 0]] = self.bos
        ids[(starts + size - 1)[eos > 0]] = self.eos

        if layout.segments:
            segment, origin = (number + 1).astype(np.int32), starts.astype(np.int32)
            segments = np.repeat(segment, room)
            positions = np.arange(M * T, dtype=np.int32) - np.repeat(origin, room)
        else:
            segments = np.ones(M * T, np.int32)
            positions = np.tile(np.arange(T, dtype=np.int32), M)
        used[rows < 0] = 0
        for row in np.flatnonzero(used < T).tolist():
            rest = slice(row * T + int(used[row]), (row + 1) * T)
            ids[rest], positions[rest], segments[rest] = self.pad, 0, 0
        self._require_ids(ids)
        return ids.reshape(M, T), positions.reshape(M, T), segments.reshape(M, T)

    def work(self, rows: Int64) -> tuple[int, float]:
        """(positions that are not padding, (query, key) pairs inside segments) of rows >= 0, from the plan alone. The
        pairs are the sum of the segments' squared lengths."""
        layout = self.plan
        counts = layout.first[rows + 1] - layout.first[rows]
        begins = np.cumsum(counts) - counts
        piece = np.arange(counts.sum()) + np.repeat(layout.first[rows] - begins, counts)
        sizes = layout.length[piece].astype(np.int64) + layout.bos[piece] + layout.eos[piece]
        segments = sizes if layout.segments else np.add.reduceat(sizes, begins)
        return int(sizes.sum()), float(np.square(segments.astype(np.float64)).sum())

    def documents(self, row: int) -> list[int]:
        """Numbers of the documents in a row, within the split."""
        pieces = slice(int(self.plan.first[row]), int(self.plan.first[row + 1]))
        start, length = self.plan.start[pieces], self.plan.length[pieces]
        found = np.searchsorted(self.split.document_ends, start[length > 0], side="right")
        return [int(number) for number in np.unique(found)]

    def places(self, rows: Int64, positions: Int64) -> Int64:
        """[n] tokens of the split: what stands at `positions` [n] of `rows` [n], none of which is of the frame."""
        layout = self.plan
        sizes = layout.length.astype(np.int64) + layout.bos + layout.eos
        begins = np.cumsum(sizes) - sizes
        at = begins[layout.first[rows]] + positions
        piece = np.searchsorted(begins, at, side="right") - 1
        return layout.start[piece] + at - begins[piece] - layout.bos[piece]

    def _require_ids(self, ids: NDArray[np.int32]) -> None:
        """Opening a store does not read its tokens, so a damaged id shows here, before it is used."""
        largest = int(ids.view(np.uint32).max())  # uint32 ids above 2^31 would be negative
        if largest >= self.vocab_size:
            what = f"holds id {largest}, the tokenizer ends at {self.vocab_size - 1}"
            fix = "`maskwright data verify` names the damaged file: copy it again, or prepare again"
            raise StoreError(what, where=self.location, fix=fix)


def open_rows(store: OpenedStore, side: SplitName, seq_len: int, packing: Packing) -> Rows:
    split = store.split(side)
    if not split.documents:
        fix = "prepare again with another --valid-fraction"
        raise StoreError(f"has no {side} documents", where=store.location, fix=fix)
    layout = plan(split.document_ends, split.sentence_ends_for(packing), seq_len, packing, split.gapped_starts)
    return make_rows(store, split, layout)


def make_rows(store: OpenedStore, split: Split, layout: Plan) -> Rows:
    words = store.vocabulary
    return Rows(split, layout, words.bos, words.pad, words.eos, words.size, store.location)
