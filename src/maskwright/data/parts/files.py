"""`data convert` in parts: each file of the other tool by itself, then the shards: the bytes that `convert` gives."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import chdir
from dataclasses import asdict, dataclass, replace

import numpy as np

from maskwright.core.errors import InputError
from maskwright.core.runner import Runner
from maskwright.data.convert import Conversion, Counts, Files, Side
from maskwright.data.parts.encode import SPLITS, Block, Piece
from maskwright.data.parts.folder import VERSION, held, paths_of, write_blocks
from maskwright.data.store import TokenStore
from maskwright.text.parts.columns import ColumnWriter, Note, written
from maskwright.text.parts.cut import digest_of
from maskwright.text.parts.phase import compute, fault_note


def convert_in_parts(conversion: Conversion, runner: Runner) -> TokenStore:
    """Writes the store and returns it opened. The files and the store's folder have to be seen by all machines that
    compute. Raises `InputError` as `convert` does; the fault that comes first in the order of reading."""
    writer, files = conversion.writer, conversion.files
    if finished := writer.finished():
        return finished
    conversion.tell()
    with held(writer.folder, runner, files.source.files) as work:
        paths = paths_of(work, "convert", [digest_of(VERSION, *decided) for decided in conversion.decided_by()])
        sizes = [int(record["bytes"]) for record in files.records]
        convert = ConvertFile(os.getcwd(), files, writer.dtype)
        notes = compute(runner, convert, [*enumerate(paths)], "convert", sizes)
        for note in notes:
            for name, count in note["counts"].items():
                setattr(conversion.counts, name, getattr(conversion.counts, name) + count)
        write_blocks(runner, writer, work, paths, [*blocks_of(notes, conversion.options.shard_tokens)])
        conversion.finish()
    shutil.rmtree(work, ignore_errors=True)
    return TokenStore(writer.folder)


@dataclass(frozen=True)
class ConvertFile:
    """Converts one file, by its number, to the columns that `WriteBlock` joins. Its note has the counts and, of each
    block that was read, the numbers of documents and of tokens."""

    place: str
    """The working directory in which files were named."""
    files: Files
    dtype: str

    def __call__(self, task: tuple[int, str]) -> Note:
        with chdir(self.place):
            try:
                return self._convert(*task)
            except InputError as error:
                return fault_note(error)

    def _convert(self, number: int, path: str) -> Note:
        cleaner = replace(self.files.cleaner, counts=Counts())
        files, blocks = replace(self.files, cleaner=cleaner), list[tuple[int, int]]()
        with written(path) as file:
            self._append(file, [])  # every column is there, also where nothing stays
            for block in files.source.blocks(number):
                blocks.append(self._append(file, [*files.sides(block)]))
            files.require_unchanged(number)
            file.note = {"counts": asdict(cleaner.counts), "blocks": blocks}
        return file.note

    def _append(self, file: ColumnWriter, sides: Sequence[Side]) -> tuple[int, int]:
        """Adds documents, and returns how many and how many tokens they have."""
        none = np.zeros(0, np.int64)
        sizes = np.concatenate([none, *(encoded.document_sizes for _, encoded, _ in sides)])
        lines = np.concatenate([none, *(encoded.sentence_sizes for _, encoded, _ in sides)])
        lasts = np.searchsorted(np.cumsum(lines), np.cumsum(sizes), side="right")
        valid = [np.full(len(encoded.document_sizes), split == "valid") for split, encoded, _ in sides]
        file.append("tokens", sizes.astype("<u8"))
        file.append("sentences", np.diff(lasts, prepend=0).astype("<u8"))
        file.append("valid", np.concatenate([none, *valid]).astype("u1"))
        for split in SPLITS:
            own = [(encoded, origins) for side, encoded, origins in sides if side == split]
            ids = [np.zeros(0, self.dtype), *(encoded.ids for encoded, _ in own)]
            file.append(f"{split}.ids", np.concatenate(ids))
            spoken = np.concatenate([none, *(encoded.sentence_sizes for encoded, _ in own)])
            file.append(f"{split}.sentences", spoken.astype("<u4"))
            places = [np.zeros(0, "<u8"), *(origins.astype("<u8").reshape(-1) for _, origins in own)]
            file.append(f"{split}.origins", np.concatenate(places))
        return len(sizes), int(sizes.sum())


def blocks_of(notes: Sequence[Note], shard_tokens: int) -> Iterator[Block]:
    """The blocks that `convert` would write: one ends with the block that was read after which it has
    `shard_tokens`."""
    number = tokens = 0
    pieces: list[Piece] = []
    for part, note in enumerate(notes):
        first = done = 0
        for documents, size in note["blocks"]:
            done, tokens = done + documents, tokens + size
            if tokens >= shard_tokens:
                yield Block(number, (*pieces, (part, first, done)), tokens)
                number, tokens, first, pieces = number + 1, 0, done, []
        if first < done:
            pieces.append((part, first, done))
    if tokens:
        yield Block(number, tuple(pieces), tokens)
