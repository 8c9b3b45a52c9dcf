"""The source of each row of a mixture: a function of the row's number, so that resuming is a seek.

Rows come in blocks. Each block has a fixed number of rows of every source, by the weights, in a keyed order of its own.
A source gives its rows epoch by epoch, each epoch in a keyed order, as a single store does. After a source's last
allowed epoch, the others share its weight: a new stretch of blocks begins at that very row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from maskwright.core.errors import ConfigError
from maskwright.data.order import RowOrder, order
from maskwright.text.arrays import Int64

BLOCK = 1 << 16
"""Rows in a block. Weights are exact to 1 in 65,536, and the order of a block takes some 10 ms."""
SEED_OF_BLOCKS = 0x6D69786564


@dataclass(frozen=True)
class MixStretch:
    """Consecutive blocks with the same counts."""

    start: int
    """Its first row in the run."""
    counts: Int64
    """[sources]: rows of each in a block."""
    used: Int64
    """[sources]: rows of each before this stretch."""


class Shares:
    """Assigns rows to sources."""

    def __init__(self, seed: int, weights: Sequence[float], supply: Sequence[int | None]) -> None:
        """`supply`: most rows of each source, or None. Raises `ConfigError` for a weight below one row in a block."""
        self.seed = seed
        self._assigned: tuple[MixStretch, int, Int64, Int64] | None = None
        self.stretches, self.end = self._plan(np.array(weights, np.float64), supply)

    def _plan(self, weights: NDArray[np.float64], supply: Sequence[int | None]) -> tuple[list[MixStretch], int | None]:
        """(stretches, total rows or None). There is a total if every source has a limit."""
        stretches: list[MixStretch] = []
        start, used = 0, np.zeros(len(weights), np.int64)
        while weights.any():
            stretch = MixStretch(start, counts_in_block(weights), used)
            stretches.append(stretch)
            limits = [(source, most) for source, most in enumerate(supply) if most is not None and weights[source]]
            if not limits:
                return stretches, None
            rows, source = min((self._rows_until(stretch, source, most), source) for source, most in limits)
            used = used + self._source_rows(stretch, rows)
            start, weights = start + rows, np.where(np.arange(len(weights)) == source, 0.0, weights)
        return stretches, start

    def _rows_until(self, stretch: MixStretch, source: int, supply: int) -> int:
        """Rows of the stretch up to the source's last one."""
        blocks, rest = divmod(supply - int(stretch.used[source]), int(stretch.counts[source]))
        if not rest:
            blocks, rest = blocks - 1, int(stretch.counts[source])
        source_of_row, index_in_source = self._assignment(stretch, blocks)
        return blocks * BLOCK + int(np.flatnonzero((source_of_row == source) & (index_in_source == rest - 1))[0]) + 1

    def _source_rows(self, stretch: MixStretch, rows: int) -> Int64:
        """[sources]: rows of each among the first `rows` of the stretch."""
        blocks, rest = divmod(rows, BLOCK)
        source_of_row, _ = self._assignment(stretch, blocks)
        return blocks * stretch.counts + np.bincount(source_of_row[:rest], minlength=len(stretch.counts))

    def _assignment(self, stretch: MixStretch, block: int) -> tuple[Int64, Int64]:
        """([BLOCK] sources, [BLOCK] index of each row among its source's rows in the block)."""
        cached = self._assigned  # the last result: a cache of a pure function, not a state
        # Not by the block's first row, since two stretches may have a block that begins there, with other counts.
        if cached is not None and cached[0] is stretch and cached[1] == block:
            return cached[2:]
        positions = order(
            self.seed ^ SEED_OF_BLOCKS, stretch.start + block * BLOCK, np.arange(BLOCK, dtype=np.int64), BLOCK
        )
        source_of_row = np.searchsorted(np.cumsum(stretch.counts), positions, side="right")
        index_in_source = np.empty(BLOCK, np.int64)
        rows_before = np.repeat(np.cumsum(stretch.counts) - stretch.counts, stretch.counts)
        index_in_source[np.argsort(source_of_row, kind="stable")] = np.arange(BLOCK) - rows_before
        self._assigned = stretch, block, source_of_row, index_in_source
        return source_of_row, index_in_source

    def sources_at(self, seen: Int64) -> tuple[Int64, Int64]:
        """(source of each row, its index among the rows of that source in the run)."""
        if self.end is not None and len(seen) and int(seen.max()) >= self.end:
            what = f"every source has reached its max_epochs after {self.end:,} rows"
            raise ConfigError(what, where="data.mixture", fix="raise or leave out one, or lower schedule.steps")
        starts = [stretch.start for stretch in self.stretches]
        of_stretch = np.searchsorted(starts, seen, side="right") - 1
        sources, index = np.empty(len(seen), np.int64), np.empty(len(seen), np.int64)
        block, in_block = np.divmod(seen - np.array(starts)[of_stretch], BLOCK)
        for stretch_idx, block_idx in np.unique(np.stack((of_stretch, block)), axis=1).T.tolist():
            is_here = (of_stretch == stretch_idx) & (block == block_idx)
            stretch = self.stretches[stretch_idx]
            source_of_row, indices = self._assignment(stretch, block_idx)
            chosen = sources[is_here] = source_of_row[in_block[is_here]]
            index[is_here] = indices[in_block[is_here]] + stretch.used[chosen] + block_idx * stretch.counts[chosen]
        return sources, index

    def source_rows(self, rows: int) -> Int64:
        """[sources]: rows of each among the first `rows` rows."""
        rows = rows if self.end is None else min(rows, self.end)
        stretch = next(stretch for stretch in reversed(self.stretches) if stretch.start <= rows)
        counts: Int64 = stretch.used + self._source_rows(stretch, rows - stretch.start)
        return counts


