"""The order of rows: a keyed permutation that is a function, so resuming is a seek.

It is a generalised Feistel network over a x b, the smallest near-square that holds `size`. Results outside `size` are
permuted again until they fall inside (cycle walking), which keeps it a bijection (Black and Rogaway 2002). The idea of
using it for data order is levanter's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from maskwright.data import bits

Int64 = NDArray[np.int64]
ROUNDS = 6
ORDER_PURPOSE = 1
ORDER_BLOCK = 8192
"""Rows whose order is computed at once: the permutation costs 6 microseconds a row alone, 0.1 in such a block."""


def order(seed: int, epoch: int, index: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """The row at each `index` (0 <= index < size) of an epoch, in O(1) each. Keeps the shape and dtype of `index`."""
    if size < 1 or (index.size and (index.min() < 0 or index.max() >= size)):
        raise ValueError(f"index outside 0..{size - 1}")
    high = math.isqrt(size - 1) + 1
    low = -(-size // high)
    a, b = np.uint64(high), np.uint64(low)
    keys = [bits.key(seed, epoch, ORDER_PURPOSE, round_idx) for round_idx in range(ROUNDS)]

    def encrypt(x: bits.Bits) -> bits.Bits:
        left, right = np.divmod(x, b)  # left < a, right < b
        for even, odd in zip(keys[::2], keys[1::2], strict=True):
            left = (left + bits.extend(even, right) % a) % a
            right = (right + bits.extend(odd, left) % b) % b
        return left * b + right

    result = encrypt(index.astype(np.uint64))
    outside = result >= np.uint64(size)
    while outside.any():
        result[outside] = encrypt(result[outside])
        outside = result >= np.uint64(size)
    return result.astype(np.int64)


class Order(Protocol):
    """The rows of one source over the epochs of a run."""

    end: int | None
    """Number of rows; None without an end."""

    def at(self, seen: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(epochs, rows) of the run's rows with numbers `seen`."""
        ...

    def epochs(self, rows: int) -> float:
        """Epochs in the first `rows` rows."""
        ...

    def window_at(self, seen: int) -> tuple[Int64, int | None]:
        """(numbers of the shards around the run's row `seen`, the row from which others follow; None if no row does)"""
        ...


def row_order(seed: int, sizes: Sequence[int], window_shards: int | None) -> Order:
    """The order of rows that lie in shards of `sizes` rows each."""
    if window_shards is None or window_shards >= len(sizes):
        return RowOrder(seed, sum(sizes), len(sizes))
    return WindowOrder(seed, sizes, window_shards)


class RowOrder:
    """A permutation of all `size` rows, another one in each epoch, from blocks that are computed at once."""

    end: int | None = None
    """None: the rows never end."""

    def __init__(self, seed: int, size: int, shards: int = 1) -> None:
        self.seed, self.size, self.shards = seed, size, shards
        self._block: tuple[int, int, NDArray[np.int64]] | None = None

    def at(self, seen: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(epochs, rows) of the run's rows with numbers `seen`."""
        epochs, index = np.divmod(seen, self.size)
        rows = np.empty(len(seen), np.int64)
        block = epochs * self.size + index // ORDER_BLOCK * ORDER_BLOCK  # distinct for each block of each epoch
        for first in sorted({*block.tolist()}):
            is_here = block == first
            rows[is_here] = self._order_block(first // self.size, first % self.size)[index[is_here] % ORDER_BLOCK]
        return epochs, rows

    def epochs(self, rows: int) -> float:
        """Epochs in the first `rows` rows."""
        return rows / self.size

    def window_at(self, seen: int) -> tuple[Int64, int | None]:
        """All shards, always."""
        return np.arange(self.shards, dtype=np.int64), None

    def _order_block(self, epoch: int, begin: int) -> NDArray[np.int64]:
        """The order from `begin` on. Only the last block is kept: a cache of a pure function, not a state."""
        if self._block is None or self._block[:2] != (epoch, begin):
            index = np.arange(begin, min(begin + ORDER_BLOCK, self.size), dtype=np.int64)
            self._block = (epoch, begin, order(self.seed, epoch, index, self.size))
        return self._block[2]


SEED_OF_SHARDS = 0x73686172


def shard_order(seed: int, epoch: int, shards: int) -> NDArray[np.int64]:
    """[shards]: the order in which an epoch reads them."""
    return order(seed ^ SEED_OF_SHARDS, epoch, np.arange(shards, dtype=np.int64), shards)


class WindowOrder:
    """A permutation of the shards, and of the rows inside windows of `window_shards` shards of it; others in each
    epoch. So no more than two windows of shards are read at any time."""

    end: int | None = None

    def __init__(self, seed: int, sizes: Sequence[int], window_shards: int) -> None:
        """`sizes` [shards]: rows of each."""
        self.seed, self.sizes, self.window_shards = seed, np.array(sizes, np.int64), window_shards
        self.size = int(self.sizes.sum())
        self._first = np.cumsum(self.sizes) - self.sizes
        self._windows = lru_cache(maxsize=4)(self._windows_of)
        self._orders = lru_cache(maxsize=4)(RowOrder)

    def _windows_of(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(the shards in their order, [windows + 1] the rows before each window)"""
        shards = shard_order(self.seed, epoch, len(self.sizes))
        rows = np.cumsum(self.sizes[shards])[self.window_shards - 1 :: self.window_shards]
        return shards, np.unique(np.concatenate([[0], rows, [self.size]]))

    def at(self, seen: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        epochs, index = np.divmod(seen, self.size)
        rows = np.empty(len(seen), np.int64)
        for epoch in np.unique(epochs).tolist():
            of_epoch = np.flatnonzero(epochs == epoch)
            window = np.searchsorted(self._windows(epoch)[1], index[of_epoch], side="right") - 1
            for window_idx in np.unique(window).tolist():
                idxs = of_epoch[window == window_idx]
                rows[idxs] = self._rows(epoch, window_idx, index[idxs])
        return epochs, rows

    def window_at(self, seen: int) -> tuple[Int64, int | None]:
        epoch, index = divmod(seen, self.size)
        shards, before = self._windows(epoch)
        window = int(np.searchsorted(before, index, side="right")) - 1
        shards_of_window = shards[window * self.window_shards :][: self.window_shards]
        return shards_of_window, epoch * self.size + int(before[window + 1])

    def _rows(self, epoch: int, window: int, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows at these places of an epoch, all of which are in the window."""
        shards, before = self._windows(epoch)
        shards_of_window = shards[window * self.window_shards : (window + 1) * self.window_shards]
        ends = np.cumsum(self.sizes[shards_of_window])
        size, window_number = int(ends[-1]), epoch * len(before) + window  # as if each window were an epoch
        index_in_window = self._orders(self.seed, size).at(window_number * size + index - before[window])[1]
        shard = np.searchsorted(ends, index_in_window, side="right")
        return self._first[shards_of_window[shard]] + index_in_window - (ends - self.sizes[shards_of_window])[shard]

    def epochs(self, rows: int) -> float:
        return rows / self.size
