"""Arrow files and streams, folders of `save_to_disk` of Hugging Face's `datasets`, and the class names in a schema."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from maskwright.core import storage
from maskwright.core.errors import InputError, SourceError, StoreError
from maskwright.core.extras import require
from maskwright.text.compression import COPY_AGAIN, Watch
from maskwright.text.document import Column, FaultHandler, Records, place
from maskwright.text.parquet import cells_of, seekable, short

FILE_MAGIC = b"ARROW1"
END_OF_STREAM = (b"\xff\xff\xff\xff\0\0\0\0", b"\0\0\0\0")
"""Arrow's end marker, and the marker before version 0.15."""
STATE = "state.json"
"""The file in which `save_to_disk` lists the files of a data set."""
ABOUT_DATA = re.compile(
    r"(readme|license|citation|changelog)\b.*|.*\.(md|py|ya?ml|sh|ipynb)|(dataset_infos?|dataset_dict|state)\.json",
    re.I,
)
"""Files next to the data in a folder of the Hugging Face Hub, or of `save_to_disk`."""


def open_ipc(source: Any, name: str) -> tuple[Any, Iterator[Any]]:
    """(schema, record batches) of an Arrow IPC file or stream. `source` can seek.

    The batches raise `StoreError` for a stream without the marker of a closed writer, since pyarrow accepts a stream
    that was cut between two messages. Both raise pyarrow's own errors."""
    from pyarrow import ipc

    is_file = source.read(len(FILE_MAGIC)) == FILE_MAGIC
    source.seek(0)
    reader: Any = (ipc.open_file if is_file else ipc.open_stream)(source)
    if is_file:
        return reader.schema, map(reader.get_batch, range(reader.num_record_batches))
    return reader.schema, _stream_batches(reader, source, name)


def _stream_batches(reader: Any, source: Any, name: str) -> Iterator[Any]:
    while True:
        end = source.tell()
        try:
            yield reader.read_next_batch()
        except StopIteration:
            break
    source.seek(end)
    if not source.read(8).startswith(END_OF_STREAM):
        fix = f"{COPY_AGAIN}, or write it again if its writer was never closed"
        raise StoreError("is an Arrow stream without its end, so it was cut", where=name, fix=fix)


@contextmanager
def open_arrow(name: str) -> Iterator[tuple[Any, Any]]:
    """(file, schema) of an Arrow file or stream. Raises `SourceError` for any other file."""
    require("pyarrow", name)
    import pyarrow

    with seekable(name) as file:
        try:
            schema, _ = open_ipc(file, name)
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise _damaged(error, name) from None
        yield file, schema


def arrow_records(name: str, file: Any, columns: list[Column], handle: FaultHandler, watch: Watch) -> Records:
    """See `parquet_records`."""
    import pyarrow

    number = 0
    if watch:
        watch(file.tell)
    try:
        file.seek(0)
        for batch in open_ipc(file, name)[1]:
            for record in cells_of(batch, name, number, columns, handle):
                number += 1
                yield number, record
    except (pyarrow.ArrowException, OSError) as error:
        raise _damaged(error, place(name, number + 1, "record")) from None


def _damaged(error: BaseException, where: str) -> SourceError:
    return SourceError(f"is not a whole Arrow file or stream: {short(error)}", where=where, fix=COPY_AGAIN)


def class_names(schema: Any) -> dict[Column, tuple[str, ...]]:
    """By column, the names of its classes 0, 1, …, from the schema's metadata in the Hub's Parquet files and in
    `save_to_disk`: of a `ClassLabel`, of lists of it, or of the only one in lists of records."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"].items()
        return {column: found[0] for column, feature in features if len(found := [*_class_labels(feature)]) == 1}
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError):
        return {}


def _class_labels(feature: Any) -> Iterator[tuple[str, ...]]:
    """The names of each `ClassLabel` in a feature. Older versions write [feature] for lists."""
    names = feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        yield tuple(names)
    elif isinstance(feature, dict | list):
        for inner in feature.values() if isinstance(feature, dict) else feature:
            yield from _class_labels(inner)


def shards_of(folder: str, present: Collection[str]) -> list[str]:
    """The files of a data set that `save_to_disk` wrote to `folder`, in its order. `present`: names in the folder.
    Raises `InputError` kinds for a selection or another order of its rows, and for a missing file."""
    path = os.path.join(folder, STATE)
    state = storage.read_json(path)
    listed = state.get("_data_files") if isinstance(state, dict) else None
    names = [record.get("filename") for record in listed or [] if isinstance(record, dict)]
    inside = [name for name in names if isinstance(name, str) and name == os.path.basename(name)]
    if not names or len(inside) < len(names):
        raise StoreError("names no shards of this folder", where=path, fix="save the data set again")
    if state.get("_indices_data_files"):
        fix = "save `dataset.flatten_indices()` instead"
        raise InputError("has a selection or another order of its rows stored next to them", where=path, fix=fix)
    for name in inside:
        if name not in present:
            raise StoreError("is missing", where=os.path.join(folder, name), fix=COPY_AGAIN)
    return [os.path.join(folder, name) for name in inside]


def data_files(patterns: list[str]) -> dict[str, str]:
    """`storage.expand_named` of files with examples: in a named folder, not those that describe them."""
    found = without_caches(storage.expand_named(patterns))
    holding = {
        name: named for name, named in found.items() if named or not ABOUT_DATA.fullmatch(os.path.basename(name))
    }
    return holding or found


def without_caches(found: dict[str, str]) -> dict[str, str]:
    """The files without caches and descriptions of `datasets`, which hold no rows of a folder of
    `save_to_disk`. Raises the errors of `shards_of`."""
    names = [*found]
    for state in (name for name in names if os.path.basename(name) == STATE):
        folder = os.path.dirname(state)
        beside = {os.path.basename(name) for name in names if os.path.dirname(name) == folder}
        arrow = {name for name in beside if name.endswith(".arrow")}
        if arrow or _is_of_datasets(state):
            kept = {*map(os.path.basename, shards_of(folder, beside))}
            others = {os.path.join(folder, name) for name in (arrow - kept) | {STATE, "dataset_info.json"}}
            found = {name: named for name, named in found.items() if name not in others}
    return found


def _is_of_datasets(state: str) -> bool:
    """Whether `save_to_disk` wrote a file of this name; other programs have their own."""
    try:
        content = storage.read_json(state)
    except InputError:
        return False
    return isinstance(content, dict) and "_data_files" in content
