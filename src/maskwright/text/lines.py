"""Numbered lines of a file, decoded a block at a time, without their ends and the file's byte-order mark.

A line ends with LF or CRLF; in files of old Macs, which begin with a block that has CR and no LF, with CR up to the
first LF. Bytes that are not UTF-8 are reported with file, line and column, to every reader.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from maskwright.text.compression import Binary, ByteSpan, blocks, guarded, open_text, require_utf8
from maskwright.text.document import Fault, FaultHandler, strict

LONGEST_LINE_BYTES = 1 << 29
"""More than the longest human chromosome. Memory holds a whole line and its copies."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def numbered_lines(name: str) -> Iterator[tuple[int, str]]:
    """All lines of a file, from 1 on. Raises `SourceError` with file, line and column."""
    with open_text(name) as stream:
        yield from lines_of(name, stream, strict)


def lines_of(
    name: str, stream: BinaryIO, handle: FaultHandler, span: ByteSpan | None = None
) -> Iterator[tuple[int, str]]:
    """Numbered lines of an open `stream`: of the whole file `name`, or of a `span` of it."""
    for first, lines in line_blocks(name, stream, handle, span):
        yield from enumerate(lines, first)


def line_blocks(
    name: str, stream: BinaryIO, handle: FaultHandler, span: ByteSpan | None = None
) -> Iterator[tuple[int, list[str]]]:
    """(number of the first line, lines) of each block. Ten times as fast as line by line."""
    number, offset = (span.first_line, span.begin) if span else (1, 0)
    partial_line: list[bytes] = []  # of a line that is longer than a block
    skipping = False  # whether the rest of a line that is too long is skipped
    content = blocks(stream) if offset else _line_feeds(blocks(stream))
    for block in guarded(name, content, line=lambda: number):  # noqa: B023 - meant
        if skipping:
            skipped, feed, block = block.partition(b"\n")
            number, offset, skipping = number + len(feed), offset + len(skipped) + len(feed), not feed
        complete, feed, tail = block.rpartition(b"\n")
        if feed:
            complete = b"".join([*partial_line, complete])
            yield from _decoded(name, complete, number, offset, handle)
            number, offset, partial_line = number + complete.count(b"\n") + 1, offset + len(complete) + 1, []
        partial_line.append(tail)
        if (size := sum(map(len, partial_line))) > LONGEST_LINE_BYTES:
            handle(Fault("record", f"{name}:{number}", f"has a line of over {LONGEST_LINE_BYTES:,} bytes", "split it"))
            skipping, partial_line, offset = True, [], offset + size
    if any(partial_line):
        yield from _decoded(name, b"".join(partial_line), number, offset, handle)


def _line_feeds(content: Iterator[bytes]) -> Iterator[bytes]:
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
    name: str, block: bytes, number: int, offset: int, handle: FaultHandler
) -> Iterator[tuple[int, list[str]]]:
    """`block`: whole lines without the last one's line feed, from line `number` and byte `offset` on."""
    if offset == 0:
        require_utf8(name, block)
        if block.startswith(BYTE_ORDER_MARK):
            block, offset = block.removeprefix(BYTE_ORDER_MARK), len(BYTE_ORDER_MARK)
    try:
        text = block.decode("utf-8")
    except UnicodeDecodeError:
        if number == 1 and b"\0" in block[:8000]:  # git's sign of a binary file: no conversion makes text of it
            raise Binary("is binary, not text", where=name, fix="leave the file out") from None
        for line_number, raw in enumerate(block.split(b"\n"), number):
            line = decoded(raw, f"{name}:{line_number}", offset, handle)
            offset += len(raw) + 1
            if line is not None:
                yield line_number, [line.rstrip("\r")]
    else:
        lines = text.split("\n")
        yield number, [line.rstrip("\r") for line in lines] if "\r" in text else lines


def decoded(raw: bytes, where: str, offset: int, handle: FaultHandler, *, in_line: bool = True) -> str | None:
    """The text of a line, or of a record, which has no columns; None if the handler drops it. `offset`: of its first
    byte."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        what = f"0x{raw[error.start]:02x}, byte {offset + error.start + 1:,} of the text, is not UTF-8"
        column = f":{len(raw[: error.start].decode()) + 1}" if in_line else ""
        fault = Fault("encoding", where + column, what, "convert the file: iconv -f latin1 -t utf8")
        return raw.decode("utf-8", errors="replace") if handle(fault) else None
