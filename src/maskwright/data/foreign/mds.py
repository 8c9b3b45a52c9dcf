"""MosaicML's MDS: `index.json`, and shards of samples.

A shard is the number of samples (u32), the place of each and the end (u32), a JSON of the columns, then the samples. A
sample is the sizes of its columns of no fixed size (u32 each), then the columns one after the other.

An `ndarray` column begins with its type (u8) and its shape (u8: axes * 4 + log2 of the bytes of a dimension; then the
dimensions), unless the name of the encoding has them: `ndarray:uint16`, `ndarray:uint16:1024`.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.core import storage
from maskwright.core.errors import InputError, StoreError
from maskwright.core.extras import require
from maskwright.data.foreign.blocks import COPY_AGAIN, INTEGERS, Block, Foreign, Int64, Options, in_blocks
from maskwright.data.foreign.columns import COLUMNS

TYPES = {8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 32: "uint32", 33: "int32", 64: "uint64", 65: "int64"}
"""Type codes in the header of an `ndarray` without a type in its name. Others are floats."""
LARGEST_SHARD = 2**32
"""Offsets in a shard have 4 bytes, so no shard is larger, whatever its index claims."""
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class _Shard:
    path: str
    samples: int
    bytes: int
    compression: str | None
    encoding: str
    column: int
    sizes: tuple[int | None, ...]
    """Bytes of each column; None for one whose size varies from sample to sample."""


def open_mds(folders: list[str], options: Options) -> Foreign:
    shards = [shard for folder in folders for shard in _read_index(os.path.join(folder, "index.json"), options)]
    if not shards:
        raise StoreError("names no shards", where=os.path.join(folders[0], "index.json"), fix=COPY_AGAIN)
    return Foreign("mds", [shard.path for shard in shards], partial(_blocks, shards, options.dtype))


def _read_index(path: str, options: Options) -> list[_Shard]:
    content: Any = storage.read_json(path)
    try:
        return [_shard(os.path.dirname(path), record, options) for record in content["shards"]]
    except (KeyError, TypeError, ValueError, AttributeError):
        fix = "restore it, or `streaming.base.util.merge_index` writes it again"
        raise StoreError("is not an index of MDS, version 2", where=path, fix=fix) from None


def _shard(folder: str, record: dict[str, Any], options: Options) -> _Shard:
    names = record["column_names"]
    if record["format"] != "mds" or record["version"] != 2:
        raise ValueError
    name = options.column or next((usual for usual in COLUMNS if usual in names), None)
    if name not in names:
        what = f"has no column {name or 'of a known name'}; it has {', '.join(names)}"
        raise StoreError(what, where=os.path.join(folder, "index.json"), fix="name the column of the ids: --column")
    raw, packed = record["raw_data"], record["zip_data"]
    path, size = os.path.join(folder, _plain_name(raw["basename"])), int(raw["bytes"])
    if not 0 <= size < LARGEST_SHARD:
        raise ValueError
    packing = None
    if packed and not os.path.exists(path):
        path, packing = os.path.join(folder, _plain_name(packed["basename"])), record["compression"]
    if not os.path.isfile(path):
        raise StoreError("is missing", where=path, fix=COPY_AGAIN)
    expected = int(packed["bytes"]) if packing else size
    if os.path.getsize(path) != expected:
        what = f"has {os.path.getsize(path):,} bytes, index.json says {expected:,}"
        raise StoreError(what, where=path, fix=COPY_AGAIN)
    column = names.index(name)
    sizes = tuple(None if size is None else int(size) for size in record["column_sizes"])
    return _Shard(path, int(record["samples"]), size, packing, record["column_encodings"][column], column, sizes)


def _plain_name(name: str) -> str:
    """A shard's file name. Raises `ValueError` for one that leads out of the folder."""
    if name != os.path.basename(name) or name in ("", ".", ".."):
        raise ValueError
    return name


def _blocks(shards: list[_Shard], dtype: str | None, file_idx: int) -> Iterator[Block]:
    shard = shards[file_idx]
    data = _content(shard)
    begin, end = _samples(shard, data)
    widths: list[Int64 | int] = []  # of the columns up to the one of the ids: [samples], or the same in all
    for column_idx, size in enumerate(shard.sizes[: shard.column + 1]):
        varying = shard.sizes[:column_idx].count(None)
        widths.append(_u32(data, begin + 4 * varying) if size is None else size)
    start = begin + 4 * shard.sizes.count(None) + sum(widths[:-1])
    stop = start + widths[-1]
    _require(bool(((start <= stop) & (stop <= end)).all()), shard, "a column reaches beyond its sample")
    start, value_type, shape = _past_header(shard, data, start, stop, dtype)
    width = np.dtype(value_type).itemsize
    _require(
        bool(((stop >= start) & ((stop - start) % width == 0)).all()), shard, f"an array is cut inside a {value_type}"
    )
    sizes = (stop - start) // width
    _require(shape is None or bool((shape == sizes).all()), shard, "an array has another length than its shape says")
    view = memoryview(data)  # type: ignore[arg-type]
    for first, last in in_blocks(np.cumsum(sizes)):
        slices = map(slice, start[first:last].tolist(), stop[first:last].tolist())
        ids = np.frombuffer(b"".join(map(view.__getitem__, slices)), np.dtype(value_type).newbyteorder("<"))
        yield Block(ids, sizes[first:last], file_idx, first)


