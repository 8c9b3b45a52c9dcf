"""The token store: flat little-endian shards of text ids, and where documents (and sentences) end.

    STORE/
      manifest.json                    format, dtype, counts, sha256 and crc32 of each file, tokenizer, sources, options
      tokenizer/tokenizer.json …       the tokenizer that made the ids
      train-00000.tokens.u16           text ids only: no special tokens, no row length, no masks
      train-00000.documents.u64        token offset in the shard after each document
      train-00000.sentences.u64        the same for sentences, when the source marks them
      valid-00000.…                    held-out documents, chosen by hash of their text

`docs/token-store.md` is the contract. Loading reads nothing but the manifest: shards are mapped.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from maskwright.core import storage
from maskwright.core.console import progress
from maskwright.core.errors import InputError, StoreError
from maskwright.text.vocabulary import Vocabulary, read_vocabulary

FORMAT = 1
LONG_SPAN_TOKENS = 128
SplitName = Literal["train", "valid"]
Int64 = NDArray[np.int64]


def token_dtype(vocab_size: int) -> str:
    return "uint16" if vocab_size <= 65_536 else "uint32"


def shard_names(split: str, number: int, dtype: str, sentences: bool) -> dict[str, str]:
    """File names of a shard by role, in the order in which they are listed in the manifest."""
    stem = f"{split}-{number:05d}"
    names = {"tokens": f"{stem}.tokens.u{8 * np.dtype(dtype).itemsize}", "documents": f"{stem}.documents.u64"}
    return names | ({"sentences": f"{stem}.sentences.u64"} if sentences else {})


def fingerprint(dtype: str, tokenizer_fingerprint: str, shards: list[dict[str, Any]]) -> str:
    """Digest of what decides the ids and their order; where the store or its sources lie does not count."""
    files = [[shard["split"], [file["sha256"] for file in shard["files"].values()]] for shard in shards]
    return storage.sha256_of([FORMAT, dtype, tokenizer_fingerprint, files])


@dataclass(frozen=True)
class Split:
    """One side of a store as one long run of tokens. Offsets below are in that run."""

    shards: tuple[NDArray[Any], ...]
    shard_start: Int64
    """[shards + 1]"""
    document_ends: Int64
    sentence_ends: Int64 | None

    @property
    def tokens(self) -> int:
        return int(self.shard_start[-1])

    @property
    def documents(self) -> int:
        return len(self.document_ends)

    def gather(
        self, start: Int64, length: Int64, before: NDArray[Any] | int = 0, after: NDArray[Any] | int = 0
    ) -> NDArray[np.int32]:
        """The tokens of many spans, one after the other, as [sum(before + length + after)]. No span may cross a shard.

        `before` and `after` leave room around each span for its frame; what stands there is some token of the shard.
        """
        if len(start) == 0:
            return np.empty(0, np.int32)
        size = before + length + after
        ends = np.cumsum(size)
        shard = np.minimum(np.searchsorted(self.shard_start, start, side="right"), len(self.shards)) - 1
        begin = start - before - self.shard_start[shard]
        if ends[-1] > LONG_SPAN_TOKENS * len(start) and begin.min() >= 0:
            return self._copy(shard, begin, size)
        within = np.arange(ends[-1]) + np.repeat(begin - (ends - size), size)
        if (shard == shard[0]).all():
            return self.shards[int(shard[0])].take(within, mode="clip").astype(np.int32)
        out = np.empty(int(ends[-1]), np.int32)
        shard_of_token = np.repeat(shard, size)
        for number in np.unique(shard).tolist():
            here = shard_of_token == number
            out[here] = self.shards[number].take(within[here], mode="clip")
        return out

    def _copy(self, shard: Int64, begin: Int64, size: Int64) -> NDArray[np.int32]:
        """Span by span: twice as fast as `gather`'s way for long ones, slower for short ones."""
        out = np.zeros(int(size.sum()), np.int32)
        place = 0
        for number, first, count in zip(shard.tolist(), begin.tolist(), size.tolist(), strict=True):
            tokens = self.shards[number][first : first + count]
            out[place : place + len(tokens)] = tokens  # fewer at a shard's very end, where only room is asked for
            place += count
        return out

    def counts(self, vocab_size: int) -> Int64:
        """[vocab_size] how often each id occurs."""
        total = np.zeros(vocab_size, np.int64)
        for shard in self.shards:
            for begin in range(0, len(shard), 1 << 24):
                total += np.bincount(shard[begin : begin + (1 << 24)], minlength=vocab_size)[:vocab_size]
        return total


