"""Types of arrays, and the mixer of 64-bit numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]

_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31 = np.uint64(30), np.uint64(27), np.uint64(31)


def mix(x: UInt64) -> UInt64:
    """A bijection on 64 bits in which each input bit flips about half of the output bits: SplitMix64's finaliser
    (Steele, Lea and Flood 2014; constants of Stafford's variant 13). `x` stays as it is."""
    x = (x ^ (x >> _30)) * _FIRST  # unsigned integers wrap around on purpose
    x ^= x >> _27
    x *= _SECOND
    x ^= x >> _31
    return x
