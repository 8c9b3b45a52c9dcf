"""Writes a token store: shards, each atomically, and the manifest last. A folder without a manifest is not a store."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.core import storage
from maskwright.core.console import say
from maskwright.core.errors import InputError
from maskwright.data import manifest as manifests
from maskwright.data import store
from maskwright.text.tokenizer import copy_tokenizer
from maskwright.text.vocabulary import read_vocabulary, tokenizer_file


class StoreWriter:
    """`plan`: digest of all that decides the store's bytes."""

    def __init__(self, folder: str, tokenizer: str, plan: str, *, with_sentences: bool) -> None:
        self.folder, self.tokenizer, self.plan = storage.require_local(folder), tokenizer, plan
        self.vocabulary = read_vocabulary(tokenizer)
        self.dtype = store.token_dtype(self.vocabulary.size)
        self.with_sentences = with_sentences
        self.shards: list[dict[str, Any]] = []
        """Records of `write_shard`, in order."""

    def finished(self) -> store.TokenStore | None:
        """The store if it exists, with every byte checked. Raises `InputError` for a store of another plan."""
        if not os.path.exists(os.path.join(self.folder, "manifest.json")):
            return None
        if manifests.read_manifest(self.folder).get("plan") != self.plan:
            what = "already holds a store made from other text or options, or by other versions of what decides about "
            raise InputError(f"{what}documents", where=self.folder, fix="choose another folder")
        finished_store = store.TokenStore(self.folder)
        finished_store.require_tokenizer(self.vocabulary, self.tokenizer)
        finished_store.verify()
        say(f"{self.folder} is already prepared and every hash is right: nothing to do")
        return finished_store

    def totals(self) -> dict[str, dict[str, int]]:
        """Tokens, documents and sentences of each split."""
        return {
            name: {
                total: sum(shard[total] or 0 for shard in self.shards if shard["split"] == name)
                for total in ("tokens", "documents", "sentences")
            }
            for name in ("train", "valid")
        }

    def finish(
        self,
        counts: Mapping[str, int],
        options: Mapping[str, Any],
        sources: Sequence[dict[str, Any]],
        packages: set[str],
        more: Mapping[str, Any] = {},
    ) -> None:
        """Writes the manifest. `packages`: whose versions are recorded beside maskwright's. `more`: optional keys."""
        copy_tokenizer(self.tokenizer, os.path.join(self.folder, "tokenizer"))
        manifest = {
            "format": manifests.FORMAT,
            "fingerprint": manifests.fingerprint(self.dtype, self.vocabulary.fingerprint, self.shards),
            "dtype": self.dtype,
            "tokenizer": {
                "fingerprint": self.vocabulary.fingerprint,
                "sha256": storage.sha256_of_file(tokenizer_file(self.tokenizer)),
                "vocab_size": self.vocabulary.size,
                **self.vocabulary.rules_record,
            },
            "splits": self.totals(),
            "counts": dict(counts),
            "options": dict(options),
            "plan": self.plan,
            "sources": sources,
            "versions": {name: importlib.metadata.version(name) for name in sorted({"maskwright", *packages})},
            "shards": self.shards,
            **more,
        }
        storage.write_json(os.path.join(self.folder, "manifest.json"), manifest)


def write_shard(
    place: tuple[str, str, int, str],
    ids: Iterable[NDArray[Any]],
    document_sizes: Sequence[NDArray[Any]],
    sentence_sizes: Sequence[NDArray[Any]] | None,
    origins: Sequence[NDArray[np.uint64]],
) -> dict[str, Any]:
    """Writes the files of one shard, and returns its record for the manifest. `place`: folder, split, number of the
    block, dtype. `sentence_sizes`: None for a shard without sentences."""
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
    """Writes arrays one after the other. Returns checksums of the arrays, not of what the disk made of them."""
    sha, crc, size = hashlib.sha256(), 0, 0
    with storage.atomic_writer(path) as file:
        for part in parts:
            content = np.ascontiguousarray(part).view(np.uint8).data
            file.write(content)
            sha.update(content)
            crc, size = zlib.crc32(content, crc), size + content.nbytes
    return storage.Digest(size, sha.hexdigest(), crc)
