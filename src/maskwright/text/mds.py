"""MosaicML's MDS: `index.json`, and shards of samples.

A shard is the number of samples (u32), the offset of each and of the end (u32), a JSON of the columns, then the
samples. A sample is the sizes of its columns without a fixed size (u32 each), then the columns one after the other.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.core import storage
from maskwright.core.errors import StoreError
from maskwright.text.arrays import Int64
from maskwright.text.compression import COPY_AGAIN, Watch, blocks, file_size, guarded, is_packed, open_text, stamp_of
from maskwright.text.document import Column, FaultHandler, Record, Records, place
from maskwright.text.lines import decoded

LARGEST_SHARD = 2**32
"""Offsets in a shard have 4 bytes, so no shard is larger."""
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class MdsShard:
    path: str
    samples: int
    bytes: int
    is_packed: bool
    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int | None, ...]
    """Bytes of each column; None if the size varies between samples."""

    def require(self, condition: bool, what: str) -> None:
        """Raises `StoreError` for a damaged shard."""
        if not condition:
            raise StoreError(what, where=self.path, fix=COPY_AGAIN)


def shards_of(folder: str) -> list[MdsShard]:
    """The shards of a local folder; of a shard that is also packed, the unpacked file. Raises `StoreError`."""
    index = os.path.join(folder, "index.json")
    shards = []
    for record in _records(index, stamp_of(index)):
        raw, packed = (os.path.join(folder, name) if name else "" for name in _file_names(record))
        path = packed if packed and not os.path.exists(raw) else raw
        if not os.path.isfile(path):
            raise StoreError("is missing", where=path, fix=COPY_AGAIN)
        shards.append(_shard(path, record))
    return shards


def shard_at(path: str) -> MdsShard:
    """The shard in a file, local or behind a URL. Raises `StoreError` unless an `index.json` next to it names it."""
    folder, slash, name = path.rpartition("/")
    index = f"{folder}{slash}index.json"
    record = next((one for one in _records(index, stamp_of(index)) if name in _file_names(one)), None)
    if record is None:
        raise StoreError(f"does not name the shard {name}", where=index, fix=COPY_AGAIN)
    return _shard(path, record)


@lru_cache(maxsize=8)
def _records(index: str, stamp: tuple[int, int] | None) -> list[dict[str, Any]]:
    """The shards of an index. `stamp`: differs between versions of the file."""
    content: Any = storage.read_json(index)
    try:
        for record in content["shards"]:
            size = int(record["raw_data"]["bytes"])
            if record["format"] != "mds" or record["version"] != 2 or not 0 <= size < LARGEST_SHARD:
                raise ValueError
            for name in _file_names(record):
                if name is not None and (name != os.path.basename(name) or name in ("", ".", "..")):
                    raise ValueError  # it leads out of the folder
            _shard(None, record)
    except (KeyError, TypeError, ValueError, AttributeError):
        fix = "restore it, or write it again with `streaming.base.util.merge_index`"
        raise StoreError("is not an index of MDS, version 2", where=index, fix=fix) from None
    shards: list[dict[str, Any]] = content["shards"]
    return shards


def _file_names(record: dict[str, Any]) -> tuple[str, str | None]:
    packed = record["zip_data"]
    return record["raw_data"]["basename"], packed["basename"] if packed else None


def _shard(path: str | None, record: dict[str, Any]) -> MdsShard:
    """The shard of a record, and without a `path` only a check of the record."""
    is_packed = os.path.basename(path or "") == _file_names(record)[1]
    if path:
        expected, found = int(record["zip_data" if is_packed else "raw_data"]["bytes"]), file_size(path)
        if found != expected:
            raise StoreError(f"has {found:,} bytes, but {expected:,} by index.json", where=path, fix=COPY_AGAIN)
    sizes = (None if size is None else int(size) for size in record["column_sizes"])
    columns = tuple(record["column_names"]), tuple(record["column_encodings"]), tuple(sizes)
    if len({*map(len, columns)}) > 1:
        raise ValueError
    return MdsShard(path or "", int(record["samples"]), int(record["raw_data"]["bytes"]), is_packed, *columns)


def content_of(shard: MdsShard) -> Bytes:
    """The unpacked bytes of a shard. Raises `StoreError` for a damaged one."""
    if not shard.is_packed and not storage.is_url(shard.path):
        return np.asarray(np.memmap(shard.path, np.uint8, "r"))
    if shard.is_packed and not is_packed(shard.path):
        fix = "unpack the shards with `streaming` first, or write them with zstd"
        raise StoreError("is packed in an unsupported way", where=shard.path, fix=fix)
    content = bytearray()
    with open_text(shard.path) as stream:
        for block in guarded(shard.path, blocks(stream)):
            content += block
            shard.require(len(content) <= shard.bytes, f"is larger than the {shard.bytes:,} bytes of index.json")
    shard.require(len(content) == shard.bytes, f"is smaller than the {shard.bytes:,} bytes of index.json")
    return np.frombuffer(content, np.uint8)


def column_places(shard: MdsShard, data: Bytes, column: int) -> tuple[Int64, Int64]:
    """(begin, end) of a column's values [samples], in bytes. Raises `StoreError` for a damaged shard."""
    begin, end = _samples(shard, data)
    widths: list[Int64 | int] = []  # of the columns up to this one: [samples], or the same in all
    for column_idx, size in enumerate(shard.sizes[: column + 1]):
        varying = shard.sizes[:column_idx].count(None)
        widths.append(u32(data, begin + 4 * varying) if size is None else size)
    start = begin + 4 * shard.sizes.count(None) + sum(widths[:-1])
    stop = start + widths[-1]
    shard.require(bool(((start <= stop) & (stop <= end)).all()), "a column reaches beyond its sample")
    return start, stop


