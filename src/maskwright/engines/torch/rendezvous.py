"""Where the ranks of a torch run meet: the address of rank 0, and this host's interface on the way to it."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from maskwright.engines.processes import CONNECT_SECONDS, Launch, is_loopback
from maskwright.processes.parent import LISTENER

NAME_SECONDS = 120.0
ANYWHERE = ("192.0.2.1", 9)
"""An address for documentation (RFC 5737), to which the way is the default route."""
SIOCGIFADDR = 0x8915


def meet(launch: Launch) -> dist.TCPStore:
    """The store of the run, at rank 0. Backends listen on this host's interface to it from then on."""
    called, own = _addresses(launch)
    _listen_at(own)
    return _store(launch, called)


def _addresses(launch: Launch) -> tuple[str, str]:
    """(the host that this rank calls to reach rank 0, the address at which other hosts reach this one or "").

    Debian and Ubuntu give the host's own name an address of loopback, 127.0.1.1. Rank 0's host then stands for itself
    with the address of its default route, which other hosts have of it by DNS."""
    family, *_, address = _resolve(launch)
    if is_loopback(address[0]):
        several = launch.local_world_size < launch.world_size and not is_loopback(launch.address)
        own = (several and _default_address()) or address[0]
        return own, own
    return launch.address, _source(family, address)


def _source(family: int, address: tuple[Any, ...]) -> str:
    """This host's address on the way to another; "" if there is none yet."""
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # sends nothing
        return str(probe.getsockname()[0])
    return ""


def _default_address() -> str:
    """This host's address on its default route, else of any interface but loopback; "" if it has none."""
    others = (address for address in _interfaces() if not is_loopback(address))
    return _source(socket.AF_INET, ANYWHERE) or next(others, "")


def _listen_at(own: str) -> None:
    """gloo would listen at the address of the host's name. NCCL looks for interfaces itself, and for the fastest, so
    its variable is set only if all ranks are on one host."""
    interface = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    if not is_loopback(own):
        interface = _interfaces().get(own.partition("%")[0])
    elif interface:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
    if interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


def _interfaces() -> dict[str, str]:
    """Names of this host's interfaces, by address. Only Linux lists IPv6."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without an address
                reply = fcntl.ioctl(any_, SIOCGIFADDR, struct.pack("256s", name.encode()))
                found[socket.inet_ntoa(reply[20:24])] = name
    with suppress(OSError), open("/proc/net/if_inet6", encoding="ascii") as file:
        for line in file:
            digits, *_, name = line.split()
            found[str(ipaddress.IPv6Address(int(digits, 16)))] = name
    return found


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


def _store(launch: Launch, called: str) -> dist.TCPStore:
    """Makes a store; rank 0 listens only on the address that the others call, where torch's own listens on all."""
    listener: int | None = None
    first = launch.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"  # else torchrun listens
    if first and LISTENER in os.environ:
        listener = int(os.environ.pop(LISTENER))
    elif first:
        family, kind, *_, address = socket.getaddrinfo(called, launch.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(address)
            server.listen(1024)
            listener = server.detach()
    return dist.TCPStore(
        called,
        launch.port,
        launch.world_size,
        first,
        timeout=timedelta(seconds=CONNECT_SECONDS + 60.0),  # after the deadline of `find`: torch's prints a C++ stack
        wait_for_workers=False,
        master_listen_fd=listener,
    )
