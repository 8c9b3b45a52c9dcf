"""Text files as they lie: plain, gzip or zstd, local or behind a URL; a cut archive is an error, never a short text."""

from __future__ import annotations

import gzip
import io
import itertools
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from maskwright.core import storage
from maskwright.core.errors import SourceError

COMPRESSIONS = (".gz", ".zst")


def file_size(location: str) -> int:
    if storage.is_url(location):
        filesystem, path = storage.filesystem(location)
        return int(filesystem.size(path) or 0)
    return os.path.getsize(location)


@contextmanager
def open_text(name: str, on_position: Callable[[Callable[[], int]], None] | None = None) -> Iterator[BinaryIO]:
    """Decompressed bytes of a file; `on_position` gets what tells how far the file itself has been read."""
    with storage.open_binary(name) as raw:
        if on_position:
            on_position(raw.tell)
        if storage.without_query(name).lower().endswith(".gz"):
            yield cast(BinaryIO, gzip.GzipFile(fileobj=raw))
        elif storage.without_query(name).lower().endswith(".zst"):
            yield cast(BinaryIO, io.BufferedReader(_Zstd(raw), buffer_size=storage.READ_BYTES))
        else:
            yield raw


def guarded(
    name: str, stream: Iterable[bytes], blocks: int | None = None, line: Callable[[], int] = lambda: 1
) -> Iterator[bytes]:
    """Blocks of `stream`, with a damaged archive's many exceptions as one `SourceError` near the line `line()`."""
    try:
        yield from itertools.islice(stream, blocks)
    except (EOFError, gzip.BadGzipFile, zlib.error, OSError) as error:
        raise SourceError(
            f"is cut short or damaged: {error}",
            where=f"{name}:{line()}",
            fix="copy it again from its origin",
        ) from None


class _Zstd(io.RawIOBase):
    """Decompressed zstd frames. Unlike `zstandard`'s own reader it raises `EOFError` when the last frame is cut."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw, self._rest, self._output = raw, b"", b""
        self._frame: Any = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        import zstandard

        while not self._output:
            block = self._rest or self._raw.read(storage.READ_BYTES)
            self._rest = b""
            if not block:
                if self._frame is not None:
                    raise EOFError("the last zstd frame ends early")
                return 0
            self._frame = self._frame or zstandard.ZstdDecompressor().decompressobj()
            try:
                self._output = self._frame.decompress(block)
            except zstandard.ZstdError as error:
                raise OSError(f"bad zstd data: {error}") from None
            if self._frame.eof:
                self._rest, self._frame = self._frame.unused_data, None
        size = min(len(buffer), len(self._output))
        buffer[:size], self._output = self._output[:size], self._output[size:]
        return size
