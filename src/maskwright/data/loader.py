"""Batches as a function of the step: pack, order, mask. The only state is the step number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from maskwright.config.masking import Masking
from maskwright.config.pretraining import RunConfig, stage_at
from maskwright.core.errors import StoreError
from maskwright.data.batch import Batch
from maskwright.data.causal import is_causal, read_causally
from maskwright.data.data_phases import DataPhase, make_data_phases
from maskwright.data.masking import Masker, mask_rows, slots_per_row
from maskwright.data.mixing import MixedOrder
from maskwright.data.mixture import MixedRows, Mixture
from maskwright.data.order import order
from maskwright.data.packing import Packing
from maskwright.data.rows import Rows, open_rows
from maskwright.data.store import TokenStore
from maskwright.text.arrays import Int64

VALIDATION_SEED, VALIDATION_MASKING = 20_190_726, Masking(kind="token", rate=0.15)
"""Held-out masks are the same in every run, at RoBERTa's rate, independent of the training rate."""


class Loader:
    """Training batches of a run. `batches(step)` is pure: any step at any time, in any process."""

    def __init__(self, config: RunConfig, store: TokenStore | Mixture) -> None:
        """Raises `StoreError` if the store cannot fill one global batch, or a source of a mixture cannot fill one
        row."""
        self.data_phases = make_data_phases(config, store)
        self.passes = store.passes
        self.config = config.resolved(self.data_phases[0].rows.totals.rows / store.passes)
        self.stages = self.config.stages
        self.masker = Masker.of(store.vocabulary)
        for stage in self.stages:
            here, rows = stage.config, self._data_phase(stage.begin).rows.totals.rows
            if rows < here.rows_per_step:
                raise StoreError(
                    f"has {rows:,} rows of {here.data.seq_len} tokens, but one step needs {here.rows_per_step:,}",
                    where=store.location,
                    fix="prepare more text, or lower batch.micro_batch_rows, batch.virtual_workers or data.seq_len",
                )

    def at(self, step: int) -> RunConfig:
        """The run as it is at update `step`."""
        return stage_at(self.stages, step).config

    def _data_phase(self, step: int) -> DataPhase:
        row = stage_at(self.stages, step).first_row
        return next(phase for phase in reversed(self.data_phases) if phase.first_row <= row)

    def rows_at(self, step: int) -> Rows | MixedRows:
        """The rows of update `step`; the same for all updates with rows of one length and mixture."""
        return self._data_phase(step).rows

    @property
    def rows(self) -> Rows | MixedRows:
        """`rows_at` the beginning."""
        return self.data_phases[0].rows

    @property
    def micro_batch_losses(self) -> int:
        """Predicted positions in the largest micro-batch."""
        return max(stage.config.batch.micro_batch_rows * slots_of(stage.config) for stage in self.stages)

    def describe(self) -> list[str]:
        """Describes the run's reading of each source of a mixture; empty for a single store."""
        parts = [
            f"{share:.1%} of the rows from {name}, {epochs:.2f} epochs"
            for name, share, epochs in self.sources_read(self.config.steps)
        ]
        return [f"mixture: {'; '.join(parts)}"] if parts else []

    def sources_read(self, step: int) -> list[tuple[str, float, float]]:
        """(name, share of all rows, epochs) of each source of a mixture in the first `step` steps."""
        if not isinstance(self.rows, MixedRows):
            return []
        counts, row = np.zeros(len(self.rows.names)), stage_at(self.stages, step).rows_before(step)
        for phase in self.data_phases:
            if isinstance(phase.order, MixedOrder) and phase.first_row <= row:
                done = row - phase.first_row
                done = done if phase.length is None else min(done, phase.length)
                counts, epochs = counts + phase.order.source_rows(done), phase.epochs(done)
        return list(zip(self.rows.names, (counts / max(row, 1)).tolist(), epochs.tolist(), strict=True))

    def masking_rate(self, step: int) -> float:
        """Share of tokens that are predicted."""
        return self.at(step).masking.rate

    def epoch(self, step: int) -> float:
        """Passes over the training text before update `step`."""
        phase, row = self._data_phase(step), stage_at(self.stages, step).rows_before(step)
        sources = phase.rows.sources if isinstance(phase.rows, MixedRows) else (phase.rows,)
        sizes = [source.totals.rows for source in sources]
        return self.passes * float(np.average(phase.epochs(row - phase.first_row), weights=sizes))

    def batches(
        self, step: int, virtual_workers: Sequence[int] | None = None, causal_share: float | None = None
    ) -> list[Batch]:
        """The micro-batches of update `step`, one for each of `virtual_workers` (None: all). `causal_share`: replaces
        the step's."""
        workers = range(self.config.batch.virtual_workers) if virtual_workers is None else virtual_workers
        overrides = () if causal_share is None else (causal_share,)
        return [self.batch(step, virtual_worker, *overrides) for virtual_worker in workers]

    def work(self, step: int) -> tuple[int, float]:
        """The work of an update of all ranks: see `Rows.work`."""
        return self.rows_at(step).work(self._rows(step, 0, self.at(step).rows_per_step)[1])

    def _rows(self, step: int, first: int, count: int) -> tuple[Int64, Int64]:
        """(epochs, rows) of `count` rows of update `step` from its row `first` on."""
        phase, stage = self._data_phase(step), stage_at(self.stages, step)
        begin = stage.rows_before(step) - phase.first_row
        return phase.order.at(begin + first + np.arange(count, dtype=np.int64))

    def row_numbers(self, step: int, virtual_worker: int) -> tuple[Int64, Int64]:
        """(epochs, rows) of a micro-batch's rows."""
        M = self.at(step).batch.micro_batch_rows
        return self._rows(step, virtual_worker * M, M)

    def batch(self, step: int, virtual_worker: int, causal_share: float | None = None) -> Batch:
        """The micro-batch of one virtual worker. `causal_share`: see `batches`."""
        epochs, rows = self.row_numbers(step, virtual_worker)
        config, phase = self.at(step), self._data_phase(step)
        slots, seed, masking = slots_of(config), self.config.seed, config.masking
        if causal_share is not None:
            masking = masking.model_copy(update={"causal_share": causal_share})
        batch = _masked(phase.rows, self.masker, masking, rows, epochs, seed=seed, slots=slots)
        return replace(batch, causal=config.masking.causal)

    def rope_theta(self, step: int) -> float | None:
        """The value in the phase of update `step`; None for the model's own."""
        return stage_at(self.stages, step).rope_theta

    def trials(self, step: int, virtual_workers: Sequence[int]) -> list[tuple[int, list[Batch]]]:
        """(update, batches) of `step`, and of a later update for each other shape in the rest of the run, with masked
        and with causal rows if it has both, since attention may be computed in other ways for them."""
        first_steps: dict[tuple[Any, ...], int] = {}
        for stage in self.stages:
            if stage.end > step or stage is self.stages[-1]:
                config, share = stage.config, stage.config.masking.causal_share
                shape = (config.batch.micro_batch_rows, config.data.seq_len, slots_of(config), stage.rope_theta)
                is_mixed = 0.0 < share < 1.0
                for share_of_rows in (0.0, 1.0) if is_mixed else (share,):
                    first_steps.setdefault((*shape, share_of_rows, is_mixed), max(stage.begin, step))
        return [
            (first, self.batches(first, virtual_workers, *([share_of_rows] if is_mixed else [])))
            for (*_, share_of_rows, is_mixed), first in first_steps.items()
        ]