def _content(shard: _Shard) -> Bytes:
    if shard.compression is None:
        return np.asarray(np.memmap(shard.path, np.uint8, "r"))
    with storage.open_binary(shard.path) as file:
        packed = file.read()
    name = str(shard.compression).partition(":")[0]
    what = f"is not a whole {name} file of {shard.bytes:,} bytes"
    if name == "zstd":
        require("pyarrow", shard.path)
        import pyarrow as arrow

        try:
            content = arrow.decompress(packed, shard.bytes, codec="zstd", asbytes=True)
        except (arrow.ArrowException, OSError):
            raise StoreError(what, where=shard.path, fix=COPY_AGAIN) from None
    elif name == "gz":
        unpack = zlib.decompressobj(31)
        try:
            content = unpack.decompress(packed, shard.bytes + 1)
        except zlib.error:
            raise StoreError(what, where=shard.path, fix=COPY_AGAIN) from None
    else:
        fix = "unpack the shards with `streaming` first, or write them with zstd"
        raise InputError(f"is packed with {name}, which is not read", where=shard.path, fix=fix)
    if len(content) != shard.bytes:
        raise StoreError(what, where=shard.path, fix=COPY_AGAIN)
    return np.frombuffer(content, np.uint8)


def _samples(shard: _Shard, data: Bytes) -> tuple[Int64, Int64]:
    """(begin, end) of each sample, in bytes."""
    head = 4 * (shard.samples + 2)
    count = int(data[:4].view("<u4")[0]) if len(data) >= max(head, 8) else -1
    _require(count == shard.samples, shard, f"does not hold the {shard.samples:,} samples of index.json")
    offsets = data[4:head].view("<u4").astype(np.int64)
    is_ascending = bool((offsets[1:] >= offsets[:-1]).all()) and offsets[0] >= head and offsets[-1] <= len(data)
    _require(is_ascending, shard, "its samples do not lie one after the other inside it")
    sizes = 4 * sum(size is None for size in shard.sizes)
    _require(bool((np.diff(offsets) >= sizes).all()), shard, "a sample is shorter than the sizes of its columns")
    return offsets[:-1], offsets[1:]


def _past_header(
    shard: _Shard, data: Bytes, start: Int64, stop: Int64, dtype: str | None
) -> tuple[Int64, str, Int64 | None]:
    """(begin of each array's values, their type, their number by its shape or None)."""
    name, _, rest = shard.encoding.partition(":")
    value_type, _, shape = rest.partition(":")
    if name == "bytes":
        if dtype is None:
            fix = "say their type: --dtype int64 for what llm-foundry writes"
            raise InputError("holds ids as plain bytes", where=shard.path, fix=fix)
        return start, dtype, None
    if name != "ndarray" or (value_type and value_type not in INTEGERS):
        fix = "name the column of the ids: --column"
        raise InputError(f"has a column of {shard.encoding}, and not of ids", where=shard.path, fix=fix)
    _require(bool((start < stop).all()) if not (value_type and shape) else True, shard, "an array has no bytes")
    if not value_type:
        codes = np.unique(data[start])
        _require(len(codes) == 1 and int(codes[0]) in TYPES, shard, "its arrays are not of one type of integers")
        value_type, start = TYPES[int(codes[0])], start + 1
    if shape:
        return start, value_type, None
    _require(bool((start < stop).all()), shard, "an array ends before its shape")
    axes, code = np.divmod(data[start].astype(np.int64), 4)
    width, dimensions_at = 1 << code, start + 1
    start = dimensions_at + axes * width
    _require(bool((start <= stop).all()), shard, "an array ends inside its shape")
    count = np.ones(len(start), np.int64)
    for axis in range(int(axes.max(initial=0))):
        dimension = np.zeros(len(start), np.int64)
        for byte in range(int(width.max())):
            has_byte = (axes > axis) & (byte < width)
            dimension[has_byte] |= data[(dimensions_at + axis * width + byte)[has_byte]].astype(np.int64) << (8 * byte)
        count = np.where(axes > axis, count * dimension, count)
    return start, value_type, count


def _u32(data: Bytes, offsets: Int64) -> Int64:
    return data[offsets[:, None] + np.arange(4)].view("<u4").reshape(-1).astype(np.int64)


def _require(condition: bool, shard: _Shard, what: str) -> None:
    if not condition:
        raise StoreError(what, where=shard.path, fix=COPY_AGAIN)
