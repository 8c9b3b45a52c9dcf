"""Whether somebody else still lives, by what they count up in the bucket."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Any


class Pulse:
    """Spans are of this process's own clock, since others may be wrong."""

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
