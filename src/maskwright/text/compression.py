"""Bytes of text files: plain or packed in one of `COMPRESSIONS`, local or behind a URL. A cut archive is an error,
never a short text."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import itertools
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar, cast

from maskwright.core import storage
from maskwright.core.encodings import UTF8
from maskwright.core.errors import MaskwrightError, SourceError
from maskwright.core.extras import require
from maskwright.core.formats import COMPRESSIONS
from maskwright.core.secrets import redact
from maskwright.text.encodings import Encoding, is_utf8

SIGNS = {
    ".gz": re.compile(rb"\x1f\x8b\x08"),
    ".zst": re.compile(rb"\x28\xb5\x2f\xfd"),
    ".xz": re.compile(rb"\xfd7zXZ\0"),
    ".bz2": re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"),
}
"""Patterns of the first bytes of packed files, by their endings."""
SIGN_BYTES = 10
PIECE_BYTES = 1024
"""Packed bytes of zstd that are unpacked at once, to 32 MiB at most. Small pieces cost no time."""
LARGEST_WINDOW = 1 << 31
"""Window of `zstd --long=31`, by which some corpora are packed; libraries refuse more than 128 MiB by default."""
COPY_AGAIN = "copy it again from its origin"
HEAD_BYTES = 1000
"""Beginning of a file, enough to recognise UTF-16 and binary files."""
MARKS = {
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
    codecs.BOM_UTF8: UTF8,
}
"""Encodings by their byte-order marks."""
Part = TypeVar("Part")
Watch = Callable[[Callable[[], int]], None] | None
"""Gets a function that returns the bytes read so far, roughly."""


def ending(location: str) -> str:
    """The file's ending in small letters, without compression: `a/B.CSV.gz` -> `.csv`."""
    name = storage.without_query(location).lower()
    return os.path.splitext(name.removesuffix(packed_ending(name)))[1]


def packed_ending(location: str) -> str:
    """The location's ending among `COMPRESSIONS`; empty for others."""
    name = storage.without_query(location).lower()
    return next((end for end in COMPRESSIONS if name.endswith(end)), "")


def compression_of(name: str, raw: BinaryIO) -> str:
    """The compression of the file `name`, open as `raw`, by its first bytes, else by its ending; or empty."""
    head = _head(name, raw, SIGN_BYTES)
    return next((end for end, sign in SIGNS.items() if sign.match(head)), packed_ending(name))


def _head(name: str, raw: BinaryIO, size: int) -> bytes:
    """The first bytes of a file, which is read from its beginning afterwards; none for a stream from a web server."""
    if storage.is_url(name) and not getattr(raw, "size", None):
        return b""
    try:
        head = raw.read(size)
        raw.seek(0)
    except OSError as error:
        raise _read_error(error, name, name) from None
    return head


def is_packed(name: str) -> bool:
    """Whether the file is compressed, so that reading cannot begin in its middle."""
    with storage.open_binary(name) as raw:
        return bool(compression_of(name, raw))


def file_size(location: str) -> int:
    """Bytes of a file; 0 if a web server does not report them."""
    if storage.is_url(location):
        filesystem, path = storage.filesystem(location)
        return int(filesystem.size(path) or 0)
    return os.path.getsize(location)


def is_empty(name: str) -> bool:
    """Whether a file of `file_size` 0 is empty. The first bytes of a URL are read."""
    if not storage.is_url(name):
        return True
    with storage.open_binary(name) as file:
        return not b"".join(guarded(name, blocks(file), 1))


@dataclass(frozen=True)
class ByteSpan:
    """A byte range of an uncompressed file that begins where a line does."""

    begin: int
    end: int
    first_line: int
    """Number of its first line in the file, from 1."""


class _SpanReader:
    def __init__(self, raw: BinaryIO, span: ByteSpan) -> None:
        raw.seek(span.begin)
        self._raw, self._bytes_left = raw, span.end - span.begin

    def read(self, size: int) -> bytes:
        content = self._raw.read(min(size, self._bytes_left))
        self._bytes_left -= len(content)
        return content


@contextmanager
def open_text(name: str, watch: Watch = None, span: ByteSpan | None = None) -> Iterator[BinaryIO]:
    """Decompressed bytes of a file."""
    with storage.open_binary(name) as raw:
        if watch:
            watch(raw.tell)
        yield cast(BinaryIO, _unpacked(name, raw) or (_SpanReader(raw, span) if span else raw))


