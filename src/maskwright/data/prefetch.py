"""Downloads the next windows of shards of remote stores while rows of the current ones are read."""

from __future__ import annotations

import threading
from collections import deque
from itertools import chain, zip_longest
from typing import Any

from maskwright.core.errors import MaskwrightError
from maskwright.data.data_phases import Window
from maskwright.data.remote import AT_ONCE, NoRoom
from maskwright.data.store import Split

WAIT_SECONDS = 1.0
"""Between two tries to get room in the cache."""


class ShardPrefetcher:
    """The prefetcher of one run. Its threads map the shards that they download, so these stay in the cache until their
    window is left."""

    def __init__(self) -> None:
        self._now: list[Window] = []
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def __del__(self) -> None:
        self._stop.set()

    def request(self, windows: list[Window]) -> None:
        """Downloads the shards of these windows and the following ones, and drops all earlier shards."""
        if self._now == windows:
            return
        self._now = windows
        self._stop.set()
        for thread in self._threads:
            thread.join()  # then it maps nothing more; the shard that it is downloading is read next
        self._stop = threading.Event()
        for window in windows:
            window.split.keep_only({*window.now, *window.following})
        # By turns, since any source may be the first to come to its next window.
        turns = zip_longest(*([(window.split, idx) for idx in (*window.now, *window.following)] for window in windows))
        shards = deque(idx for idx in chain.from_iterable(turns) if idx is not None)
        # Daemons, since a process that ends waits for no download.
        self._threads = [
            threading.Thread(target=_map_shards, args=(shards, self._stop), daemon=True) for _ in range(AT_ONCE)
        ]
        for thread in self._threads:
            thread.start()


def _map_shards(shards: deque[tuple[Split, int]], stop: threading.Event) -> None:
    mapped: list[Any] = []
    while shards and not stop.is_set():
        try:
            split, shard_idx = shards.popleft()
        except IndexError:  # another thread took the last one
            break
        while not stop.is_set():
            try:
                mapped.append(split.shards[shard_idx].ids())
                break
            except NoRoom:  # until another process of this machine has left its last window
                stop.wait(WAIT_SECONDS)
            except (MaskwrightError, OSError):
                shards.clear()
                return  # the run meets the error when it reads the shard
    stop.wait()
