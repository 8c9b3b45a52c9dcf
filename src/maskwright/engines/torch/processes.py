"""Finding the other processes of a torch run, by `env://` variables, before anything is computed.

What processes say to each other about the run (`Peers`) goes over gloo; gradients and weights go over NCCL where they
are on CUDA devices.
"""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from maskwright.core import config as run
from maskwright.core.errors import ConfigError
from maskwright.core.parent import LISTENER
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

NAME_SECONDS = 120.0
SILENT_SECONDS = 1800
"""Of a collective operation, after which a process that neither answers nor is gone counts as lost: checkpoints are
read and caches filled in between."""
LOST = ("connection", "socket", "broken pipe", "timed out waiting", "failed to recv", "remote process", "was aborted")
"""Words in the errors of collective operations when another process has died."""

gather_into = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""[n] of each process -> [processes * n]. torch 2.13 gave it the first name and warns of the second, 2.11 has only that
one."""


class Peers:
    """More than one process, over gloo."""

    def __init__(self) -> None:
        self.number, self.count = dist.get_rank(), dist.get_world_size()

    def share(self, data: bytes) -> bytes:
        length = torch.tensor([len(data)])
        dist.broadcast(length, 0)
        given = torch.frombuffer(bytearray(data or b"-"), dtype=torch.uint8) if self.number == 0 else None
        found = given if given is not None else torch.empty(max(1, int(length)), dtype=torch.uint8)
        dist.broadcast(found, 0)
        return found[: int(length)].numpy().tobytes()

    def gather(self, data: bytes) -> list[bytes]:
        own = torch.zeros(LONGEST_MESSAGE + 8, dtype=torch.uint8)
        own[: 8 + len(data)] = torch.frombuffer(bytearray(len(data).to_bytes(8, "little") + data), dtype=torch.uint8)
        found = [torch.empty_like(own) for _ in range(self.count)]
        dist.all_gather(found, own)
        texts = (one.numpy().tobytes() for one in found)
        return [text[8 : 8 + int.from_bytes(text[:8], "little")] for text in texts]

    def numbers(self, own: Tensor) -> Tensor:
        """[n] of each process -> [processes, n], on the CPU."""
        found = [torch.empty_like(own) for _ in range(self.count)]
        dist.all_gather(found, own)
        return torch.stack(found)

    def lost(self, error: Exception) -> bool:
        text = str(error).lower()
        return isinstance(error, RuntimeError) and any(sign in text for sign in LOST)

    def close(self) -> None:
        try:
            self.share(b"")  # for as long as process 0 still copies its last checkpoint
        except RuntimeError:
            return
        dist.destroy_process_group()


def connect(engine: run.Engine, device: str) -> Processes:
    """Raises `ConfigError` where a device is absent, `StoppedEarly` where the others are not to be found."""
    launch = launch_variables()
    if launch and engine.devices not in (None, launch.count):
        fix = f"start {engine.devices} processes, or leave engine.devices out"
        raise ConfigError(
            f"{engine.devices} were asked for, and {launch.count} compute", where="engine.devices", fix=fix
        )
    if launch and device == "cuda":
        there = torch.cuda.device_count()
        if launch.local_count > there:
            raise ConfigError(
                f"{launch.local_count} processes on this machine, and torch sees {there} CUDA devices",
                where="engine.device",
                fix=f"start with --processes {there}, or say engine.device: cpu",
            )
        torch.cuda.set_device(launch.local_number)
    if launch is None or launch.count == 1:
        return Alone()
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
            rank=launch.number,
            world_size=launch.count,
            timeout=timedelta(seconds=SILENT_SECONDS),
        )

    find(initialize, CONNECT_SECONDS)


def _resolve(launch: Launch) -> tuple[Any, ...]:
    """As torch does for the others: a pod on Kubernetes has its name some seconds after it has begun."""
    until = time.monotonic() + NAME_SECONDS
    while True:
        try:
            return socket.getaddrinfo(launch.address, launch.port, type=socket.SOCK_STREAM)[0]
        except socket.gaierror:
            if time.monotonic() > until:
                raise
            time.sleep(1.0)


def _store(launch: Launch) -> dist.TCPStore:
    """torch's own would listen on every address; process 0's listens on the one that the others call."""
    listener: int | None = None
    first = launch.number == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"  # else torchrun listens
    if first and LISTENER in os.environ:
        listener = int(os.environ.pop(LISTENER))
    elif first:
        family, kind, *_, address = _resolve(launch)
        with socket.socket(family, kind) as found:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
            found.listen(1024)
            listener = found.detach()
    return dist.TCPStore(
        launch.address,
        launch.port,
        launch.count,
        first,
        timeout=timedelta(seconds=2 * CONNECT_SECONDS),  # `find` gives up before torch prints a stack
        wait_for_workers=False,
        master_listen_fd=listener,
    )
