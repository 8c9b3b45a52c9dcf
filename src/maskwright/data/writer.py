"""Writes a token store, block by block: resumable, and with the same bytes for the same documents.

A block's shards (train and valid) are written under temporary names, synced and renamed, then noted in `prepare.json`.
Writing that was cut goes on after the last noted block. `manifest.json` is written last; without it the folder is no
store.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.core import storage
from maskwright.core.console import say
from maskwright.core.errors import InputError, StoreError
from maskwright.data import manifest as manifests
from maskwright.data import store
from maskwright.data.encode import Encoded
from maskwright.text.tokenizer import copy_tokenizer
from maskwright.text.vocabulary import read_vocabulary, tokenizer_file

LOCK = "prepare.lock"
CLEANING = "cleaning"
"""The folder of what cleaning has found so far."""
PARTS = "parts"
"""The folder of what a preparation in parts has found so far."""
OF_ANOTHER_PLAN = "made from other text or options, or by other versions of what decides about documents"


@dataclass
class _Pending:
    """Encoded documents that are not yet in a shard: 2 or 4 bytes a token, as on disk."""

    encoded: list[Encoded] = field(default_factory=list)
    origins: list[NDArray[np.uint64]] = field(default_factory=list)
    """[documents, 2]: number of the file, and line."""
    tokens: int = 0


class StoreWriter:
    """A store that is being written. `plan`: digest of all that decides its bytes."""

    def __init__(self, folder: str, tokenizer: str, plan: str, *, with_sentences: bool) -> None:
        self.folder, self.tokenizer, self.plan = storage.require_local(folder), tokenizer, plan
        self.vocabulary = read_vocabulary(tokenizer)
        self.dtype = store.token_dtype(self.vocabulary.size)
        self.with_sentences = with_sentences
        self.shards: list[dict[str, Any]] = []
        self.blocks = 0
        self.passed = 0
        """Documents of the input that earlier calls have dealt with."""
        self.empty = 0
        """Those of them that have no id."""
        self.pending: dict[str, _Pending] = {"train": _Pending(), "valid": _Pending()}

    # ---- what is already there -------------------------------------------------------------------------------

    def finished(self) -> store.TokenStore | None:
        """The store that is there already, every byte of it checked. Raises `InputError` if it is of another plan."""
        if not os.path.exists(os.path.join(self.folder, "manifest.json")):
            return None
        if manifests.read_manifest(self.folder).get("plan") != self.plan:
            fix = "choose another folder"
            raise InputError(f"already holds a store {OF_ANOTHER_PLAN}", where=self.folder, fix=fix)
        ready = store.TokenStore(self.folder)
        ready.verify()
        say(f"{self.folder} is already prepared and every hash is right: nothing to do")
        return ready

    @contextmanager
    def open(self, counts: Mapping[str, int]) -> Iterator[None]:
        """Holds the folder. After an error in the input, nothing of this store is left in it; after another, the noted
        blocks are kept for the next try."""
        if os.path.exists(self.folder) and not os.path.isdir(self.folder):
            raise InputError("is a file, but a folder is needed", where=self.folder, fix="choose another folder")
        lock = os.path.join(self.folder, LOCK)
        with storage.new_folder(self.folder), storage.locked(lock, remove=True):
            self._resume()
            try:
                self._note(counts)
                yield
            except Exception as error:
                if isinstance(error, InputError) or not (self.shards or os.path.exists(self._cleaning)):
                    self._clean()
                raise

    def _resume(self) -> None:
        path = os.path.join(self.folder, "prepare.json")
        if not os.path.exists(path):
            names = os.listdir(self.folder)
            if PARTS in names:
                fix = "give the --on with which it was begun, delete it, or choose another folder"
                raise InputError("holds a store that is being made in parts", where=self.folder, fix=fix)
            if [name for name in names if name != LOCK and not storage.is_temporary(name)]:
                raise InputError("is not empty", where=self.folder, fix="choose another folder")
            return
        noted = _read_note(path, self.dtype)
        if noted["plan"] != self.plan:
            fix = "delete it, or choose another folder"
            raise InputError(f"holds an unfinished store {OF_ANOTHER_PLAN}", where=self.folder, fix=fix)
        for shard in noted["shards"]:
            for record in shard["files"].values():
                file = os.path.join(self.folder, record["name"])
                if not os.path.exists(file) or storage.sha256_of_file(file) != record["sha256"]:
                    raise StoreError("was changed since it was written", where=file, fix=f"delete {self.folder}")
        for name in os.listdir(self.folder):
            if storage.is_temporary(name):  # a shard that was being written when the run was cut
                os.unlink(os.path.join(self.folder, name))
        self.shards, self.blocks, self.passed = noted["shards"], noted["blocks"], noted["counts"]["read"]
        self.empty = noted["counts"].get("empty", 0)
        if self.blocks:
            say(f"continuing after {self.passed:,} documents in {self.blocks} blocks")

    @property
    def _cleaning(self) -> str:
        return os.path.join(self.folder, CLEANING)

    def _clean(self) -> None:
        shutil.rmtree(self._cleaning, ignore_errors=True)
        for name in os.listdir(self.folder):
            if name == "prepare.json" or manifests.is_shard_name(name):
                os.unlink(os.path.join(self.folder, name))

    # ---- writing ---------------------------------------------------------------------------------------------

    @property
    def pending_tokens(self) -> int:
        return sum(pending.tokens for pending in self.pending.values())

    def add(self, split: str, encoded: Encoded, origins: NDArray[np.uint64]) -> None:
        """Ids must be of text: no special one but `<unk>`. `origins` [documents, 2]: the number of each document's file
        in the manifest's sources, and its line."""
        pending = self.pending[split]
        pending.encoded.append(replace(encoded, ids=encoded.ids.astype(self.dtype, copy=False)))
        pending.origins.append(origins)
        pending.tokens += len(encoded.ids)

    def commit(self, counts: Mapping[str, int]) -> None:
        """Writes what was added as the next block; `counts` are those of the documents up to here."""
        if not self.pending_tokens:
            return
        for split, pending in self.pending.items():
            if pending.tokens:
                self.shards.append(self._write_shard(split, pending))
        self.blocks += 1
        self.pending = {"train": _Pending(), "valid": _Pending()}
        self._note(counts)

    def _note(self, counts: Mapping[str, int]) -> None:
        behind = {"read": self.passed, **({"empty": self.empty} if self.empty else {})}
        counts = {**counts, **{name: max(counts.get(name, 0), before) for name, before in behind.items()}}
        note = {"plan": self.plan, "blocks": self.blocks, "counts": counts, "shards": self.shards}
        storage.write_json(os.path.join(self.folder, "prepare.json"), note)

    def _write_shard(self, split: str, pending: _Pending) -> dict[str, Any]:
        sizes = [part.document_sizes for part in pending.encoded]
        sentences = [part.sentence_sizes for part in pending.encoded] if self.with_sentences else None
        place = (self.folder, split, self.blocks, self.dtype)
        return write_shard(place, (part.ids for part in pending.encoded), sizes, sentences, pending.origins)

    def totals(self) -> dict[str, dict[str, int]]:
        """Tokens, documents and sentences of each split so far."""
        return {
            name: {
                total: sum(shard[total] or 0 for shard in self.shards if shard["split"] == name)
                for total in ("tokens", "documents", "sentences")
            }
            for name in ("train", "valid")
        }

    def finish(
        self, counts: Mapping[str, int], options: Mapping[str, Any], sources: list[dict[str, Any]], packages: set[str]
    ) -> None:
        """Writes the manifest. `packages`: those whose versions it names beside ours."""
        copy_tokenizer(self.tokenizer, os.path.join(self.folder, "tokenizer"))
        manifest = {
            "format": manifests.FORMAT,
            "fingerprint": manifests.fingerprint(self.dtype, self.vocabulary.fingerprint, self.shards),
            "dtype": self.dtype,
            "tokenizer": {
                "fingerprint": self.vocabulary.fingerprint,
                "sha256": storage.sha256_of_file(tokenizer_file(self.tokenizer)),
                "vocab_size": self.vocabulary.size,
            },
            "splits": self.totals(),
            "counts": dict(counts),
            "options": dict(options),
            "plan": self.plan,
            "sources": sources,
            "versions": {name: importlib.metadata.version(name) for name in sorted({"maskwright", *packages})},
            "shards": self.shards,
        }
        storage.write_json(os.path.join(self.folder, "manifest.json"), manifest)
        shutil.rmtree(self._cleaning, ignore_errors=True)
        with suppress(FileNotFoundError):  # a preparation in parts has notes of its own
            os.unlink(os.path.join(self.folder, "prepare.json"))


