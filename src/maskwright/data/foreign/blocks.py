"""The common form of all foreign formats: blocks of documents, each an array of ids and the documents' sizes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.core.errors import StoreError
from maskwright.core.splits import splits_of
from maskwright.data.store import in_blocks
from maskwright.text.arrays import Int64
from maskwright.text.compression import COPY_AGAIN

INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
Ids = NDArray[Any]


@dataclass(frozen=True)
class Options:
    """Properties of formats that do not record them, from the user."""

    column: str | None = None
    """Column of the ids, in the formats that have columns."""
    dtype: str | None = None
    """Type of ids in plain bytes of MDS."""
    encoder: str | None = None
    """GPT-2's encoder.json, for a fairseq dictionary of numbers."""


@dataclass(frozen=True)
class Block:
    """Consecutive documents of one file."""

    ids: Ids
    """[tokens], of any integer type."""
    sizes: Int64
    """[documents]: tokens of each."""
    file: int
    """Number of the file in `Foreign.files`."""
    first: int
    """Number of the first document in that file, from 0."""
    sentences: Int64 | None = None
    """Tokens of each sentence, if the format has sentences. No document begins inside one."""
    numbers: Int64 | None = None
    """[documents]: number of each one's record in the file, if a record may be two documents; None to count from
    `first`."""

    def number(self, document_idx: Any) -> Any:
        """Numbers in the file, from 0, of these documents of the block."""
        return self.first + document_idx if self.numbers is None else self.numbers[document_idx]


@dataclass(frozen=True)
class Foreign:
    """An opened store of another tool."""

    format: str
    files: list[str]
    """Files that are read, in the order of the documents."""
    blocks: Callable[[int], Iterator[Block]]
    """The blocks of a file, by its index in `files`; can be pickled, and reads no other file."""
    sentences: bool = False
    """Whether the blocks have sentences."""
    mapping: Int64 | None = None
    """[foreign ids]: the tokenizer's id of each, -1 for a missing token; None if the ids are the tokenizer's."""
    messages: list[str] = field(default_factory=list)
    """Notes for the user."""
    held_out: frozenset[int] = frozenset()
    """Indices of the validation files. If there are any, nothing else is held out."""
    passes: int = 1
    """Passes over the same text that the files hold."""


def held_out_files(files: list[str], places: list[str]) -> frozenset[int]:
    """Indices of the files to hold out, by names below the user's `places`: files named valid or test, if others are
    named train, or if all have such names."""
    beside = [os.path.join(place if os.path.isdir(place) else os.path.dirname(place), "") for place in places]
    splits = [*splits_of([*files, *beside]).values()][: len(files)]
    held_out = frozenset(index for index, split in enumerate(splits) if split in ("validation", "test"))
    return held_out if "train" in splits or len(held_out) == len(files) else frozenset()


HELD_OUT = "only the files named valid or test are held out"


def of_spans(values: Ids, starts: Int64, sizes: Int64, file: int, members: Int64 | None = None) -> Iterator[Block]:
    """Blocks of documents that are spans of `values`. `members` [documents]: each document is that many consecutive
    spans, its sentences; None for one span each, without sentences."""
    counts = np.ones(len(starts), np.int64) if members is None else members
    last_span = np.cumsum(counts)
    ends = np.concatenate([[0], np.cumsum(sizes)])[last_span]
    document_sizes = np.diff(ends, prepend=0)
    for first, end in in_blocks(ends):
        spans = slice(int(last_span[first] - counts[first]), int(last_span[end - 1]))
        begin, size = starts[spans], sizes[spans]
        ids = _gather(values, begin, size)
        yield Block(ids, document_sizes[first:end], file, first, None if members is None else size[size > 0])


def _gather(values: Ids, starts: Int64, sizes: Int64) -> Ids:
    if not len(starts):
        return values[:0]
    ends = starts + sizes
    if (starts[1:] == ends[:-1]).all():
        return values[int(starts[0]) : int(ends[-1])]
    parts = [values[begin:end] for begin, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    return np.concatenate(parts)


def require_inside(starts: Int64, sizes: Int64, available: int, index: str, file: str) -> None:
    """Raises `StoreError` for the first span beyond the `available` ids of `file`."""
    is_outside = (starts < 0) | (sizes < 0) | (starts + sizes > available)
    if is_outside.any():
        idx = int(np.argmax(is_outside))
        what = f"sequence {idx:,} is recorded as ids {starts[idx]:,} to {starts[idx] + sizes[idx]:,}"
        what += f" of {os.path.basename(file)}, which has {available:,}"
        raise StoreError(what, where=index, fix=f"{COPY_AGAIN}; the two files are of different stores, or one is cut")
