"""One watcher at a time of an environment's hosts, wherever watchers run: a lease in the bucket.

    watch/lease-000003.json     created once, and only where there is none: of two that try, one holds it
    watch/beat-000003.json      its holder counts a number up in it; {"over": true} when it leaves

The highest number is the lease that counts. Whoever finds one watches its heartbeat by a clock of its own, and takes
the next number when it stands still. A holder that wakes up after a long sleep finds the higher number and stands back;
Terraform's lock on the state is what it meets in between.
"""

from __future__ import annotations

import os
import platform
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from maskwright.core.errors import MaskwrightError
from maskwright.core.folder import Folder
from maskwright.launch.bucket.claims import Pulse

BEAT_SECONDS = 10.0
SILENT_SECONDS = 90.0
"""Nine beats: the bucket may be slow, and a process can be stopped for seconds."""
LEASE = re.compile(r"lease-(\d{6,})\.json")


class WatcherLease:
    """`held` after a `turn` that gave it; `holder` is whoever else has it."""

    def __init__(self, folder: Folder, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._pulse = folder, Pulse(clock)
        self._number, self._beats = 0, 0
        self.holder = ""

    @property
    def held(self) -> bool:
        return self._number > 0

    def turn(self) -> bool:
        """Takes it where nobody holds it, else looks who does. Raises `MaskwrightError` when the bucket does."""
        last = self._last()
        if self._number and last == self._number:
            self._beat()
            return True
        self._number = 0  # a higher one: taken over meanwhile
        found = self._folder.get_json(f"watch/beat-{last:06d}.json") if last else None
        silent = self._pulse.still(last, found) >= SILENT_SECONDS
        if last == 0 or silent or (found or {}).get("over"):
            mine = {"host": platform.node(), "process": os.getpid(), "time": time.time()}
            if self._folder.create_json(f"watch/lease-{last + 1:06d}.json", mine):
                self._number, self.holder = last + 1, ""
                self._beat()
                return True
        lease = self._folder.get_json(f"watch/lease-{max(last, 1):06d}.json") or {}
        self.holder = f"process {lease.get('process')} on {lease.get('host')}"
        return False

    def leave(self) -> None:
        """So that the next one need not wait until it is silent."""
        if self._number and self._last() == self._number:
            self._folder.put_json(f"watch/beat-{self._number:06d}.json", {"beat": self._beats, "over": True})
        self._number = 0

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Beats in a thread meanwhile: acts take minutes."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(BEAT_SECONDS):
                with suppress(MaskwrightError):
                    self._beat()

        thread = threading.Thread(target=beat, name="lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _beat(self) -> None:
        self._beats += 1
        self._folder.put_json(f"watch/beat-{self._number:06d}.json", {"beat": self._beats})

    def _last(self) -> int:
        numbers = [int(match[1]) for name in self._folder.names("watch") if (match := LEASE.fullmatch(name))]
        return max(numbers, default=0)
