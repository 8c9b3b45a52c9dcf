"""Index of Arrow files that are trained on in place: the place, size and split of each document.

Building it reads every id once: for errors, for the split and for the fingerprint. Later openings map the index and
read no id. Its name is a digest of all that decides it: the file's location, size and time, the tokenizer, and how ids
become documents. So a changed file gets a new index, and the other files keep theirs. The processes of a host divide
the files, and each file is read by one of them.

    $MASKWRIGHT_CACHE/arrow/NAME.columns     see `core.storage.cache_folder`; either of
      one file      train.starts, train.ends (in its ids), train.numbers (in the file, from 0), the same of valid;
                    keys (two numbers a document, in the file's order)
      all files     the notes of the files, and the digest of all keys

A damaged index is built again. All of them may be deleted while nobody trains.
"""

from __future__ import annotations

import glob
import hashlib
import os
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.core import storage
from maskwright.core.console import progress
from maskwright.core.errors import Locked, MaskwrightError, StoppedEarly, StoreError
from maskwright.data.convert import ConvertCounts, ConvertOptions, IdCleaner
from maskwright.data.foreign.blocks import Block, Int64
from maskwright.data.foreign.columns import arrow_parts, grouped
from maskwright.data.store import SplitName
from maskwright.text.dedup import document_keys, held_out
from maskwright.text.parts.columns import Columns, Note, written
from maskwright.text.vocabulary import Vocabulary

FORMAT = 1
SIDES: tuple[SplitName, ...] = ("train", "valid")
TOTALS = ("documents", "tokens")
DAMAGE = (MaskwrightError, ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError)
"""Exceptions that a damaged index may raise."""
Append = Callable[[str, Int64], None]
"""Adds numbers to the column of that name."""


@dataclass(frozen=True)
class ArrowFile:
    path: str
    is_held_out: bool = False
    """Whether all its documents are held out."""

    @property
    def state(self) -> list[Any]:
        """[location, bytes, time of change], as JSON values. Raises `StoreError` if the file cannot be read."""
        try:
            status = os.stat(self.path)
        except OSError as error:
            raise StoreError(f"cannot be read: {error.strerror}", where=self.path, fix="correct the path") from None
        return [os.path.abspath(self.path), status.st_size, status.st_mtime_ns]


