"""A device's measured speed of matrix products: the ceiling with which a run's speed is compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from maskwright.core.library_errors import is_out_of_memory

SHAPES = ((4096, 768, 3072), (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192))
"""(m, k, n). Encoders use the first two; the others are for devices that finish those too soon."""
FEW_ROWS, PRODUCT_SECONDS = 256, 0.02
"""A slow device multiplies fewer rows, so that a product takes no longer: on one core of an AMD EPYC (Zen 4), 256
rows reach 93 to 95 GFLOP/s in fp32, 4,096 reach 86, and take 0.2 seconds."""
SHAPE_SECONDS = 0.1
"""Time for one shape after its first products, so that a slow machine does not wait long for its own measurement. It
also wakes a GPU, whose clock is low when it has nothing to do: an H100's is 345 MHz."""
GROUP_SECONDS = 0.01
MOST_TOGETHER = 20
"""Products that are timed together fill about `GROUP_SECONDS`, so that the host's time to launch a product and to
notice its end does not count."""
SHORT_SECONDS = 1e-3
"""A faster product does not fill the device: an H100 reached 155, 530 and 734 TFLOP/s with the last three
shapes, in bf16, each product timed alone (records/experiments.md)."""

Products = Callable[[int], float]
"""Computes this many products one after the other, and returns their seconds, by the device's own clock if it has
one."""


@dataclass
class Ceiling:
    """Measured at a start. A busy neighbour can only lower it."""

    flops_per_second: float

    def share(self, flops_per_second: float) -> float:
        """The share of the ceiling, at most 1, since a higher speed becomes the ceiling."""
        self.flops_per_second = max(self.flops_per_second, flops_per_second)
        return flops_per_second / self.flops_per_second


def gemm_ceiling(prepare: Callable[[int, int, int], Products]) -> float:
    """FLOP/s of the fastest product of two shapes that encoders use. While the last product took less than a
    millisecond, larger shapes follow, if memory suffices. `prepare(m, k, n)` returns the `Products` of [m, k] and [k,
    n]."""
    best = fastest = 0.0
    for number, (m, k, n) in enumerate(SHAPES):
        if number >= 2 and fastest >= SHORT_SECONDS:
            break
        try:
            m = _rows(prepare, m, k, n)
            fastest = _fastest_product(prepare(m, k, n))
        except (RuntimeError, MemoryError) as error:
            if number < 2 or not is_out_of_memory(error):
                raise
            break
        best = max(best, 2.0 * m * k * n / fastest)
    return best


def _rows(prepare: Callable[[int, int, int], Products], most: int, k: int, n: int) -> int:
    """Rows with which a product takes up to `PRODUCT_SECONDS`: `most`, halved as often as needed, down to
    `FEW_ROWS`."""
    least, rows = min(FEW_ROWS, most), most
    products = prepare(least, k, n)
    products(1)
    seconds = products(1) / least
    while rows // 2 >= FEW_ROWS and rows * seconds > PRODUCT_SECONDS:
        rows //= 2
    return rows


def _fastest_product(products: Products) -> float:
    """Seconds of one product, from the fastest group; the first products only warm up. The time spent is counted at the
    fastest product's speed, so that a single slow product does not end the measurement."""
    products(1)
    fastest, spent = products(1), 0.0
    while spent < SHAPE_SECONDS:
        together = max(1, min(round(GROUP_SECONDS / fastest), MOST_TOGETHER))
        fastest = min(fastest, products(together) / together)
        spent += together * fastest
    return fastest
