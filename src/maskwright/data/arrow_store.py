"""Arrow files of token ids, opened for training in place: the ids are memory-mapped where they lie.

A document is a record batch of a plain column, or a row of a column of lists. Between documents lie Arrow's own bytes,
so `Split` gets the place of each document from an index (`data.arrow_index`), which the first opening builds. Rows
are those of the store that `maskwright data convert` writes from the same files.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from maskwright.config.data import Arrow
from maskwright.core import storage
from maskwright.core.console import note
from maskwright.core.errors import ConfigError, StoreError
from maskwright.data.arrow_index import SIDES, TOTALS, ArrowFile, ArrowIndex
from maskwright.data.convert import ConvertOptions
from maskwright.data.foreign.blocks import HELD_OUT, Int64, held_out_files
from maskwright.data.foreign.columns import arrow_files, dataset_files, require_counts
from maskwright.data.foreign.detect import detect
from maskwright.data.pregenerated_store import open_epochs
from maskwright.data.store import Shard, Split, SplitName, TokenStore
from maskwright.text.vocabulary import Vocabulary, read_vocabulary


class ArrowStore:
    """Arrow files with the interface of `TokenStore`."""

    passes = 1

    def __init__(self, location: str, options: Arrow, *, all_held_out: bool = False) -> None:
        """`all_held_out`: for a folder of held-out text. Raises `StoreError` for a folder without such files, a cut or
        compressed one, an id beyond the vocabulary, and special tokens that are refused."""
        self.location = storage.require_local(location)
        folders = [os.path.join(location, *parts, "tokenizer") for parts in ((), ("train",))]
        self.tokenizer_folder = options.tokenizer or next(filter(os.path.isdir, folders), folders[0])
        if not options.tokenizer and not os.path.isdir(self.tokenizer_folder):
            fix = "set data.arrow.tokenizer to the folder of the tokenizer that made the ids"
            raise ConfigError("has no tokenizer/", where=location, fix=fix)
        self.vocabulary: Vocabulary = read_vocabulary(self.tokenizer_folder)
        _require_special_ids(options.special_ids or {}, self.vocabulary)
        self.files, self._offset = _files(location), options.token_offset
        held_out = frozenset[int]() if all_held_out else held_out_files(self.files, [location])
        if held_out:  # then nothing is held out of the others
            note(f"{location}: {HELD_OUT}")
        fraction = 1.0 if all_held_out else 0.0 if held_out else options.valid_fraction
        self._index = ArrowIndex(
            [ArrowFile(path, index in held_out) for index, path in enumerate(self.files)],
            options.column,
            self.vocabulary,
            ConvertOptions(fraction, options.special_tokens, options.token_offset),
        )
        counts = [(facts["read"]["documents"], facts["read"]["tokens"]) for facts in self._index.files]
        require_counts(location, dict(zip(map(os.path.normpath, self.files), counts, strict=True)))
        digest = self._index.keys_sha256
        self.fingerprint: str = storage.sha256_of(["arrow", self.vocabulary.fingerprint, fraction, digest])
        # The same documents may lie elsewhere in files of another form, and plans hold places.
        self.plans_key: str = storage.sha256_of([self.fingerprint, self._index.name])
        splits: dict[str, dict[str, int]] = {}
        for side in SIDES:
            totals = {name: sum(facts[side][name] for facts in self._index.files) for name in TOTALS}
            splits[side] = {**totals, "sentences": 0}
        sources = [{"location": path} for path in self.files]
        self.manifest: dict[str, Any] = {"splits": splits, "sources": sources}

    def split(self, name: SplitName) -> Split:
        """The split. Each file with documents of it is a shard."""
        return Split([self._shard(file_idx, name) for file_idx in self._files_of(name)], self._offset)

    def _files_of(self, side: SplitName) -> list[int]:
        return [file_idx for file_idx, facts in enumerate(self._index.files) if facts[side]["documents"]]

    def _shard(self, file_idx: int, side: SplitName) -> Shard:
        facts, index = self._index.files[file_idx][side], self._index
        return Shard(
            facts["tokens"],
            facts["documents"],
            ids=lambda: index.ids(file_idx),
            document_ends=lambda: index.spans(file_idx, side)[1],
            document_starts=lambda: index.spans(file_idx, side)[0],
        )

    def require_tokenizer(self, vocabulary: Vocabulary, where: str) -> None:
        """Raises `StoreError` if `vocabulary` (read from `where`) is not the one of these ids."""
        if vocabulary.fingerprint != self.vocabulary.fingerprint:
            expected, actual = self.vocabulary.fingerprint[:12], vocabulary.fingerprint[:12]
            what = f"is read with another tokenizer ({expected}, not {actual} of {where})"
            raise StoreError(what, where=self.location, fix="set data.arrow.tokenizer to the one that made the ids")

    def origin(self, split: SplitName, document: int) -> str:
        """`file:number` of a document of the split; numbers count from 1."""
        for file_idx, facts in enumerate(self._index.files):
            if document < facts[split]["documents"]:
                return f"{self.files[file_idx]}:{self._index.number(file_idx, split, document) + 1}"
            document -= facts[split]["documents"]
        raise IndexError(document)

    def source_numbers(self, split: SplitName, shard_idx: int) -> Int64:
        """[documents of the shard]: index of each one's file."""
        file_idx = self._files_of(split)[shard_idx]
        return np.full(self._index.files[file_idx][split]["documents"], file_idx)

    def verify_at_start(self) -> None:
        """Does nothing: building the index read every byte, and its name has the files' sizes and times."""


StoreWithSplits = TokenStore | ArrowStore
"""Stores with a validation split."""


def open_with_splits(location: str, format_: str, arrow: Arrow, tokenizer: str | None = None) -> StoreWithSplits:
    """Opens a store of one format. `tokenizer`: the continued model's, for pregenerated epochs without one."""
    if format_ == "arrow":
        return ArrowStore(location, arrow)
    return open_epochs(location, tokenizer) if format_ == "pregenerated" else TokenStore(location)


def is_arrow(folder: str) -> bool:
    """Whether the folder, or one below it, has `.arrow` files."""
    return any(name.endswith(".arrow") for _, names in storage.walk(folder) for name in names)


def _files(location: str) -> list[str]:
    if not os.path.isdir(location):
        raise StoreError("there is no such folder", where=location, fix="correct the path")
    if os.path.isfile(os.path.join(location, "manifest.json")):
        raise StoreError("is a token store, and no Arrow files", where=location, fix="set its format to store")
    if any(os.path.isfile(os.path.join(location, name)) for name in ("state.json", "dataset_dict.json")):
        return dataset_files(location)
    files = arrow_files(location)
    if not files:
        fix = "`maskwright data convert` reads other formats"
        with_kind = detect([location])
        raise StoreError(f"holds no .arrow files, but {with_kind}", where=location, fix=fix)
    return files


def _require_special_ids(special_ids: dict[Any, int], vocabulary: Vocabulary) -> None:
    for name, special_id in special_ids.items():
        if getattr(vocabulary, name) != special_id:
            what = f"{name} is {special_id}, and {getattr(vocabulary, name)} in the tokenizer"
            fix = "name the tokenizer that made the ids as data.arrow.tokenizer, or correct the id"
            raise ConfigError(what, where="data.arrow.special_ids", fix=fix)