class TokenStore:
    """An opened store. Opening checks the manifest and each file's size; `verify` checks every byte."""

    def __init__(self, location: str) -> None:
        """Raises `StoreError` when the folder is no finished store, is of a newer format, or a file is cut or
        missing."""
        self.location = location
        self.manifest = self._read_manifest()
        self.dtype: str = self.manifest["dtype"]
        self.shards: list[dict[str, Any]] = self.manifest["shards"]
        self.fingerprint = fingerprint(self.dtype, self.manifest["tokenizer"]["fingerprint"], self.shards)
        if self.fingerprint != self.manifest["fingerprint"]:
            raise StoreError("was changed after it was written", where=self._manifest_path, fix="prepare again")
        for path, record in self._files():
            size = os.path.getsize(path) if os.path.exists(path) else None
            if size is None:
                raise StoreError("is missing", where=path, fix="copy the store again, or prepare again")
            if size != record["bytes"]:
                raise StoreError(
                    f"has {size:,} bytes, the manifest says {record['bytes']:,}",
                    where=path,
                    fix="copy the store again, or prepare again",
                )

    @property
    def _manifest_path(self) -> str:
        return os.path.join(self.location, "manifest.json")

    def _read_manifest(self) -> dict[str, Any]:
        if not os.path.isfile(self._manifest_path):
            unfinished = os.path.exists(os.path.join(self.location, "prepare.json"))
            raise StoreError(
                "its preparation never finished" if unfinished else "is not a token store (no manifest.json)",
                where=self.location,
                fix="run `maskwright data prepare` again" + (": it continues" if unfinished else ""),
            )
        try:
            manifest = storage.read_json(self._manifest_path)
        except InputError as error:
            raise StoreError(error.what, where=error.where, fix="prepare again") from None
        needed = {"format", "dtype", "tokenizer", "shards", "splits", "fingerprint"}
        if not isinstance(manifest, dict) or "format" not in manifest:
            raise StoreError("is not a store's manifest", where=self._manifest_path, fix="prepare again")
        if manifest["format"] != FORMAT:
            raise StoreError(
                f"has format {manifest['format']}, this version reads {FORMAT}",
                where=self._manifest_path,
                fix="use the maskwright that wrote it, or prepare again",
            )
        if missing := needed - set(manifest):
            raise StoreError(f"lacks {', '.join(sorted(missing))}", where=self._manifest_path, fix="prepare again")
        if not isinstance(manifest["tokenizer"], dict) or "fingerprint" not in manifest["tokenizer"]:
            raise StoreError("lacks tokenizer.fingerprint", where=self._manifest_path, fix="prepare again")
        return manifest

    def _files(self) -> list[tuple[str, dict[str, Any]]]:
        return [
            (os.path.join(self.location, os.path.basename(record["name"])), record)
            for shard in self.shards
            for record in shard["files"].values()
        ]

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Raises `StoreError` when the tokenizer beside the shards is not the one that made them."""
        vocabulary = read_vocabulary(self.tokenizer_folder)
        self.require_tokenizer(vocabulary, self.tokenizer_folder)
        return vocabulary

    @property
    def tokenizer_folder(self) -> str:
        return os.path.join(self.location, "tokenizer")

    def require_tokenizer(self, vocabulary: Vocabulary, where: str) -> None:
        """Raises `StoreError` when `vocabulary` (read from `where`) gives other ids than the store holds."""
        made_with = self.manifest["tokenizer"]["fingerprint"]
        if vocabulary.fingerprint != made_with:
            raise StoreError(
                f"was made with another tokenizer ({made_with[:12]}, not {vocabulary.fingerprint[:12]} of {where})",
                where=self.location,
                fix="prepare the text again with that tokenizer",
            )

    def split(self, name: SplitName) -> Split:
        shards = [shard for shard in self.shards if shard["split"] == name]
        sizes = [shard["tokens"] for shard in shards]
        start = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)
        has_sentences = bool(shards) and all("sentences" in shard["files"] for shard in shards)
        return Split(
            tuple(self._map(shard, "tokens", self.dtype) for shard in shards),
            start,
            self._ends(shards, "documents", start),
            self._ends(shards, "sentences", start) if has_sentences else None,
        )

    def _map(self, shard: dict[str, Any], role: str, dtype: str) -> NDArray[Any]:
        path = os.path.join(self.location, os.path.basename(shard["files"][role]["name"]))
        # As a plain array: slices of a memmap object take three times as long.
        return np.asarray(np.memmap(path, dtype=np.dtype(dtype).newbyteorder("<"), mode="r"))

    def _ends(self, shards: list[dict[str, Any]], role: str, start: Int64) -> Int64:
        parts = [
            self._map(shard, role, "uint64").astype(np.int64) + begin
            for shard, begin in zip(shards, start, strict=False)
        ]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def verify(self) -> None:
        """Reads every byte. Raises `StoreError` naming the first file that is not what was written, or an id too
        large."""
        with progress("verify", sum(record["bytes"] for _, record in self._files()), "bytes") as bar:
            for path, record in self._files():
                found = storage.digest(path)
                if (found.sha256, found.crc32) != (record["sha256"], record["crc32"]):
                    raise StoreError(
                        f"sha256 is {found.sha256[:12]}…, the manifest says {record['sha256'][:12]}…",
                        where=path,
                        fix="copy the store again, or prepare again",
                    )
                bar.advance(found.bytes)
        for shard in self.shards:
            tokens = self._map(shard, "tokens", self.dtype)
            if len(tokens) and int(tokens.max()) >= self.vocabulary.size:
                raise StoreError(
                    f"holds id {int(tokens.max())}, the tokenizer ends at {self.vocabulary.size - 1}",
                    where=shard["files"]["tokens"]["name"],
                    fix="prepare again",
                )
            for role in ("documents", "sentences"):
                if role in shard["files"]:
                    ends = self._map(shard, role, "uint64").astype(np.int64)
                    if len(ends) == 0 or int(ends[-1]) != len(tokens) or (np.diff(ends) < 0).any():
                        raise StoreError(
                            f"does not end where its {len(tokens):,} tokens do",
                            where=shard["files"][role]["name"],
                            fix="prepare again",
                        )
