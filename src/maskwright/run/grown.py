"""A file of lines that a run appends to, read as it grows: on this machine or at a URL."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from maskwright.core.folder import Folder
from maskwright.run.directory import read_lines

METRICS = "metrics.jsonl"
BLOCK_BYTES, PIECE_BYTES = 4 << 20, 256 << 10
"""Bytes of one read forwards, and of the first backwards. At a URL each is a request."""
KNOWN_BYTES = 64
"""Bytes remembered before the place where reading continues. A restart replaces the lines of steps that it computes
again; these bytes then differ, since a line has the time in it."""


class Grown:
    """`end`: the bytes that were read, all of them whole lines. `size`: the file's size at the last look."""

    def __init__(self, folder: Folder, name: str) -> None:
        self._folder, self._name = folder, name
        self.size, self.end = 0, 0
        self._known = b""
        self._begun = False

    def news(self) -> Iterator[bytes | None]:
        """Yields the whole lines that came since the last call, in blocks; first None if reading begins at the file's
        start, that is, the first time and after the file was cut or rewritten. `begin` may then be called. Raises
        `MaskwrightError`."""
        size = self._folder.size(self._name) or 0
        if self._begun and size == self.size:
            return
        again = not self._begun or size < self.end or not self._goes_on()
        self.size, self._begun = size, False  # read again if the reader is interrupted
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
            if whole or at < size:  # no run writes a line of more than a block, so its pieces are skipped
                at = self.end = self.end + len(whole or block)
                self._known = (self._known + (whole or block))[-KNOWN_BYTES:]
                yield whole
        self._begun = True

    def begin(self, at: int) -> None:
        """Continues from this byte. The rest of the line there is read as a line."""
        self.end, self._known = at, b""

    def _goes_on(self) -> bool:
        return not self._known or self._folder.get(self._name, self.end - len(self._known), self.end) == self._known

    def rest(self) -> bytes:
        """The bytes after the last newline, at the last look."""
        return (self._folder.get(self._name, self.end, self.size) or b"") if self.end < self.size else b""


def backwards(folder: Folder, name: str, first: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yields (the byte at which it begins, a block of whole lines) from the byte `end` back to `first`. Both begin
    lines or end the file."""
    rest, size = b"", PIECE_BYTES
    while end > first:
        begin, size = max(end - size, first), min(2 * size, BLOCK_BYTES)
        block = (folder.get(name, begin, end) or b"") + rest
        cut = block.find(b"\n") + 1 if begin > first else 0
        if cut or begin == first:
            yield begin + cut, block[cut:]
            block = block[:cut]
        end, rest = begin, block


def last_lines(folder: Folder, name: str, lines: int, end: int) -> int:
    """The byte at which the last `lines` lines before the byte `end` begin."""
    if not lines:
        return end
    for begin, block in backwards(folder, name, 0, end):
        count = block.count(b"\n", 0, -1) + 1 if block else 0
        if count < lines:
            lines -= count
            continue
        at = 0
        for _ in range(count - lines):
            at = block.find(b"\n", at) + 1
        return begin + at
    return 0


def lines_of(block: bytes) -> Iterable[dict[str, Any]]:
    """The records in whole lines. Unbroken lines are parsed in one call, in two thirds of the time."""
    text = block.decode("utf-8", "replace")
    try:
        lines = json.loads(f"[{text.strip().replace(chr(10), ',')}]")
    except (ValueError, RecursionError):
        return read_lines(text)
    return [line for line in lines if isinstance(line, dict) and isinstance(line.get("step"), int)]
