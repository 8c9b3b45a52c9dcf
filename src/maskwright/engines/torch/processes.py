"""Discovery of the other ranks of a torch run by `env://` variables, before anything is computed.

Messages about the run (`Peers`) go over gloo. Gradients and weights on CUDA devices go over NCCL.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor

from maskwright.config import pretraining as run
from maskwright.core.errors import ConfigError
from maskwright.engines.processes import (
    CONNECT_SECONDS,
    LONGEST_MESSAGE,
    Alone,
    Launch,
    Processes,
    find,
    launch_variables,
)
from maskwright.engines.torch.connections import Gone, probe, sockets
from maskwright.engines.torch.levels import Levels
from maskwright.engines.torch.rendezvous import meet
from maskwright.machine import hardware
from maskwright.model.torch.linear import mkl_product

SILENT_SECONDS = 1800
"""How long a rank waits for a message of another that is alive: checkpoints are read and caches filled in between. A
host that has vanished is noticed earlier (`connections`)."""
NCCL_SECONDS = 600
"""How long NCCL waits before it ends the process by a signal. It never waits for a checkpoint: all ranks have exchanged
a message just before."""
LOST = ("connection", "socket", "broken pipe", "timed out waiting", "failed to recv", "remote process", "was aborted")
"""Words in the errors of collective operations when another process has died."""


class Peers:
    """`Processes` of several ranks, over gloo."""

    has_mkl = False
    """Whether each of them `has_mkl`."""
    levels: Levels

    def __init__(self) -> None:
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    def broadcast(self, data: bytes) -> bytes:
        length = torch.tensor([len(data)])
        dist.broadcast(length, 0)
        content = torch.frombuffer(bytearray(data or b"-"), dtype=torch.uint8) if self.rank == 0 else None
        buffer = content if content is not None else torch.empty(max(1, int(length)), dtype=torch.uint8)
        dist.broadcast(buffer, 0)
        return buffer[: int(length)].numpy().tobytes()

    def gather(self, data: bytes) -> list[bytes]:
        message = torch.zeros(LONGEST_MESSAGE + 8, dtype=torch.uint8)
        message[: 8 + len(data)] = torch.frombuffer(
            bytearray(len(data).to_bytes(8, "little") + data), dtype=torch.uint8
        )
        messages = [torch.empty_like(message) for _ in range(self.world_size)]
        dist.all_gather(messages, message)
        texts = (message_tensor.numpy().tobytes() for message_tensor in messages)
        return [text[8 : 8 + int.from_bytes(text[:8], "little")] for text in texts]

    def gather_numbers(self, numbers: Tensor) -> Tensor:
        """Gathers [n] of each rank into [world_size, n], on the CPU."""
        return self.begin_to_gather(numbers)()

    def begin_to_gather(self, numbers: Tensor) -> Callable[[], Tensor]:
        """The function waits for what `gather_numbers` returns."""
        of_ranks = [torch.empty_like(numbers) for _ in range(self.world_size)]
        work = cast(dist.Work, dist.all_gather(of_ranks, numbers, async_op=True))

        def gathered() -> Tensor:
            work.wait()
            return torch.stack(of_ranks)

        return gathered

    def lost(self, error: Exception) -> bool:
        text = str(error).lower()
        return isinstance(error, Gone) or (isinstance(error, RuntimeError) and any(sign in text for sign in LOST))

    def close(self) -> None:
        try:
            self.broadcast(b"")  # waits while rank 0 copies its last checkpoint
        except RuntimeError:
            return
        dist.destroy_process_group()


@dataclass(frozen=True)
class Sums:
    """Sums over all ranks for one step."""

    weight: float
    """Weight of the predictions."""
    vote: int
    """The highest vote."""
    urgent: bool
    """Whether any rank must give the step up."""


def has_mkl() -> bool:
    """Whether MKL's product of bf16 matrices is here, and pays: on CPUs with AMX, by their flags, not a timing."""
    return hardware.cpu_has_amx() and mkl_product() is not None


def connect(engine: run.EngineSection, device: str) -> Processes:
    """Finds the other ranks. Raises `ConfigError` if a device is absent, `StoppedEarly` if they cannot be found."""
    launch = launch_variables()
    if launch and engine.devices not in (None, launch.world_size):
        fix = f"start {engine.devices} processes, or leave engine.devices out"
        raise ConfigError(
            f"{engine.devices} were requested, but {launch.world_size} compute", where="engine.devices", fix=fix
        )
    if launch and device == "cuda":
        device_count = torch.cuda.device_count()
        if launch.local_world_size > device_count:
            raise ConfigError(
                f"{launch.local_world_size} processes on this machine, but torch sees {device_count} CUDA devices",
                where="engine.device",
                fix=f"start with --processes {device_count}, or set engine.device: cpu",
            )
        torch.cuda.set_device(launch.local_rank)
    if launch is None or launch.world_size == 1:
        return Alone()
    if not dist.is_initialized():
        _find(launch, device)
    return Peers()


def _find(launch: Launch, device: str) -> None:
    before = sockets()

    def initialize() -> None:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo",
            store=meet(launch),
            rank=launch.rank,
            world_size=launch.world_size,
            timeout=timedelta(seconds=SILENT_SECONDS),
        )

        _know(launch, device)  # before any rank can fail alone: its word to the others would meet this one

    find(initialize, CONNECT_SECONDS)
    probe(before)
    if device == "cuda":
        backend = dist.group.WORLD._get_backend(torch.device("cuda"))  # type: ignore[union-attr]
        backend._set_default_timeout(timedelta(seconds=NCCL_SECONDS))
        atexit.register(_abort)


def _know(launch: Launch, device: str) -> None:
    """Learns what the ranks have in common. Sums have two levels where each machine has as many neighbouring ranks."""
    here = [launch.local_world_size, launch.local_rank, device == "cpu" and has_mkl()]
    of_ranks = Peers().gather_numbers(torch.tensor(here, dtype=torch.int64))
    L, expected = launch.local_world_size, torch.arange(launch.world_size) % launch.local_world_size
    alike = launch.world_size % L == 0 and bool((of_ranks[:, 0] == L).all() and (of_ranks[:, 1] == expected).all())
    backend, seconds = ("nccl", NCCL_SECONDS) if device == "cuda" else ("gloo", SILENT_SECONDS)
    timeout = timedelta(seconds=seconds)
    Peers.levels = Levels(launch.rank, launch.world_size, L if alike else None, backend=backend, timeout=timeout)
    Peers.has_mkl = bool(of_ranks[:, 2].all())


def _abort() -> None:
    """Ends what NCCL still does when a run has failed: torch would wait for it, and then end by a signal."""
    for group in (dist.group.WORLD, *(level.group for level in Peers.levels.levels)) if dist.is_initialized() else ():
        if group:
            group.abort()
