"""Files of bare ids, one after the other.

`npy`         OLMo's: a memory map without a header, despite its name; a real `.npy` is recognized by its magic
`bin`         nanoGPT's: the same; llm.c's and modded-nanogpt's begin with 256 int32: magic, version, number of ids
`datatrove`   `.ds`, and `.ds.index` with each document's end (u64); `.ds.loss` and `.ds.metadata` are not read
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from tokenize import TokenError  # raised by numpy's reader of headers

import numpy as np

from maskwright.core import storage
from maskwright.core.errors import InputError, StoreError
from maskwright.data.foreign.blocks import (
    COPY_AGAIN,
    INTEGERS,
    Block,
    Foreign,
    Ids,
    Options,
    flat,
    holds,
    of_spans,
    require_inside,
    split_at,
)
from maskwright.data.store import token_dtype
from maskwright.text.arrays import Int64

HEADER_BYTES = 1024
LLM_C = {(20240520, 1): "uint16", (20240801, 7): "uint32"}
"""(magic, version) of llm.c's `dev/data/data_common.py`: for GPT-2's tokenizer, and for Llama 3's."""
NUMPY = b"\x93NUMPY"


def open_flat(name: str, files: list[str], options: Options, vocab_size: int) -> Foreign:
    """`name`: npy or bin. Raises `InputError` if nothing marks ends of documents, `StoreError` if the id between
    documents is absent."""
    arrays = [_read_flat(path, options, vocab_size) for path in files]
    if options.document_end is None and any(values.ndim == 1 for values in arrays):
        fix = "give --document-end TOKEN, the token between documents by its name or its id"
        raise InputError("holds bare ids without the ends of documents", where=files[0], fix=fix)
    messages = []
    if (end := options.document_end) is not None:
        without = [path for path, values in zip(files, arrays, strict=True) if not holds(values.reshape(-1), end)]
        if len(without) == len(files):
            what = f"has no id {end} stored anywhere, so the ends of documents are unknown"
            fix = "check --document-end, --dtype and --token-offset: the stored id is the token's id minus the offset"
            raise StoreError(what, where=files[0], fix=fix)
        messages = [f"documents end at the stored id {end}, which is left out"]
        messages += [f"warning: {path} has no id {end}, so it becomes one document" for path in without]
    return Foreign(name, files, partial(_flat_blocks, files, options, vocab_size), messages=messages)


def _flat_blocks(files: list[str], options: Options, vocab_size: int, file_idx: int) -> Iterator[Block]:
    values = _read_flat(files[file_idx], options, vocab_size)
    yield from of_spans(values.reshape(-1), *_documents(values, options.document_end), file_idx)


def _documents(values: Ids, end: int | None) -> tuple[Int64, Int64]:
    if end is not None:
        return split_at(values.reshape(-1), end)
    rows, width = values.shape
    return np.arange(rows, dtype=np.int64) * width, np.full(rows, width, np.int64)


def _read_flat(path: str, options: Options, vocab_size: int) -> Ids:
    with storage.open_binary(path) as file:
        head = file.read(HEADER_BYTES)
    if head.startswith(NUMPY):
        return _read_npy(path)
    magic, version, count = np.frombuffer(head, "<i4", 3).tolist() if len(head) >= 12 else (0, 0, 0)
    if magic not in {known for known, _ in LLM_C}:
        return flat(path, options.dtype or token_dtype(vocab_size))
    dtype = LLM_C.get((magic, version))
    if dtype is None or len(head) < HEADER_BYTES:
        raise StoreError(f"is a file of llm.c in version {version}, which is unknown", where=path, fix=COPY_AGAIN)
    values = flat(path, dtype, HEADER_BYTES)
    if len(values) != count:
        what = f"has {len(values):,} ids, but {count:,} by its header"
        raise StoreError(what, where=path, fix=COPY_AGAIN)
    return values


def _read_npy(path: str) -> Ids:
    try:
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError, TokenError, SyntaxError) as error:
        what = f"is not a whole .npy file: {' '.join(str(error).split())}"
        raise StoreError(what, where=path, fix=COPY_AGAIN) from None
    if values.dtype.name not in INTEGERS or values.ndim not in (1, 2) or not values.size:
        what = f"is an array {list(values.shape)} of {values.dtype}, not of ids or of rows of ids"
        raise StoreError(what, where=path, fix="save the ids as an integer array")
    return np.ascontiguousarray(values)


def open_datatrove(files: list[str]) -> Foreign:
    """`files`: the `.ds` files. The bytes of an id follow from the last end and the file's size."""
    for path in files:
        _read_ds(path, _ends(path))
    return Foreign("datatrove", files, partial(_ds_blocks, files))


def _ds_blocks(files: list[str], file_idx: int) -> Iterator[Block]:
    ends = _ends(files[file_idx])
    starts = np.concatenate([[0], ends[:-1]])
    yield from of_spans(_read_ds(files[file_idx], ends), starts, ends - starts, file_idx)


def _ends(path: str) -> Int64:
    index = f"{path}.index"
    if not os.path.isfile(index):
        fix = "put it next to the .ds file, or read the .ds file with --from-format bin --document-end TOKEN"
        raise StoreError("is missing, so the ends of documents are unknown", where=index, fix=fix)
    return flat(index, "uint64").astype(np.int64)


def _read_ds(path: str, ends: Int64) -> Ids:
    size, last = os.path.getsize(path), int(ends[-1])
    if (np.diff(ends, prepend=0) < 0).any():
        raise StoreError("is not in rising order", where=f"{path}.index", fix=COPY_AGAIN)
    width = size // last if last else 0
    if width not in (2, 4) or size != width * last:
        what = f"has {size:,} bytes, but its index ends at {last:,} ids of 2 or 4 bytes"
        raise StoreError(what, where=path, fix=COPY_AGAIN)
    values = flat(path, f"uint{8 * width}")
    require_inside(ends[:-1], np.diff(ends), len(values), f"{path}.index", path)
    return values
