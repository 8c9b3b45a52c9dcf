"""Shards from parts: the documents of each block, and the writing of its shards."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.core import storage
from maskwright.data import manifest as manifests
from maskwright.data.writer import StoreWriter, write_shard
from maskwright.processes.runner import Runner
from maskwright.text.cleaning.limits import KEEP
from maskwright.text.parts.columns import Columns, Note, written
from maskwright.text.parts.cut import digest_of
from maskwright.text.parts.duplicates import Resolved
from maskwright.text.parts.phase import compute, paths_of

SPLITS = ("train", "valid")
EMPTY = 2
"""Value in the column `valid` for a document without ids, which is in no split."""
Piece = tuple[int, int, int]
"""(part, first document, last document (exclusive) in the part's file)"""


@dataclass(frozen=True)
class EncodedParts:
    """The files of all parts, in the order of reading.

    Columns of documents: `tokens` and `sentences` (counts), `valid` (1 if held out, `EMPTY` without ids) and, with
    `resolved`, `documents` (number in the part). Columns of each split, one document after the other: `SPLIT.ids`,
    `SPLIT.sentences` (ids in each), `SPLIT.origins` (number of the file, line)."""

    files: tuple[str, ...]
    resolved: Resolved | None = None
    """Drop codes of the documents; None if all are kept."""

    def kept(self, part: int) -> NDArray[np.bool_]:
        """[documents in the part's file]: whether each is kept."""
        file = Columns(self.files[part])
        if self.resolved is None:
            return np.ones(file.count("tokens"), bool)
        return self.resolved.codes(part)[file.column("documents")] == KEEP

    def empty(self) -> int:
        """The number of kept documents without ids."""
        files = enumerate(map(Columns, self.files))
        return sum(int((self.kept(part) & (file.column("valid") == EMPTY)).sum()) for part, file in files)

    def sizes(self) -> Iterator[NDArray[np.int64]]:
        """For each part, [documents in its file]: tokens, 0 for dropped ones."""
        for part, path in enumerate(self.files):
            yield np.where(self.kept(part), Columns(path).column("tokens"), 0).astype(np.int64)


@dataclass(frozen=True)
class ShardBlock:
    """Consecutive documents whose shards are written together."""

    number: int
    pieces: tuple[Piece, ...]
    tokens: int


def blocks_of(sizes: Iterable[NDArray[np.int64]], shard_tokens: int) -> Iterator[ShardBlock]:
    """The blocks of parts. `sizes`: tokens of each part's documents. A block ends where it has `shard_tokens`."""
    number = tokens = 0
    pieces: list[Piece] = []
    for part, document_sizes in enumerate(sizes):
        ends, first = np.cumsum(document_sizes), 0
        while first < len(ends):
            before = int(ends[first - 1]) if first else 0
            end = int(np.searchsorted(ends, before + shard_tokens - tokens)) + 1
            full, end = end <= len(ends), min(end, len(ends))
            tokens += int(ends[end - 1]) - before
            pieces.append((part, first, end))
            first = end
            if full:
                yield ShardBlock(number, tuple(pieces), tokens)
                number, tokens, pieces = number + 1, 0, []
    if tokens:
        yield ShardBlock(number, tuple(pieces), tokens)


def write_blocks(runner: Runner, writer: StoreWriter, work: str, parts: EncodedParts, shard_tokens: int) -> None:
    """The last phase: writes the shards of all unfinished blocks."""
    blocks = [*blocks_of(parts.sizes(), shard_tokens)]
    folder, names = os.path.abspath(writer.folder), digest_of([os.path.basename(path) for path in parts.files])
    paths = paths_of(work, "write", [digest_of(names, block.number, block.pieces) for block in blocks])
    sizes = [np.dtype(writer.dtype).itemsize * block.tokens for block in blocks]
    write = WriteBlock(folder, parts, writer.dtype, writer.with_sentences)
    for note in compute(runner, write, [*zip(blocks, paths, strict=True)], "write", sizes):
        writer.shards += note["shards"]


def remove_leftovers(writer: StoreWriter) -> None:
    """Deletes files of shards that are not the store's."""
    shard_files = {record["name"] for shard in writer.shards for record in shard["files"].values()}
    for name in os.listdir(writer.folder):
        is_leftover = storage.is_temporary(name) or (manifests.is_shard_name(name) and name not in shard_files)
        if is_leftover:  # by a worker that was killed, or an earlier command with other options
            os.unlink(os.path.join(writer.folder, name))


@dataclass(frozen=True)
class WriteBlock:
    """Writes a block's shards from the parts. Memory holds sizes of documents, never all ids."""

    folder: str
    parts: EncodedParts
    dtype: str
    with_sentences: bool

    def __call__(self, task: tuple[ShardBlock, str]) -> Note:
        block, path = task
        with written(path) as writer:
            shards = [self._shard(block, split) for split in SPLITS]
            writer.note = {"shards": [shard for shard in shards if shard]}
        return writer.note

    def _shard(self, block: ShardBlock, split: str) -> dict[str, Any] | None:
        ids, sizes, sentences, origins = list[Any](), list[Any](), list[Any](), list[Any]()
        for part, begin, end in block.pieces:
            file = Columns(self.parts.files[part])
            is_in_split = file.column("valid", 0, end) == SPLITS.index(split)
            document_idxs = np.flatnonzero(is_in_split[begin:]) + begin
            keep = self.parts.kept(part)[document_idxs]

            def of_documents(name: str, counts: NDArray[Any]) -> Iterator[NDArray[Any]]:
                """The column's values of the kept documents, `counts` of each document."""
                first = int(counts[:begin][is_in_split[:begin]].sum())  # noqa: B023 - read before the next piece
                pieces = file.pieces(f"{split}.{name}", first, first + int(counts[document_idxs].sum()))  # noqa: B023
                return _kept(pieces, counts[document_idxs], keep)  # noqa: B023

            tokens = file.column("tokens", 0, end)
            ids.append(of_documents("ids", tokens))
            sizes.append(tokens[document_idxs][keep])
            origins += of_documents("origins", np.full(end, 2))
            if self.with_sentences:
                sentences += of_documents("sentences", file.column("sentences", 0, end))
        if not sum(int(part_sizes.sum()) for part_sizes in sizes):
            return None
        shard_place = (self.folder, split, block.number, self.dtype)
        lines = sentences if self.with_sentences else None
        return write_shard(shard_place, itertools.chain.from_iterable(ids), sizes, lines, origins)


def _kept(pieces: Sequence[NDArray[Any]], counts: NDArray[Any], keep: NDArray[np.bool_]) -> Iterator[NDArray[Any]]:
    """`pieces` of values, `counts` of them for each document, without those of dropped documents."""
    if keep.all():
        yield from pieces
        return
    keep_value, begin = np.repeat(keep, counts.astype(np.int64)), 0
    for piece in pieces:
        yield piece[keep_value[begin : begin + len(piece)]]
        begin += len(piece)
