"""Leases: signs of life of processes that write a folder, for others on this machine and elsewhere.

A lease is a file with a number that its holder counts up. A holder of this pid space is dead if its process is gone.
Elsewhere that cannot be seen, so the number is watched for a while, and a holder whose number stands still is dead. No
clocks are compared.

`leased` lets one process at a time write a folder. On one machine, a lock (`flock`) decides at once, after any death of
its holder. Other machines that see the folder, or another mount on this one, may not see the lock; there the lease
decides.
"""

from __future__ import annotations

import os
import platform
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

from maskwright.core import storage
from maskwright.core.console import say, warn
from maskwright.core.errors import Locked, MaskwrightError, StoppedEarly
from maskwright.core.folder import Folder
from maskwright.core.pids import pid_started, state_of, this_pid_space

BEAT_SECONDS = 5.0
WATCH_SECONDS = 30.0
"""Six beats, since the holder's file system may be slow, and a process may be stopped for seconds."""
ENDING_SECONDS = 60.0
"""How long to wait for a moving lease, since its holder may be saving on a machine that an engine has given up, and the
engine treats a refusal (2) as final."""


class Lease:
    """The holder's heartbeat. Once `lost`, another process has taken the folder over, for example after this one was
    suspended for long; then this one must not write."""

    def __init__(self, path: str, facts: dict[str, Any] | None = None, *, recreate: bool = True) -> None:
        """`facts`: JSON values for the file, in addition to the process's own. `recreate`: whether a lease that another
        process deletes, but does not take, is written again; else it is lost."""
        self._path, self.token, self._recreate = path, uuid.uuid4().hex, recreate
        self._facts = {
            **(facts or {}),
            "token": self.token,
            "host": platform.node(),
            "pid_space": this_pid_space(),
            "pid": os.getpid(),
            "pid_started": pid_started(os.getpid()),
        }
        self._beats, self._over = 0, threading.Event()
        self.lost = False
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)

    def begin(self) -> bool:
        """Takes the lease and begins to beat. False if there is one already: if several machines try at once, the file
        system lets one create the file, even where it does not share locks."""
        if not _folder(self._path).create_json(os.path.basename(self._path), self._next()):
            return False
        self._thread.start()
        return True

    def release(self) -> None:
        self._over.set()
        self._thread.join()
        with suppress(OSError, MaskwrightError):
            if (read_lease(self._path) or {}).get("token") == self.token:  # otherwise another process has taken it over
                os.unlink(self._path)

    def require(self) -> None:
        """Raises `Locked` if the lease is lost."""
        if self.lost:
            what = "was taken over by another process, so this one stops writing"
            raise Locked(what, where=os.path.dirname(self._path), fix="run one process at a time on a folder")

    def _beat(self) -> None:
        while not self._over.wait(BEAT_SECONDS):
            # On a full disk the number stands still, but the lock still holds on this machine.
            with suppress(OSError, MaskwrightError):
                record = read_lease(self._path)
                if not self._recreate if record is None else record.get("token") != self.token:
                    self.lost = True
                    return
                storage.write_json(self._path, self._next())

    def _next(self) -> dict[str, Any]:
        self._beats += 1
        return {**self._facts, "beat": self._beats}


class Watch:
    """Finds out whether the holder of a lease lives."""

    def __init__(self, path: str) -> None:
        self.path, self.record = path, read_lease(path)
        self.state: Literal["alive", "dead", "unknown"] = "unknown"
        self._still_seconds = 0.0

    @property
    def holder(self) -> str:
        return f"process {self.record.get('pid')} on {self.record.get('host')}" if self.record else "an unknown process"

    def look(self, passed: float = 0.0) -> str:
        """The `state`; `dead` also if the lease is gone. `passed`: seconds in which this process has watched since the
        last look."""
        self.state = self._judged(passed)
        return self.state

    def _judged(self, passed: float) -> Literal["alive", "dead", "unknown"]:
        before = self.record
        try:
            self.record = read_lease(self.path)
        except (OSError, MaskwrightError):  # such as ESTALE of NFS, while the holder replaces the file
            return "unknown"
        if self.record is None and not os.path.exists(self.path):
            return "dead"
        if self.record is not None and self.record.get("pid_space") == this_pid_space():
            pid, started = (self.record.get(name) for name in ("pid", "pid_started"))
            state = state_of(pid, started) if isinstance(pid, int) and isinstance(started, int) else "stopped"
            if state != "stopped":
                return "dead" if state == "gone" else "alive"
        self._still_seconds = self._still_seconds + passed if self.record == before else 0.0
        if self._still_seconds >= WATCH_SECONDS:
            return "dead"
        return "unknown" if self.record == before else "alive"

    def remove(self) -> None:
        """Deletes the lease, unless another process holds it by now."""
        with suppress(OSError, MaskwrightError):
            if read_lease(self.path) == self.record:
                os.unlink(self.path)


@contextmanager
def leased(
    folder: str, *, sleep: Callable[[float], None] = time.sleep, stop: Callable[[], bool] = lambda: False
) -> Iterator[Lease]:
    """Holds the folder by its lock and its lease. Raises `Locked` with the holder's name if it is held, `StoppedEarly`
    if `stop` becomes true meanwhile."""
    storage.make_folder(folder)
    with storage.locked(os.path.join(folder, "lock"), remove=False, is_needed=False):
        path = os.path.join(folder, "lease.json")
        while not (lease := Lease(path)).begin():
            _remove_dead(Watch(path), sleep, stop)
        try:
            yield lease
        finally:
            lease.release()


def _remove_dead(watch: Watch, sleep: Callable[[float], None], stop: Callable[[], bool]) -> None:
    """Deletes a lease. Raises `Locked` if its holder is alive at the end of `ENDING_SECONDS`."""
    if watch.look() != "dead":
        say(f"{watch.holder} has left a lease here: watching it for up to {ENDING_SECONDS:g} seconds")
        for _ in range(int(ENDING_SECONDS)):
            sleep(1.0)
            if stop():
                what = "stopped while it watched another process's lease; nothing was started"
                raise StoppedEarly(what, reason="signal")
            if watch.look(1.0) == "dead":
                break
        else:
            fix = "wait for it, or stop it with maskwright stop"
            raise Locked(f"is in use by {watch.holder}", where=os.path.dirname(watch.path), fix=fix)
        if os.path.exists(watch.path):
            warn(f"{watch.holder} gives no sign of life, so this process takes over")
    watch.remove()


def read_lease(path: str) -> dict[str, Any] | None:
    """The lease; None if there is none or it cannot be parsed."""
    return _folder(path).get_json(os.path.basename(path))


def _folder(path: str) -> Folder:
    return Folder(os.path.dirname(path))
