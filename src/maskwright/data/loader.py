"""Batches as a function of the step: pack, order, mask. The only state is the step number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.config.masking import Masking
from maskwright.config.phases import stage_at
from maskwright.config.pretraining import RunConfig
from maskwright.core.errors import ConfigError, StoreError
from maskwright.data.batch import Batch
from maskwright.data.causal import is_causal, read_causally
from maskwright.data.legs import Leg, make_legs, windows_at
from maskwright.data.masking import Masker, mask_rows, slots_per_row
from maskwright.data.mixing import MixedOrder
from maskwright.data.mixture import MixedRows, Mixture
from maskwright.data.order import order
from maskwright.data.packing import Packing
from maskwright.data.prefetch import ShardPrefetcher
from maskwright.data.remote import require_room
from maskwright.data.rows import Rows, open_rows
from maskwright.data.store import OpenedStore, TokenStore

Int64 = NDArray[np.int64]
VALIDATION_SEED, VALIDATION_MASKING = 20_190_726, Masking(kind="token", rate=0.15)
"""Held-out masks are the same in every run, at RoBERTa's rate, whatever the training rate is."""


class Loader:
    """Training batches of a run. `batches(step)` is pure: any step at any time, in any process."""

    def __init__(self, config: RunConfig, store: OpenedStore | Mixture, held_out: Iterable[OpenedStore] = ()) -> None:
        """`held_out`: the stores of `data.validation`, whose files need room in the cache, too.

        Raises `StoreError` when the store cannot fill one global batch, or a source of a mixture not one row;
        `ConfigError` when the sources of a mixture give no more rows before the run ends."""
        stores = store.stores if isinstance(store, Mixture) else (store,)
        window = config.data.window_shards
        remote = [one for one in stores if isinstance(one, TokenStore) and one.is_remote]
        one_more = max([*(one.largest_other for one in remote), *_held_out_files(held_out)], default=0)
        needed, least = (sum(one.mapped_at_once(shards) for one in remote) + one_more for shards in (window, 1))
        require_room(needed, least, window)
        self._prefetcher = ShardPrefetcher() if remote and window is not None else None
        self._looked: int | None = None
        self.legs = make_legs(config, store)
        if window is not None:
            for leg in self.legs:
                for source in leg.rows.sources if isinstance(leg.rows, MixedRows) else [leg.rows]:
                    source.split.most_mapped = 2 * window
        self.passes = store.passes
        self.config = config.resolved(self.legs[0].rows.plan.rows / store.passes)
        self.stages = self.config.stages
        self.masker = Masker.of(store.vocabulary)
        for stage in self.stages:
            here, rows = stage.config, self._leg(stage.begin).rows.plan.rows
            if rows < here.rows_per_step:
                raise StoreError(
                    f"has {rows:,} rows of {here.data.seq_len} tokens, one step takes {here.rows_per_step:,}",
                    where=store.location,
                    fix="prepare more text, or lower batch.micro_batch_rows, batch.virtual_workers or data.seq_len",
                )

    def at(self, step: int) -> RunConfig:
        """The run as it is at update `step`."""
        return stage_at(self.stages, step).config

    def _leg(self, step: int) -> Leg:
        row = stage_at(self.stages, step).first_row
        return next(leg for leg in reversed(self.legs) if leg.first_row <= row)

    def rows_at(self, step: int) -> Rows | MixedRows:
        """What update `step` takes rows from; the same for all updates that have rows of one length and mixture."""
        return self._leg(step).rows

    @property
    def rows(self) -> Rows | MixedRows:
        """`rows_at` the beginning."""
        return self.legs[0].rows

    @property
    def micro_batch_losses(self) -> int:
        """Predicted positions in the largest micro-batch."""
        return max(stage.config.batch.micro_batch_rows * slots_of(stage.config) for stage in self.stages)

    @property
    def has_several_shards(self) -> bool:
        """Whether a store has several shards. Then versions before 0.3.0 planned other rows."""
        sources = self.rows.sources if isinstance(self.rows, MixedRows) else [self.rows]
        return any(len(source.split.shards) > 1 for source in sources)

    def require_rows(self) -> None:
        """Raises `ConfigError` if the sources of a mixture give no more rows before the run ends."""
        last, stage, steps = self.legs[-1], self.stages[-1], self.config.steps
        if last.order.end is None or last.first_row + last.order.end >= stage.rows_before(steps):
            return
        done = stage.begin + (last.first_row + last.order.end - stage.first_row) // stage.config.rows_per_step
        what = f"every source has given its max_epochs after {done:,} of {steps:,} steps"
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
        if not isinstance(self.rows, MixedRows):
            return []
        given, row = np.zeros(len(self.rows.names)), stage_at(self.stages, step).rows_before(step)
        for leg in self.legs:
            if isinstance(leg.order, MixedOrder) and leg.first_row <= row:
                here = row - leg.first_row
                here = here if leg.length is None else min(here, leg.length)
                given, epochs = given + leg.order.shares.given(here), leg.order.epochs(here)
        return list(zip(self.rows.names, (given / max(row, 1)).tolist(), epochs.tolist(), strict=True))

    def masking_rate(self, step: int) -> float:
        """Share of tokens that are predicted."""
        return self.at(step).masking.rate

    def epoch(self, step: int) -> float:
        """Passes over the training text before update `step`."""
        leg, row = self._leg(step), stage_at(self.stages, step).rows_before(step)
        if len(self.legs) == 1:
            return self.passes * row / self.rows.plan.rows
        epochs = leg.order.epochs(row - leg.first_row)
        if isinstance(leg.rows, Rows):
            return self.passes * float(np.sum(epochs))
        tokens = np.array([source.split.tokens for source in leg.rows.sources], np.float64)
        return float((epochs * tokens).sum() / tokens.sum())

    def batches(
        self, step: int, virtual_workers: Sequence[int] | None = None, causal_share: float | None = None
    ) -> list[Batch]:
        """The micro-batches of update `step`, one for each of `virtual_workers` (all when not given). `causal_share`:
        in place of the step's own."""
        wanted = range(self.config.batch.virtual_workers) if virtual_workers is None else virtual_workers
        more = () if causal_share is None else (causal_share,)
        return [self.batch(step, virtual_worker, *more) for virtual_worker in wanted]

    def work(self, step: int) -> tuple[int, float]:
        """What an update of all ranks computes: see `Rows.work`."""
        return self.rows_at(step).work(self._rows(step, 0, self.at(step).rows_per_step)[1])

    def _rows(self, step: int, first: int, count: int) -> tuple[Int64, Int64]:
        """(epochs, rows) of `count` rows of update `step` from its row `first` on."""
        leg, stage = self._leg(step), stage_at(self.stages, step)
        begin = stage.rows_before(step) - leg.first_row
        if self._prefetcher and self._looked != step:
            self._looked = step
            after = next((other for other in self.legs if other.first_row > leg.first_row), None)
            self._prefetcher.look(windows_at(leg, begin, after))
        return leg.order.at(begin + first + np.arange(count, dtype=np.int64))

    def row_numbers(self, step: int, virtual_worker: int) -> tuple[Int64, Int64]:
        """(epochs, rows) of a micro-batch's rows."""
        M = self.at(step).batch.micro_batch_rows
        return self._rows(step, virtual_worker * M, M)

    def batch(self, step: int, virtual_worker: int, causal_share: float | None = None) -> Batch:
        """`causal_share`: see `batches`."""
        epochs, rows = self.row_numbers(step, virtual_worker)
        here, leg = self.at(step), self._leg(step)
        slots, seed, masking = slots_of(here), self.config.seed, here.masking
        if causal_share is not None:
            masking = masking.model_copy(update={"causal_share": causal_share})
        return _masked(leg.rows, self.masker, masking, rows, epochs, seed=seed, slots=slots, earlier=leg.earlier)

    def rope_theta(self, step: int) -> float | None:
        """Of the phase that update `step` is in; None for the model's own."""
        return stage_at(self.stages, step).rope_theta

    def trials(self, step: int, virtual_workers: Sequence[int]) -> list[tuple[int, list[Batch]]]:
        """Update `step` with its batches, and a later one for each other shape that the run has from there on, with
        masked and with causal rows where it has both: attention may be computed in other ways for them."""
        found: dict[tuple[Any, ...], int] = {}
        for stage in self.stages:
            if stage.end > step or stage is self.stages[-1]:
                here, share = stage.config, stage.config.masking.causal_share
                shape = (here.batch.micro_batch_rows, here.data.seq_len, slots_of(here), stage.rope_theta)
                both = 0.0 < share < 1.0
                for every in (0.0, 1.0) if both else (share,):
                    found.setdefault((*shape, every, both), max(stage.begin, step))
        return [
            (first, self.batches(first, virtual_workers, *([every] if both else [])))
            for (*_, every, both), first in found.items()
        ]


