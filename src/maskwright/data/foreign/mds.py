"""Token ids in MosaicML's MDS (see `text.mds`).

    encoding of the column   an array's bytes
    ndarray                  type (u8, see `TYPES`) | shape | values
    ndarray:uint16           shape | values
    ndarray:uint16:1024      values
    bytes                    values, whose type the user gives

A shape is a byte, axes * 4 + log2(bytes of a dimension), and then the dimensions.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

import numpy as np

from maskwright.core.console import typed
from maskwright.core.errors import InputError, StoreError
from maskwright.data.foreign.blocks import INTEGERS, Block, Foreign, Options
from maskwright.data.foreign.columns import COLUMNS
from maskwright.data.store import in_blocks
from maskwright.text.arrays import Int64
from maskwright.text.compression import COPY_AGAIN
from maskwright.text.mds import Bytes, MdsShard, column_places, content_of, shards_of

TYPES = {8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 32: "uint32", 33: "int32", 64: "uint64", 65: "int64"}
"""Type codes in the header of an `ndarray` without a type in its name. Others are floats."""


def open_mds(folders: list[str], options: Options) -> Foreign:
    shards = [shard for folder in folders for shard in shards_of(folder)]
    if not shards:
        raise StoreError("names no shards", where=os.path.join(folders[0], "index.json"), fix=COPY_AGAIN)
    columns = [_column(shard, options) for shard in shards]
    return Foreign("mds", [shard.path for shard in shards], partial(_blocks, shards, columns, options.dtype))


def _column(shard: MdsShard, options: Options) -> int:
    """The index of the column of ids."""
    name = options.column or next((usual for usual in COLUMNS if usual in shard.names), None)
    if name in shard.names:
        return shard.names.index(name)
    folder = os.path.dirname(shard.path)
    what = f"has no column {name or 'of a known name'}; it has {', '.join(shard.names)}"
    fix = "name the column of the ids: --column"
    if "str" in shard.encodings:
        fix += f"; or, for a column of text: {typed(['data', 'prepare', folder])} --text-column NAME"
    raise StoreError(what, where=os.path.join(folder, "index.json"), fix=fix)


def _blocks(shards: list[MdsShard], columns: list[int], dtype: str | None, file_idx: int) -> Iterator[Block]:
    shard, column = shards[file_idx], columns[file_idx]
    data = content_of(shard)
    start, stop = column_places(shard, data, column)
    start, value_type, shape = _past_header(shard, column, data, start, stop, dtype)
    width = np.dtype(value_type).itemsize
    shard.require(
        bool(((stop >= start) & ((stop - start) % width == 0)).all()), f"an array is cut inside a {value_type}"
    )
    sizes = (stop - start) // width
    shard.require(shape is None or bool((shape == sizes).all()), "an array's length differs from its shape")
    view = memoryview(data)  # type: ignore[arg-type]
    for first, last in in_blocks(np.cumsum(sizes)):
        slices = map(slice, start[first:last].tolist(), stop[first:last].tolist())
        ids = np.frombuffer(b"".join(map(view.__getitem__, slices)), np.dtype(value_type).newbyteorder("<"))
        yield Block(ids, sizes[first:last], file_idx, first)


def _past_header(
    shard: MdsShard, column: int, data: Bytes, start: Int64, stop: Int64, dtype: str | None
) -> tuple[Int64, str, Int64 | None]:
    """(begin of each array's values, their type, their number by its shape or None)."""
    name, _, rest = shard.encodings[column].partition(":")
    value_type, _, shape = rest.partition(":")
    if name == "bytes":
        if dtype is None:
            fix = "give their type: --dtype int64 for files of llm-foundry"
            raise InputError("holds ids as plain bytes", where=shard.path, fix=fix)
        return start, dtype, None
    if name != "ndarray" or (value_type and value_type not in INTEGERS):
        fix = "name the column of the ids: --column"
        raise InputError(f"has a column of {shard.encodings[column]}, not of ids", where=shard.path, fix=fix)
    if not value_type:
        shard.require(bool((start < stop).all()), "an array has no bytes")
        codes = np.unique(data[start])
        shard.require(len(codes) == 1 and int(codes[0]) in TYPES, "its arrays are not of one type of integers")
        value_type, start = TYPES[int(codes[0])], start + 1
    if shape:
        return start, value_type, None
    shard.require(bool((start < stop).all()), "an array ends before its shape")
    first_byte, begin, count = data[start], start + 1, np.zeros(len(start), np.int64)
    for code in np.unique(first_byte).tolist():
        axes, width = code // 4, 1 << code % 4
        arrays = np.flatnonzero(first_byte == code)
        shard.require(bool((begin + axes * width <= stop)[arrays].all()), "an array ends inside its shape")
        dimensions = data[begin[arrays, None] + np.arange(axes * width)].view(f"<u{width}")
        count[arrays] = dimensions.astype(np.int64).prod(1)
        begin[arrays] += axes * width
    return begin, value_type, count
