"""The shards of a store from the files that its parts were encoded to (`text.parts.columns`): what goes into which, and
the work that joins one.

Such a file has for each split the columns `SPLIT.tokens`, `SPLIT.documents` (tokens of each, u64) and `SPLIT.origins`
(two numbers a document, u64); where the store has sentences, also `SPLIT.lines` (sentences of each document, u64) and
`SPLIT.sentences` (tokens of each, u64).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.core.runner import Runner
from maskwright.data.encode import Encoded
from maskwright.data.writer import PARTS, StoreWriter, write_shard
from maskwright.text.parts.columns import Columns, ColumnWriter, Note, written
from maskwright.text.parts.phase import compute

SPLITS = ("train", "valid")
Int64 = NDArray[np.int64]
Side = tuple[str, Encoded, NDArray[np.uint64]]
"""(split, documents, their origins): what `StoreWriter.add` takes."""
Span = tuple[str, int, int]
"""(a part's file, its first document of the split, the one after the last)"""


def append(file: ColumnWriter, split: str, sides: list[Side], *, sentences: bool) -> tuple[int, int]:
    """Adds those of `sides` that are of this split to a part's file, as `StoreWriter.add` does to a store; ids are in
    the store's type. `sentences`: whether the store has them. Returns the numbers of documents and tokens."""
    some = [(encoded, origins) for side, encoded, origins in sides if side == split]
    if not some:
        return 0, 0
    ids = np.concatenate([encoded.ids for encoded, _ in some])
    sizes = np.concatenate([encoded.document_sizes for encoded, _ in some])
    file.append(f"{split}.tokens", ids)
    file.append(f"{split}.documents", sizes.astype("<u8"))
    file.append(f"{split}.origins", np.concatenate([origins for _, origins in some]).astype("<u8").reshape(-1))
    if sentences:
        own = np.concatenate([encoded.sentence_sizes for encoded, _ in some])
        ends = np.searchsorted(np.cumsum(own), np.cumsum(sizes), side="right")
        file.append(f"{split}.sentences", own.astype("<u8"))
        file.append(f"{split}.lines", np.diff(ends, prepend=0).astype("<u8"))
    return len(sizes), len(ids)


@dataclass(frozen=True)
class Shard:
    split: str
    block: int
    spans: tuple[Span, ...]
    tokens: int


class Blocks:
    """Shares documents out to shards, as `StoreWriter` does when they are added to it one after the other."""

    def __init__(self, shard_tokens: int) -> None:
        self.shards: list[Shard] = []
        self._shard_tokens, self._block = shard_tokens, 0
        self._spans: dict[str, list[Span]] = {split: [] for split in SPLITS}
        self._tokens = dict.fromkeys(SPLITS, 0)

    def add(self, split: str, span: Span, tokens: int) -> None:
        spans = self._spans[split]
        if spans and spans[-1][0] == span[0] and spans[-1][2] == span[1]:
            spans[-1] = (span[0], spans[-1][1], span[2])
        elif span[1] < span[2]:
            spans.append(span)
        self._tokens[split] += tokens

    def may_end(self, *, last: bool = False) -> None:
        """The block ends here if it is full, or this is the `last` place."""
        total = sum(self._tokens.values())
        if not total or not (last or total >= self._shard_tokens):
            return
        for split, tokens in self._tokens.items():
            if tokens:
                self.shards.append(Shard(split, self._block, tuple(self._spans[split]), tokens))
        self._block += 1
        self._spans = {split: [] for split in SPLITS}
        self._tokens = dict.fromkeys(SPLITS, 0)


@dataclass(frozen=True)
class Join:
    """Writes a shard, and then a file that notes what the manifest says of it."""

    folder: str
    """The store's."""
    dtype: str
    with_sentences: bool

    def __call__(self, task: tuple[Shard, str]) -> Note:
        shard, path = task
        with written(path) as note:
            note.note = self._record(shard)
        return note.note

    def _record(self, shard: Shard) -> dict[str, Any]:
        split, sizes, sentences, origins = shard.split, list[Int64](), list[Int64](), list[NDArray[np.uint64]]()
        tokens: list[tuple[Columns, int, int]] = []
        for path, first, last in shard.spans:
            file = Columns(path)
            own, begin, end = _numbers_of(file, f"{split}.documents", first, last)
            sizes.append(own)
            tokens.append((file, begin, end))
            origins.append(file.column(f"{split}.origins", 2 * first, 2 * last))
            if self.with_sentences:
                _, begin, end = _numbers_of(file, f"{split}.lines", first, last)
                sentences.append(file.column(f"{split}.sentences", begin, end).astype(np.int64))

        place = (self.folder, split, shard.block, self.dtype)
        ids = (piece for file, begin, end in tokens for piece in file.pieces(f"{split}.tokens", begin, end))
        return write_shard(place, ids, sizes, sentences if self.with_sentences else None, origins)


def _numbers_of(file: Columns, column: str, first: int, last: int) -> tuple[Int64, int, int]:
    """The numbers of a column from `first` to `last`; the sum before them, and the one after them."""
    before = int(file.column(column, 0, first).sum())
    own = file.column(column, first, last).astype(np.int64)
    return own, before, before + int(own.sum())


def join(runner: Runner, writer: StoreWriter, shards: list[Shard]) -> None:
    """Writes the shards into the store of `writer`; those that are there are not written again."""
    work = Join(writer.folder, writer.dtype, writer.with_sentences)
    notes = [os.path.join(writer.folder, PARTS, f"{shard.split}-{shard.block:05}.shard") for shard in shards]
    sizes = [np.dtype(writer.dtype).itemsize * shard.tokens for shard in shards]
    writer.shards = compute(runner, work, list(zip(shards, notes, strict=True)), "join", sizes)
