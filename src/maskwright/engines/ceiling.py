"""How fast a device multiplies matrices, measured: the ceiling that a share of is reported."""

from __future__ import annotations

import time
from collections.abc import Callable

SHAPES = ((4096, 768, 3072), (2048, 2048, 2048))
LONGEST_SECONDS = 0.1
"""Time for one shape after its first product, so that a slow machine does not wait long for its own measurement."""


def gemm_ceiling(prepare: Callable[[int, int, int], Callable[[], object]]) -> float:
    """FLOP/s of the fastest product of two shapes that encoders use, of up to 7 each after one to warm up.
    `prepare(m, k, n)` gives what multiplies [m, k] by [k, n] and waits for it.

    The fastest, since a busy neighbour can only slow a product down. One that is busy for longer than this measurement
    is met by measuring again later (`training/loop.py`).
    """
    best = 0.0
    for m, k, n in SHAPES:
        multiply = prepare(m, k, n)
        times: list[float] = []
        while len(times) < 8 and (len(times) < 2 or sum(times[1:]) < LONGEST_SECONDS):
            begin = time.perf_counter()
            multiply()
            times.append(time.perf_counter() - begin)
        best = max(best, 2.0 * m * k * n / min(times[1:]))
    return best
