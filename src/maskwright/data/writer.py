"""Writes the manifest of a token store last, since a folder without one is not a store."""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from maskwright.config.settings import differences
from maskwright.core import storage
from maskwright.core.console import say
from maskwright.core.errors import InputError
from maskwright.data import manifest as manifests
from maskwright.data import store
from maskwright.text.tokenizer import copy_tokenizer
from maskwright.text.vocabulary import read_vocabulary, tokenizer_file

Files = Sequence[dict[str, Any]]


class StoreWriter:
    """`plan`: digest of all that decides the store's bytes. `options`, `sources`: records for the manifest."""

    def __init__(
        self, folder: str, tokenizer: str, plan: str, options: dict[str, Any], sources: Files, *, with_sentences: bool
    ) -> None:
        self.folder, self.tokenizer, self.plan = storage.require_local(folder), tokenizer, plan
        self.options, self.sources = options, sources
        self.vocabulary = read_vocabulary(tokenizer)
        self.dtype = store.token_dtype(self.vocabulary.size)
        self.with_sentences = with_sentences
        self.shards: list[dict[str, Any]] = []
        """Their records, in order."""

    def finished(self) -> store.TokenStore | None:
        """The store if it exists, with every byte checked. Raises `InputError` for a store of another plan."""
        if not os.path.exists(os.path.join(self.folder, "manifest.json")):
            return None
        manifest = manifests.read_manifest(self.folder)
        if manifest.get("plan") != self.plan:
            what = f"already holds another store: {'; '.join(self._differences(manifest)[:5])}"
            raise InputError(what, where=self.folder, fix="choose another folder")
        finished_store = store.TokenStore(self.folder)
        finished_store.require_tokenizer(self.vocabulary, self.tokenizer)
        finished_store.verify()
        say(f"{self.folder} is already prepared, and every hash is right")
        return finished_store

    def _differences(self, manifest: dict[str, Any]) -> list[str]:
        """What distinguishes the finished store of `manifest` from this one, in words."""
        then, now = dict(manifest["options"]), json.loads(json.dumps(self.options))
        cleanings = [options.pop("cleaning", {}) for options in (then, now)]
        before, files = _by_record(manifests.sources_of(manifest, self.folder)), _by_record(self.sources)
        gone, new = ({one[key] for key in one.keys() - other} for one, other in ((before, files), (files, before)))
        words = [f"{name} has changed" for name in sorted(gone & new)]
        words += [f"{name} is new" for name in sorted(new - gone)]
        words += [f"it was also made of {name}" for name in sorted(gone - new)]
        tokenizer, rules = manifest["tokenizer"], {"fingerprint": self.vocabulary.fingerprint}
        if any(tokenizer.get(key) != value for key, value in (rules | self.vocabulary.rules_record).items()):
            words.append("the tokenizer is another")
        if all(cleanings):
            then, now = {**then, **cleanings[0]}, {**now, **cleanings[1]}
        elif any(cleanings):
            words.append(f"its text was{'' if cleanings[0] else ' not'} cleaned")
        words += differences(then, now).values()
        return words or ["other versions of what decides about documents made it, or its files came in another order"]

    def totals(self) -> dict[str, dict[str, int]]:
        """Tokens, documents and sentences of each split."""
        return {
            name: {
                total: sum(shard[total] or 0 for shard in self.shards if shard["split"] == name)
                for total in ("tokens", "documents", "sentences")
            }
            for name in ("train", "valid")
        }

    def finish(self, counts: Mapping[str, int], packages: set[str], more: Mapping[str, Any] = {}) -> None:
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
            "options": self.options,
            "plan": self.plan,
            "sources": manifests.write_sources(self.folder, self.sources),
            "versions": {name: importlib.metadata.version(name) for name in sorted({"maskwright", *packages})},
            "shards": self.shards,
            **more,
        }
        storage.write_json(os.path.join(self.folder, "manifest.json"), manifest)


def _by_record(files: Iterable[dict[str, Any]]) -> dict[str, str]:
    """The name of each file by its record with that name alone, since its folder does not count."""
    named = ({**file, "location": os.path.basename(file["location"])} for file in files)
    return {json.dumps(file, sort_keys=True): file["location"] for file in named}