def slots_of(config: RunConfig) -> int:
    """Static number of predictions in each row of a run, or of one of its stages."""
    return slots_per_row(config.masking.kind, config.masking.rate, config.data.seq_len)


def validation_rows(rows: Rows, max_rows: int) -> Int64:
    """Numbers of the rows in `validation_batches`, in their order."""
    count = min(max_rows, rows.totals.rows)
    return order(VALIDATION_SEED, 0, np.arange(count, dtype=np.int64), rows.totals.rows)


def validation_batches(
    store: TokenStore, *, seq_len: int, packing: Packing, max_rows: int, micro_batch_rows: int
) -> list[Batch]:
    """Held-out batches: a fixed sample of rows, fixed masks on 15 % of tokens, padding in the last batch."""
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
    """Masks the chosen rows."""
    epochs = epochs % masking.epochs if masking.epochs else epochs
    input_ids, position_ids, segment_ids = rows.materialize(chosen)
    masked, index, labels, weights = mask_rows(
        masker, input_ids, segment_ids, masking, seed=seed, epochs=epochs, rows=chosen, slots=slots
    )
    batch = Batch(masked, position_ids, segment_ids, index, labels, weights)
    if not masking.causal_share:
        return batch
    causal = is_causal(masking.causal_share, seed=seed, epochs=epochs, rows=chosen)
    return read_causally(batch, input_ids, causal)
