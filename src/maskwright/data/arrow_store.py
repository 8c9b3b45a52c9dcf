"""Arrow files of token ids, opened for training as they are: the ids stay where they lie and are memory-mapped.

A document is a record batch of a plain column, or a row of a column of lists. Between documents lie Arrow's own bytes,
so `Split` gets the place of each document. Opening reads every id once, to find what is held out, what is wrong, and
the fingerprint; the rows are those of the store that `maskwright data convert` makes of the same files.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.core import storage
from maskwright.core.console import note, progress
from maskwright.core.data_config import Arrow
from maskwright.core.errors import ConfigError, StoreError
from maskwright.data.convert import Cleaner, ConvertOptions, Counts, document_keys
from maskwright.data.foreign.blocks import Block, Int64
from maskwright.data.foreign.columns import (
    HELD_OUT,
    arrow_files,
    dataset_files,
    grouped,
    held_out_files,
    record_batches,
    require_counts,
)
from maskwright.data.foreign.detect import detect
from maskwright.data.store import Split, SplitName, TokenStore
from maskwright.text.dedup import held_out
from maskwright.text.vocabulary import Vocabulary, read_vocabulary


@dataclass(frozen=True)
class _Documents:
    """Some documents that are kept."""

    file: int
    start: Int64
    """In the file's ids."""
    size: Int64
    number: Int64
    """In the file, from 0."""
    valid: NDArray[np.bool_]


class ArrowStore:
    """What `TokenStore` is to a run."""

    def __init__(self, location: str, options: Arrow, *, all_held_out: bool = False) -> None:
        """`all_held_out`: for a folder of held-out text. Raises `StoreError` for a folder without such files, a cut or
        compressed one, an id beyond the vocabulary, and special tokens that are to be refused."""
        self.location = storage.require_local(location)
        places = [os.path.join(location, *parts, "tokenizer") for parts in ((), ("train",))]
        self.tokenizer_folder = options.tokenizer or next(filter(os.path.isdir, places), places[0])
        if not options.tokenizer and not os.path.isdir(self.tokenizer_folder):
            fix = "set data.arrow.tokenizer to the folder of the tokenizer that made the ids"
            raise ConfigError("has no tokenizer/", where=location, fix=fix)
        self.vocabulary: Vocabulary = read_vocabulary(self.tokenizer_folder)
        _require_special_ids(options.special_ids or {}, self.vocabulary)
        self.files = _files(location)
        self.options, self.counts = options, Counts()
        self._held_out = frozenset[int]() if all_held_out else held_out_files(self.files)
        """Numbers of the files that are held out in full; of the others, nothing is then."""
        fraction = 1.0 if all_held_out else 0.0 if self._held_out else options.valid_fraction
        if self._held_out:
            note(f"{location}: {HELD_OUT}")
        cleaning = ConvertOptions(fraction, options.special_tokens, options.token_offset)
        self._cleaner = Cleaner(self.vocabulary, cleaning, self.counts, self.files)
        self._types: list[Any] = [None] * len(self.files)
        self._found: dict[str, tuple[int, int]] = {}
        self._digest = hashlib.sha256()
        self._documents = self._read()
        require_counts(location, self._found)
        self.fingerprint: str = storage.sha256_of(
            ["arrow", self.vocabulary.fingerprint, fraction, self._digest.hexdigest()]
        )
        splits = {name: self._totals(name) for name in ("train", "valid")}
        self.manifest: dict[str, Any] = {
            "splits": splits,
            "sources": [{"location": path} for path in self.files],
        }

    def _read(self) -> list[_Documents]:
        found = []
        with progress("read", sum(map(os.path.getsize, self.files)), "bytes") as bar:
            for number, path in enumerate(self.files):
                documents = tokens = 0
                for block, places in grouped(record_batches(path, self.options.column), number):
                    found.append(self._look(block, places, path))
                    documents, tokens = documents + len(block.sizes), tokens + len(block.ids)
                    bar.advance(block.ids.nbytes)
                self._found[os.path.normpath(path)] = (documents, tokens)
        return found

    def _look(self, block: Block, places: Int64, path: str) -> _Documents:
        width, some = block.ids.itemsize, block.sizes > 0
        inside = (places >= 0) & (places + block.sizes * width <= os.path.getsize(path)) & (places % width == 0)
        if not inside[some].all():
            fix = "`maskwright data convert` reads such files into a token store"
            raise StoreError("is compressed, and training maps the ids as they are", where=path, fix=fix)
        if self._types[block.file] not in (None, block.ids.dtype):
            raise StoreError("has ids of two types", where=path, fix="convert it: `maskwright data convert`")
        self._types[block.file] = block.ids.dtype
        ids = self._cleaner.own_ids(block)
        end = np.cumsum(block.sizes)
        begin = end - block.sizes
        if (special := self._cleaner.special(ids)) is not None:
            begin, end = self._cleaner.stripped(block, special)
        some = end > begin
        begin, end = begin[some], end[some]
        shift = begin - (np.cumsum(block.sizes) - block.sizes)[some]
        keys = document_keys(ids, begin, end)
        self._digest.update(keys.tobytes())
        valid = held_out(keys[:, 0], self._cleaner.options.valid_fraction)
        if block.file in self._held_out:
            valid[:] = True
            self._digest.update(b"held out")
        return _Documents(
            block.file,
            places[some] // width + shift,
            end - begin,
            block.first + np.flatnonzero(some),
            valid,
        )

    def _side(self, name: SplitName) -> list[tuple[_Documents, NDArray[np.bool_]]]:
        return [(one, one.valid == (name == "valid")) for one in self._documents]

    def _totals(self, name: SplitName) -> dict[str, int]:
        sizes = [one.size[side] for one, side in self._side(name)]
        return {"tokens": sum(int(one.sum()) for one in sizes), "documents": sum(map(len, sizes)), "sentences": 0}

    def split(self, name: SplitName) -> Split:
        shards = tuple(_map(path, kind) for path, kind in zip(self.files, self._types, strict=True))
        begins = np.cumsum([0, *map(len, shards)]).astype(np.int64)
        side = self._side(name)
        none = [np.zeros(0, np.int64)]
        starts = np.concatenate(none + [begins[one.file] + one.start[kept] for one, kept in side])
        sizes = np.concatenate(none + [one.size[kept] for one, kept in side])
        return Split(shards, begins, starts + sizes, None, starts, self.options.token_offset)

    def require_tokenizer(self, vocabulary: Vocabulary, where: str) -> None:
        """Raises `StoreError` if `vocabulary` (read from `where`) is not the one of these ids."""
        if vocabulary.fingerprint != self.vocabulary.fingerprint:
            own, other = self.vocabulary.fingerprint[:12], vocabulary.fingerprint[:12]
            what = f"is read with another tokenizer ({own}, not {other} of {where})"
            raise StoreError(what, where=self.location, fix="set data.arrow.tokenizer to the one that made the ids")

    def origin(self, split: SplitName, document: int) -> str:
        """`file:number` of a document of the split; numbers count from 1."""
        for one, side in self._side(split):
            if document < side.sum():
                return f"{self.files[one.file]}:{int(one.number[side][document]) + 1}"
            document -= int(side.sum())
        raise IndexError(document)

    def source_numbers(self, split: SplitName) -> Int64:
        """[documents]: which of the files each document of the split is from."""
        parts = [np.full(int(side.sum()), one.file, np.int64) for one, side in self._side(split)]
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def verify(self) -> None:
        """Every byte was read when the store was opened."""


