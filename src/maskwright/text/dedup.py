"""Exact duplicates, and the train/valid split. Copies of a text are dropped before they are encoded; a document's ids
decide the rest, since a model sees nothing else of it."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


def text_key(utf8: bytes) -> bytes:
    """The text's 16-byte dedup key (BLAKE2b). Two texts share one with a chance of 2^-128."""
    return hashlib.blake2b(utf8, digest_size=16).digest()


def text_keys(text: memoryview, starts: list[int], ends: list[int]) -> bytes:
    """Keys of the spans of a text, one after the other."""
    digest = hashlib.blake2b
    return b"".join([digest(text[begin:end], digest_size=16).digest() for begin, end in zip(starts, ends, strict=True)])


def document_keys(ids: NDArray[Any], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.uint64]:
    """[documents, 2]: the halves of the `text_key` of each document's ids, as bytes of their type."""
    view = memoryview(np.ascontiguousarray(ids).view(np.uint8))  # type: ignore[arg-type]
    begins_and_ends = ((offsets * ids.itemsize).tolist() for offsets in (starts, ends))
    return np.frombuffer(text_keys(view, *begins_and_ends), "<u8").reshape(-1, 2)


def is_held_out(key: bytes, valid_fraction: float) -> bool:
    """Whether a document is held out. It depends on its key alone, so that equal documents share a side."""
    return int.from_bytes(key[:8], "little") < valid_fraction * 2.0**64


def held_out(keys: NDArray[np.uint64], valid_fraction: float) -> NDArray[np.bool_]:
    """[documents]: `is_held_out` of each. `keys` [documents]: the first 8 bytes of each key."""
    if valid_fraction == 1.0:
        return np.ones(len(keys), bool)
    return keys < np.uint64(math.ceil(valid_fraction * 2.0**64))
