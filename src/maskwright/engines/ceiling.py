"""How fast a device multiplies matrices, measured: the ceiling that a share of is reported."""

from __future__ import annotations

import time
from collections.abc import Callable

SHAPES = ((4096, 768, 3072), (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192))
"""m, k and n. Encoders use the first two; the others are for devices that finish those too soon."""
LONGEST_SECONDS = 0.1
"""Time for one shape after its first product, so that a slow machine does not wait long for its own measurement."""
SHORT_SECONDS = 1e-3
"""A product that takes less does not fill the device: an H100 reached 155, 530 and 734 TFLOP/s with the last three
shapes, in bf16 (docs/experiments.md)."""


def gemm_ceiling(prepare: Callable[[int, int, int], Callable[[], object]]) -> float:
    """FLOP/s of the fastest product of two shapes that encoders use, of up to 7 each after one to warm up. While the
    last product took less than a millisecond, larger shapes follow, as far as memory reaches.
    `prepare(m, k, n)` gives what multiplies [m, k] by [k, n] and waits for it.

    The fastest, since a busy neighbour can only slow a product down. One that is busy for longer than this measurement
    is met by measuring again later (`training/loop.py`).
    """
    best = fastest = 0.0
    for number, (m, k, n) in enumerate(SHAPES):
        if number >= 2 and fastest >= SHORT_SECONDS:
            break
        try:
            fastest = _fastest_product(prepare(m, k, n))
        except (RuntimeError, MemoryError) as error:
            from maskwright.engines.base import is_out_of_memory

            if number < 2 or not is_out_of_memory(error):
                raise
            break
        best = max(best, 2.0 * m * k * n / fastest)
    return best


def _fastest_product(multiply: Callable[[], object]) -> float:
    times: list[float] = []
    while len(times) < 8 and (len(times) < 2 or sum(times[1:]) < LONGEST_SECONDS):
        begin = time.perf_counter()
        multiply()
        times.append(time.perf_counter() - begin)
    return min(times[1:])
