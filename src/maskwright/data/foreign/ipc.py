"""Where the ids lie in an Arrow IPC file or stream that has a document a record batch, found for all batches at once.

pyarrow takes 9 microseconds a record batch, which is 130 MB/s for documents of 600 tokens. All record batches of one
writer have the same layout but for a few numbers, so the first is taken apart (FlatBuffers), and of the others those
numbers are read, after a comparison of everything else.
https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from maskwright.data.foreign.blocks import Int64

MAGIC, CONTINUES = b"ARROW1", 0xFFFFFFFF
RECORD_BATCH = 3
"""Of `MessageHeader`; a schema is 1."""
AT_ONCE = 1 << 13
"""Messages compared at once."""


@dataclass(frozen=True)
class _Layout:
    """Where the numbers of a message stand, in bytes from its beginning; all of 8 bytes."""

    head: bytes
    """The message, with zeros in place of them."""
    body_length: int
    rows: int
    node: int
    """Rows again, then nulls."""
    buffers: int
    """(offset, length) of the validity bits and of the values."""

    @property
    def numbers(self) -> list[int]:
        return [self.body_length, self.rows, *(self.node + 8 * n for n in range(2))] + [
            self.buffers + 8 * n for n in range(4)
        ]


def plain_places(data: NDArray[np.uint8], width: int, is_file: bool) -> tuple[Int64, Int64] | None:
    """(place in bytes, ids) of each record batch of a single column without nulls or compression. None if the batches
    are not all alike, which is for pyarrow to read or to refuse. `data`: the file's bytes. `width`: bytes of an id."""
    view = memoryview(data)  # type: ignore[arg-type]
    try:
        found = _blocks_of_file(view) if is_file else _blocks_of_stream(view)
        if found is None or not len(found[0]):
            return None
        begins, sizes = found
        layout = _layout(view, int(begins[0]), int(sizes[0]))
    except (struct.error, IndexError, ValueError, OverflowError):
        return None
    if layout is None or (sizes != len(layout.head)).any() or int(begins.max()) + len(layout.head) > len(data):
        return None
    same = np.frombuffer(layout.head, np.uint8)
    numbers = np.empty((len(begins), len(layout.numbers)), np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(data, len(same))
    for first in range(0, len(begins), AT_ONCE):
        heads = windows[begins[first : first + AT_ONCE]]  # a copy
        for column, at in enumerate(layout.numbers):
            numbers[first : first + AT_ONCE, column] = heads[:, at : at + 8].copy().view("<i8")[:, 0]
            heads[:, at : at + 8] = 0
        if (heads != same).any():
            return None
    body, rows, nodes, nulls, _, _, offset, length = numbers.T
    places = begins + len(same) + offset
    fine = (rows == nodes) & (nulls == 0) & (rows >= 0) & (offset >= 0) & (length >= 0) & (offset + length <= body)
    fine &= (places + length <= len(data)) & (rows <= length // width) & (places % width == 0)
    if not fine.all():
        return None
    return places, rows.copy()


def _blocks_of_file(view: memoryview) -> tuple[Int64, Int64] | None:
    """(begin, length) of each record batch's message, from the footer."""
    if bytes(view[-6:]) != MAGIC:
        return None
    (size,) = struct.unpack_from("<i", view, len(view) - 10)
    begin = len(view) - 10 - size
    if size <= 0 or begin < 8:
        return None
    footer = view[begin : begin + size]
    (root,) = struct.unpack_from("<I", footer, 0)
    place = _field(footer, root, 3)
    if place is None:
        return None
    vector = place + struct.unpack_from("<I", footer, place)[0]
    (count,) = struct.unpack_from("<I", footer, vector)
    blocks = np.frombuffer(
        footer, np.dtype([("at", "<i8"), ("head", "<i4"), ("", "<i4"), ("body", "<i8")]), count, vector + 4
    )
    at = blocks["at"].astype(np.int64)
    return (at, blocks["head"].astype(np.int64)) if not count or at.min() >= 8 else None


def _blocks_of_stream(view: memoryview) -> tuple[Int64, Int64] | None:
    """The same by going from message to message, since a stream has no footer. A message tells the length of its body
    where the first one does; the comparison shows whether it did. None without the end-of-stream marker."""
    read, begins, at, body_at, head = struct.Struct("<Ii").unpack_from, [], 0, -1, 0
    number = struct.Struct("<q").unpack_from
    while at + 8 <= len(view):
        mark, size = read(view, at)
        if mark != CONTINUES or size < 0:
            return None
        if size == 0:  # the end
            break
        if at == 0:  # the schema, which has no body
            at += 8 + size
            continue
        if body_at < 0:
            (root,) = struct.unpack_from("<I", view, at + 8)
            place = _field(view[at + 8 : at + 8 + size], root, 3)
            if place is None:
                return None
            body_at, head = 8 + place, size
        elif size != head:
            return None
        begins.append(at)
        (body,) = number(view, at + body_at)
        if body < 0:
            return None
        at += 8 + size + body
    else:
        return None
    return np.array(begins, np.int64), np.full(len(begins), head + 8, np.int64)


def has_end(data: NDArray[np.uint8]) -> bool:
    """Whether a stream that pyarrow has read ends with the marker that writers put there when they are closed. pyarrow
    takes a file that was cut between two messages for a whole one."""
    view, at = memoryview(data), 0  # type: ignore[arg-type]
    while at + 4 <= len(view):
        (size,) = struct.unpack_from("<I", view, at)
        at += 4
        if size == CONTINUES and at + 4 <= len(view):  # not there before Arrow 0.15
            (size,) = struct.unpack_from("<I", view, at)
            at += 4
        if size == 0:
            return True
        if at + size > len(view):
            return False
        message = view[at : at + size]
        (root,) = struct.unpack_from("<I", message, 0)
        place = _field(message, root, 3)
        at += size + (struct.unpack_from("<q", message, place)[0] if place is not None else 0)
    return False


def _field(table: memoryview, at: int, number: int) -> int | None:
    """Place of a field of the FlatBuffers table at `at`; None where it has its default."""
    (back,) = struct.unpack_from("<i", table, at)
    vtable = at - back
    (size,) = struct.unpack_from("<H", table, vtable)
    if vtable < 0 or 4 + 2 * number >= size:
        return None
    (offset,) = struct.unpack_from("<H", table, vtable + 4 + 2 * number)
    return at + offset if offset else None


def _layout(view: memoryview, begin: int, length: int) -> _Layout | None:
    message = view[begin + 8 : begin + length]
    if struct.unpack_from("<I", view, begin)[0] != CONTINUES:
        return None
    (root,) = struct.unpack_from("<I", message, 0)
    kind, header, body = (_field(message, root, number) for number in (1, 2, 3))
    if kind is None or header is None or body is None or message[kind] != RECORD_BATCH:
        return None
    batch = header + struct.unpack_from("<I", message, header)[0]
    rows, nodes, buffers = (_field(message, batch, number) for number in (0, 1, 2))
    if rows is None or nodes is None or buffers is None or _field(message, batch, 3) is not None:
        return None
    nodes += struct.unpack_from("<I", message, nodes)[0]
    buffers += struct.unpack_from("<I", message, buffers)[0]
    if struct.unpack_from("<I", message, nodes)[0] != 1 or struct.unpack_from("<I", message, buffers)[0] != 2:
        return None
    layout = _Layout(b"", 8 + body, 8 + rows, 12 + nodes, 12 + buffers)
    head = bytearray(view[begin : begin + length])
    if max(layout.numbers) + 8 > length:
        return None
    for at in layout.numbers:
        head[at : at + 8] = bytes(8)
    return _Layout(bytes(head), layout.body_length, layout.rows, layout.node, layout.buffers)
