"""For as long as a test of the cloud runs, this thread, and every thread and process that it starts, has a network with
nothing in it but loopback: whatever forgets its endpoint override meets nobody."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

CLONE_NEWNET = 0x40000000
SIOCSIFFLAGS, IFF_UP_AND_RUNNING = 0x8914, 0x1 | 0x40
NOWHERE = "http://127.0.0.1:9"
"""Port 9 discards; nobody listens."""
PROXIES = {"HTTP_PROXY": NOWHERE, "HTTPS_PROXY": NOWHERE, "NO_PROXY": "127.0.0.1,localhost"}
"""For where no namespace can be made: clients that honour them fail at a dead proxy."""


@contextmanager
def loopback_only() -> Iterator[bool]:
    """Gives whether there is a namespace. It needs root (or CAP_SYS_ADMIN): a process with threads may not make a user
    namespace of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        if libc.unshare(CLONE_NEWNET):
            yield False
            return
        try:
            with socket.socket() as any_:
                fcntl.ioctl(any_, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP_AND_RUNNING))
            yield True
        finally:
            if libc.setns(home, CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "cannot return to the network namespace")
    finally:
        os.close(home)