Judged = TokenStore | ArrowStore
"""What can hold documents out."""


def open_judged(location: str, format_: str, arrow: Arrow) -> Judged:
    return ArrowStore(location, arrow) if format_ == "arrow" else TokenStore(location)


def is_arrow(folder: str) -> bool:
    """Whether `.arrow` files lie in it, or below it."""
    return any(name.endswith(".arrow") for _, names in storage.walk(folder) for name in names)


def _files(location: str) -> list[str]:
    if not os.path.isdir(location):
        raise StoreError("there is no such folder", where=location, fix="correct the path")
    if os.path.isfile(os.path.join(location, "manifest.json")):
        raise StoreError("is a token store, and no Arrow files", where=location, fix="set its format to store")
    if os.path.isfile(os.path.join(location, "state.json")) or os.path.isfile(
        os.path.join(location, "dataset_dict.json")
    ):
        return dataset_files(location)
    files = arrow_files(location)
    if not files:
        fix = "`maskwright data convert` reads other formats"
        with_kind = detect([location])
        raise StoreError(f"holds no .arrow files, but {with_kind}", where=location, fix=fix)
    return files


def _map(path: str, kind: Any) -> NDArray[Any]:
    if kind is None:  # a file without documents
        return np.zeros(0, np.uint16)
    width = np.dtype(kind).itemsize
    return np.asarray(np.memmap(path, kind, "r", shape=(os.path.getsize(path) // width,)))


def _require_special_ids(given: dict[Any, int], vocabulary: Vocabulary) -> None:
    for name, wanted in given.items():
        if getattr(vocabulary, name) != wanted:
            what = f"{name} is {wanted}, and {getattr(vocabulary, name)} in the tokenizer"
            fix = "name the tokenizer that made the ids as data.arrow.tokenizer, or correct the id"
            raise ConfigError(what, where="data.arrow.special_ids", fix=fix)
