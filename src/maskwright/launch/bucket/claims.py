"""Which index a host has, where no machine says it: the hosts settle it in the bucket.

    hosts/host-3.json                     the heartbeat of whoever is host 3
    hosts/host-3.claim-000002.json        {"instance": "lab1-slice-x7f2"}: the second machine to be host 3

A claim is created and never changed. Of two hosts that create the same one the store refuses one, so no number has two
owners. The highest claim of a number counts. A host takes over a number whose heartbeat stands still, or says that its
host has gone; one that was taken over sees the next claim and ends what it runs. A host that comes back under its own
name is who it was.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from maskwright.core.folder import Folder

CLAIM = re.compile(r"host-(\d+)\.claim-(\d+)\.json")


@dataclass(frozen=True)
class Slot:
    """`claim`: how many machines have been this host, with this one."""

    index: int
    claim: int


class Slots:
    """`look` until it finds one. `lost_seconds`: after which a heartbeat that stands still is that of a lost host."""

    def __init__(self, folder: Folder, instance: str, num_hosts: int, lost_seconds: float) -> None:
        self._folder, self._instance, self._num_hosts, self._lost_seconds = folder, instance, num_hosts, lost_seconds
        self._owners: dict[Slot, str] = {}
        self._pulse = Pulse()

    def look(self) -> Slot | None:
        """None while other hosts hold all numbers."""
        highest = dict.fromkeys(range(self._num_hosts), 0)
        for name in self._folder.names("hosts"):
            if (found := CLAIM.fullmatch(name)) and int(found[1]) in highest:
                highest[int(found[1])] = max(highest[int(found[1])], int(found[2]))
        for host, claim in highest.items():
            if claim and self._owner(Slot(host, claim)) == self._instance:
                return Slot(host, claim)
        for host, claim in highest.items():
            slot = Slot(host, claim + 1)
            if (not claim or self._silent(Slot(host, claim))) and self._folder.create_json(
                _name(slot), {"instance": self._instance, "time": time.time()}
            ):
                return slot
        return None

    def holds(self, slot: Slot) -> bool:
        """Whether nobody has taken it over. One small read, so it may be asked at every turn."""
        return self._folder.get(_name(Slot(slot.index, slot.claim + 1))) is None

    def _owner(self, slot: Slot) -> str:
        if slot not in self._owners:
            self._owners[slot] = str((self._folder.get_json(_name(slot)) or {}).get("instance", ""))
        return self._owners[slot]

    def _silent(self, slot: Slot) -> bool:
        """Each claim has the whole span to itself: the beat that its owner finds is its predecessor's, and by that beat
        alone two newcomers would take one number from each other without end."""
        beat = self._folder.get_json(f"hosts/host-{slot.index}.json")
        still = self._pulse.still(slot, beat)
        gone = beat is not None and beat.get("gone") and beat.get("instance") == self._owner(slot)
        return bool(gone) or still >= self._lost_seconds


def _name(slot: Slot) -> str:
    return f"hosts/host-{slot.index}.claim-{slot.claim:06d}.json"


class Pulse:
    """Whether others still live, by what they count up in the bucket. Spans are of this process's own clock, since
    others may be wrong."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[Hashable, tuple[Any, float, bool]] = {}

    def still(self, who: Hashable, beat: Any) -> float:
        """For how many seconds `beat` has been the same, by what was given for `who` before."""
        now = self._clock()
        last, since, moved = self._seen.get(who, (beat, now, False))
        if beat != last:
            since, moved = now, True
        self._seen[who] = (beat, since, moved)
        return now - since

    def has_moved(self, who: Hashable) -> bool:
        """A beat that was never seen to change may be an old one."""
        return self._seen[who][2]
