"""The `.bin` and `.idx` of Megatron and of fairseq (`--dataset-impl mmap`), whose headers are similar.

MMIDIDX\\0\\0   version 1 (u64)   type of the ids (u8)   sequences (u64)
Megatron only: documents + 1 (u64)
sizes (i32 each)   places in the .bin (i64 each, bytes)
Megatron only: number of each document's first sequence, and the number of sequences (i64 each)
Megatron only, sometimes: a mode of each sequence (i8), which is not read
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from maskwright.core import storage
from maskwright.core.errors import StoreError
from maskwright.data.foreign.blocks import Block, Foreign, Ids, of_spans, require_inside
from maskwright.text.arrays import Int64
from maskwright.text.compression import COPY_AGAIN

MAGIC, HEADER = b"MMIDIDX\0\0", 26
OLD_FAIRSEQ = b"TNTIDX\0\0"
CODES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
"""Types of both; 6 and 7 are floats. Only fairseq has 9 and 10, uint32 and uint64."""


@dataclass(frozen=True)
class Index:
    values: Ids
    starts: Int64
    """[sequences], in ids."""
    sizes: Int64
    members: Int64 | None
    """[documents]: sequences of each; None for fairseq, which has no documents."""


def index_kind(path: str) -> Literal["megatron", "fairseq"]:
    """The tool that wrote an `.idx`, by its length. Raises `StoreError` if neither did."""
    with storage.open_binary(path) as file:
        head = file.read(HEADER + 8)
    size = os.path.getsize(path)
    if head.startswith(OLD_FAIRSEQ):
        return "fairseq"
    if not head.startswith(MAGIC) or len(head) < HEADER:
        raise StoreError(
            "is not an index of Megatron or fairseq", where=path, fix="give one store's files, or --from-format"
        )
    sequences = int.from_bytes(head[18:26], "little")
    return "fairseq" if size == HEADER + 12 * sequences else "megatron"


def read_index(path: str, kind: Literal["megatron", "fairseq"]) -> Index:
    """Reads an index. Raises `StoreError` if it is cut, is of another kind, or points outside its `.bin`."""
    with storage.open_binary(path) as file:
        content = file.read()
    if content.startswith(OLD_FAIRSEQ):
        fix = "binarise again with `fairseq-preprocess --dataset-impl mmap`"
        raise StoreError("is of fairseq's old kind, which numbers ids from 1", where=path, fix=fix)
    begin = HEADER + 8 * (kind == "megatron")
    if not content.startswith(MAGIC) or len(content) < begin or content[9:17] != b"\1\0\0\0\0\0\0\0":
        raise StoreError(f"is not an index of {kind}, version 1", where=path, fix=COPY_AGAIN)
    dtype = (CODES | ({9: "uint32", 10: "uint64"} if kind == "fairseq" else {})).get(content[17])
    if dtype is None:
        raise StoreError(f"has ids of type {content[17]}, which are not integers", where=path, fix=COPY_AGAIN)
    sequences = int.from_bytes(content[18:26], "little")
    documents = int.from_bytes(content[26:34], "little") if kind == "megatron" else 0
    needed = begin + 12 * sequences + 8 * documents
    if len(content) not in (needed, needed + (sequences if kind == "megatron" else 0)):
        what = f"has {len(content):,} bytes, but {sequences:,} sequences need {needed:,}"
        raise StoreError(what, where=path, fix=COPY_AGAIN)
    sizes = np.frombuffer(content, "<i4", sequences, begin).astype(np.int64)
    offsets = np.frombuffer(content, "<i8", sequences, begin + 4 * sequences)
    data = f"{path.removesuffix('.idx')}.bin"
    if not os.path.isfile(data):
        raise StoreError("is missing", where=data, fix=f"put it next to {os.path.basename(path)}")
    values = _flat(data, dtype)
    starts, remainders = np.divmod(offsets, values.itemsize)
    if remainders.any():
        what = f"sequence {int(np.argmax(remainders > 0)):,} begins inside an id"
        raise StoreError(what, where=path, fix=COPY_AGAIN)
    require_inside(starts, sizes, len(values), path, data)
    if kind == "fairseq":
        return Index(values, starts, sizes, None)
    first = np.frombuffer(content, "<i8", documents, begin + 12 * sequences)
    if documents < 1 or first[0] != 0 or first[-1] != sequences or (np.diff(first) < 0).any():
        what = f"its documents do not rise from 0 to its {sequences:,} sequences"
        raise StoreError(what, where=path, fix=COPY_AGAIN)
    return Index(values, starts, sizes, np.diff(first))


def _flat(path: str, dtype: str) -> Ids:
    """The ids of a file, memory-mapped. Raises `StoreError` if its size is not of whole ids."""
    size, id_type = os.path.getsize(path), np.dtype(dtype).newbyteorder("<")
    if not size or size % id_type.itemsize:
        what = f"has {size:,} bytes of ids, which is not a whole number of {id_type.itemsize} bytes"
        raise StoreError(what if size else "holds no ids", where=path, fix=COPY_AGAIN)
    return np.asarray(np.memmap(path, id_type, "r"))


def open_megatron(indexes: list[str]) -> Foreign:
    """`indexes`: the `.idx` files, in the order of the documents."""
    members = [read_index(path, "megatron").members for path in indexes]  # all now, to report a cut file early
    sentences = all(counts is not None and bool((counts > 1).any()) for counts in members)
    files = [f"{path.removesuffix('.idx')}.bin" for path in indexes]
    return Foreign("megatron", files, partial(_blocks, indexes), sentences)


def _blocks(indexes: list[str], file_idx: int) -> Iterator[Block]:
    index = read_index(indexes[file_idx], "megatron")
    yield from of_spans(index.values, index.starts, index.sizes, file_idx, index.members)
