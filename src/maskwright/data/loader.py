"""Batches as a function of the step: pack, order, mask. The only state is the step number."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from maskwright.core.config import RunConfig
from maskwright.core.errors import StoreError
from maskwright.data.batch import Batch
from maskwright.data.masking import Masker, mask_rows, slots_per_row
from maskwright.data.order import order
from maskwright.data.packing import Packing, Plan, plan
from maskwright.data.store import Split, SplitName, TokenStore

Int64 = NDArray[np.int64]
VALIDATION_SEED, VALIDATION_RATE = 20_190_726, 0.15
"""Held-out masks are the same in every run, at RoBERTa's rate, whatever the training rate is."""


@dataclass(frozen=True)
class Rows:
    """Packed rows of one side of a store, made on demand."""

    split: Split
    plan: Plan
    bos: int
    pad: int
    eos: int

    def materialize(self, rows: Int64) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
        """(input_ids, position_ids, segment_ids), each int32 [len(rows), T], before masking.

        A row number of -1 gives a row of padding, which fills the last micro-batch of an evaluation.
        """
        layout, M, T = self.plan, len(rows), self.plan.seq_len
        real = np.flatnonzero(rows >= 0)
        counts = layout.first[rows[real] + 1] - layout.first[rows[real]]
        begins = np.cumsum(counts) - counts
        piece = np.arange(counts.sum()) + np.repeat(layout.first[rows[real]] - begins, counts)
        row = np.repeat(real, counts)
        number = np.arange(len(piece)) - np.repeat(begins, counts)  # of the piece in its row

        length = layout.length[piece].astype(np.int64)
        size = layout.bos[piece] + length + layout.eos[piece]
        ends = np.cumsum(size)
        first_of_row = np.repeat((ends - size)[begins], counts) if len(piece) else ends
        at = row * T + (ends - size) - first_of_row  # place of each piece in the flattened rows

        input_ids = np.full(M * T, self.pad, np.int32)
        segment_ids = np.zeros(M * T, np.int32)
        position_ids = np.zeros(M * T, np.int32)
        everywhere = np.repeat(at - (ends - size), size) + np.arange(int(size.sum()))
        segment_ids[everywhere] = np.repeat(number + 1, size) if layout.segments else 1
        origin = at if layout.segments else row * T
        position_ids[everywhere] = everywhere - np.repeat(origin, size)

        text_ends = np.cumsum(length)
        text = np.repeat(at + layout.bos[piece] - (text_ends - length), length) + np.arange(int(length.sum()))
        input_ids[text] = self.split.gather(layout.start[piece], length)
        input_ids[at[layout.bos[piece] > 0]] = self.bos
        closed = layout.eos[piece] > 0
        input_ids[(at + size - 1)[closed]] = self.eos
        return input_ids.reshape(M, T), position_ids.reshape(M, T), segment_ids.reshape(M, T)


class Loader:
    """Training batches of a run. `batches(step)` is pure: any step at any time, in any process."""

    def __init__(self, config: RunConfig, store: TokenStore) -> None:
        """Raises `StoreError` when the store cannot fill one global batch."""
        self.config = config
        self.rows = open_rows(store, "train", config.data.seq_len, config.data.packing)
        self.masker = Masker.of(store.vocabulary)
        masking = config.masking
        self.slots = slots_per_row(masking.kind, max(masking.rate, masking.final_rate or 0.0), config.data.seq_len)
        if self.rows.plan.rows < config.rows_per_step:
            raise StoreError(
                f"has {self.rows.plan.rows:,} rows of {config.data.seq_len} tokens, "
                f"one step takes {config.rows_per_step:,}",
                where=store.location,
                fix="prepare more text, or lower batch.micro_batch_rows, batch.virtual_workers or data.seq_len",
            )

    def masking_rate(self, step: int) -> float:
        """A straight line from `rate` at step 0 to `final_rate` at the last step."""
        masking = self.config.masking
        if masking.final_rate is None:
            return masking.rate
        return masking.rate + (masking.final_rate - masking.rate) * step / max(self.config.schedule.steps - 1, 1)

    def epoch(self, step: int) -> float:
        return step * self.config.rows_per_step / self.rows.plan.rows

    def batches(self, step: int) -> list[Batch]:
        """The micro-batches of one update, one for each virtual worker."""
        return [self.batch(step, worker) for worker in range(self.config.batch.virtual_workers)]

    def batch(self, step: int, worker: int) -> Batch:
        config, M = self.config, self.config.batch.micro_batch_rows
        seen = step * config.rows_per_step + worker * M + np.arange(M, dtype=np.int64)
        epochs, index = np.divmod(seen, self.rows.plan.rows)
        rows = np.empty(M, np.int64)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            rows[here] = order(config.seed, epoch, index[here], self.rows.plan.rows)
        masking = config.masking
        return _masked(
            self.rows,
            self.masker,
            rows,
            epochs,
            seed=config.seed,
            kind=masking.kind,
            rate=self.masking_rate(step),
            slots=self.slots,
            mask_share=masking.mask_share,
            random_share=masking.random_share,
        )


def open_rows(store: TokenStore, side: SplitName, seq_len: int, packing: Packing) -> Rows:
    split = store.split(side)
    if not split.documents:
        raise StoreError(
            f"has no {side} documents",
            where=store.location,
            fix="prepare again with another --valid-fraction",
        )
    words = store.vocabulary
    layout = plan(split.document_ends, split.sentence_ends, seq_len, packing)
    return Rows(split, layout, words.bos, words.pad, words.eos)


def validation_batches(
    store: TokenStore, *, seq_len: int, packing: Packing, max_rows: int, micro_batch_rows: int
) -> list[Batch]:
    """Held-out batches with fixed masks: a fixed sample of rows, 15 % of tokens, the last batch filled with padding."""
    rows = open_rows(store, "valid", seq_len, packing)
    count = min(max_rows, rows.plan.rows)
    chosen = order(VALIDATION_SEED, 0, np.arange(count, dtype=np.int64), rows.plan.rows)
    batches = -(-count // micro_batch_rows)
    padded = np.concatenate([chosen, np.full(batches * micro_batch_rows - count, -1, np.int64)])
    return [
        _masked(
            rows,
            Masker.of(store.vocabulary),
            padded[begin : begin + micro_batch_rows],
            np.zeros(micro_batch_rows, np.int64),
            seed=VALIDATION_SEED,
            kind="token",
            rate=VALIDATION_RATE,
            slots=slots_per_row("token", VALIDATION_RATE, seq_len),
        )
        for begin in range(0, len(padded), micro_batch_rows)
    ]


def _masked(rows: Rows, masker: Masker, chosen: Int64, epochs: Int64, **options: object) -> Batch:
    input_ids, position_ids, segment_ids = rows.materialize(chosen)
    masked, index, labels, weights = mask_rows(
        masker,
        input_ids,
        segment_ids,
        epochs=epochs,
        rows=chosen,
        **options,  # type: ignore[arg-type]
    )
    return Batch(masked, position_ids, segment_ids, index, labels, weights)
