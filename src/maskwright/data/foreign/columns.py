"""Columns of ids: Arrow IPC (files and streams), Hugging Face `datasets` folders, Parquet.

A column of lists has a document a row. A column of plain integers has a document a record batch, as IBM's foundation
models' shards have it (their column is `tokens`); in Parquet, that would be a row group, which nobody writes.
"""

from __future__ import annotations

import csv
import glob
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from maskwright.core import storage
from maskwright.core.errors import InputError, StoreError
from maskwright.core.extras import require
from maskwright.data.foreign.blocks import BLOCK_TOKENS, COPY_AGAIN, Block, Foreign, Ids, Int64

COLUMNS = ("input_ids", "tokens", "token_ids", "ids")
"""Where ids are looked for when no column is named, in this order."""
FILE_MAGIC = b"ARROW1"


def arrow_files(folder: str) -> list[str]:
    """The `.arrow` files of a folder and of those below it, sorted; `meta/` holds none."""
    return sorted(path for path in storage.expand([folder]) if path.endswith(".arrow"))


def record_batches(path: str, column: str | None) -> Iterator[tuple[Ids, Int64, int]]:
    """(ids, tokens of each document, place of the ids in the file) of each record batch. Ids are not copied where they
    are not compressed; the place of others is negative or beyond the file. Raises `StoreError` for a cut file, nulls,
    and a column that is absent or holds no ids."""
    require("pyarrow", path)
    import pyarrow as arrow
    from pyarrow import ipc

    try:
        with arrow.memory_map(path) as source:
            is_file = source.read(len(FILE_MAGIC)) == FILE_MAGIC
            source.seek(0)
            begin = source.read_buffer().address
            source.seek(0)
            reader = (ipc.open_file if is_file else ipc.open_stream)(source)
            place = _column(reader.schema, column, path)
            batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
            for number, batch in enumerate(batches):
                ids, sizes = _ids(batch.column(place), f"{path}, record batch {number}")
                yield ids, sizes, ids.__array_interface__["data"][0] - begin
    except (arrow.ArrowException, OSError) as error:
        what = f"is no whole Arrow IPC file or stream: {_short(error)}"
        raise StoreError(what, where=path, fix=COPY_AGAIN) from None


def parquet_batches(path: str, column: str | None) -> Iterator[tuple[Ids, Int64, int]]:
    """The same for Parquet, whose column must be of lists."""
    require("pyarrow", path)
    import pyarrow as arrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            name = file.schema_arrow.field(_column(file.schema_arrow, column, path)).name
            if not _is_list(file.schema_arrow.field(name).type):
                fix = "a column of lists is needed, a document a row"
                raise StoreError(f"{name} is a column of single ids", where=path, fix=fix)
            for number, batch in enumerate(file.iter_batches(columns=[name])):
                yield *_ids(batch.column(0), f"{path}, batch {number}"), -1
    except (arrow.ArrowException, OSError) as error:
        raise StoreError(f"is no whole Parquet file: {_short(error)}", where=path, fix=COPY_AGAIN) from None


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:120]


def _is_list(kind: Any) -> bool:
    import pyarrow as arrow

    return bool(arrow.types.is_list(kind) or arrow.types.is_large_list(kind) or arrow.types.is_fixed_size_list(kind))


def _column(schema: Any, wanted: str | None, path: str) -> int:
    """Number of the column that holds the ids."""
    import pyarrow as arrow

    names = schema.names
    name = wanted or next((known for known in COLUMNS if known in names), None)
    if name not in names:
        what = f"has no column {name}" if name else "has no column of a known name"
        raise StoreError(f"{what}; it has {', '.join(names) or 'none'}", where=path, fix="name the column of the ids")
    kind = schema.field(name).type
    if not arrow.types.is_integer(kind.value_type if _is_list(kind) else kind):
        fix = "name the column of the ids; text goes through `maskwright data prepare`"
        raise StoreError(f"{name} is a column of {kind}, and not of integers", where=path, fix=fix)
    return int(schema.get_field_index(name))


def _ids(column: Any, where: str) -> tuple[Ids, Int64]:
    import pyarrow as arrow

    if column.null_count:
        raise StoreError(f"holds {column.null_count:,} nulls", where=where, fix="write the data without nulls")
    kind = column.type
    if not _is_list(kind):
        return column.to_numpy(), np.array([len(column)], np.int64)
    if arrow.types.is_fixed_size_list(kind):
        values, offsets = column.flatten(), np.arange(len(column) + 1, dtype=np.int64) * kind.list_size
    else:
        values, offsets = column.values, column.offsets.to_numpy().astype(np.int64)
        values = values.slice(int(offsets[0]), int(offsets[-1] - offsets[0])) if len(offsets) else values
    if values.null_count:
        raise StoreError(f"holds {values.null_count:,} nulls", where=where, fix="write the data without nulls")
    return values.to_numpy(), np.diff(offsets)


