"""A file of lines that a run appends to, read as it grows: on this machine or at a URL."""

from __future__ import annotations

import io
import tempfile
import threading
import weakref
from collections.abc import Iterator

from maskwright.core.folder import Folder

BLOCK_BYTES = 4 << 20
KNOWN_BYTES = 64
"""Bytes remembered before the place where reading goes on. A restart replaces the lines of steps that it computes
again; these bytes then differ, since a line has the time in it."""
MEMORY_BYTES = 1 << 20


class Grown:
    """`end`: the bytes that were read, all of them whole lines. `size`: the file's size at the last look."""

    def __init__(self, folder: Folder, name: str) -> None:
        self._folder, self._name = folder, name
        self.size, self.end = 0, 0
        self._known = b""
        self._begun = False

    def news(self) -> Iterator[bytes | None]:
        """Yields the whole lines that came since the last call, in blocks; first None where reading begins at the
        file's start: the first time, and after the file was cut or rewritten. `begin` may then be called. Raises
        `MaskwrightError`."""
        size = self._folder.size(self._name) or 0
        if self._begun and size == self.size:
            return
        again = not self._begun or size < self.end or not self._goes_on()
        self.size, self._begun = size, False  # read again where the reader is interrupted
        if again:
            self.begin(0)
            yield None
        at = self.end
        while at < size:
            block = self._folder.get(self._name, at, min(at + BLOCK_BYTES, size))
            if not block:
                break
            whole = block[: block.rfind(b"\n") + 1]
            at += len(block)
            if whole or at < size:  # no run writes a line of more than a block: its pieces are skipped
                at = self.end = self.end + len(whole or block)
                self._known = (self._known + (whole or block))[-KNOWN_BYTES:]
                yield whole
        self._begun = True

    def begin(self, at: int) -> None:
        """Goes on from this byte. The rest of the line there is read as a line."""
        self.end, self._known = at, b""

    def _goes_on(self) -> bool:
        return not self._known or self._folder.get(self._name, self.end - len(self._known), self.end) == self._known


class Brought:
    """A growing file at a URL, copied to this machine as it grows: the first megabyte in memory, the rest in a
    temporary file. Several threads may read it."""

    def __init__(self, folder: Folder, name: str) -> None:
        self._folder, self._name = folder, name
        self._grown = Grown(folder, name)
        self._here = tempfile.SpooledTemporaryFile(MEMORY_BYTES)  # noqa: SIM115 - closed with this object
        weakref.finalize(self, self._here.close)
        self._lock = threading.Lock()

    def lines(self) -> Iterator[bytes]:
        """Yields each line with its newline, except a last one that is not whole yet. Raises `MaskwrightError`."""
        with self._lock:
            for block in self._grown.news():
                if block is None:
                    self._here.truncate(0)
                self._here.seek(0, io.SEEK_END)
                self._here.write(block or b"")
            self._here.seek(0)
            yield from self._here
            if self._grown.end < self._grown.size:
                yield self._folder.get(self._name, self._grown.end, self._grown.size) or b""
