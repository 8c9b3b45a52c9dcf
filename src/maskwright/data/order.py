"""The order of rows: a keyed permutation that is a function, so resuming is a seek.

It is a generalised Feistel network over a x b, the smallest near-square that holds `size`. Results outside `size` are
permuted again until they fall inside (cycle walking), which keeps it a bijection (Black and Rogaway 2002). The idea of
using it for data order is levanter's.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from maskwright.data import bits

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


class RowOrder:
    """A permutation of all `size` rows, different in each epoch, from blocks that are computed at once."""

    def __init__(self, seed: int, size: int, first_epoch: int = 0) -> None:
        """`first_epoch`: number of the epoch that the rows begin with."""
        self.seed, self.size, self.first_epoch = seed, size, first_epoch
        self._block: tuple[int, int, NDArray[np.int64]] | None = None

    def at(self, seen: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(epochs, rows) of the run's rows with numbers `seen`."""
        epochs, index = np.divmod(seen, self.size)
        epochs += self.first_epoch
        rows = np.empty(len(seen), np.int64)
        block = epochs * self.size + index // ORDER_BLOCK * ORDER_BLOCK  # distinct for each block of each epoch
        for first in sorted({*block.tolist()}):
            is_here = block == first
            rows[is_here] = self._order_block(first // self.size, first % self.size)[index[is_here] % ORDER_BLOCK]
        return epochs, rows

    def epochs(self, rows: int) -> float:
        """Epochs in the first `rows` rows."""
        return rows / self.size

    def _order_block(self, epoch: int, begin: int) -> NDArray[np.int64]:
        """The order from `begin` on. Only the last block is kept: a cache of a pure function, not a state."""
        if self._block is None or self._block[:2] != (epoch, begin):
            index = np.arange(begin, min(begin + ORDER_BLOCK, self.size), dtype=np.int64)
            self._block = (epoch, begin, order(self.seed, epoch, index, self.size))
        return self._block[2]
