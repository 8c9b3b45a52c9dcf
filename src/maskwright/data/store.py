"""The token store: flat little-endian shards of text ids, and the ends of documents (and sentences).

    STORE/
      manifest.json                    format, dtype, counts, sha256 and crc32 of each file, tokenizer, options
      sources.jsonl                    a line for each file of the text: location, bytes; sha256 (convert: time)
      tokenizer/tokenizer.json …       the tokenizer that made the ids
      train-00000.tokens.u16           text ids only: no special tokens, no row length, no masks
      train-00000.documents.u64        token offset in the shard after each document
      train-00000.sentences.u64        the same for sentences, if the source marks them
      train-00000.origins.u64          for each document: number of its line in sources.jsonl, its first line
      valid-00000.…                    held-out documents, chosen by a hash of their ids

`docs/token-store.md` is the contract. Loading reads the manifest and the ends; tokens are memory-mapped.
"""

from __future__ import annotations

import os
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from maskwright.core import storage
from maskwright.core.console import progress, warn
from maskwright.core.errors import StoreError
from maskwright.data.manifest import COPY_AGAIN, Role, files_of, is_shard_name, read_manifest, sources_of
from maskwright.data.remote import cached
from maskwright.text.arrays import Int64
from maskwright.text.vocabulary import Vocabulary, read_vocabulary, token_ids

LONG_SPAN_TOKENS = 128
SAMPLED_SHARDS = 16
MOST_MAPPED = 16_384
"""Shards that are mapped at once. Linux maps 65,530 files for a process."""
DOCUMENTS_AT_ONCE, BLOCK_TOKENS = 4_096, 1 << 22
"""Documents, and tokens of documents, handled at once: enough to amortize calls, few enough for a laptop."""
FEW = 8
"""Number of special ids up to which comparing with each is faster than a table."""
SplitName = Literal["train", "valid"]


def token_dtype(vocab_size: int) -> str:
    return "uint16" if vocab_size <= 65_536 else "uint32"


def special_table(vocabulary: Vocabulary) -> NDArray[np.bool_]:
    """[vocabulary]: the ids that no document may hold. `<unk>` is allowed, since it stands for bytes without a token,
    and so are special tokens outside the five roles, which a text may contain."""
    table = np.zeros(vocabulary.size, bool)
    table[sorted(vocabulary.special - vocabulary.additional - {vocabulary.unk})] = True
    return table


def require_rules(recorded: str | None, vocabulary: Vocabulary, ids: Mapping[str, int], where: str) -> None:
    """Raises `StoreError` if a text was encoded by other rules for `Vocabulary.additional` than `vocabulary`'s.
    `recorded`: its `additional_sha256` at that time. `ids`: tokens and ids of the tokenizer."""
    if (recorded or "") == vocabulary.additional_sha256:
        return
    names = [name for name, index in ids.items() if index in vocabulary.additional]
    shown = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
    then = "were found in a text by other rules" if recorded else "in a text were encoded as text, and are now tokens"
    what = f"was made when special tokens of its tokenizer ({shown}) {then}"
    raise StoreError(what, where=where, fix="prepare the text again, into another folder")


