"""A folder in which several processes, of this machine or of many, compute the parts of one work together.

Each holds a lease in the folder, and claims what it computes by a file that names the lease. The claim of a dead
process is free again. Two processes may still compute the same, for example after one was suspended for long; that is
harmless, since results are whole or absent, and the same from any process.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from maskwright.core import storage
from maskwright.core.errors import Locked, MaskwrightError, StoppedEarly
from maskwright.core.lease import BEAT_SECONDS, Lease, Watch
from maskwright.core.secrets import redact

POLL_SECONDS = 0.5
LEASE, CLAIM = ".lease-", ".claim-"
"""Beginnings of names in the folder."""


class Claims:
    """What this process computes in a folder, and what the others do."""

    def __init__(self, folder: str, lease: Lease, name: str) -> None:
        self.folder, self._lease, self._name = folder, lease, name
        self._mine = set[str]()
        self._watched: dict[str, Watch] = {}
        self._looked = time.monotonic()
        self._unnamed = Counter[str]()
        """How often each claim was seen that names no lease yet."""

    def take(self, name: str) -> bool:
        """Claims the result `name`, unless another process has done that."""
        self._lease.require()
        try:
            with open(os.path.join(self.folder, CLAIM + name), "x", encoding="ascii") as file:
                file.write(self._name)
        except FileExistsError:
            return False
        self._mine.add(name)
        return True

    def give_back(self, name: str) -> None:
        if name in self._mine:
            self._mine.remove(name)
            with suppress(OSError):
                os.unlink(os.path.join(self.folder, CLAIM + name))

    def alone(self, name: str, is_done: Callable[[], bool], make: Callable[[], object]) -> None:
        """Calls `make` in one of the processes; the others wait until `is_done`."""
        while not is_done():
            if self.take(name):
                try:
                    if not is_done():
                        make()
                finally:
                    self.give_back(name)
            else:
                self.wait()

    def wait(self) -> None:
        """Waits a moment for other processes, and frees the claims of those that are dead."""
        time.sleep(POLL_SECONDS)
        self.free_dead()

    def free_dead(self) -> list[Watch]:
        """Deletes the leases and claims of dead processes, and returns the leases of the others."""
        now = time.monotonic()
        # A process that computes or was suspended does not look, so it cannot see a lease move.
        passed, self._looked = min(now - self._looked, 2 * POLL_SECONDS), now
        names, alive = os.listdir(self.folder), list[Watch]()
        for lease in names:
            if lease.startswith(LEASE) and lease != self._name and not storage.is_temporary(lease):
                if lease not in self._watched:
                    self._watched[lease] = Watch(os.path.join(self.folder, lease))
                if (watch := self._watched[lease]).look(passed) == "dead":
                    watch.remove()
                else:
                    alive.append(watch)
        for claim in names:
            if claim.startswith(CLAIM) and claim.removeprefix(CLAIM) not in self._mine:
                with suppress(OSError):
                    self._free_if_dead(os.path.join(self.folder, claim))
        return alive

    def _free_if_dead(self, claim: str) -> None:
        with open(claim, encoding="ascii") as file:
            lease = file.read()
        if not lease:  # it is being written, or its process was killed right then
            self._unnamed[claim] += 1
            is_dead = self._unnamed[claim] * POLL_SECONDS > BEAT_SECONDS
        else:
            is_dead = not os.path.exists(os.path.join(self.folder, lease))
        if is_dead:
            os.unlink(claim)


@contextmanager
def joined(folder: str, request: str) -> Iterator[Claims]:
    """Joins the processes that compute `request`, a digest of everything that decides the results, in an existing
    folder. Raises `Locked` if a living one computes another request there."""
    name = f"{LEASE}{uuid.uuid4().hex}"
    facts = {"request": request, "command": redact(shlex.join(sys.argv))[:300]}
    lease = Lease(os.path.join(folder, name), facts, recreate=False)
    lease.begin()
    claims = Claims(folder, lease, name)
    try:
        while others := [watch for watch in claims.free_dead() if (watch.record or {}).get("request") != request]:
            if alive := [watch for watch in others if watch.state == "alive"]:
                fix = "wait for it, stop it, or choose another folder"
                command = (alive[0].record or {}).get("command")
                what = f"is in use by {alive[0].holder}, which has other text or options: {command}"
                raise Locked(what, where=folder.removesuffix(f"{os.sep}parts"), fix=fix)
            time.sleep(POLL_SECONDS)
        yield claims
    finally:
        for mine in [*claims._mine]:
            claims.give_back(mine)
        lease.release()


def others_in(names: list[str]) -> bool:
    """Whether these names of a folder, in which this process holds a lease, include another's."""
    return sum(name.startswith(LEASE) and not storage.is_temporary(name) for name in names) > 1


@contextmanager
def unless_finished(is_finished: Callable[[], bool]) -> Iterator[None]:
    """Ignores an error if another process has finished meanwhile, which deletes the sources of the result."""
    try:
        yield
    except StoppedEarly:
        raise
    except (OSError, MaskwrightError):
        if not is_finished():
            raise
