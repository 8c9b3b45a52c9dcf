"""The connections between the processes of a run, by which the kernel notices that a host has vanished.

A host that loses its power or its network sends nothing, so a collective operation cannot tell it from one that reads
a checkpoint. The kernel of a live host always answers a probe. Only a process that is stopped for
so long, while data is on its way to it, counts as vanished too.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress

VANISHED_SECONDS = 90
"""A connection ends when the other host has not answered for so long."""
PROBE_SECONDS = 10
"""Between two probes."""

_of_peers: dict[int, int] = {}
"""Inode of the socket behind each descriptor."""


class Gone(RuntimeError):
    """Another process of this run, or its host, no longer answers."""


def sockets() -> dict[int, int]:
    """Descriptors of this process's TCP connections, each with the inode of its socket."""
    found = {}
    for number in map(int, os.listdir("/dev/fd")):
        with suppress(OSError), _shared(number) as connection:
            if connection.type == socket.SOCK_STREAM and connection.family in (socket.AF_INET, socket.AF_INET6):
                connection.getpeername()  # a listening one has none
                found[number] = os.fstat(number).st_ino
    return found


def probe(before: dict[int, int]) -> None:
    """From now on, the kernel probes the connections that were made since `before`: those to the other processes."""
    _of_peers.update({number: inode for number, inode in sockets().items() if before.get(number) != inode})
    tcp = {"TCP_KEEPIDLE": PROBE_SECONDS, "TCP_KEEPINTVL": PROBE_SECONDS, "TCP_USER_TIMEOUT": VANISHED_SECONDS * 1000}
    tcp["TCP_KEEPCNT"] = VANISHED_SECONDS // PROBE_SECONDS
    for number in _of_peers:
        with _shared(number) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in tcp.items():
                if hasattr(socket, name):  # a Mac lacks some
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def require_peers() -> None:
    """Raises `Gone` where a connection to another process has ended."""
    if not all(_is_open(number, inode) for number, inode in _of_peers.items()):
        raise Gone("a connection has ended")


def _is_open(number: int, inode: int) -> bool:
    try:
        if os.fstat(number).st_ino != inode:
            return False
        with _shared(number) as connection:
            return not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) and _established(connection)
    except OSError:
        return False


def _established(connection: socket.socket) -> bool:
    """By the first byte of Linux's `tcp_info`, TCP_ESTABLISHED (include/net/tcp_states.h)."""
    return not hasattr(socket, "TCP_INFO") or connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == 1


def _shared(number: int) -> socket.socket:
    """The socket behind a descriptor that a library owns; closing this one leaves that open."""
    copy = os.dup(number)
    try:
        return socket.socket(fileno=copy)
    except OSError:  # no socket
        os.close(copy)
        raise
