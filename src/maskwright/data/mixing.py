"""The source of each row of a mixture: a function of the row's number, so that resuming is a seek.

Rows come in blocks. Each block has a fixed number of rows of every source, by the weights, in a keyed order of its own.
A source gives its rows epoch by epoch, each epoch in a keyed order, as a single store does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from maskwright.core.errors import ConfigError
from maskwright.data.order import RowOrder, order
from maskwright.text.arrays import Int64

BLOCK = 1 << 16
"""Rows in a block. Weights are exact to 1 in 65,536, and the order of a block takes some 10 ms."""
SEED_OF_BLOCKS = 0x6D69786564


class MixedOrder:
    """`RowOrder` for several sources. Rows are numbered through all sources, one after the other."""

    def __init__(self, seed: int, weights: Sequence[float], orders: Sequence[RowOrder]) -> None:
        """`orders`: of the rows of each source. Raises `ConfigError` for a weight below one row in a block."""
        self.seed, self.orders, self.counts = seed, orders, counts_in_block(np.array(weights, np.float64))
        sizes = [order.size for order in orders]
        self.first = np.cumsum(sizes) - np.array(sizes, np.int64)
        """[sources]: number of each one's first row."""
        self._assigned: tuple[int, Int64, Int64] | None = None

    def at(self, seen: Int64) -> tuple[Int64, Int64]:
        """(epochs of their sources, rows) of the run's rows with numbers `seen`."""
        sources, index = self._sources_at(seen)
        epochs, rows = np.empty(len(seen), np.int64), np.empty(len(seen), np.int64)
        for source in np.unique(sources).tolist():
            is_here = sources == source
            epochs[is_here], rows[is_here] = self.orders[source].at(index[is_here])
        return epochs, rows + self.first[sources]

    def epochs(self, rows: int) -> NDArray[np.float64]:
        """[sources]: epochs of each in the first `rows` rows of the run."""
        counts = self.source_rows(rows).tolist()
        return np.array([order.epochs(count) for order, count in zip(self.orders, counts, strict=True)])

    def source_rows(self, rows: int) -> Int64:
        """[sources]: rows of each among the first `rows` rows."""
        blocks, rest = divmod(rows, BLOCK)
        return blocks * self.counts + np.bincount(self._assignment(blocks)[0][:rest], minlength=len(self.counts))

    def _sources_at(self, seen: Int64) -> tuple[Int64, Int64]:
        """(source of each row, its index among the rows of that source in the run)."""
        sources, index = np.empty(len(seen), np.int64), np.empty(len(seen), np.int64)
        block, in_block = np.divmod(seen, BLOCK)
        for block_idx in np.unique(block).tolist():
            is_here = block == block_idx
            source_of_row, indices = self._assignment(block_idx)
            chosen = sources[is_here] = source_of_row[in_block[is_here]]
            index[is_here] = indices[in_block[is_here]] + block_idx * self.counts[chosen]
        return sources, index

    def _assignment(self, block: int) -> tuple[Int64, Int64]:
        """([BLOCK] sources, [BLOCK] index of each row among its source's rows in the block)."""
        cached = self._assigned  # a cache of a pure function, not a state: read once, since threads share it
        if cached is None or cached[0] != block:
            positions = order(self.seed ^ SEED_OF_BLOCKS, block * BLOCK, np.arange(BLOCK, dtype=np.int64), BLOCK)
            source_of_row = np.searchsorted(np.cumsum(self.counts), positions, side="right")
            index_in_source = np.empty(BLOCK, np.int64)
            rows_before = np.repeat(np.cumsum(self.counts) - self.counts, self.counts)
            index_in_source[np.argsort(source_of_row, kind="stable")] = np.arange(BLOCK) - rows_before
            cached = self._assigned = block, source_of_row, index_in_source
        return cached[1:]


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
