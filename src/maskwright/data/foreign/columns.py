"""Columns of ids: Arrow IPC (files and streams), Hugging Face `datasets` folders, Parquet.

A column of lists has a document a row. A column of plain integers has a document a record batch, as IBM's foundation
models' shards have it (their column is `tokens`); in Parquet, that would be a row group, which nobody writes.
"""

from __future__ import annotations

import csv
import glob
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.core import storage
from maskwright.core.errors import InputError, StoreError
from maskwright.core.extras import require
from maskwright.data.foreign.blocks import BLOCK_TOKENS, COPY_AGAIN, Block, Foreign, Ids, Int64
from maskwright.data.foreign.ipc import has_end, plain_places

COLUMNS = ("input_ids", "tokens", "token_ids", "ids")
"""Where ids are looked for when no column is named, in this order."""
FILE_MAGIC = b"ARROW1"
NO_NULLS = "write the data without nulls"


def arrow_files(folder: str) -> list[str]:
    """The `.arrow` files of a folder and of those below it, sorted; `meta/` holds none."""
    return sorted(path for path in storage.expand([folder]) if path.endswith(".arrow"))


Part = tuple[Ids, Int64, Int64]
"""Ids of some documents, the tokens of each, and where each begins in the file, in bytes."""


def record_batches(path: str, column: str | None) -> Iterator[Part]:
    """The documents of an Arrow IPC file or stream. Their places are those of the ids where these are not compressed,
    and outside the file where they are. Raises `StoreError` for a cut file, a stream without its end, nulls, and a
    column that is absent or holds no ids."""
    require("pyarrow", path)
    import pyarrow as arrow
    from pyarrow import ipc

    try:
        with arrow.memory_map(path) as source:
            begin = source.read_buffer().address
            source.seek(0)
            is_file = source.read(len(FILE_MAGIC)) == FILE_MAGIC
            source.seek(0)
            reader = (ipc.open_file if is_file else ipc.open_stream)(source)
            place = _column(reader.schema, column, path)
            kind = reader.schema.field(place).type
            data = np.asarray(np.memmap(path, np.uint8, "r"))
            plain = len(reader.schema) == 1 and not _is_list(kind)
            if plain and (found := plain_places(data, kind.bit_width // 8, is_file)) is not None:
                yield from _spans(data, *found, f"<{kind.to_pandas_dtype()(0).dtype.str[1:]}")
                return
            whole = reader.read_all().column(place)  # which copies nothing that is not compressed
            if not is_file and not has_end(data):
                fix = f"{COPY_AGAIN}, or write it again if its writer was never closed"
                raise StoreError("is an Arrow stream without its end: it was cut", where=path, fix=fix)
            whole.validate()  # lengths are the file's own word, and to_numpy would read beyond its buffers
            if whole.null_count:
                raise StoreError(f"holds {whole.null_count:,} nulls", where=path, fix=NO_NULLS)
            if not _is_list(whole.type):
                yield from _batch_each(whole.chunks, begin)
                return
            for number, chunk in enumerate(whole.chunks):
                ids, sizes = _lists(chunk, f"{path}, record batch {number}")
                before = (np.cumsum(sizes) - sizes) * ids.itemsize
                yield ids, sizes, ids.__array_interface__["data"][0] - begin + before
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        what = f"is no whole Arrow IPC file or stream: {_short(error)}"
        raise StoreError(what, where=path, fix=COPY_AGAIN) from None


def _spans(data: NDArray[np.uint8], places: Int64, sizes: Int64, kind: str) -> Iterator[Part]:
    width = np.dtype(kind).itemsize
    values = data[: len(data) // width * width].view(kind)
    done, first = np.cumsum(sizes), 0
    while first < len(sizes):
        before = int(done[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(done, before + BLOCK_TOKENS, side="right")))
        starts, some = places[first:last] // width, sizes[first:last]
        ends = (starts + some).tolist()
        ids = np.concatenate([values[begin:end] for begin, end in zip(starts.tolist(), ends, strict=True)])
        yield ids, some, places[first:last]
        first = last


def _batch_each(chunks: list[Any], begin: int) -> Iterator[Part]:
    """Of a plain column, whose documents are its record batches."""
    import pyarrow as arrow

    sizes = np.fromiter(map(len, chunks), np.int64, len(chunks))
    width = chunks[0].type.bit_width // 8 if chunks else 1
    buffers = [(chunk.buffers()[1], chunk.offset) for chunk in chunks]
    places = np.array([buffer.address + offset * width if buffer else begin for buffer, offset in buffers], np.int64)
    done, first = np.cumsum(sizes), 0
    while first < len(chunks):
        before = int(done[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(done, before + BLOCK_TOKENS, side="right")))
        ids = arrow.concat_arrays(chunks[first:last]).to_numpy()
        yield ids, sizes[first:last], places[first:last] - begin
        first = last


def parquet_batches(path: str, column: str | None) -> Iterator[Part]:
    """The same for Parquet, whose column must be of lists; places there say nothing."""
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
                ids, sizes = _lists(batch.column(0), f"{path}, batch {number}")
                yield ids, sizes, np.full(len(sizes), -1, np.int64)
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
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


def _lists(column: Any, where: str) -> tuple[Ids, Int64]:
    """(ids, tokens of each document) of a column of lists."""
    import pyarrow as arrow

    if arrow.types.is_fixed_size_list(column.type):
        values, offsets = column.flatten(), np.arange(len(column) + 1, dtype=np.int64) * column.type.list_size
    else:
        values, offsets = column.values, column.offsets.to_numpy().astype(np.int64)
        if len(offsets) and not (offsets[0] >= 0 and (np.diff(offsets) >= 0).all() and offsets[-1] <= len(values)):
            raise StoreError("holds a list that lies outside its values", where=where, fix=COPY_AGAIN)
        values = values.slice(int(offsets[0]), int(offsets[-1] - offsets[0])) if len(offsets) else values
    nulls = column.null_count + values.null_count
    if nulls:
        raise StoreError(f"holds {nulls:,} nulls", where=where, fix=NO_NULLS)
    return values.to_numpy(), np.diff(offsets)


def grouped(parts: Iterator[Part], file: int) -> Iterator[tuple[Block, Int64]]:
    """Blocks of many parts, and the place of each document in its file, in bytes."""
    waiting: list[Part] = []
    first = tokens = 0

    def block() -> tuple[Block, Int64]:
        ids, sizes, places = (
            np.concatenate(arrays) if len(waiting) > 1 else arrays[0] for arrays in zip(*waiting, strict=True)
        )
        return Block(ids, sizes, file, first), places

    for part in parts:
        if waiting and tokens + len(part[0]) > BLOCK_TOKENS:
            yield block()
            first, tokens = first + sum(len(sizes) for _, sizes, _ in waiting), 0
            waiting = []
        waiting.append(part)
        tokens += len(part[0])
    if waiting:
        yield block()


def held_out_files(files: list[str]) -> frozenset[int]:
    """Numbers of those that lie in `valid/` where others lie in `train/` beside it, as `data convert --to-format arrow`
    writes them."""
    folders = [os.path.dirname(os.path.abspath(path)) for path in files]
    beside = [os.path.join(os.path.dirname(one), "train") for one in folders]
    return frozenset(
        number
        for number, (folder, train) in enumerate(zip(folders, beside, strict=True))
        if os.path.basename(folder) == "valid" and train in folders
    )


HELD_OUT = "the documents in valid/ are held out, and none of those in train/"


def open_columns(name: str, files: list[str], column: str | None) -> Foreign:
    """`name`: arrow, datasets or parquet."""
    held_out = held_out_files(files) if name == "arrow" else frozenset[int]()
    blocks = partial(_blocks, parquet_batches if name == "parquet" else record_batches, files, column)
    return Foreign(name, files, blocks, said=[HELD_OUT] if held_out else [], held_out=held_out)


def _blocks(
    read: Callable[[str, str | None], Iterator[Part]], files: list[str], column: str | None, number: int
) -> Iterator[Block]:
    yield from (block for block, _ in grouped(read(files[number], column), number))


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
    in each file. Raises `StoreError` where they differ; a folder without such a file is fine.

    foundation-model-stack reads a name from "/DATASET" on, so its own files have paths of the machine where they were
    counted: `/wiki/a.arrow`, `/data/input/wiki/a.arrow`. Data sets that are not here are left out, as it does."""
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
            at = next((at for at in _ends_of(name, base) if at in found), None)
            if at is None and any(os.path.isdir(folder) for folder in map(os.path.dirname, _ends_of(name, base))):
                raise StoreError(f"{name} is not there", where=f"{path}:{line}", fix=wrong)
            if at and found[at] != (documents, tokens):
                what = f"{name} has {found[at][0]:,} documents and {found[at][1]:,} tokens"
                raise StoreError(f"{what}, not {documents:,} and {tokens:,}", where=f"{path}:{line}", fix=wrong)


def _ends_of(name: str, base: str) -> list[str]:
    """`name` below `base`, then without its first folder, and so on while a folder is left."""
    parts = [part for part in name.split("/") if part]
    ends = range(max(len(parts) - 1, 1)) if name.startswith("/") else range(1)
    return [os.path.normpath(os.path.join(base, *parts[first:])) for first in ends]