def special_in(ids: NDArray[Any], table: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
    """[tokens]: whether each is special in `table` [vocabulary]; None if none is. Looking up each id would take a sixth
    of a conversion, and the smallest and the largest id usually suffice."""
    low, high = (int(ids.min()), int(ids.max())) if len(ids) else (0, -1)
    special_ids = np.flatnonzero(table[low : high + 1]) + low
    if not len(special_ids):
        return None
    is_special: NDArray[np.bool_] = table[ids] if len(special_ids) > FEW else ids == special_ids[0]
    for special_id in special_ids[1:] if len(special_ids) <= FEW else ():
        is_special |= ids == special_id
    return is_special if is_special.any() else None


def shard_names(split: str, number: int, dtype: str, sentences: bool) -> dict[str, str]:
    """File names of a shard by role, in the order of the manifest."""
    stem = f"{split}-{number:05d}"
    names = {"tokens": f"{stem}.tokens.u{8 * np.dtype(dtype).itemsize}"}
    roles = ["documents", *(["sentences"] if sentences else []), "origins"]
    return names | {role: f"{stem}.{role}.u64" for role in roles}


def in_blocks(ends: Int64) -> Iterator[tuple[int, int]]:
    """(first, end) of runs of documents that fit into `BLOCK_TOKENS`, or of a single longer one. `ends` [documents]:
    their ends in tokens."""
    first = before = 0
    while first < len(ends):
        end = max(first + 1, int(np.searchsorted(ends, before + BLOCK_TOKENS, side="right")))
        yield first, end
        first, before = end, int(ends[end - 1])


@dataclass(frozen=True)
class Shard:
    """One shard of a split. Its parts are read when they are used; offsets are tokens of the shard."""

    tokens: int
    documents: int
    ids: Callable[[], NDArray[Any]]
    """Memory-mapped ids, including those between documents."""
    document_ends: Callable[[], Int64]
    sentence_ends: Callable[[], Int64 | None] = lambda: None
    """None if the source does not mark sentences."""

    def documents_at(self) -> tuple[Int64, Int64]:
        """(starts, ends) of its documents."""
        ends = self.document_ends()
        return np.concatenate([[0], ends[:-1]]).astype(np.int64), ends


class Split:
    """The training or the held-out documents of a store."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards = tuple(shards)
        self.documents = sum(shard.documents for shard in shards)
        self.tokens = sum(shard.tokens for shard in shards)
        self._mapped = OrderedDict[int, NDArray[Any]]()

    def ids(self, shard_idx: int) -> NDArray[Any]:
        """Stored ids of a shard, memory-mapped."""
        if (ids := self._mapped.get(shard_idx)) is None:
            if len(self._mapped) >= MOST_MAPPED:
                self._mapped.popitem(last=False)
            ids = self._mapped[shard_idx] = self.shards[shard_idx].ids()
        else:
            self._mapped.move_to_end(shard_idx)
        return ids

    def gather(
        self,
        shard_idx: Int64 | int,
        start: Int64,
        length: Int64,
        before: NDArray[Any] | int = 0,
        after: NDArray[Any] | int = 0,
    ) -> NDArray[np.int32]:
        """The tokens of many spans, one after the other: [sum(before + length + after)]. `shard_idx`: of each span, or
        of all.

        `before` and `after` leave room around each span for its frame. The room holds arbitrary ids.
        """
        if len(start) == 0:
            return np.empty(0, np.int32)
        shard_idxs, begin, size = np.full(len(start), shard_idx), start - before, before + length + after
        if size.sum() > LONG_SPAN_TOKENS * len(begin) and begin.min() >= 0:
            return self._copy(shard_idxs, begin, size)
        ends = np.cumsum(size)
        within = np.arange(ends[-1]) + np.repeat(begin - (ends - size), size)
        out = np.empty(int(ends[-1]), np.int32)
        changes = np.flatnonzero(np.diff(shard_idxs)) + 1  # a row is of one shard
        borders = [0, *ends[changes - 1].tolist(), len(out)]
        runs = zip(shard_idxs[[0, *changes]].tolist(), borders, borders[1:], strict=False)
        for shard_number, low, high in sorted(runs):  # so that each shard is mapped once
            out[low:high] = self.ids(shard_number).take(within[low:high], mode="clip")
        return out

    def _copy(self, shard_idx: Int64, begin: Int64, size: Int64) -> NDArray[np.int32]:
        """Copies span by span: twice as fast as `gather`'s way for long spans, slower for short ones."""
        mapped_idx, spans = -1, []
        for span_shard, first_token, count in zip(shard_idx.tolist(), begin.tolist(), size.tolist(), strict=True):
            if span_shard != mapped_idx:
                mapped_idx, ids = span_shard, self.ids(span_shard)
            spans.append(ids[first_token : first_token + count])
            if len(spans[-1]) < count:  # at the very end of a shard, where only the frame is missing
                spans.append(np.zeros(count - len(spans[-1]), ids.dtype))
        return np.concatenate(spans).astype(np.int32)  # cast at once: 50 microseconds for 66 spans of 500, not 66

    def sampled(self) -> Split:
        """`SAMPLED_SHARDS` of its shards, spread evenly, for statistics of the text."""
        if len(self.shards) <= SAMPLED_SHARDS:
            return self
        chosen = np.linspace(0, len(self.shards) - 1, SAMPLED_SHARDS).astype(int)
        return Split([self.shards[shard_idx] for shard_idx in chosen])

    def document_sizes(self) -> Int64:
        """[documents]: tokens of each."""
        pairs = [shard.documents_at() for shard in self.shards]
        return np.concatenate([np.zeros(0, np.int64), *(ends - starts for starts, ends in pairs)])

    def beginnings(self, tokens: int, apart: int = 1) -> Iterator[NDArray[np.int32]]:
        """Up to `tokens` tokens from the beginning of each document, or of one in `apart`."""
        documents_before = 0
        for shard_idx, shard in enumerate(self.shards):
            starts, ends = shard.documents_at()
            chosen = slice(-documents_before % apart, None, apart)
            sizes = np.minimum(ends - starts, tokens)[chosen]
            for begin in range(0, len(sizes), DOCUMENTS_AT_ONCE):
                batch = slice(begin, begin + DOCUMENTS_AT_ONCE)
                ids = self.gather(shard_idx, starts[chosen][batch], sizes[batch])
                yield from np.split(ids, np.cumsum(sizes[batch])[:-1])
            documents_before += shard.documents

    def counts(self, vocab_size: int, apart: int = 1) -> Int64:
        """[vocab_size]: how often each id occurs, in all documents or in one of `apart`."""
        total = np.zeros(vocab_size, np.int64)
        for shard_idx, shard in enumerate(self.shards):
            starts, ends = (offsets[:: max(apart, 1)] for offsets in shard.documents_at())
            for first, end in in_blocks(np.cumsum(ends - starts)):
                ids = self.gather(shard_idx, starts[first:end], (ends - starts)[first:end])
                total += np.bincount(ids, minlength=vocab_size)[:vocab_size]
        return total


class TokenStore:
    """An opened store. Opening checks the manifest and each file's size; `verify` checks every byte."""

    def __init__(self, location: str, folder: str | None = None) -> None:
        """`location`: a folder, or a URL, whose files are downloaded into this machine's cache. `folder`: the files'
        folder, for a store that was made from `location`.

        Raises `StoreError` if the folder is not a finished store, has a newer format, or a file is cut or missing."""
        self.location = location
        self.folder = folder or (cached(location) if storage.is_url(location) else location)
        """The folder of its files on this machine."""
        self._fix = COPY_AGAIN if self.folder == location else f"delete {self.folder}, which is then created again"
        self.manifest = read_manifest(self.folder)
        self.dtype: str = self.manifest["dtype"]
        self.shards: list[dict[str, Any]] = self.manifest["shards"]
        self.fingerprint: str = self.manifest["fingerprint"]
        for path, record in self._files():
            if not os.path.isfile(path):
                raise StoreError("is missing", where=path, fix=self._fix)
            size = os.path.getsize(path)
            if size != record["bytes"]:
                what = f"has {size:,} bytes, but {record['bytes']:,} by the manifest"
                raise StoreError(what, where=path, fix=self._fix)

    def _path(self, shard: dict[str, Any], role: str) -> str:
        return os.path.join(self.folder, shard["files"][role]["name"])

    def _files(self) -> list[tuple[str, dict[str, Any]]]:
        return [(os.path.join(self.folder, record["name"]), record) for record in files_of(self.manifest)]

    def verify_at_start(self) -> None:
        """Calls `verify`, but not for the store at a URL, whose files were checked as they came."""
        if not storage.is_url(self.location):
            self.verify()

    def unlisted(self) -> list[str]:
        """Shard files in the folder that the manifest does not name. They are never read."""
        listed = {os.path.basename(path) for path, _ in self._files()}
        return sorted(name for name in os.listdir(self.folder) if is_shard_name(name) and name not in listed)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Raises `StoreError` if the tokenizer next to the shards is not the one that made them."""
        vocabulary = read_vocabulary(self.tokenizer_folder)
        self.require_tokenizer(vocabulary, self.tokenizer_folder)
        return vocabulary

    @property
    def passes(self) -> int:
        """Passes over the same text that it holds. Its rows are split into as many epochs."""
        return int(self.manifest.get("passes", 1))

    @property
    def tokenizer_folder(self) -> str:
        return os.path.join(self.folder, "tokenizer")

    def require_tokenizer(self, vocabulary: Vocabulary, where: str) -> None:
        """Raises `StoreError` if `vocabulary` (read from `where`) would give other ids than the store holds."""
        made_with = self.manifest["tokenizer"]["fingerprint"]
        if vocabulary.fingerprint != made_with:
            what = f"was made with another tokenizer ({made_with[:12]}, not {vocabulary.fingerprint[:12]} of {where})"
            is_of_text = "text_column" in self.manifest.get("options", {})  # and not of another tool's ids
            fix = "prepare the text again with that tokenizer" if is_of_text else "name the tokenizer that made the ids"
            raise StoreError(what, where=self.location, fix=fix)
        roles = self.manifest["tokenizer"].get("roles_sha256") or read_vocabulary(self.tokenizer_folder).roles_sha256
        if vocabulary.roles_sha256 != roles:
            what = "was made with other begin, end, padding, mask or unknown tokens than now in"
            what = f"{what} {where}"
            raise StoreError(what, where=self.location, fix="prepare the text again, into another folder")
        if "text_column" in self.manifest.get("options", {}):
            recorded = self.manifest["tokenizer"].get("additional_sha256")
            require_rules(recorded, vocabulary, token_ids(self.tokenizer_folder), self.location)

    def split(self, name: SplitName) -> Split:
        return Split([self._shard(shard) for shard in self.shards if shard["split"] == name])

    def _shard(self, shard: dict[str, Any]) -> Shard:
        sentences = partial(self._ends_of, shard, "sentences") if "sentences" in shard["files"] else lambda: None
        ends = partial(self._ends_of, shard, "documents")
        return Shard(shard["tokens"], shard["documents"], partial(self._map, shard), ends, sentences)

    def _map(self, shard: dict[str, Any]) -> NDArray[Any]:
        # A plain array, because slices of a memmap object take three times as long.
        return np.asarray(self._mapping(shard, "tokens", np.dtype(self.dtype).newbyteorder("<")))

    def _mapping(self, shard: dict[str, Any], role: Role, dtype: Any) -> NDArray[Any]:
        with storage.open_binary(self._path(shard, role)) as file:
            return np.memmap(file, dtype=dtype, mode="r")

    def _ends_of(self, shard: dict[str, Any], role: Role) -> Int64:
        """Checks the ends, which are small and read in full at each use."""
        path, ends = self._path(shard, role), self._numbers(shard, role)
        if int(ends[-1]) != shard["tokens"] or (ends[1:] < ends[:-1]).any():
            what = f"does not rise to the end of its {shard['tokens']:,} tokens"
            raise StoreError(what, where=path, fix="prepare again")
        return ends.astype(np.int64)

    def _numbers(self, shard: dict[str, Any], role: Role) -> NDArray[np.uint64]:
        path = self._path(shard, role)
        with storage.open_binary(path) as file:
            content = file.read()
        if zlib.crc32(content) != shard["files"][role]["crc32"]:
            raise StoreError("is not what was written (its crc32 differs)", where=path, fix=self._fix)
        return np.frombuffer(content, "<u8")

    def origin(self, split: SplitName, document: int) -> str:
        """`file:line` where a document of the split begins in the text that the store was made from."""
        for shard in (shard for shard in self.shards if shard["split"] == split):
            if document < shard["documents"]:
                pairs = self._mapping(shard, "origins", "<u8")
                source, line = (int(value) for value in pairs[2 * document : 2 * document + 2])
                return f"{self.locations[source]}:{line}"
            document -= shard["documents"]
        raise IndexError(document)

    def sources(self) -> Iterator[dict[str, Any]]:
        """Records of the files of its text, read one by one; see `manifest.sources_of`."""
        return sources_of(self.manifest, self.folder)

    @cached_property
    def locations(self) -> list[str]:
        """Locations of the files of its text."""
        return [str(source["location"]) for source in self.sources()]

    def source_numbers(self, split: SplitName, shard_idx: int) -> Int64:
        """[documents of the shard]: the number of each one's source."""
        shards = [shard for shard in self.shards if shard["split"] == split]
        return self._numbers(shards[shard_idx], "origins")[::2].astype(np.int64)

    def verify(self) -> None:
        """Reads every byte. Raises `StoreError` with the first damaged file, or an id that is too large."""
        with progress("verify", sum(record["bytes"] for _, record in self._files()), "bytes") as bar:
            for path, record in self._files():
                digest = storage.digest(path)
                for name in ("sha256", "crc32"):
                    if getattr(digest, name) != record[name]:
                        raise StoreError(f"is not what was written (its {name} differs)", where=path, fix=self._fix)
                bar.advance(digest.bytes)
        for shard in self.shards:
            self._require_ids(shard)
            for role in shard["files"]:
                if role in ("documents", "sentences"):
                    self._ends_of(shard, role)
        for name in self.unlisted():
            warn(f"{os.path.join(self.folder, name)}: is not in the manifest and never read; you may delete it")

    def _require_ids(self, shard: dict[str, Any]) -> None:
        largest = int(self._map(shard).max())
        if largest >= self.vocabulary.size:
            what = f"holds id {largest}, but the tokenizer ends at {self.vocabulary.size - 1}"
            raise StoreError(what, where=self._path(shard, "tokens"), fix="prepare again")