def _samples(shard: MdsShard, data: Bytes) -> tuple[Int64, Int64]:
    """(begin, end) of each sample, in bytes."""
    head = 4 * (shard.samples + 2)
    count = int(data[:4].view("<u4")[0]) if len(data) >= max(head, 8) else -1
    shard.require(count == shard.samples, f"does not hold the {shard.samples:,} samples of index.json")
    offsets = data[4:head].view("<u4").astype(np.int64)
    is_ascending = bool((offsets[1:] >= offsets[:-1]).all()) and offsets[0] >= head and offsets[-1] <= len(data)
    shard.require(is_ascending, "its samples do not lie one after the other inside it")
    sizes = 4 * sum(size is None for size in shard.sizes)
    shard.require(bool((np.diff(offsets) >= sizes).all()), "a sample is shorter than the sizes of its columns")
    return offsets[:-1], offsets[1:]


def u32(data: Bytes, offsets: Int64) -> Int64:
    """The little-endian numbers of 4 bytes at `offsets` [samples]."""
    return data[offsets[:, None] + np.arange(4)].view("<u4").reshape(-1).astype(np.int64)


def mds_records(shard: MdsShard, columns: list[Column], handle: FaultHandler, watch: Watch) -> Records:
    """(number from 1, values of `columns`) of each sample: `str` for text, else the bytes."""
    number, size = 0, file_size(shard.path)
    if watch:
        watch(lambda: size * number // max(shard.samples, 1))
    data = content_of(shard)
    column_idxs = [shard.names.index(str(column)) for column in columns]
    places = [[side.tolist() for side in column_places(shard, data, index)] for index in column_idxs]
    is_text = [shard.encodings[index] == "str" for index in column_idxs]
    for number in range(1, shard.samples + 1):
        record: Record = {}
        for column, (starts, stops), as_text in zip(columns, places, is_text, strict=True):
            raw = data[starts[number - 1] : stops[number - 1]].tobytes()
            where = place(shard.path, number, "record")
            record[column] = decoded(raw, where, 0, handle) if as_text else raw
        yield number, record