def _held_out_files(stores: Iterable[OpenedStore]) -> list[int]:
    """Bytes of the files that validation reads of stores in buckets, one at a time."""
    remote = [one for one in stores if isinstance(one, TokenStore) and one.is_remote]
    shards = [shard for one in remote for shard in one.shards if shard["split"] == "valid"]
    return [record["bytes"] for shard in shards for record in shard["files"].values()]


def slots_of(config: RunConfig) -> int:
    """Static number of predictions in each row of a run, or of one of its stages."""
    return slots_per_row(config.masking.kind, config.masking.rate, config.data.seq_len)


def validation_rows(rows: Rows, max_rows: int) -> Int64:
    """Numbers of the rows in `validation_batches`, in their order."""
    count = min(max_rows, rows.plan.rows)
    return order(VALIDATION_SEED, 0, np.arange(count, dtype=np.int64), rows.plan.rows)


def validation_batches(
    store: OpenedStore, *, seq_len: int, packing: Packing, max_rows: int, micro_batch_rows: int
) -> list[Batch]:
    """Held-out batches: a fixed sample of rows, fixed masks on 15 % of tokens, the last batch filled with padding.
    They are all that a run reads of the store, so nothing of it stays mapped."""
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
    rows: Rows | MixedRows,
    masker: Masker,
    masking: Masking,
    chosen: Int64,
    epochs: Int64,
    *,
    seed: int,
    slots: int,
    earlier: int = 0,
) -> Batch:
    """`earlier`: see `Leg`."""
    epochs = epochs % masking.epochs if masking.epochs else epochs
    input_ids, position_ids, segment_ids = rows.materialize(chosen)
    masked, index, labels, weights = mask_rows(
        masker, input_ids, segment_ids, masking, seed=seed, epochs=epochs, rows=chosen + earlier, slots=slots
    )
    batch = Batch(masked, position_ids, segment_ids, index, labels, weights)
    if not masking.causal_share:
        return batch
    causal = is_causal(masking.causal_share, seed=seed, epochs=epochs, rows=chosen + earlier)
    return read_causally(batch, input_ids, causal)
