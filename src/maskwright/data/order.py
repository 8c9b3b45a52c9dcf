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


def order(seed: int, epoch: int, index: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """The row at each `index` (0 <= index < size) of an epoch, in O(1) each. Keeps the shape and dtype of `index`."""
    if size < 1 or (index.size and (index.min() < 0 or index.max() >= size)):
        raise ValueError(f"index outside 0..{size - 1}")
    high = math.isqrt(size - 1) + 1
    low = -(-size // high)
    a, b = np.uint64(high), np.uint64(low)
    keys = [bits.key(seed, epoch, ORDER_PURPOSE, number) for number in range(ROUNDS)]

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
