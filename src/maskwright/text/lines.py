"""Numbered lines of a file, decoded a block at a time, without their ends and the file's byte-order mark.

A line ends with LF or CRLF; in files of old Macs, which begin with a block that contains CR but no LF, with CR up to
the first LF. Bytes that do not decode are reported with file, line and column, to every reader.
"""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import BinaryIO

from maskwright.core.errors import MaskwrightError
from maskwright.text.compression import Binary, ByteSpan, OtherEncoding, blocks, guarded, open_text, require_encoding
from maskwright.text.document import Fault, FaultHandler, strict
from maskwright.text.encodings import Encoding

LONGEST_LINE_BYTES = 1 << 29
"""More than the longest human chromosome. Memory holds a whole line and its copies."""
ALWAYS_UTF8 = Encoding()


def numbered_lines(name: str, encoding: Encoding = ALWAYS_UTF8) -> Iterator[tuple[int, str]]:
    """All lines of a file, from 1 on. Raises `SourceError` with file, line and column."""
    with open_text(name) as stream:
        yield from lines_of(name, stream, strict, encoding=encoding)


def lines_of(
    name: str, stream: BinaryIO, handle: FaultHandler, span: ByteSpan | None = None, encoding: Encoding = ALWAYS_UTF8
) -> Iterator[tuple[int, str]]:
    """Numbered lines of an open `stream`: of the whole file `name`, or of a `span` of it."""
    for first, lines in line_blocks(name, stream, handle, span, encoding):
        yield from enumerate(lines, first)


def line_blocks(
    name: str, stream: BinaryIO, handle: FaultHandler, span: ByteSpan | None = None, encoding: Encoding = ALWAYS_UTF8
) -> Iterator[tuple[int, list[str]]]:
    """(number of the first line, lines) of each block. Ten times as fast as line by line."""
    number, offset = (span.first_line, span.begin) if span else (1, 0)
    partial_line: list[bytes] = []  # of a line that is longer than a block
    skipping = False  # whether the rest of a line that is too long is skipped
    pieces = blocks(stream)
    if not encoding.keeps_line_feeds:
        pieces, encoding = in_utf8(name, pieces, encoding), ALWAYS_UTF8
    if not offset:
        pieces = line_feeds(pieces)
    for block in guarded(name, pieces, line=lambda: number):  # noqa: B023 - meant
        if skipping:
            skipped, feed, block = block.partition(b"\n")
            number, offset, skipping = number + len(feed), offset + len(skipped) + len(feed), not feed
        complete, feed, tail = block.rpartition(b"\n")
        if feed:
            complete = b"".join([*partial_line, complete])
            yield from _decoded(name, complete, number, offset, handle, encoding)
            number, offset, partial_line = number + complete.count(b"\n") + 1, offset + len(complete) + 1, []
        partial_line.append(tail)
        if (size := sum(map(len, partial_line))) > LONGEST_LINE_BYTES:
            handle(Fault("record", f"{name}:{number}", f"has a line of over {LONGEST_LINE_BYTES:,} bytes", "split it"))
            skipping, partial_line, offset = True, [], offset + size
    if any(partial_line):
        yield from _decoded(name, b"".join(partial_line), number, offset, handle, encoding)


def line_feeds(content: Iterator[bytes]) -> Iterator[bytes]:
    """The blocks of a file, with LF for the CR that ends lines. A text that is read in parts has its first LF in the
    first part, so that all parts are read as the whole is."""
    for block in content:
        if b"\r" not in block[:-1] or b"\n" in block:
            yield block
            break
        yield block.replace(b"\r", b"\n")
        for block in content:
            begin, feed, rest = block.partition(b"\n")
            if feed:
                yield begin[:-1].replace(b"\r", b"\n") + begin[-1:] + feed + rest
                break
            yield block.replace(b"\r", b"\n")
    yield from content


def _decoded(
    name: str, block: bytes, number: int, offset: int, handle: FaultHandler, encoding: Encoding
) -> Iterator[tuple[int, list[str]]]:
    """`block`: whole lines without the last one's line feed, from line `number` and byte `offset` on."""
    if offset == 0:
        require_encoding(name, block, encoding)
        if block.startswith(codecs.BOM_UTF8):
            block, offset = block.removeprefix(codecs.BOM_UTF8), len(codecs.BOM_UTF8)
    try:
        text = encoding.decode(block)
    except UnicodeDecodeError:
        if number == 1 and b"\0" in block[:8000]:  # git's sign of a binary file, which no conversion makes text
            raise Binary("is binary, not text", where=name, fix="leave the file out") from None
        for line_number, raw in enumerate(block.split(b"\n"), number):
            line = decoded(raw, f"{name}:{line_number}", offset, handle, name, encoding)
            offset += len(raw) + 1
            if line is not None:
                yield line_number, [line.rstrip("\r")]
    else:
        lines = text.split("\n")
        yield number, [line.rstrip("\r") for line in lines] if "\r" in text else lines


def decoded(
    raw: bytes, where: str, offset: int, handle: FaultHandler, file: str = "", encoding: Encoding = ALWAYS_UTF8
) -> str | None:
    """The text of a line of `file`, or of a record without a file; None if the handler drops it. `offset`: of its first
    byte."""
    try:
        return encoding.decode(raw)
    except UnicodeDecodeError as error:
        what = f"0x{raw[error.start]:02x}, byte {offset + error.start + 1:,} of the text, is not {encoding.title}"
        column = f":{len(encoding.decode(raw[: error.start])) + 1}" if file else ""
        advice = partial(_fix, raw, error.start, file, encoding) if file else "write this text again as UTF-8"
        fault = Fault("encoding", where + column, what, advice)
        return encoding.decode(raw, "replace") if handle(fault) else None


def _fix(raw: bytes, start: int, file: str, encoding: Encoding) -> str:
    beginning = b""
    with suppress(MaskwrightError, OSError), open_text(file) as stream:
        beginning = next(line_feeds(blocks(stream)), b"").rpartition(b"\n")[0]
    return encoding.fix(raw, start, beginning)


def in_utf8(name: str, pieces: Iterable[bytes], encoding: Encoding, errors: str = "strict") -> Iterator[bytes]:
    """The bytes of a file in UTF-8. Raises `OtherEncoding`, with line and column, for bytes that do not decode."""
    decoder = codecs.getincrementaldecoder(encoding.name)(errors)
    number, offset, column = 1, 0, 1
    for piece in itertools.chain(pieces, [b""]):
        if piece and offset == 0 and errors == "strict":
            require_encoding(name, piece, encoding)
        waiting, flags = decoder.getstate()
        try:
            text = decoder.decode(piece, not piece)
        except UnicodeDecodeError as error:
            decoder.setstate((b"", flags))
            lines = decoder.decode(error.object[: error.start]).split("\n")
            number, column = number + len(lines) - 1, len(lines[-1]) + (column if len(lines) == 1 else 1)
            where, place = f"{name}:{number}:{column}", offset - len(waiting) + error.start + 1
            what = f"0x{error.object[error.start]:02x}, byte {place:,} of the text, is not {encoding.title}"
            fix = f"copy the file again if it is damaged; if this is not its encoding, {encoding.give('NAME')}"
            raise OtherEncoding(what, where=where, fix=fix) from None
        offset += len(piece)
        feeds = text.count("\n")
        number, column = number + feeds, len(text) - text.rfind("\n") if feeds else column + len(text)
        yield text.encode("utf-8", "surrogatepass")
