"""Packed rows of one split of a store, made on demand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from maskwright.core.errors import StoreError
from maskwright.data.packing import Packing, Pieces, pieces_of
from maskwright.data.plans import ShardPlans
from maskwright.data.store import Split, SplitName, TokenStore
from maskwright.text.arrays import Int64
from maskwright.text.vocabulary import Vocabulary

ROWS = 2
"""Version of the rules by which a run reads its text, for its record. Since 2, each phase has epochs of its own, and
Arrow files have the rows of the store that is made from them."""
Arrays = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]


@dataclass(frozen=True)
class RowTotals:
    """Totals of rows, which are known before any row is read."""

    seq_len: int
    rows: int
    text_tokens: int
    waste: float
    """Share of positions with neither text nor frame."""


@dataclass(frozen=True)
class Rows:
    """Rows are numbered through all shards, one after the other."""

    split: Split
    plans: ShardPlans
    words: Vocabulary
    location: str

    @cached_property
    def first(self) -> Int64:
        """[shards + 1]: number of each one's first row."""
        return np.cumsum([0, *self.plans.row_counts.rows]).astype(np.int64)

    @cached_property
    def totals(self) -> RowTotals:
        counts = self.plans.row_counts
        text, frame = sum(counts.text_tokens), sum(counts.frame_tokens)
        seq_len, rows = self.plans.seq_len, int(self.first[-1])
        return RowTotals(seq_len, rows, text, 1.0 - (text + frame) / max(rows * seq_len, 1))

    def materialize(self, rows: Int64) -> Arrays:
        """(input_ids, position_ids, segment_ids), each int32 [len(rows), T], before masking. Raises `StoreError` for
        an id that is not in the vocabulary.

        A row number of -1 gives a row of padding, which fills the last micro-batch of an evaluation.
        """
        M, T = len(rows), self.plans.seq_len
        shard_idx, (counts, start, length, bos, eos) = self._pieces(np.maximum(rows, 0))
        begins = np.cumsum(counts) - counts
        number = np.arange(counts.sum()) - np.repeat(begins, counts)  # of each piece in its row
        size = bos + length + eos
        used = np.add.reduceat(size, begins)  # of each row
        room = size.copy()
        room[begins + counts - 1] += T - used  # so that pieces fill all rows; blanked below
        starts = np.cumsum(room) - room
        ids = self.split.gather(shard_idx, start, length, bos, room - bos - length)
        ids[starts[bos > 0]] = self.words.bos
        ids[(starts + size - 1)[eos > 0]] = self.words.eos

        if self.plans.packing == "documents":
            segments = np.repeat((number + 1).astype(np.int32), room)
            positions = np.arange(M * T, dtype=np.int32)
            positions -= np.repeat(starts.astype(np.int32), room)
        else:
            segments = np.ones(M * T, np.int32)
            positions = np.tile(np.arange(T, dtype=np.int32), M)
        used[rows < 0] = 0
        for row in np.flatnonzero(used < T).tolist():
            rest = slice(row * T + int(used[row]), (row + 1) * T)
            ids[rest], positions[rest], segments[rest] = self.words.pad, 0, 0
        self._require_ids(ids)
        return ids.reshape(M, T), positions.reshape(M, T), segments.reshape(M, T)

    def _pieces(self, rows: Int64) -> tuple[Int64, Pieces]:
        """(the shard of each piece, the pieces) of rows >= 0."""
        if not len(rows):
            empty = np.zeros(0, np.int64)
            return empty, Pieces(empty, empty, empty, empty, empty)
        of_shard = np.searchsorted(self.first, rows, side="right") - 1
        sizes = np.bincount(of_shard)
        shards = np.flatnonzero(sizes)
        if len(shards) == 1:
            shard_number = int(shards[0])
            pieces = self.plans.of(shard_number).pieces(rows - self.first[shard_number])
            return np.full(len(pieces.start), shard_number), pieces
        in_order = np.argsort(of_shard, kind="stable")
        rows_in_shards = np.split((rows - self.first[of_shard])[in_order], np.cumsum(sizes[shards])[:-1])
        plans = map(self.plans.of, shards.tolist())
        pieces = pieces_of([*zip(plans, rows_in_shards, strict=True)])
        # Pieces come shard by shard, and go to their rows.
        counts = np.empty(len(rows), np.int64)
        counts[in_order] = pieces.counts
        piece_order = np.argsort(np.repeat(in_order, pieces.counts), kind="stable")
        shard_idx = np.repeat(of_shard, counts)
        return shard_idx, Pieces(counts, *(column[piece_order] for column in pieces[1:]))

    def work(self, rows: Int64) -> tuple[int, float]:
        """(positions that are not padding, (query, key) pairs inside segments) of rows >= 0, from the plans alone. The
        pairs are the sum of the segments' squared lengths."""
        _, pieces = self._pieces(rows)
        sizes = pieces.length + pieces.bos + pieces.eos
        begins = np.cumsum(pieces.counts) - pieces.counts
        segments = sizes if self.plans.packing == "documents" else np.add.reduceat(sizes, begins)
        return int(sizes.sum()), float(np.square(segments.astype(np.float64)).sum())

    def documents(self, row: int) -> list[int]:
        """Numbers of the documents in a row, within the split."""
        shard_idx, pieces = self._pieces(np.array([row]))
        has_text = pieces.length > 0
        return np.unique(self._documents(shard_idx[has_text], pieces.start[has_text])).tolist()

    def documents_at(self, rows: Int64, positions: Int64) -> Int64:
        """[n]: the document within the split at `positions` [n] of `rows` [n], none of which is a frame token."""
        shard_idx, pieces = self._pieces(rows)
        sizes = pieces.length + pieces.bos + pieces.eos
        begins = np.cumsum(sizes) - sizes
        first = np.cumsum(pieces.counts) - pieces.counts
        offsets = begins[first] + positions
        piece = np.searchsorted(begins, offsets, side="right") - 1
        return self._documents(shard_idx[piece], pieces.start[piece] + offsets - begins[piece] - pieces.bos[piece])

    def _documents(self, shard_idx: Int64, tokens: Int64) -> Int64:
        """[n]: numbers within the split of the documents that hold these tokens of shards."""
        documents_before = np.cumsum([0, *(shard.documents for shard in self.split.shards)])
        documents = np.empty(len(tokens), np.int64)
        for shard_number in np.unique(shard_idx).tolist():
            is_here = shard_idx == shard_number
            ends = self.split.shards[shard_number].document_ends()
            documents[is_here] = documents_before[shard_number] + np.searchsorted(ends, tokens[is_here], side="right")
        return documents

    def _require_ids(self, ids: NDArray[np.int32]) -> None:
        """Raises `StoreError` for a damaged id, since opening a store does not read its tokens."""
        largest = int(ids.view(np.uint32).max())  # uint32 ids above 2^31 would be negative
        if largest >= self.words.size:
            what = f"holds id {largest}, but the tokenizer ends at {self.words.size - 1}"
            fix = "find the damaged file with `maskwright data verify`, and copy it or prepare again"
            raise StoreError(what, where=self.location, fix=fix)


def open_rows(store: TokenStore, side: SplitName, seq_len: int, packing: Packing) -> Rows:
    """All rows of a side. Raises `StoreError` for a side without documents."""
    split = store.split(side)
    if not split.documents:
        fix = "prepare again with another --valid-fraction"
        raise StoreError(f"has no {side} documents", where=store.location, fix=fix)
    plans = ShardPlans(split, store.fingerprint, side, seq_len, packing)
    return Rows(split, plans, store.vocabulary, store.location)
