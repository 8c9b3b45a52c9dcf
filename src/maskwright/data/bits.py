"""Random numbers without a stream: 64 well-mixed bits as a pure function of integers, vectorised.

There is no stream and so no state to save: restarts, virtual workers and world size cannot change a number.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from maskwright.text.arrays import UInt64, mix

Bits = UInt64
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@lru_cache(maxsize=256)  # each batch uses the same few; a key takes 8 microseconds
def key(*numbers: int) -> np.uint64:
    """A 64-bit key from non-negative integers, such as (seed, epoch, purpose)."""
    result = np.zeros(1, np.uint64)
    for number in numbers:
        result = extend(result, np.array([number & 0xFFFFFFFFFFFFFFFF], np.uint64))
    return np.uint64(result[0])


def extend(keys: Bits | np.uint64, numbers: Bits) -> Bits:
    """Keys that also depend on `numbers`; shapes broadcast."""
    return mix(keys + (numbers + np.uint64(1)) * _GOLDEN)


def uniform(bits: Bits) -> NDArray[np.float64]:
    """The upper 53 bits as a number in [0, 1)."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def below(bits: Bits, share: float) -> NDArray[np.bool_]:
    """Whether `uniform(bits)` is below a share, without a conversion to floats."""
    return (bits >> np.uint64(11)) < np.uint64(math.ceil(share * 2.0**53))
