"""Columns of ids: Arrow IPC (files and streams), Hugging Face `datasets` folders, Parquet.

A column of lists has a document in each row. A column of plain integers has a document in each record batch, as in
shards of IBM's foundation models (column `tokens`); in Parquet, that would be a row group, which no tool writes.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from maskwright.core import storage
from maskwright.core.errors import InputError, StoreError
from maskwright.core.extras import require
from maskwright.core.splits import SPLIT_OF
from maskwright.data.foreign.blocks import Block, Foreign, Ids
from maskwright.data.store import BLOCK_TOKENS
from maskwright.text.arrays import Int64
from maskwright.text.arrow import STATE, open_ipc, shards_of
from maskwright.text.compression import COPY_AGAIN
from maskwright.text.parquet import short
from maskwright.text.tables import open_table

COLUMNS = ("input_ids", "tokens", "token_ids", "ids")
"""Usual names of the column of ids, tried in this order."""
BATCHES_AT_ONCE = 32
"""Record batches of a plain column, a document each, that are joined at once. Hundreds would not fit the caches."""
NO_NULLS = "write the data without nulls"


def arrow_files(folder: str) -> list[str]:
    """The `.arrow` files of a folder and its subfolders, sorted; `meta/` holds none."""
    return sorted(path for path in storage.expand([folder]) if path.endswith(".arrow"))


ColumnPart = tuple[Ids, Int64]
"""(ids, tokens of each document)"""


def arrow_parts(path: str, column: str | None) -> Iterator[ColumnPart]:
    """The documents of an Arrow IPC file or stream. Raises `StoreError` for a cut file, a stream without its end,
    nulls, and a column that is absent or holds no ids."""
    require("pyarrow", path)
    import pyarrow as arrow

    try:
        # Not `arrow.memory_map`, where each message is a system call: 1.4 of 3 microseconds.
        data = np.memmap(path, np.uint8, "r") if os.path.getsize(path) else np.zeros(0, np.uint8)
        schema, batches = open_ipc(arrow.BufferReader(arrow.py_buffer(data)), path)
        column_idx = _column(schema, column, path)
        documents = _rows_of_lists if _is_list(schema.field(column_idx).type) else _batches_of_ids
        yield from documents(batches, column_idx, path)
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        what = f"is not a whole Arrow IPC file or stream: {short(error)}"
        raise StoreError(what, where=path, fix=COPY_AGAIN) from None


def _batches_of_ids(batches: Iterator[Any], column_idx: int, path: str) -> Iterator[ColumnPart]:
    """Parts of a plain column, whose documents are batches."""
    batches_to_join: list[Any] = []
    tokens = 0  # in the block of `grouped` that these batches go into
    for batch in batches:
        tokens += batch.num_rows
        if batches_to_join and (tokens > BLOCK_TOKENS or len(batches_to_join) == BATCHES_AT_ONCE):
            yield _part(batches_to_join, column_idx, path)
            batches_to_join = []
            tokens = batch.num_rows if tokens > BLOCK_TOKENS else tokens
        batches_to_join.append(batch)
    if batches_to_join:
        yield _part(batches_to_join, column_idx, path)


def _part(batches: list[Any], column_idx: int, path: str) -> ColumnPart:
    import pyarrow as arrow

    table = arrow.Table.from_batches(batches).select([column_idx])
    column = table.column(0)
    _require_whole(column, path)
    sizes = np.fromiter(map(len, batches), np.int64, len(batches))
    joined = table.combine_chunks().column(0).chunks  # none where all batches are empty
    return _numbers(joined[0] if joined else arrow.array([], column.type)), sizes


def _rows_of_lists(batches: Iterator[Any], column_idx: int, path: str) -> Iterator[ColumnPart]:
    """Parts of a column of lists, whose documents are rows."""
    for batch_idx, batch in enumerate(batches):
        column = batch.column(column_idx)
        _require_whole(column, path)
        yield _lists(column, f"{path}, record batch {batch_idx}")


def _require_whole(column: Any, path: str) -> None:
    column.validate()  # lengths come from the file, and to_numpy would read beyond its buffers
    if column.null_count:
        raise StoreError(f"holds {column.null_count:,} nulls", where=path, fix=NO_NULLS)


def parquet_parts(path: str, column: str | None) -> Iterator[ColumnPart]:
    """The documents of a Parquet file, whose column must be of lists."""
    require("pyarrow", path)
    import pyarrow as arrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            name = file.schema_arrow.field(_column(file.schema_arrow, column, path)).name
            if not _is_list(file.schema_arrow.field(name).type):
                fix = "write a column of lists, with a document in each row"
                raise StoreError(f"{name} is a column of single ids", where=path, fix=fix)
            for number, batch in enumerate(file.iter_batches(columns=[name])):
                yield _lists(batch.column(0), f"{path}, batch {number}")
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise StoreError(f"is not a whole Parquet file: {short(error)}", where=path, fix=COPY_AGAIN) from None


def _is_list(kind: Any) -> bool:
    import pyarrow as arrow

    return bool(arrow.types.is_list(kind) or arrow.types.is_large_list(kind) or arrow.types.is_fixed_size_list(kind))


def _column(schema: Any, chosen: str | None, path: str) -> int:
    """Number of the column that holds the ids."""
    import pyarrow as arrow

    names = schema.names
    name = chosen or next((usual for usual in COLUMNS if usual in names), None)
    if name not in names:
        what = f"has no column {name}" if name else "has no column of a known name"
        raise StoreError(f"{what}; it has {', '.join(names) or 'none'}", where=path, fix="name the column of the ids")
    column_type = schema.field(name).type
    if not arrow.types.is_integer(column_type.value_type if _is_list(column_type) else column_type):
        fix = "name the column of the ids, or use `maskwright data prepare` for text"
        raise StoreError(f"{name} is a column of {column_type}, not of integers", where=path, fix=fix)
    return int(schema.get_field_index(name))


def _lists(column: Any, where: str) -> tuple[Ids, Int64]:
    """(ids, tokens of each document) of a column of lists."""
    import pyarrow as arrow

    if arrow.types.is_fixed_size_list(column.type):
        values, offsets = column.flatten(), np.arange(len(column) + 1, dtype=np.int64) * column.type.list_size
    else:
        values, offsets = column.values, _numbers(column.offsets).astype(np.int64)
        if len(offsets) and not (offsets[0] >= 0 and (np.diff(offsets) >= 0).all() and offsets[-1] <= len(values)):
            raise StoreError("holds a list that lies outside its values", where=where, fix=COPY_AGAIN)
        values = values.slice(int(offsets[0]), int(offsets[-1] - offsets[0])) if len(offsets) else values
    nulls = column.null_count + values.null_count
    if nulls:
        raise StoreError(f"holds {nulls:,} nulls", where=where, fix=NO_NULLS)
    return _numbers(values), np.diff(offsets)


def _numbers(array: Any) -> Ids:
    """`array.to_numpy()` without its import of pandas, which takes a quarter of a second."""
    dtype = np.dtype(array.type.to_pandas_dtype())
    if not len(array):
        return np.zeros(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)


def grouped(parts: Iterator[ColumnPart], file: int) -> Iterator[Block]:
    """Blocks of several parts."""
    waiting: list[ColumnPart] = []
    first = tokens = 0

    def block() -> Block:
        ids, sizes = (
            np.concatenate(arrays) if len(waiting) > 1 else arrays[0] for arrays in zip(*waiting, strict=True)
        )
        return Block(ids, sizes, file, first)

    for part in parts:
        if waiting and tokens + len(part[0]) > BLOCK_TOKENS:
            yield block()
            first, tokens = first + sum(len(sizes) for _, sizes in waiting), 0
            waiting = []
        waiting.append(part)
        tokens += len(part[0])
    if waiting:
        yield block()


def open_columns(name: str, files: list[str], column: str | None) -> Foreign:
    """`name`: arrow, datasets or parquet."""
    return Foreign(name, files, partial(_blocks, parquet_parts if name == "parquet" else arrow_parts, files, column))


def _blocks(
    read: Callable[[str, str | None], Iterator[ColumnPart]], files: list[str], column: str | None, file_idx: int
) -> Iterator[Block]:
    yield from grouped(read(files[file_idx], column), file_idx)


def dataset_files(folder: str) -> list[str]:
    """The shards of a `datasets` folder (`save_to_disk`), in its order, or of all its splits. Raises `InputError` for
    splits that are not for training, validation or test, and the errors of `shards_of`."""
    if (both := storage.read_json_or(None, folder, "dataset_dict.json")) is not None:
        splits = both.get("splits", [])
        if not splits or not all(name in SPLIT_OF for name in splits):
            fix = f"name one: {os.path.join(folder, splits[0] if splits else 'SPLIT')}"
            raise InputError(f"holds the splits {', '.join(splits)}", where=folder, fix=fix)
        return [path for name in sorted(splits) for path in dataset_files(os.path.join(folder, name))]
    if not os.path.exists(os.path.join(folder, STATE)):
        raise InputError("has no state.json", where=folder, fix="give a folder that `save_to_disk` wrote")
    return shards_of(folder, os.listdir(folder))


def counts_files(folder: str) -> list[str]:
    """`meta/*counts*.csv` in a folder and its subfolders (`dataset/filename, documents, tokens`)."""
    return sorted(glob.glob(os.path.join(glob.escape(folder), "**", "meta", "*counts*.csv"), recursive=True))


def require_counts(folder: str, files: Sequence[str], column: str | None) -> None:
    """Compares `counts_files` with the documents and tokens of the Arrow files. Raises `StoreError` if they differ.

    foundation-model-stack reads a name from "/DATASET" on, so its files have paths of the machine that counted:
    `/wiki/a.arrow`, `/data/input/wiki/a.arrow`. Data sets that are not here are skipped, as it does."""
    counts = {os.path.normpath(path): _counted(path, column) for path in files}
    fix = "copy both again, or delete the counts: the file is cut, or the counts are of other data"
    for path in counts_files(folder):
        base = os.path.dirname(os.path.dirname(path))
        with open_table(path) as table:
            rows = [(line, [*row.values()]) for line, row in table.rows()]
        for line, row in rows:
            try:
                name, documents, tokens = row[0], int(row[1]), int(row[2])
            except (IndexError, ValueError):
                what = "is not a line of a file name, documents and tokens"
                raise StoreError(what, where=f"{path}:{line}", fix="repair it, or delete the file") from None
            location = next((location for location in _ends_of(name, base) if location in counts), None)
            if location is None and any(os.path.isdir(folder) for folder in map(os.path.dirname, _ends_of(name, base))):
                raise StoreError(f"{name} is missing", where=f"{path}:{line}", fix=fix)
            if location and counts[location] != (documents, tokens):
                what = f"{name} has {counts[location][0]:,} documents and {counts[location][1]:,} tokens"
                raise StoreError(f"{what}, not {documents:,} and {tokens:,}", where=f"{path}:{line}", fix=fix)


def _counted(path: str, column: str | None) -> tuple[int, int]:
    """(documents, tokens) of an Arrow file"""
    totals = np.array([(len(sizes), len(ids)) for ids, sizes in arrow_parts(path, column)]).reshape(-1, 2).sum(0)
    return int(totals[0]), int(totals[1])


def _ends_of(name: str, base: str) -> list[str]:
    """Paths of `name` below `base`, then of `name` without its first folder, and so on while a folder is left."""
    parts = [part for part in name.split("/") if part]
    ends = range(max(len(parts) - 1, 1)) if name.startswith("/") else range(1)
    return [os.path.normpath(os.path.join(base, *parts[first:])) for first in ends]