class MixedOrder:
    """`RowOrder` for several sources. Rows are numbered through all sources, one after the other."""

    def __init__(self, shares: Shares, orders: Sequence[RowOrder], sizes: Sequence[int]) -> None:
        """`sizes`: rows in the plan of each source."""
        self.shares, self.orders, self.end = shares, orders, shares.end
        self.first = np.cumsum(sizes) - np.array(sizes, np.int64)
        """[sources]: number of each one's first row."""

    def at(self, seen: Int64) -> tuple[Int64, Int64]:
        """(epochs of their sources, rows) of the run's rows with numbers `seen`. Raises `ConfigError` past the end."""
        sources, index = self.shares.sources_at(seen)
        epochs, rows = np.empty(len(seen), np.int64), np.empty(len(seen), np.int64)
        for source in np.unique(sources).tolist():
            is_here = sources == source
            epochs[is_here], rows[is_here] = self.orders[source].at(index[is_here])
        return epochs, rows + self.first[sources]

    def epochs(self, rows: int) -> NDArray[np.float64]:
        """[sources]: epochs of each in the first `rows` rows of the run."""
        counts = self.shares.source_rows(rows).tolist()
        return np.array([order.epochs(count) for order, count in zip(self.orders, counts, strict=True)])


def mixed_order(
    seed: int,
    orders: Sequence[RowOrder],
    weights: Sequence[float],
    limits: Sequence[float | None],
    read: Sequence[float] | None = None,
) -> MixedOrder:
    """`orders`: of the rows of each source. `limits`: most epochs of each source; None for no limit. `read`: epochs of
    each that earlier phases read; None for none. Raises `ConfigError` for a weight below one row in a block, and for a
    limit below one row."""
    sizes, read = [order.size for order in orders], [0.0] * len(orders) if read is None else read
    supply: list[int | None] = []
    for epochs, size, done in zip(limits, sizes, read, strict=True):
        supply.append(None if epochs is None else max(int((epochs - done) * size), 0))
        if supply[-1] == 0 and not done:
            what = f"max_epochs {epochs:g} is less than one of {size:,} rows"
            raise ConfigError(what, where="data.mixture", fix="raise it, or leave the source out")
    left = [0.0 if most == 0 else weight for weight, most in zip(weights, supply, strict=True)]
    return MixedOrder(Shares(seed, left, supply), orders, sizes)


def counts_in_block(weights: NDArray[np.float64]) -> Int64:
    """[sources]: rows of each in a block, in proportion to the weights (largest remainders)."""
    share = weights / weights.sum() * BLOCK
    counts = np.floor(share).astype(np.int64)
    missing_rows = BLOCK - int(counts.sum())
    counts[np.argsort(counts - share, kind="stable")[:missing_rows]] += 1
    if (too_small := (counts == 0) & (weights > 0)).any():
        smallest = float(weights[too_small].min() / weights.sum())
        what = f"a source has {smallest:.2g} of the weight, below the least share of 1 in {BLOCK:,}"
        raise ConfigError(what, where="data.mixture", fix="raise its weight, or leave the source out")
    return counts


def weights_by_size(tokens: Sequence[int], alpha: float) -> list[float]:
    """Shares in proportion to tokens ** alpha (Conneau and Lample 2019, section 3.1): 1 keeps the sizes, 0 equalizes
    them."""
    powers = [count**alpha for count in tokens]
    return [power / sum(powers) for power in powers]
