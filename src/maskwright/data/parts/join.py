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

from maskwright.core.runner import Runner, compute
from maskwright.data.encode import Encoded
from maskwright.data.store import shard_names
from maskwright.data.writer import PARTS, StoreWriter, write_shard
from maskwright.text.parts.columns import Columns, ColumnWriter

SPLITS = ("train", "valid")
Int64 = NDArray[np.int64]
Span = tuple[str, int, int]
"""(a part's file, its first document of the split, the one after the last)"""


def append(
    file: ColumnWriter,
    split: str,
    encoded: Encoded,
    origins: NDArray[np.uint64],
    lines: NDArray[np.int64] | None,
) -> None:
    """Adds documents to a part's file, as `StoreWriter.add` does to a store; ids are in the store's type. `lines`
    [documents]: the sentences of each, where the store has sentences."""
    file.append(f"{split}.tokens", encoded.ids)
    file.append(f"{split}.documents", encoded.document_sizes.astype("<u8"))
    file.append(f"{split}.origins", origins.astype("<u8").reshape(-1))
    if lines is not None:
        file.append(f"{split}.lines", lines.astype("<u8"))
        file.append(f"{split}.sentences", encoded.sentence_sizes.astype("<u8"))


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
    """Writes a shard. Returns what the manifest says of it."""

    folder: str
    """The store's."""
    dtype: str
    with_sentences: bool

    def __call__(self, shard: Shard) -> dict[str, Any]:
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

        names = shard_names(shard.split, shard.block, self.dtype, self.with_sentences)
        paths = {role: os.path.join(self.folder, name) for role, name in names.items()}
        return write_shard(
            split,
            paths,
            (piece for file, begin, end in tokens for piece in file.pieces(f"{split}.tokens", begin, end)),
            np.concatenate(sizes),
            np.concatenate(sentences) if self.with_sentences else None,
            np.concatenate(origins),
        )


def _numbers_of(file: Columns, column: str, first: int, last: int) -> tuple[Int64, int, int]:
    """The numbers of a column from `first` to `last`; the sum before them, and the one after them."""
    before = int(file.column(column, 0, first).sum())
    own = file.column(column, first, last).astype(np.int64)
    return own, before, before + int(own.sum())


def join(runner: Runner, writer: StoreWriter, shards: list[Shard]) -> None:
    """Writes the shards into the store of `writer`; those that are there are not written again."""
    work = Join(writer.folder, writer.dtype, writer.with_sentences)
    notes = os.path.join(writer.folder, PARTS, "shards")
    sizes = [np.dtype(writer.dtype).itemsize * shard.tokens for shard in shards]
    writer.shards = compute(runner, work, shards, "join", sizes, notes)
