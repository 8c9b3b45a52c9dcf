"""Measurements of both sides of a training benchmark: the seconds of a step, and the peak of memory."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable

import torch


class Steps:
    """Seconds of steps, in groups of `together`. The device is only waited for (`wait`) at the end of a group, since it
    would otherwise idle while the host prepares the next step."""

    def __init__(self, together: int, wait: Callable[[], None]) -> None:
        self.together, self._wait = together, wait
        self.seconds: list[float] = []
        """Of one step, for each group."""
        self._done = 0
        self.resume()

    def resume(self) -> None:
        """What came since the last group does not count."""
        self._begin = time.perf_counter()

    def end_step(self) -> None:
        self._done += 1
        if self._done % self.together == 0:
            self._wait()
            end = time.perf_counter()
            self.seconds.append((end - self._begin) / self.together)
            self._begin = end

    @property
    def warm(self) -> slice:
        """Groups without the first quarter, and never the first: that one compiles, or starts the loader's workers."""
        return slice(max(1, len(self.seconds) // 4), None)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds[self.warm])


def peak_memory_bytes() -> int:
    """Where torch computes on a CUDA device, what its allocator gave out at once; else, of the process."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
