"""Batches as a function of the step: pack, order, mask. The only state is the step number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from maskwright.core.config import Masking, RunConfig
from maskwright.core.errors import StoreError
from maskwright.data.batch import Batch
from maskwright.data.masking import Masker, mask_rows, slots_per_row
from maskwright.data.order import order
from maskwright.data.packing import Packing, Plan, plan
from maskwright.data.store import OpenedStore, Split, SplitName

Int64 = NDArray[np.int64]
ORDER_BLOCK = 8192
"""Rows whose order is computed at once: the permutation costs 6 microseconds a row alone, 0.1 in such a block."""
VALIDATION_SEED, VALIDATION_MASKING = 20_190_726, Masking(kind="token", rate=0.15)
"""Held-out masks are the same in every run, at RoBERTa's rate, whatever the training rate is."""


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

    def materialize(self, rows: Int64) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
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


class Loader:
    """Training batches of a run. `batches(step)` is pure: any step at any time, in any process."""

    def __init__(self, config: RunConfig, store: OpenedStore) -> None:
        """Raises `StoreError` when the store cannot fill one global batch."""
        self.config = config
        self.rows = open_rows(store, "train", config.data.seq_len, config.data.packing)
        self.masker = Masker.of(store.vocabulary)
        self._block: tuple[int, int, Int64] | None = None
        self.slots = slots_per_row(config.masking.kind, config.masking.highest_rate, config.data.seq_len)
        if self.rows.plan.rows < config.rows_per_step:
            raise StoreError(
                f"has {self.rows.plan.rows:,} rows of {config.data.seq_len} tokens, "
                f"one step takes {config.rows_per_step:,}",
                where=store.location,
                fix="prepare more text, or lower batch.micro_batch_rows, batch.virtual_workers or data.seq_len",
            )

    def epoch(self, step: int) -> float:
        return step * self.config.rows_per_step / self.rows.plan.rows

    def _rows_at(self, seen: Int64) -> tuple[Int64, Int64]:
        """(epochs, rows) of the run's rows with numbers `seen`, from blocks of the order that are computed at once."""
        size = self.rows.plan.rows
        epochs, index = np.divmod(seen, size)
        rows = np.empty(len(seen), np.int64)
        block = epochs * size + index // ORDER_BLOCK * ORDER_BLOCK  # distinct for each block of each epoch
        for first in np.unique(block).tolist():
            here = block == first
            rows[here] = self._order_block(first // size, first % size)[index[here] % ORDER_BLOCK]
        return epochs, rows

    def _order_block(self, epoch: int, begin: int) -> Int64:
        """The order from `begin` on. Only the last block is kept: a cache of a pure function, not a state."""
        if self._block is None or self._block[:2] != (epoch, begin):
            size = self.rows.plan.rows
            index = np.arange(begin, min(begin + ORDER_BLOCK, size), dtype=np.int64)
            self._block = (epoch, begin, order(self.config.seed, epoch, index, size))
        return self._block[2]

    def batches(
        self, step: int, data_step: int | None = None, virtual_workers: Sequence[int] | None = None
    ) -> list[Batch]:
        """The micro-batches of update `step`, one for each of `virtual_workers` (all when not given). `data_step` is
        another step when some data was left out."""
        wanted = range(self.config.batch.virtual_workers) if virtual_workers is None else virtual_workers
        return [self.batch(step, virtual_worker, data_step) for virtual_worker in wanted]

    def work(self, data_step: int) -> tuple[int, float]:
        """What an update of all ranks computes: see `Rows.work`."""
        rows = self.config.rows_per_step
        return self.rows.work(self._rows_at(data_step * rows + np.arange(rows, dtype=np.int64))[1])

    def row_numbers(self, data_step: int, virtual_worker: int) -> tuple[Int64, Int64]:
        """(epochs, rows) of a micro-batch's rows."""
        config, M = self.config, self.config.batch.micro_batch_rows
        return self._rows_at(data_step * config.rows_per_step + virtual_worker * M + np.arange(M, dtype=np.int64))

    def batch(self, step: int, virtual_worker: int, data_step: int | None = None) -> Batch:
        epochs, rows = self.row_numbers(step if data_step is None else data_step, virtual_worker)
        masking, seed = self.config.masking_at(step), self.config.seed
        return _masked(self.rows, self.masker, masking, rows, epochs, seed=seed, slots=self.slots)


def open_rows(store: OpenedStore, side: SplitName, seq_len: int, packing: Packing) -> Rows:
    split = store.split(side)
    if not split.documents:
        fix = "prepare again with another --valid-fraction"
        raise StoreError(f"has no {side} documents", where=store.location, fix=fix)
    words = store.vocabulary
    layout = plan(split.document_ends, split.sentence_ends, seq_len, packing, split.gapped_starts)
    return Rows(split, layout, words.bos, words.pad, words.eos, words.size, store.location)


def validation_rows(rows: Rows, max_rows: int) -> Int64:
    """Numbers of the rows in `validation_batches`, in their order."""
    count = min(max_rows, rows.plan.rows)
    return order(VALIDATION_SEED, 0, np.arange(count, dtype=np.int64), rows.plan.rows)


def validation_batches(
    store: OpenedStore, *, seq_len: int, packing: Packing, max_rows: int, micro_batch_rows: int
) -> list[Batch]:
    """Held-out batches: a fixed sample of rows, fixed masks on 15 % of tokens, the last batch filled with padding."""
    rows = open_rows(store, "valid", seq_len, packing)
    chosen = validation_rows(rows, max_rows)
    count = len(chosen)
    batches = -(-count // micro_batch_rows)
    masker = Masker.of(store.vocabulary)
    padded = np.concatenate([chosen, np.full(batches * micro_batch_rows - count, -1, np.int64)])
    return [
        _masked(
            rows,
            masker,
            VALIDATION_MASKING,
            padded[begin : begin + micro_batch_rows],
            np.zeros(micro_batch_rows, np.int64),
            seed=VALIDATION_SEED,
            slots=slots_per_row(VALIDATION_MASKING.kind, VALIDATION_MASKING.rate, seq_len),
        )
        for begin in range(0, len(padded), micro_batch_rows)
    ]


def _masked(
    rows: Rows, masker: Masker, masking: Masking, chosen: Int64, epochs: Int64, *, seed: int, slots: int
) -> Batch:
    input_ids, position_ids, segment_ids = rows.materialize(chosen)
    masked, index, labels, weights = mask_rows(
        masker, input_ids, segment_ids, masking, seed=seed, epochs=epochs, rows=chosen, slots=slots
    )
    return Batch(masked, position_ids, segment_ids, index, labels, weights)
