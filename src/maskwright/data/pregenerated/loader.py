"""Training batches of pregenerated examples: the masks are those in the files, one example a row.

The run's epoch e reads file e mod files, as the original trainer does, in an order of its own. The only state is the
step number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from maskwright.core.config import RunConfig
from maskwright.core.errors import ConfigError, StoreError
from maskwright.data.batch import Batch
from maskwright.data.order import RowOrder
from maskwright.data.packing import Plan
from maskwright.data.pregenerated.examples import EPOCH_AGAIN
from maskwright.data.pregenerated.store import PregeneratedStore
from maskwright.data.rows import Rows

Int64 = NDArray[np.int64]


class PregeneratedLoader:
    """See `data.loader.Loader`. Rows are numbered over all files."""

    def __init__(self, config: RunConfig, store: PregeneratedStore) -> None:
        """Raises `ConfigError` when an example is longer than a row, `StoreError` when all do not fill one step."""
        words = store.vocabulary
        lengths, counts = store.column("lengths"), store.column("predictions")
        if (longest := int(lengths.max())) > config.data.seq_len:
            what = f"{config.data.seq_len} is below the {longest} tokens of the longest example in {store.location}"
            raise ConfigError(what, where="data.seq_len", fix=f"set it to {longest} or more")
        n = len(lengths)
        if n < config.rows_per_step:
            what = f"has {n:,} examples in all, one step takes {config.rows_per_step:,}"
            fix = "generate more text, or lower batch.micro_batch_rows or batch.virtual_workers"
            raise StoreError(what, where=store.location, fix=fix)
        split = store.split("train")
        no_frame = np.zeros(n, np.int8)  # the examples have their own
        layout = Plan(
            config.data.seq_len,
            split.document_ends - lengths,
            lengths.astype(np.int32),
            no_frame,
            no_frame,
            np.arange(n + 1),
            segments=True,
        )
        self.rows = Rows(split, layout, words.bos, words.pad, words.eos, words.size, store.location)
        self.counts, self.positions = counts, store.runs("positions", counts)
        self.labels = store.runs("labels", counts)
        self.slots = max(1, int(counts.max()))
        self.starts = np.array(store.starts, np.int64)
        self.orders = [RowOrder(config.seed, int(size)) for size in np.diff(self.starts)]
        self._rate = float(counts.sum() / lengths.sum())
        self.config = config.resolved(self.mean_epoch_rows(config.schedule.epochs or 1.0))

    @property
    def files(self) -> int:
        return len(self.starts) - 1

    def masking_rate(self, step: int) -> float:
        """Share of tokens that are predicted, over all files."""
        return self._rate

    def mean_epoch_rows(self, epochs: float) -> float:
        """Rows of an epoch, as the mean of the first `epochs` of them."""
        whole, part = divmod(epochs, 1.0)
        cycles, rest = divmod(int(whole), self.files)
        size = self.orders[rest].size
        return (cycles * int(self.starts[-1]) + int(self.starts[rest]) + part * size) / epochs

    def epoch(self, step: int) -> float:
        seen = step * self.config.rows_per_step
        epoch, index = (int(one[0]) for one in self._places(np.array([seen], np.int64)))
        return epoch + index / self.orders[epoch % self.files].size

    def _places(self, seen: Int64) -> tuple[Int64, Int64]:
        """(epochs, places in them) of the run's rows with numbers `seen`."""
        cycle, rest = np.divmod(seen, self.starts[-1])
        file = np.searchsorted(self.starts, rest, side="right") - 1
        return cycle * self.files + file, rest - self.starts[file]

    def _rows_at(self, seen: Int64) -> tuple[Int64, Int64]:
        epochs, index = self._places(seen)
        rows = np.empty(len(seen), np.int64)
        for epoch in np.unique(epochs).tolist():
            here, file = epochs == epoch, epoch % self.files
            own = self.orders[file]
            rows[here] = self.starts[file] + own.at(epoch * own.size + index[here])[1]
        return epochs, rows

    def work(self, step: int) -> tuple[int, float]:
        """See `Rows.work`."""
        rows = self.config.rows_per_step
        return self.rows.work(self._rows_at(step * rows + np.arange(rows, dtype=np.int64))[1])

    def row_numbers(self, step: int, virtual_worker: int) -> tuple[Int64, Int64]:
        """(epochs, rows) of a micro-batch's rows."""
        M = self.config.batch.micro_batch_rows
        first = step * self.config.rows_per_step + virtual_worker * M
        return self._rows_at(first + np.arange(M, dtype=np.int64))

    @property
    def micro_batch_losses(self) -> int:
        """Predicted positions in a micro-batch."""
        return self.config.batch.micro_batch_rows * self.slots

    def at(self, step: int) -> RunConfig:
        return self.config

    def rows_at(self, step: int) -> Rows:
        return self.rows

    def rope_theta(self, step: int) -> float | None:
        return None

    def trials(self, step: int, virtual_workers: Sequence[int]) -> list[tuple[int, list[Batch]]]:
        """See `data.loader.Loader`."""
        return [(step, self.batches(step, virtual_workers))]

    def batches(self, step: int, virtual_workers: Sequence[int] | None = None) -> list[Batch]:
        """The micro-batches of update `step`, one for each of `virtual_workers` (all when not given)."""
        wanted = range(self.config.batch.virtual_workers) if virtual_workers is None else virtual_workers
        return [self.batch(step, virtual_worker) for virtual_worker in wanted]

    def batch(self, step: int, virtual_worker: int) -> Batch:
        _, rows = self.row_numbers(step, virtual_worker)
        ids, positions, segments = self.rows.materialize(rows)
        (M, T), counts = ids.shape, self.counts[rows]
        starts = self.positions.document_ends[rows] - counts
        index, labels = np.zeros(M * self.slots, np.int32), np.zeros(M * self.slots, np.int32)
        slot = np.flatnonzero(np.arange(self.slots) < counts[:, None])
        places = self.positions.gather(starts, counts)
        if (places >= np.repeat(self.rows.plan.length[rows], counts)).any():
            raise StoreError(
                "holds a position beyond the end of its example", where=self.rows.location, fix=EPOCH_AGAIN
            )
        index[slot] = places + np.repeat(np.arange(M) * T, counts)
        labels[slot] = self.labels.gather(starts, counts)
        if int(labels.max()) >= self.rows.vocab_size:
            what = f"holds label {int(labels.max())}, the tokenizer ends at {self.rows.vocab_size - 1}"
            raise StoreError(what, where=self.rows.location, fix=EPOCH_AGAIN)
        weights = np.zeros(M * self.slots, np.float32)
        weights[slot] = 1.0
        return Batch(ids, positions, segments, index, labels, weights)

    def describe(self) -> list[str]:
        """How the run goes through the files, and how to say the original trainer's options."""
        config, files, steps = self.config, self.files, self.config.steps
        each, warmup = self.mean_epoch_rows(files) / config.rows_per_step, config.schedule.warmup_steps
        return [
            f"epochs: {files} files of {each:,.1f} steps on average; epoch e reads file e mod {files}. The masks are "
            f"those in the files, {self.masking_rate(0):.1%} of tokens",
            f"--epochs N is schedule.epochs: N here; this run's {steps:,} steps are {self.epoch(steps):.2f} epochs",
            "--train_batch_size N, which was for each core, is batch.micro_batch_rows: N, and batch.virtual_workers is "
            f"cores x gradient accumulation steps; a step of this run takes {config.rows_per_step:,} examples",
            f"--warmup_proportion P is schedule.warmup_steps: P x {steps:,} here; this run's {warmup:,} are "
            f"{warmup / steps:.3g} of it",
        ]