def _unpacked(name: str, raw: BinaryIO) -> Any:
    """The decompressed stream of a file; None for an unpacked file."""
    compression = compression_of(name, raw)
    if compression.startswith(".zst"):
        require("zstandard", name)
        return io.BufferedReader(_ZstdFile(raw))
    if compression == ".gz":
        return gzip.GzipFile(fileobj=raw)
    if compression:
        return lzma.LZMAFile(raw) if compression == ".xz" else bz2.BZ2File(raw)
    return None


class _ZstdFile(io.RawIOBase):
    """zstd frames, one after the other. The library's reader mistakes a cut frame for the end."""

    def __init__(self, raw: BinaryIO) -> None:
        from zstandard import ZstdDecompressor, ZstdError

        self._raw, self._fault = raw, ZstdError
        self._decompressor = ZstdDecompressor(max_window_size=LARGEST_WINDOW)
        self._frame: Any = None
        self._behind_frame = self._content = b""
        self._read = 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._read

    def readinto(self, buffer: Any) -> int:
        """Raises `EOFError` for a cut frame, and `OSError` for a damaged one."""
        self._content = self._content or self._unpacked()
        size = min(len(buffer), len(self._content))
        buffer[:size], self._content = self._content[:size], self._content[size:]
        self._read += size
        return size

    def _unpacked(self) -> bytes:
        """The content of the next packed bytes."""
        while packed := self._behind_frame or self._raw.read(PIECE_BYTES):
            self._frame = self._frame or self._decompressor.decompressobj()
            try:
                content: bytes = self._frame.decompress(packed)
            except self._fault as error:
                raise OSError(str(error)) from None
            self._behind_frame = self._frame.unused_data
            if self._frame.eof:
                self._frame = None
            if content:
                return content
        if self._frame:
            raise EOFError("a frame has no end")
        return b""


def blocks(stream: BinaryIO) -> Iterator[bytes]:
    """Blocks of about `storage.READ_BYTES` of an `open_text` stream. Yields the data before a damaged spot, then
    raises."""
    read = getattr(stream, "read1", stream.read)  # read1 returns one decoded piece
    fault: Exception | None = None
    while not fault:
        parts: list[bytes] = []
        taken = 0
        try:
            while taken < storage.READ_BYTES and (part := read(storage.READ_BYTES)):
                parts.append(part)
                taken += len(part)
        except Exception as error:  # raised below, for `guarded` to name
            fault = error
        if parts:
            yield b"".join(parts)
        elif not fault:
            return
    raise fault


def guarded(
    name: str, stream: Iterable[Part], blocks: int | None = None, line: Callable[[], int] = lambda: 1
) -> Iterator[Part]:
    """Items of `stream`, at most `blocks` of them. All exceptions of a damaged archive become `SourceError`, near line
    `line()`."""
    try:
        yield from itertools.islice(stream, blocks)
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        where = f"{name}:{line()}"
        if isinstance(error, OSError) and (
            error.errno is not None or isinstance(error, TimeoutError | ConnectionError)
        ):
            raise _read_error(error, name, where) from None
        raise SourceError(f"is cut short or damaged: {error}", where=where, fix=COPY_AGAIN) from None


def _read_error(error: OSError, name: str, where: str) -> MaskwrightError:
    """The error for a failed disk or network; the file may be whole."""
    if storage.is_url(name):
        return storage.fault(error, "read", name)
    return MaskwrightError(
        f"cannot be read: {error.strerror or error}", where=where, fix="check the disk, and try again"
    )


def file_record(name: str, size: int) -> dict[str, Any]:
    """A file in a store's manifest: name, size and sha256; for a URL its version, and its name without secrets."""
    if storage.is_url(name):
        filesystem, path = storage.filesystem(name)
        return {"location": redact(name), "bytes": size, "version": str(filesystem.ukey(path))}
    return {"location": name, "bytes": size, "sha256": storage.sha256_of_file(name)}


def changed_while_read(name: str) -> SourceError:
    fix = "run the command again when no program writes to it"
    return SourceError("was changed while it was read", where=name, fix=fix)


