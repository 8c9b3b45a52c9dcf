"""What every foreign format is read as: blocks of documents, each some ids one after the other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.core.errors import StoreError

BLOCK_TOKENS = 1 << 22
"""Tokens handled at once: large enough that no time goes into calls, small enough for a laptop."""
INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
COPY_AGAIN = "copy it again from where it was made"
Ids = NDArray[Any]
Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Options:
    """What a user says of data that do not say it themselves."""

    column: str | None = None
    """Column of the ids, in the formats that have columns."""
    dtype: str | None = None
    """Type of bare ids."""
    document_end: int | None = None
    """Id that stands between documents as it is stored, in the formats that keep no ends."""
    encoder: str | None = None
    """GPT-2's encoder.json, for a fairseq dictionary of numbers."""


@dataclass(frozen=True)
class Block:
    """Some documents of one file, in its order."""

    ids: Ids
    """[tokens], of any integer type."""
    sizes: Int64
    """[documents]: tokens of each."""
    file: int
    """Number of the file in `Foreign.files`."""
    first: int
    """Number of the first document in that file, from 0."""
    sentences: Int64 | None = None
    """Tokens of each sentence, where the format has sentences: no document begins inside one."""
    numbers: Int64 | None = None
    """[documents]: number in the file of the record that each is from, where a record may be two documents; None where
    they are counted from `first` on."""
    findings: Mapping[str, int] = field(default_factory=dict)
    """What is wrong in it, counted by names that `Foreign.described` knows."""

    def number(self, document_idx: Any) -> Any:
        """Numbers in the file, from 0, of documents of this block."""
        return self.first + document_idx if self.numbers is None else self.numbers[document_idx]


def nothing(_: Mapping[str, int]) -> list[str]:
    return []


@dataclass(frozen=True)
class Foreign:
    """An opened store of another tool."""

    format: str
    files: list[str]
    """What is read, in the order of the documents."""
    blocks: Callable[[int], Iterator[Block]]
    """Of the file with this number in `files`; can be pickled, and reads no other."""
    sentences: bool = False
    """Whether the blocks tell sentences."""
    mapping: Int64 | None = None
    """[their ids]: the tokenizer's id of each of theirs, -1 for one that the tokenizer lacks; None where they are the
    same."""
    said: list[str] = field(default_factory=list)
    """What the user should know."""
    held_out: frozenset[int] = frozenset()
    """Numbers of the files that their maker held out. Where there are some, nothing is held out of the others."""
    passes: int = 1
    """How often the files hold their text."""
    described: Callable[[Mapping[str, int]], list[str]] = nothing
    """Sentences about the sums of `Block.findings`; can be pickled."""


def flat(path: str, dtype: Any, begin: int = 0) -> Ids:
    """The ids of a file from byte `begin` on, memory-mapped. Raises `StoreError` if its size is not of whole ids."""
    size, kind = os.path.getsize(path) - begin, np.dtype(dtype).newbyteorder("<")
    if size % kind.itemsize:
        what = f"has {size:,} bytes of ids, which are no whole number of {kind.itemsize} bytes"
        raise StoreError(what, where=path, fix=f"{COPY_AGAIN}, or give another --dtype")
    if not size:
        raise StoreError("holds no ids", where=path, fix=COPY_AGAIN)
    return np.asarray(np.memmap(path, kind, "r", begin))


def holds(values: Ids, one: int) -> bool:
    """Whether an id is there; most often, the first block tells."""
    return any((values[at : at + BLOCK_TOKENS] == one).any() for at in range(0, len(values), BLOCK_TOKENS))


def split_at(values: Ids, end: int) -> tuple[Int64, Int64]:
    """(starts, sizes) of what stands between the ids `end`. The ids themselves belong to no document, and several in a
    row make no empty one."""
    borders = [
        np.flatnonzero(values[begin : begin + BLOCK_TOKENS] == end) + begin
        for begin in range(0, len(values), BLOCK_TOKENS)
    ]
    ends = np.concatenate([*borders, [len(values)]]).astype(np.int64)
    starts = np.concatenate([[0], ends[:-1] + 1])
    some = ends > starts
    return starts[some], (ends - starts)[some]


def in_blocks(ends: Int64) -> Iterator[tuple[int, int]]:
    """(first, end) of neighbouring documents: as many as fit into `BLOCK_TOKENS`, or one that is longer. `ends`
    [documents]: tokens up to the end of each."""
    first = before = 0
    while first < len(ends):
        end = max(first + 1, int(np.searchsorted(ends, before + BLOCK_TOKENS, side="right")))
        yield first, end
        first, before = end, int(ends[end - 1])


def of_spans(values: Ids, starts: Int64, sizes: Int64, file: int, members: Int64 | None = None) -> Iterator[Block]:
    """Blocks of the documents that are spans of `values`; or with `members` [documents], so many spans each, which are
    then its sentences."""
    counts = np.ones(len(starts), np.int64) if members is None else members
    last_span = np.cumsum(counts)
    ends = np.concatenate([[0], np.cumsum(sizes)])[last_span]
    whole = np.diff(ends, prepend=0)
    for first, end in in_blocks(ends):
        spans = slice(int(last_span[first] - counts[first]), int(last_span[end - 1]))
        begin, size = starts[spans], sizes[spans]
        ids = _gather(values, begin, size)
        yield Block(ids, whole[first:end], file, first, None if members is None else size[size > 0])


def _gather(values: Ids, starts: Int64, sizes: Int64) -> Ids:
    if not len(starts):
        return values[:0]
    ends = starts + sizes
    if (starts[1:] == ends[:-1]).all():
        return values[int(starts[0]) : int(ends[-1])]
    parts = [values[begin:end] for begin, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    return np.concatenate(parts)


def require_inside(starts: Int64, sizes: Int64, available: int, index: str, file: str) -> None:
    """Raises `StoreError` for the first span that is not within the `available` ids of `file`."""
    wrong = (starts < 0) | (sizes < 0) | (starts + sizes > available)
    if wrong.any():
        number = int(np.argmax(wrong))
        what = f"sequence {number:,} is said to be ids {starts[number]:,} to {starts[number] + sizes[number]:,}"
        what += f" of {os.path.basename(file)}, which has {available:,}"
        raise StoreError(what, where=index, fix=f"the two files are not of one store, or one is cut: {COPY_AGAIN}")
