"""Writes the manifest of a token store last, since a folder without one is not a store."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping, Sequence
from typing import Any

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
        """Their records, in order."""

    def finished(self) -> store.TokenStore | None:
        """The store if it exists, with every byte checked. Raises `InputError` for a store of another plan."""
        if not os.path.exists(os.path.join(self.folder, "manifest.json")):
            return None
        if manifests.read_manifest(self.folder).get("plan") != self.plan:
            what = "already holds a store made from other text or options, or by other versions of the rules about "
            raise InputError(f"{what}documents", where=self.folder, fix="choose another folder")
        finished_store = store.TokenStore(self.folder)
        finished_store.require_tokenizer(self.vocabulary, self.tokenizer)
        finished_store.verify()
        say(f"{self.folder} is already prepared, and every hash is right")
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
        """Writes the manifest. `packages`: their versions are recorded, as maskwright's is. `more`: optional keys."""
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
            "sources": manifests.write_sources(self.folder, sources),
            "versions": {name: importlib.metadata.version(name) for name in sorted({"maskwright", *packages})},
            "shards": self.shards,
            **more,
        }
        storage.write_json(os.path.join(self.folder, "manifest.json"), manifest)
