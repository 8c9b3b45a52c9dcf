"""The next window of shards of a remote store, brought by a thread while rows are taken from this one."""

from __future__ import annotations

import threading
from typing import Any

from maskwright.core.errors import MaskwrightError
from maskwright.data.order import WindowOrder
from maskwright.data.remote import NoRoom
from maskwright.data.store import Split

WAIT_SECONDS = 1.0


class Ahead:
    def __init__(self) -> None:
        self._now: tuple[int, ...] = ()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __del__(self) -> None:
        self._stop.set()

    def look(self, split: Split, order: WindowOrder, seen: int) -> None:
        """`seen`: number of a row that the run takes now."""
        this, following = (shards.tolist() for shards in order.windows_at(seen))
        if self._now == (now := (*this, -1, *following)):
            return
        self._now = now
        self._stop.set()
        if self._thread is not None:
            self._thread.join()  # so that it maps nothing any more; what it is bringing is what is read next
        self._stop = threading.Event()
        split.keep_only({*this, *following})
        # A daemon, since a process that ends waits for no download.
        self._thread = threading.Thread(target=_bring, args=(split, following, self._stop), daemon=True)
        self._thread.start()


def _bring(split: Split, shards: list[int], stop: threading.Event) -> None:
    kept: list[Any] = []  # mapped until the window is left, so that no file removes another one of the same window
    for shard_idx in shards:
        while not stop.is_set():
            try:
                kept.append(split.shards[shard_idx].ids())
                break
            except NoRoom:  # until another process of this machine has left the window before
                stop.wait(WAIT_SECONDS)
            except (MaskwrightError, OSError):
                return  # the run meets it when it reads the shard, and says so
    stop.wait()