class ArrowIndex:
    """Index of several files."""

    def __init__(
        self, files: list[ArrowFile], column: str | None, vocabulary: Vocabulary, options: ConvertOptions
    ) -> None:
        """Raises `StoreError` for a file that is cut or compressed or changes while it is read, an id beyond the
        vocabulary, and special tokens that are refused; `MaskwrightError` where the index cannot be written."""
        self._files, self._column, self._vocabulary, self._options = files, column, vocabulary, options
        self._states = [file.state for file in files]
        cleaning = [options.valid_fraction, options.special_tokens, options.token_offset]
        decided = [FORMAT, column, vocabulary.fingerprint, *cleaning, vocabulary.rules_record]
        states = zip(self._states, files, strict=True)
        self._opened: dict[int, Columns] = {}
        self._names = [storage.sha256_of([*decided, *state, file.is_held_out]) for state, file in states]
        self.name = storage.sha256_of([FORMAT, self._names])
        """Digest of the files' locations, sizes and times, and of all else that decides the index."""
        self._index = _opened(self.name) or self._build(self.name)
        self.files: list[Note] = self._index.note["facts"]["files"]
        """The note of `_read` for each file."""
        self.keys_sha256: str = self._index.note["facts"]["keys_sha256"]
        """Digest of the keys of all documents, in the order of the files."""

    def spans(self, file_idx: int, side: SplitName) -> tuple[Int64, Int64]:
        """(starts, ends) [documents] in the ids of a file, memory-mapped."""
        index, empty = self._file(file_idx), np.zeros(0, np.int64)
        starts, ends = (_pieces(index, f"{side}.{name}") or [empty] for name in ("starts", "ends"))
        return starts[0], ends[0]

    def ids(self, file_idx: int) -> NDArray[Any]:
        """The file as ids, memory-mapped, with Arrow's bytes between the documents."""
        path, size, _ = self._states[file_idx]
        return _map(path, size, self.files[file_idx]["dtype"])

    def number(self, file_idx: int, side: SplitName, document_idx: int) -> int:
        """Number in the file, from 0, of the document with index `document_idx` among the side's."""
        return int(self._file(file_idx).numbers(f"{side}.numbers", document_idx, document_idx + 1)[0])

    def _file(self, file_idx: int) -> Columns:
        if file_idx not in self._opened:
            self._opened[file_idx] = _built_once(self._names[file_idx], partial(self._read, file_idx, lambda _: None))
        return self._opened[file_idx]

    def _build(self, name: str) -> Columns:
        indexes: dict[int, Columns] = {}
        sizes = [size for _, size, _ in self._states]
        with progress("read", sum(sizes), "bytes") as bar:
            while missing := [file_idx for file_idx in range(len(sizes)) if file_idx not in indexes]:
                for file_idx in missing:
                    done = bar.done
                    if (index := self._of_file(file_idx, bar.advance)) is not None:
                        indexes[file_idx] = index
                        bar.advance(sizes[file_idx] - (bar.done - done))
                if not indexes.keys() & missing:  # other processes build all of them
                    time.sleep(storage.WAIT_SECONDS)
        parts = [indexes[file_idx] for file_idx in range(len(sizes))]
        return _built_once(name, partial(self._join, parts))

    def _of_file(self, file_idx: int, advance: Callable[[float], None] = lambda _: None) -> Columns | None:
        """The index of a file; None while another process builds it."""
        name = self._names[file_idx]
        if (index := _opened(name)) is None:
            storage.make_cache_folder(os.path.dirname(_path(name)))
            with suppress(Locked), storage.locked(f"{_path(name)}.lock", remove=True, is_needed=False):
                return _opened(name) or _write(name, partial(self._read, file_idx, advance))
        return index

    def _read(self, file_idx: int, advance: Callable[[float], None], append: Append) -> Note:
        """Reads every id of a file. Returns `read`, `train` and `valid`: documents and tokens, read and kept; `dtype`
        of the ids, None without documents; `kept`: documents of each block."""
        file, size = self._files[file_idx], self._states[file_idx][1]
        cleaner = IdCleaner(self._vocabulary, self._options, ConvertCounts(), [file.path])
        counts = {name: np.zeros(2, np.int64) for name in ("read", *SIDES)}
        dtype: str | None = None
        documents_of_blocks: list[int] = []
        for block, offsets in grouped(arrow_parts(file.path, self._column, with_offsets=True), 0):
            _require_mapped(block, offsets, file.path, size)
            numbers, begins, ends, keys = _documents(block, cleaner)
            starts = offsets[numbers] // block.ids.itemsize + begins - (np.cumsum(block.sizes) - block.sizes)[numbers]
            fraction = 1.0 if file.is_held_out else self._options.valid_fraction
            is_valid = held_out(keys[:, 0], fraction)
            for side, is_here in zip(SIDES, (~is_valid, is_valid), strict=True):
                sizes = (ends - begins)[is_here]
                append(f"{side}.starts", starts[is_here])
                append(f"{side}.ends", starts[is_here] + sizes)
                append(f"{side}.numbers", block.first + numbers[is_here])
                counts[side] += len(sizes), sizes.sum()
            append("keys", keys.reshape(-1).view(np.int64))
            counts["read"] += len(block.sizes), len(block.ids)
            dtype = block.ids.dtype.str
            documents_of_blocks.append(len(keys))
            advance(block.ids.nbytes)
        if file.state != self._states[file_idx]:
            raise StoreError("was changed while it was read", where=file.path, fix="start again")
        totals = {name: dict(zip(TOTALS, pair.tolist(), strict=True)) for name, pair in counts.items()}
        return {**totals, "dtype": dtype, "kept": documents_of_blocks}

    def _join(self, parts: list[Columns], _: Append) -> Note:
        """The note of all files, from the notes of each."""
        files: list[Note] = [part.note["facts"] for part in parts]
        digest = hashlib.sha256()
        for file, facts, part in zip(self._files, files, parts, strict=True):
            for first, end in pairwise(accumulate(facts["kept"], initial=0)):
                digest.update(part.column("keys", 2 * first, 2 * end).tobytes())
                digest.update(b"held out" if file.is_held_out else b"")
        return {"files": files, "keys_sha256": digest.hexdigest()}