def stamp_of(name: str) -> tuple[int, int] | None:
    """(bytes, time of the last change in ns) of a local file; None for a URL, whose record has its version."""
    if storage.is_url(name) or not os.path.exists(name):
        return None
    status = os.stat(name)
    return status.st_size, status.st_mtime_ns


class OtherEncoding(SourceError):
    """A whole file is in another encoding, so none of its lines can be read."""


class Binary(OtherEncoding):
    """A file is no text in any encoding."""


BINARY = {
    re.compile(rb"%PDF-\d"): ("is a PDF", "extract its text first: pdftotext FILE"),
    re.compile(rb"PK\x03\x04"): (
        "is a zip archive, as .docx, .xlsx and .epub are",
        "unpack it, or export it as text, such as .csv",
    ),
    re.compile(rb"7z\xbc\xaf\x27\x1c|Rar!\x1a"): ("is an archive", "unpack it"),
    re.compile(rb"(?s:.{257}ustar)"): ("is a tar archive", "unpack it: mkdir DIR; tar -xf FILE -C DIR"),
    re.compile(rb"PAR1[\0-\x1f]"): ("is Parquet", "rename it to end in .parquet"),
    re.compile(rb"ARROW1\0\0|(?s:\xff{4}...\0\x10\0\0\0)"): ("is Arrow", "rename it to end in .arrow"),
}
"""Files that are no text: a pattern of the first bytes, the kind, and the fix."""


def _pickled(name: str) -> Binary:
    jsonl = os.path.basename(name).partition(".")[0] + ".jsonl"
    code = f"import pandas; pandas.read_pickle('{name}').to_json('{jsonl}', orient='records', lines=True)"
    what = "is a pickle, which can run any program when it is opened"
    return Binary(what, where=name, fix=f'if you trust it, convert it once: python -c "{code}"')


def require_content(name: str) -> None:
    """Raises `SourceError` for an empty local file. A URL's size may be unknown."""
    if not storage.is_url(name) and os.path.getsize(name) == 0:
        raise SourceError("is empty", where=name, fix="remove it")


def unreadable(name: str, kinds: Sequence[str]) -> SourceError:
    """The error for a file whose name ends in none of `kinds`. Raises `OtherEncoding` for a file that is not text."""
    with open_text(name) as stream:
        require_encoding(name, b"".join(guarded(name, blocks(stream), 1)), Encoding())
    if ending(name) in (".pickle", ".pkl"):
        return _pickled(name)
    fix = f"use {' '.join(kinds)}, each also {' '.join(COMPRESSIONS)}"
    return SourceError("is of a kind that cannot be read", where=name, fix=fix)


def require_encoding(name: str, raw: bytes, encoding: Encoding) -> None:
    """Raises `Binary` for pickles and other binary files, and `OtherEncoding` for those whose first bytes, `raw`, show
    another encoding."""
    for sign, (what, fix) in BINARY.items():
        if sign.match(raw):
            raise Binary(what, where=name, fix=fix)
    if raw[:1] == b"\x80" and raw[1:2] in (b"\2", b"\3", b"\4", b"\5"):  # pickle's protocols that pandas writes
        raise _pickled(name)
    marked = next((of_mark for mark, of_mark in MARKS.items() if raw.startswith(mark)), "")
    found, what = marked[:6], f"is {marked[:6].upper()}"
    if not marked:
        head = raw[:HEAD_BYTES]
        if head.count(0) > 0.7 * len(head):
            raise Binary("is binary, not text", where=name, fix="leave the file out")
        # In most letters, and in spaces and line ends of any script, every other byte is 0.
        zeros = {"le": head[1::2].count(0), "be": head[::2].count(0)}
        order = max(zeros, key=lambda name: zeros[name])
        if len(head) > 9 and zeros[order] > 0.04 * len(head) and not min(zeros.values()):
            found, what = f"utf-16-{order}", "is UTF-16 without its mark"
        elif encoding.name in ("utf-16", "utf-32"):
            found, what = f"{encoding.name}-le, or {encoding.name}-be", f"is not {encoding.title}: it has no mark"
        elif not encoding.is_utf8 and is_utf8(raw):
            found, what = UTF8, f"is UTF-8, not {encoding.title}"
    if found and encoding.name not in (found, marked):
        raise OtherEncoding(what, where=f"{name}:1:1", fix=encoding.give(found))
