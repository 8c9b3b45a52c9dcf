"""Batches as a function of the step: pack, order, mask. The only state is the step number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from maskwright.core.config import Masking, RunConfig
from maskwright.core.errors import ConfigError, StoreError
from maskwright.data.batch import Batch
from maskwright.data.masking import Masker, mask_rows, slots_per_row
from maskwright.data.mixing import MixedOrder
from maskwright.data.mixture import MixedRows, Mixture
from maskwright.data.order import RowOrder, order
from maskwright.data.packing import Packing
from maskwright.data.rows import Rows, open_rows
from maskwright.data.store import OpenedStore

Int64 = NDArray[np.int64]
VALIDATION_SEED, VALIDATION_MASKING = 20_190_726, Masking(kind="token", rate=0.15)
"""Held-out masks are the same in every run, at RoBERTa's rate, whatever the training rate is."""


class Loader:
    """Training batches of a run. `batches(step)` is pure: any step at any time, in any process."""

    def __init__(self, config: RunConfig, store: OpenedStore | Mixture) -> None:
        """Raises `StoreError` when the store cannot fill one global batch, or a source of a mixture not one row."""
        self.config = config
        if isinstance(store, Mixture):
            self.rows: Rows | MixedRows = store.rows(config.data.seq_len, config.data.packing)
            self.order: RowOrder | MixedOrder = store.order(config.seed, self.rows)
        else:
            self.rows = open_rows(store, "train", config.data.seq_len, config.data.packing)
            self.order = RowOrder(config.seed, self.rows.plan.rows)
        self.masker = Masker.of(store.vocabulary)
        self.slots = slots_per_row(config.masking.kind, config.masking.highest_rate, config.data.seq_len)
        if self.rows.plan.rows < config.rows_per_step:
            raise StoreError(
                f"has {self.rows.plan.rows:,} rows of {config.data.seq_len} tokens, "
                f"one step takes {config.rows_per_step:,}",
                where=store.location,
                fix="prepare more text, or lower batch.micro_batch_rows, batch.virtual_workers or data.seq_len",
            )

    def require_rows(self, steps: int) -> None:
        """Raises `ConfigError` if the sources of a mixture give no more rows before the run ends."""
        end, rows = self.order.end, self.config.rows_per_step
        if end is not None and end < steps * rows:
            what = f"every source has given its max_epochs after {end // rows:,} of {steps:,} steps"
            raise ConfigError(what, where="data.mixture", fix="raise or leave out one of them, or lower schedule.steps")

    def describe(self) -> list[str]:
        """What the run reads of each source of a mixture; nothing of a single store."""
        read = [
            f"{share:.1%} of the rows from {name}, {epochs:.2f} epochs"
            for name, share, epochs in self.sources_read(self.config.steps)
        ]
        return [f"mixture: {'; '.join(read)}"] if read else []

    def sources_read(self, step: int) -> list[tuple[str, float, float]]:
        """(name, share of all rows, epochs) of each source of a mixture in the first `step` steps."""
        if isinstance(self.order, RowOrder) or isinstance(self.rows, Rows):
            return []
        rows = step * self.config.rows_per_step
        epochs = self.order.epochs(rows)
        shares = epochs * self.order.sizes / max(rows, 1)
        return list(zip(self.rows.names, shares.tolist(), epochs.tolist(), strict=True))

    def masking_rate(self, step: int) -> float:
        """Share of tokens that are predicted."""
        return self.config.masking_at(step).rate

    def mean_epoch_rows(self, epochs: float) -> float:
        return self.rows.plan.rows

    def epoch(self, step: int) -> float:
        return step * self.config.rows_per_step / self.rows.plan.rows

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
        return self.rows.work(self.order.at(data_step * rows + np.arange(rows, dtype=np.int64))[1])

    def row_numbers(self, data_step: int, virtual_worker: int) -> tuple[Int64, Int64]:
        """(epochs, rows) of a micro-batch's rows."""
        config, M = self.config, self.config.batch.micro_batch_rows
        return self.order.at(data_step * config.rows_per_step + virtual_worker * M + np.arange(M, dtype=np.int64))

    def batch(self, step: int, virtual_worker: int, data_step: int | None = None) -> Batch:
        epochs, rows = self.row_numbers(step if data_step is None else data_step, virtual_worker)
        masking, seed = self.config.masking_at(step), self.config.seed
        return _masked(self.rows, self.masker, masking, rows, epochs, seed=seed, slots=self.slots)


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
    rows: Rows | MixedRows, masker: Masker, masking: Masking, chosen: Int64, epochs: Int64, *, seed: int, slots: int
) -> Batch:
    input_ids, position_ids, segment_ids = rows.materialize(chosen)
    masked, index, labels, weights = mask_rows(
        masker, input_ids, segment_ids, masking, seed=seed, epochs=epochs, rows=chosen, slots=slots
    )
    return Batch(masked, position_ids, segment_ids, index, labels, weights)