def grouped(batches: Iterator[tuple[Ids, Int64, int]], file: int) -> Iterator[tuple[Block, Int64]]:
    """Blocks of many batches, and the place of each document in its file, in bytes."""
    ids: list[Ids] = []
    sizes: list[Int64] = []
    places: list[int] = []
    first = tokens = 0

    def block() -> tuple[Block, Int64]:
        together, counts = np.concatenate(sizes), np.array([len(one) for one in sizes])
        ends = np.cumsum(together)
        batch_of = np.repeat(np.arange(len(counts)), counts)
        begins = np.cumsum([len(one) for one in ids]) - [len(one) for one in ids]
        width = np.array([one.itemsize for one in ids])
        place = np.array(places)[batch_of] + (ends - together - begins[batch_of]) * width[batch_of]
        return Block(np.concatenate(ids), together, file, first), place

    for values, counts, place in batches:
        ids.append(values)
        sizes.append(counts)
        places.append(place)
        tokens += len(values)
        if tokens >= BLOCK_TOKENS:
            yield block()
            first, tokens = first + sum(map(len, sizes)), 0
            ids, sizes, places = [], [], []
    if sizes:
        yield block()


def open_columns(name: str, files: list[str], column: str | None) -> Foreign:
    """`name`: arrow, datasets or parquet."""
    read = parquet_batches if name == "parquet" else record_batches

    def blocks() -> Iterator[Block]:
        for number, path in enumerate(files):
            yield from (block for block, _ in grouped(read(path, column), number))

    return Foreign(name, files, blocks)


def dataset_files(folder: str) -> list[str]:
    """The shards of a `datasets` folder (`save_to_disk`), in its order. Raises `InputError` for several splits, and for
    rows that were chosen or shuffled."""
    if os.path.exists(os.path.join(folder, "dataset_dict.json")):
        splits = storage.read_json(os.path.join(folder, "dataset_dict.json")).get("splits", [])
        fix = f"name one: {os.path.join(folder, splits[0] if splits else 'SPLIT')}"
        raise InputError(f"holds the splits {', '.join(splits)}", where=folder, fix=fix)
    path = os.path.join(folder, "state.json")
    if not os.path.exists(path):
        raise InputError("has no state.json", where=folder, fix="give a folder that `save_to_disk` wrote")
    state = storage.read_json(path)
    names = [one.get("filename") for one in state.get("_data_files") or [] if isinstance(one, dict)]
    own = [name for name in names if isinstance(name, str) and name == os.path.basename(name)]
    if not names or len(own) < len(names):
        raise StoreError("names no shards of this folder", where=path, fix="save the data set again")
    if state.get("_indices_data_files"):
        fix = "save `dataset.flatten_indices()`"
        raise InputError("has a selection or another order of its rows beside them", where=path, fix=fix)
    for name in own:
        if not os.path.isfile(os.path.join(folder, name)):
            raise StoreError("is missing", where=os.path.join(folder, name), fix=COPY_AGAIN)
    return [os.path.join(folder, name) for name in own]


def require_counts(folder: str, found: dict[str, tuple[int, int]]) -> None:
    """Compares `meta/*counts*.csv` (`dataset/filename, documents, tokens`) with the (documents, tokens) that were found
    in each file. Raises `StoreError` where they differ; a folder without such a file is fine."""
    wrong = "the file is cut, or the counts are of other data: copy both again, or delete the counts"
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), "**", "meta", "*counts*.csv"), recursive=True)):
        base = os.path.dirname(os.path.dirname(path))
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
        for line, row in enumerate(rows[1:], 2):
            try:
                name, documents, tokens = row[0], int(row[1]), int(row[2])
            except (IndexError, ValueError):
                what = "is no line of a file name, documents and tokens"
                raise StoreError(what, where=f"{path}:{line}", fix="repair it, or delete the file") from None
            at = os.path.normpath(os.path.join(base, name))
            if at not in found:
                raise StoreError(f"{name} is not there", where=f"{path}:{line}", fix=wrong)
            if found[at] != (documents, tokens):
                what = f"{name} has {found[at][0]:,} documents and {found[at][1]:,} tokens"
                raise StoreError(f"{what}, not {documents:,} and {tokens:,}", where=f"{path}:{line}", fix=wrong)
