"""Numbers on their way from a CUDA device to the host."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from maskwright.engines.torch.connections import require_peers

POLL_SECONDS, PEERS_SECONDS = 0.0002, 1.0


@dataclass(frozen=True)
class Arriving:
    """A number that `float()` waits for. `float()` of a tensor on the device would wait for all work that the device
    was given since, and neither signals nor the end of another process would end that."""

    numbers: Tensor
    """float64 on the host; unset until the event."""
    arrived: torch.cuda.Event
    index: int

    def __float__(self) -> float:
        """Raises `Gone` when another process is lost, for whose gradients the device then waits."""
        look = time.monotonic() + PEERS_SECONDS
        while not self.arrived.query():
            time.sleep(POLL_SECONDS)
            if time.monotonic() > look:
                require_peers()
                look = time.monotonic() + PEERS_SECONDS
        return float(self.numbers[self.index])


def arriving(*numbers: Tensor) -> list[Arriving]:
    """Begins to copy single numbers of the current device to the host."""
    on_host = torch.empty(len(numbers), dtype=torch.float64, pin_memory=True)
    on_host.copy_(torch.stack([number.double() for number in numbers]), non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record()
    return [Arriving(on_host, arrived, index) for index in range(len(numbers))]
