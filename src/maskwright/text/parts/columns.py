"""One worker's result for a part: columns of numbers and a JSON note, in one file, written atomically.

    extents of columns, one after the other | JSON: the note, and the extents of each column | size of the JSON

A column is written in extents, as its numbers come, and read by ranges. Numbers are little-endian.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from maskwright.core import storage
from maskwright.core.errors import MaskwrightError

Note = dict[str, Any]
ALIGNED_BYTES = 8
SIZE_BYTES = 8


class ColumnWriter:
    def __init__(self, file: BinaryIO) -> None:
        self._file, self._end = file, 0
        self._extents: dict[str, list[tuple[int, int]]] = {}
        self._dtypes: dict[str, str] = {}
        self.note: Note = {}
        """JSON values, written last."""

    def append(self, name: str, values: NDArray[Any]) -> None:
        """Adds values to a column. All its extents have one dtype."""
        dtype = values.dtype.newbyteorder("<")
        assert self._dtypes.setdefault(name, dtype.str) == dtype.str, name
        content = np.ascontiguousarray(values, dtype)
        extents = self._extents.setdefault(name, [])
        if extents and extents[-1][0] + extents[-1][1] * dtype.itemsize == self._end:  # then it can be mapped as one
            begin, count = extents.pop()
            extents.append((begin, count + len(values)))
        else:
            extents.append((self._end, len(values)))
        self._write(content.data.cast("B") if len(values) else b"")
        self._write(bytes(-self._end % ALIGNED_BYTES))

    def count(self, name: str) -> int:
        """Numbers in the column so far."""
        return sum(count for _, count in self._extents.get(name, ()))

    def _write(self, content: Any) -> None:
        self._file.write(content)
        self._end += len(content)

    def close(self) -> None:
        columns = {name: [dtype, self._extents[name]] for name, dtype in self._dtypes.items()}
        tail = json.dumps({"note": self.note, "columns": columns}, ensure_ascii=False).encode()
        self._write(tail)
        self._write(len(tail).to_bytes(SIZE_BYTES, "little"))


@contextmanager
def written(path: str, *, sync: bool = True) -> Iterator[ColumnWriter]:
    """Writes a file of columns atomically. `sync`: see `storage.atomic_writer`."""
    with storage.atomic_writer(path, sync=sync) as file:
        writer = ColumnWriter(file)
        yield writer
        writer.close()


class Columns:
    """The file, opened. Raises `MaskwrightError` if it is cut or altered, or cannot be read."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            size = os.path.getsize(path)
            with open(path, "rb") as file:
                file.seek(size - SIZE_BYTES)
                length = int.from_bytes(file.read(SIZE_BYTES), "little")
                file.seek(size - SIZE_BYTES - length)
                tail = json.loads(file.read(length))
            self.note: Note = tail["note"]
            self._columns: dict[str, tuple[str, list[list[int]]]] = tail["columns"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            fix = "check that this machine can read the folder, or delete the file to compute its part again"
            raise MaskwrightError(f"cannot be read: {error}", where=path, fix=fix) from None

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def count(self, name: str) -> int:
        return sum(count for _, count in self._columns[name][1])

    def pieces(self, name: str, begin: int = 0, end: int | None = None) -> list[NDArray[Any]]:
        """The numbers from `begin` to `end` in pieces, one for each extent, memory-mapped."""
        dtype, extents = self._columns[name]
        pieces, first = [], 0
        for extent_begin, count in extents:
            low, high = max(begin - first, 0), count if end is None else min(end - first, count)
            if low < high:
                width = np.dtype(dtype).itemsize
                pieces.append(np.asarray(np.memmap(self.path, dtype, "r", extent_begin + low * width, (high - low,))))
            first += count
        return pieces

    def column(self, name: str, begin: int = 0, end: int | None = None) -> NDArray[Any]:
        pieces = self.pieces(name, begin, end)
        return np.concatenate(pieces) if pieces else np.zeros(0, self._columns[name][0])

    def numbers(self, name: str, begin: int, end: int) -> NDArray[Any]:
        """`column` within one extent, by reading: faster than mapping for a few numbers of many files."""
        dtype, extents = self._columns[name]
        width, first = np.dtype(dtype).itemsize, 0
        for extent_begin, count in extents:
            if begin < first + count:
                assert end <= first + count, name
                with open(self.path, "rb") as file:
                    file.seek(extent_begin + (begin - first) * width)
                    return np.frombuffer(file.read((end - begin) * width), dtype)
            first += count
        assert begin == end, name
        return np.zeros(0, dtype)
