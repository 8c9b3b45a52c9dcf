"""Discovery of the other ranks of a torch run by `env://` variables, before anything is computed.

Messages about the run (`Peers`) go over gloo. Gradients and weights on CUDA devices go over NCCL.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

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
    is_loopback,
    launch_variables,
)
from maskwright.processes.parent import LISTENER

NAME_SECONDS = 120.0
SILENT_SECONDS = 1800
"""How long a collective operation waits for a live rank that does not answer before it counts as lost:
checkpoints are read and caches filled in between."""
LOST = ("connection", "socket", "broken pipe", "timed out waiting", "failed to recv", "remote process", "was aborted")
"""Words in the errors of collective operations when another process has died."""

gather_into = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""Gathers [n] of each rank into [world_size * n]. torch 2.13 has the first name and warns of the second; 2.11 has only
the second."""


class Peers:
    """`Processes` of several ranks, over gloo."""

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
        return isinstance(error, RuntimeError) and any(sign in text for sign in LOST)

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


class Exchange:
    """The single exchange between ranks in an update, even if its gradient is computed again. `ask`: begins it, given
    whether this rank must give the step up, and returns what waits for it."""

    def __init__(self, ask: Callable[[bool], Callable[[], Sums]]) -> None:
        self._ask = ask
        self._sums: Callable[[], Sums] | None = None

    def begin(self, *, urgent: bool = False) -> Callable[[], Sums]:
        """Begins it, if that has not been done."""
        self._sums = self._sums or self._ask(urgent)
        return self._sums


def connect(engine: run.EngineSection, device: str) -> Processes:
    """Finds the other ranks. Raises `ConfigError` if a device is absent, `StoppedEarly` if they cannot be found."""
    launch = launch_variables()
    if launch and engine.devices not in (None, launch.world_size):
        fix = f"start {engine.devices} processes, or leave engine.devices out"
        raise ConfigError(
            f"{engine.devices} were asked for, and {launch.world_size} compute", where="engine.devices", fix=fix
        )
    if launch and device == "cuda":
        device_count = torch.cuda.device_count()
        if launch.local_world_size > device_count:
            raise ConfigError(
                f"{launch.local_world_size} processes on this machine, and torch sees {device_count} CUDA devices",
                where="engine.device",
                fix=f"start with --processes {device_count}, or say engine.device: cpu",
            )
        torch.cuda.set_device(launch.local_rank)
    if launch is None or launch.world_size == 1:
        return Alone()
    if device == "mps":
        fix = "start one process, or say engine.device: cpu"
        raise ConfigError("torch's processes cannot exchange what lies on mps", where="engine.device", fix=fix)
    if not dist.is_initialized():
        _find(launch, "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
    return Peers()


def _find(launch: Launch, backend: str) -> None:
    if is_loopback(launch.address):
        # gloo and NCCL would listen on the address that the host's name has.
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, next(name for _, name in socket.if_nameindex() if name.startswith("lo")))

    def initialize() -> None:
        dist.init_process_group(
            backend,
            store=_store(launch),
            rank=launch.rank,
            world_size=launch.world_size,
            timeout=timedelta(seconds=SILENT_SECONDS),
        )

    find(initialize, CONNECT_SECONDS)


def _resolve(launch: Launch) -> tuple[Any, ...]:
    """The address of rank 0. Retries, as torch does on other ranks: a Kubernetes pod's name appears seconds late."""
    until = time.monotonic() + NAME_SECONDS
    while True:
        try:
            return socket.getaddrinfo(launch.address, launch.port, type=socket.SOCK_STREAM)[0]
        except socket.gaierror:
            if time.monotonic() > until:
                raise
            time.sleep(1.0)


def _store(launch: Launch) -> dist.TCPStore:
    """Makes a store; rank 0 listens only on the address that the others call, where torch's own listens on all."""
    listener: int | None = None
    first = launch.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"  # else torchrun listens
    if first and LISTENER in os.environ:
        listener = int(os.environ.pop(LISTENER))
    elif first:
        family, kind, *_, address = _resolve(launch)
        with socket.socket(family, kind) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(address)
            server.listen(1024)
            listener = server.detach()
    return dist.TCPStore(
        launch.address,
        launch.port,
        launch.world_size,
        first,
        timeout=timedelta(seconds=CONNECT_SECONDS + 60.0),  # after the deadline of `find`: torch's prints a C++ stack
        wait_for_workers=False,
        master_listen_fd=listener,
    )
