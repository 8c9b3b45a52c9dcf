"""Processes of this machine by their pids, which are unique in a pid space and are used again after a while."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from typing import Literal

State = Literal["alive", "stopped", "gone"]


def this_machine() -> str:
    """An id that differs between machines, and between two boots of one machine."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return platform.node()


def this_pid_space() -> str:
    """Id of the space in which a pid is unique: this boot of this machine and, in a container, that container."""
    with suppress(OSError):
        return f"{this_machine()} {os.readlink('/proc/self/ns/pid')}"
    return this_machine()


def pid_started(pid: int) -> int:
    """When the process started, in clock ticks since boot, which identifies a reused pid. 0 if the process is gone, or
    on a system without /proc."""
    fields = _stat(pid)
    return int(fields[19]) if fields else 0


def state_of(pid: int, started: int) -> State:
    """The state of a process of this pid space. `stopped`: by SIGSTOP, SIGTSTP or a debugger."""
    fields = _stat(pid)
    if fields is None:
        return "alive" if _exists(pid) else "gone"
    if fields[0] in "ZX" or (started and int(fields[19]) != started):
        return "gone"
    return "stopped" if fields[0] in "Tt" else "alive"


def _stat(pid: int) -> list[str] | None:
    """The fields from the process's state on; the name before it may contain any character."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split() or None
    except OSError:
        return None


def _exists(pid: int) -> bool:
    """Whether there is such a process, even of another user whose processes /proc hides (`hidepid`)."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True
