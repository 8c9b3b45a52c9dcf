"""How fast this device multiplies matrices, measured: the ceiling that a share of is reported."""

from __future__ import annotations

import statistics
import time

import torch

SHAPES = ((4096, 768, 3072), (2048, 2048, 2048))


def gemm_ceiling(device: str, dtype: torch.dtype) -> float:
    """FLOP/s of the better of two shapes that encoders use, median of 7 each; about half a second on 2 cores."""
    best = 0.0
    for m, k, n in SHAPES:
        a, b = torch.randn(m, k, device=device).to(dtype), torch.randn(k, n, device=device).to(dtype)
        times = []
        for _ in range(9):
            begin = time.perf_counter()
            a @ b
            if device != "cpu":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
        best = max(best, 2.0 * m * k * n / statistics.median(times[2:]))
    return best
