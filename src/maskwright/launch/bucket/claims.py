"""Numbered claims in a folder: one owner at a time of a thing, such as a host's index or the lease of a watcher.

    reports/hosts/host-3.json             the heartbeat of host 3
    claims/host-3-000002.json             {"instance": "lab1-slice-x7f2"}: the second machine that is host 3

A claim is created and never changed. If two processes create the same one, the store refuses one of them, so no number
has two owners. The highest claim counts. A process takes over when the owner's heartbeat stands still, or says that the
owner has left. An owner that wakes up after a long sleep finds the next claim, and stops.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from maskwright.core import records
from maskwright.core.folder import Folder
from maskwright.launch.bucket.job_folder import BEAT_BYTES, read_beat

Clock = Callable[[], float]


class Claims:
    """Claims on one thing, named PREFIX000001.json and so on."""

    def __init__(self, folder: Folder, prefix: str, clock: Clock = time.monotonic) -> None:
        self._folder, self._pulse = folder, Pulse(clock)
        self._directory, _, self._start = prefix.rpartition("/")
        self._owners: dict[int, dict[str, Any]] = {0: {}}

    def last(self, names: list[str] | None = None) -> int:
        """The highest number, 0 without a claim. `names`: of the directory, if they are listed already."""
        names = self._folder.names(self._directory) if names is None else names
        rests = (name.removeprefix(self._start).removesuffix(".json") for name in names if name.startswith(self._start))
        return max((int(rest) for rest in rests if rest.isdecimal()), default=0)

    def owner(self, number: int) -> dict[str, Any]:
        if number not in self._owners and (content := self._folder.head(self._name(number), BEAT_BYTES)) is not None:
            self._owners[number] = records.read(dict, content) or {}
        return self._owners.get(number, {})

    def holds(self, number: int) -> bool:
        """Whether claim `number` has not been taken over. One small read, so it may be asked at every poll."""
        return self._folder.head(self._name(number + 1), 1) is None

    def take(self, last: int, owner: dict[str, Any], beat: Any, left: bool, lost_seconds: float) -> int:
        """The number of a new claim; 0 while the owner of the `last` one is alive, or if another process was quicker.

        The timeout starts afresh with each claim. A new owner inherits its predecessor's stale heartbeat; judged by
        that, two newcomers would evict each other for ever.
        """
        still = self._pulse.still(last, beat)
        if last and not left and still < lost_seconds:
            return 0
        return last + 1 if self._folder.create_json(self._name(last + 1), {**owner, "time": time.time()}) else 0

    def _name(self, number: int) -> str:
        return f"{self._directory}/{self._start}{number:06d}.json"


@dataclass(frozen=True)
class Slot:
    """`claim`: how many machines have been this host, including this one."""

    index: int
    claim: int


class Slots:
    """The indices of hosts that no machine tells theirs. `lost_seconds`: after which a heartbeat that stands still is
    that of a lost host."""

    def __init__(self, folder: Folder, instance: str, num_hosts: int, lost_seconds: float) -> None:
        self._folder, self._instance, self._lost_seconds = folder, instance, lost_seconds
        self._claims = [Claims(folder, f"claims/host-{index}-") for index in range(num_hosts)]

    def claim(self) -> Slot | None:
        """None while other hosts hold all indices. A host that returns under its own name keeps its index."""
        names = self._folder.names("claims")
        highest = [claims.last(names) for claims in self._claims]
        owners = [claims.owner(last).get("instance", "") for claims, last in zip(self._claims, highest, strict=True)]
        if self._instance in owners:
            index = owners.index(self._instance)
            return Slot(index, highest[index])
        for index, (last, owner) in enumerate(zip(highest, owners, strict=True)):
            beat = read_beat(self._folder, index)
            left = beat is not None and beat.gone and beat.instance == owner
            if number := self._claims[index].take(last, {"instance": self._instance}, beat, left, self._lost_seconds):
                return Slot(index, number)
        return None

    def holds(self, slot: Slot) -> bool:
        return self._claims[slot.index].holds(slot.claim)


class Pulse:
    """Whether others are alive, judged by the numbers that they count up in the bucket. Time is this process's own,
    since other clocks may be wrong."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[Hashable, tuple[Any, float, bool]] = {}

    def still(self, who: Hashable, beat: Any) -> float:
        """Seconds since the heartbeat of `who` last changed."""
        now = self._clock()
        last, since, moved = self._seen.get(who, (beat, now, False))
        if beat != last:
            since, moved = now, True
        self._seen[who] = (beat, since, moved)
        return now - since

    def has_moved(self, who: Hashable) -> bool:
        """False for a heartbeat that was never seen to change, which may be an old one."""
        return self._seen[who][2]
