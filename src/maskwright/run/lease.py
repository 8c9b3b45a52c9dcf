"""Lets one process at a time write a folder, across machines: a lock file that the kernel guards, and a lease.

The lock (`flock`) decides on one machine, at once and however its holder died. Other machines that see the folder may
not see the lock; so the holder also counts up a number in `lease.json`. A process that finds another machine's lease
watches the number for a while: if it stands still, the holder is dead. No clocks are compared.
"""

from __future__ import annotations

import os
import platform
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from maskwright.core import storage
from maskwright.core.console import say, warn
from maskwright.core.errors import InputError, Locked, MaskwrightError, StoppedEarly
from maskwright.core.folder import Folder

BEAT_SECONDS = 5.0
WATCH_SECONDS = 30.0
"""Six beats, since the holder's file system may be slow, and a process may be stopped for seconds."""
ENDING_SECONDS = 60.0
"""How long a lease that moves is waited for: its holder may save on a machine that an engine has given up, and the
engine takes a refusal (2) as final."""


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


class Lease:
    """The holder's heartbeat. Once `lost`, another process has taken the folder over, for example after this one was
    suspended for long; then this one must not write."""

    def __init__(self, path: str) -> None:
        self._path, self._token = path, uuid.uuid4().hex
        self._beats, self._over = 0, threading.Event()
        self.lost = False
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)

    @classmethod
    def take(cls, path: str) -> Lease | None:
        """Takes the lease; None if there is one already. If several machines try at once, the file system lets one
        create the file, even where it does not share locks."""
        lease = cls(path)
        if not _folder(path).create_json(os.path.basename(path), lease._next()):
            return None
        lease._thread.start()
        return lease

    def release(self) -> None:
        self._over.set()
        self._thread.join()
        if not self.lost:
            with suppress(OSError):
                os.unlink(self._path)

    def require(self) -> None:
        """Raises `InputError` if the lease is lost."""
        if self.lost:
            what = "was taken over by another process; this one writes no more"
            raise InputError(what, where=os.path.dirname(self._path), fix="let one process at a time run on a folder")

    def _beat(self) -> None:
        while not self._over.wait(BEAT_SECONDS):
            # On a full disk the number stands still, but the lock still holds on this machine.
            with suppress(OSError, MaskwrightError):
                record = _read(self._path)
                if record is not None and record.get("token") != self._token:
                    self.lost = True
                    return
                storage.write_json(self._path, self._next())

    def _next(self) -> dict[str, Any]:
        self._beats += 1
        return {
            "token": self._token,
            "beat": self._beats,
            "machine": this_machine(),
            "host": platform.node(),
            "pid_space": this_pid_space(),
            "pid": os.getpid(),
        }


@contextmanager
def leased(
    folder: str, *, sleep: Callable[[float], None] = time.sleep, stop: Callable[[], bool] = lambda: False
) -> Iterator[Lease]:
    """Holds the folder by its lock and its lease. Raises `Locked` with the holder's name if it is held, `StoppedEarly`
    if `stop` becomes true meanwhile."""
    storage.make_folder(folder)
    with storage.locked(os.path.join(folder, "lock"), remove=False, is_needed=False) as is_locked:
        path = os.path.join(folder, "lease.json")
        while (lease := Lease.take(path)) is None:
            _remove_dead(path, is_locked, sleep, stop)
        try:
            yield lease
        finally:
            lease.release()


def _remove_dead(path: str, is_locked: bool, sleep: Callable[[float], None], stop: Callable[[], bool]) -> None:
    """Deletes a dead lease. Raises `Locked` if its holder is alive."""
    record = _read(path)
    # With the lock held here, this machine's holder is dead.
    ours = is_locked and record is not None and record.get("machine") == this_machine()
    if ours or _stands_still(path, record, sleep, stop):
        with suppress(FileNotFoundError):
            os.unlink(path)


def _stands_still(
    path: str, record: dict[str, Any] | None, sleep: Callable[[float], None], stop: Callable[[], bool]
) -> bool:
    """Whether the holder is dead; False if the lease disappears meanwhile. Raises `Locked` if it still changes."""
    if not os.path.exists(path):
        return False
    holder = f"process {record.get('pid')} on {record.get('host')}" if record else "an unknown process"
    say(f"{holder} has left a lease here: watching it for up to {ENDING_SECONDS:g} seconds")
    still = 0
    for _ in range(int(ENDING_SECONDS)):
        sleep(1.0)
        still += 1
        if stop():
            what = "stopped while it watched another process's lease; nothing was started"
            raise StoppedEarly(what, reason="signal")
        if not os.path.exists(path):
            return False
        if (now := _read(path)) != record:
            record, still = now, 0
        if still >= WATCH_SECONDS:
            warn(f"{holder} gives no sign of life: taking over")
            return True
    fix = "wait for it, or stop it with maskwright stop"
    raise Locked(f"is in use by {holder}", where=os.path.dirname(path), fix=fix)


def _read(path: str) -> dict[str, Any] | None:
    """The lease; None if there is none or it cannot be parsed."""
    return _folder(path).get_json(os.path.basename(path))


def _folder(path: str) -> Folder:
    return Folder(os.path.dirname(path))