def write_shard(
    place: tuple[str, str, int, str],
    ids: Iterable[NDArray[Any]],
    document_sizes: Sequence[NDArray[Any]],
    sentence_sizes: Sequence[NDArray[Any]] | None,
    origins: Sequence[NDArray[np.uint64]],
) -> dict[str, Any]:
    """Writes the files of one shard, and returns its record for the manifest. `place`: folder, split, number of the
    block, dtype. `sentence_sizes` None: it has no file of them."""
    folder, split, number, dtype = place
    little = np.dtype(dtype).newbyteorder("<")
    ends = {"documents": np.cumsum(np.concatenate(document_sizes), dtype="<u8")}
    if sentence_sizes is not None:
        ends["sentences"] = np.cumsum(np.concatenate(sentence_sizes), dtype="<u8")
    parts: dict[str, Iterable[NDArray[Any]]] = {
        "tokens": (part.astype(little, copy=False) for part in ids),
        **{role: [values] for role, values in ends.items()},
        "origins": [np.concatenate(origins).astype("<u8").reshape(-1)],
    }
    files = {}
    for role, name in store.shard_names(split, number, dtype, sentence_sizes is not None).items():
        files[role] = {"name": name, **asdict(_write(os.path.join(folder, name), parts[role]))}
    return {
        "split": split,
        "tokens": int(ends["documents"][-1]),
        "documents": len(ends["documents"]),
        "sentences": len(ends["sentences"]) if sentence_sizes is not None else None,
        "files": files,
    }


def _write(path: str, parts: Iterable[NDArray[Any]]) -> storage.Digest:
    """Writes arrays one after the other. Returns the checksums of what was given, whatever a bad disk makes of it."""
    sha, crc, size = hashlib.sha256(), 0, 0
    with storage.atomic_writer(path) as file:
        for part in parts:
            content = part.view(np.uint8).data
            file.write(content)
            sha.update(content)
            crc, size = zlib.crc32(content, crc), size + content.nbytes
    return storage.Digest(size, sha.hexdigest(), crc)


def _read_note(path: str, dtype: str) -> dict[str, Any]:
    """The contents of `prepare.json`. Raises `InputError` unless `_note` could have written them."""
    noted, fix = storage.read_json(path), f"delete {os.path.dirname(path)}, and prepare again"
    counts = noted.get("counts") if isinstance(noted, dict) else None
    numbers = [counts.get("read"), noted.get("blocks")] if isinstance(counts, dict) else []
    if not numbers or not all(type(number) is int and number >= 0 for number in numbers) or "plan" not in noted:
        raise StoreError("is not the note of a stopped preparation", where=path, fix=fix)
    manifests.require_shards(noted.get("shards"), dtype, path)
    return noted
