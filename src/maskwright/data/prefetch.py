"""The next window of shards of a remote store, brought by a thread while rows are taken from this one."""

from __future__ import annotations

import threading
from typing import Any

from maskwright.core.errors import MaskwrightError
from maskwright.data.order import WindowOrder
from maskwright.data.remote import NoRoom
from maskwright.data.store import Split

WAIT_SECONDS = 1.0
"""Between two looks for room in the cache."""


class ShardPrefetcher:
    """Of one run. Its thread maps the shards that it brings, so that they stay in the cache until their window is
    left."""

    def __init__(self) -> None:
        self._now: tuple[int, ...] = ()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __del__(self) -> None:
        self._stop.set()

    def look(self, split: Split, order: WindowOrder, seen: int) -> None:
        """Has the window after that of the run's row `seen` brought, and lets go of all earlier shards."""
        this, following = (shards.tolist() for shards in order.windows_at(seen))
        if self._now == (now := (*this, -1, *following)):
            return
        self._now = now
        self._stop.set()
        if self._thread is not None:
            self._thread.join()  # then it maps nothing any more; the shard that it is bringing is read next
        self._stop = threading.Event()
        split.keep_only({*this, *following})
        # A daemon, since a process that ends waits for no download.
        self._thread = threading.Thread(target=_bring, args=(split, following, self._stop), daemon=True)
        self._thread.start()


def _bring(split: Split, shards: list[int], stop: threading.Event) -> None:
    kept: list[Any] = []
    for shard_idx in shards:
        while not stop.is_set():
            try:
                kept.append(split.shards[shard_idx].ids())
                break
            except NoRoom:  # there is some once another process of this machine has left its last window
                stop.wait(WAIT_SECONDS)
            except (MaskwrightError, OSError):
                return  # the run meets the error when it reads the shard
    stop.wait()
