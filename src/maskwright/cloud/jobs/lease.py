"""One watcher at a time of an environment's hosts: a lease in the bucket.

    watch/lease-000003.json     the claim of the watcher that holds it (`launch/bucket/claims.py`)
    watch/beat-000003.json      its heartbeat; {"over": true} when it leaves

Until a watcher that was taken over notices, Terraform's lock on the state keeps the two apart.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from maskwright.core.errors import MaskwrightError
from maskwright.core.folder import Folder
from maskwright.launch.bucket.claims import Claims, Clock

BEAT_SECONDS = 10.0
SILENT_SECONDS = 90.0
"""Nine heartbeats: the bucket may be slow, and a process can be stopped for seconds."""


class WatcherLease:
    """`holder` describes the watcher that has it instead of this one."""

    def __init__(self, folder: Folder, *, clock: Clock = time.monotonic) -> None:
        self._folder, self._claims = folder, Claims(folder, "watch/lease-", clock)
        self._number, self._beats = 0, 0
        self.holder = ""

    def poll(self) -> bool:
        """Renew the lease, or take it if no living watcher holds it. Raises `MaskwrightError` if the bucket fails."""
        last = self._claims.last()
        if not self._number or last != self._number:
            beat = self._folder.get_json(f"watch/beat-{last:06d}.json") if last else None
            owner, left = {"host": platform.node(), "process": os.getpid()}, bool((beat or {}).get("over"))
            self._number = self._claims.take(last, owner, beat, left, SILENT_SECONDS)
        if self._number:
            self.holder = ""
            self._beat()
            return True
        lease = self._claims.owner(max(last, 1))
        self.holder = f"process {lease.get('process')} on {lease.get('host')}"
        return False

    def leave(self) -> None:
        """Release it, so that the next watcher need not wait for the timeout."""
        if self._number and self._claims.holds(self._number):
            self._folder.put_json(f"watch/beat-{self._number:06d}.json", {"beat": self._beats, "over": True})
        self._number = 0

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Send heartbeats from a thread meanwhile: actions take minutes."""
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
