"""Text files as they lie: plain, gzip or zstd, local or behind a URL; a cut archive is an error, never a short text."""

from __future__ import annotations

import gzip
import itertools
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

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
            from pyarrow import CompressedInputStream  # unlike zstandard's own reader, it refuses a cut frame

            yield cast(BinaryIO, CompressedInputStream(raw, "zstd"))
        else:
            yield raw


def guarded(
    name: str, stream: Iterable[bytes], blocks: int | None = None, line: Callable[[], int] = lambda: 1
) -> Iterator[bytes]:
    """Blocks of `stream`, with a damaged archive's many exceptions as one `SourceError` near the line `line()`."""
    try:
        yield from itertools.islice(stream, blocks)
    except (EOFError, gzip.BadGzipFile, zlib.error, OSError) as error:
        fix = "copy it again from its origin"
        raise SourceError(f"is cut short or damaged: {error}", where=f"{name}:{line()}", fix=fix) from None