def _documents(block: Block, cleaner: IdCleaner) -> tuple[Int64, Int64, Int64, NDArray[np.uint64]]:
    """(index in the block, begin and end in its ids, key) of each document that is not empty."""
    ids = cleaner.tokenizer_ids(block)
    ends = np.cumsum(block.sizes)
    begins = ends - block.sizes
    if (special := cleaner.special(ids)) is not None:
        begins, ends = cleaner.stripped(block, special)
    numbers = np.flatnonzero(ends > begins)
    begins, ends = begins[numbers], ends[numbers]
    return numbers, begins, ends, document_keys(ids, begins, ends)


def _map(path: str, size: int, dtype: str | None) -> NDArray[Any]:
    if dtype is None:  # a file without documents
        return np.zeros(0, np.uint16)
    # A plain array, because slices of a memmap object take three times as long.
    return np.asarray(np.memmap(path, dtype, "r", shape=(size // np.dtype(dtype).itemsize,)))


def _require_mapped(block: Block, offsets: Int64, path: str, size: int) -> None:
    """Raises `StoreError` for compressed ids, which are not in the file but in memory of their own."""
    width = block.ids.itemsize
    is_inside = (offsets >= 0) & (offsets + block.sizes * width <= size) & (offsets % width == 0)
    if not is_inside[block.sizes > 0].all():
        fix = "`maskwright data convert` reads such files into a token store"
        raise StoreError("is compressed, and training maps the ids as they are", where=path, fix=fix)


# ---- the cache -------------------------------------------------------------------------------------------------------


def _path(name: str) -> str:
    return storage.cache_folder("arrow", f"{name[:32]}.columns")


def _opened(name: str) -> Columns | None:
    """The index of that name, every byte checked; None if it is absent, damaged or of another name."""
    try:
        index = Columns(_path(name))
        facts, sums = index.note["facts"], {}
        for column in index.note["crc32"]:
            sums[column] = 0
            for numbers in _pieces(index, column):
                if numbers.dtype != np.int64:
                    return None
                sums[column] = zlib.crc32(numbers.data, sums[column])
        return index if index.note["sha256"] == storage.sha256_of([name, facts, sums]) else None
    except StoppedEarly:  # a signal's
        raise
    except DAMAGE:
        return None


def _pieces(index: Columns, column: str) -> list[Int64]:
    """The column, memory-mapped; one piece if no other column was written in between."""
    return index.pieces(column) if column in index else []


def _built_once(name: str, make: Callable[[Append], Note]) -> Columns:
    """The index of that name, built if absent."""
    return storage.made_once(_path(name), lambda: _opened(name), lambda: _write(name, make))


def _write(name: str, make: Callable[[Append], Note]) -> Columns:
    path, sums = _path(name), dict[str, int]()
    for leftover in glob.glob(f"{glob.escape(path)}.tmp-*"):  # by a process that was killed
        os.unlink(leftover)
    try:
        with written(path) as columns:

            def append(column: str, numbers: Int64) -> None:
                columns.append(column, numbers)
                sums[column] = zlib.crc32(numbers.data, sums.get(column, 0))

            facts = make(append)
            columns.note = {"facts": facts, "crc32": sums, "sha256": storage.sha256_of([name, facts, sums])}
    except OSError as error:
        raise MaskwrightError(f"cannot be written: {error.strerror}", where=path, fix=storage.ANOTHER_DISK) from None
    return Columns(path)
