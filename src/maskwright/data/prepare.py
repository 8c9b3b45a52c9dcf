"""`maskwright data prepare`: documents to a token store, resumable and with the same bytes for the same input.

Work goes in blocks of full documents. A block's shards (train and valid) are written under temporary names, synced and
renamed, then noted in `prepare.json`. A preparation that was cut goes on after the last noted block: the documents
before it are only hashed, not encoded. `manifest.json` is written last; without it the folder is no store.
"""

from __future__ import annotations

import gc
import importlib.metadata
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from maskwright.core import storage
from maskwright.core.console import progress, say
from maskwright.core.errors import InputError, StoreError, TokenizerError
from maskwright.data import manifest as manifests
from maskwright.data import store
from maskwright.data.encode import Encoded, encode_documents
from maskwright.text.dedup import Duplicates, is_held_out, text_key
from maskwright.text.document import Document
from maskwright.text.encoder import EncoderName, open_encoder, proven
from maskwright.text.sources import Sources, fingerprint
from maskwright.text.tokenizer import copy_tokenizer
from maskwright.text.vocabulary import Vocabulary, read_vocabulary, tokenizer_file

LOCK = "prepare.lock"
ENCODE_CHARACTERS = 4_000_000
"""Text handed to the tokenizer's threads at once: large enough that they never wait, small enough for a laptop."""
SAMPLE_DOCUMENTS, SAMPLE_CHARACTERS = 32, 500
"""The sample from the text's beginning on which a fast encoder is compared with the reference one: 5 milliseconds."""


@dataclass(frozen=True)
class PrepareOptions:
    valid_fraction: float = 0.01
    keep_duplicates: bool = False
    min_characters: int = 1
    max_characters: int | None = None
    shard_tokens: int = 64_000_000

    def __post_init__(self) -> None:
        if not 0.0 <= self.valid_fraction <= 1.0:
            raise InputError(
                f"--valid-fraction {self.valid_fraction} is not from 0 to 1",
                fix="0.01 holds one document in a hundred out, 1 makes a store that is a test set only",
            )
        if self.shard_tokens < 1 or self.min_characters < 1:
            raise InputError("--shard-tokens and --min-characters must be at least 1", fix="raise them")


@dataclass
class Counts:
    """Documents so far, by what became of them."""

    read: int = 0
    kept: int = 0
    duplicates: int = 0
    too_short: int = 0
    too_long: int = 0


def prepare(
    sources: Sources,
    tokenizer: str,
    folder: str,
    options: PrepareOptions | None = None,
    encoder: EncoderName = "auto",
    *,
    held_out: Sources | None = None,
) -> store.TokenStore:
    """Writes the store and returns it opened. `encoder` changes the speed, never an id. `held_out`: text that is held
    out in full, instead of a share of `sources`; where both have a document, training does not get it.

    Raises `InputError` (exit 2) on bad text, a foreign folder, or an unfinished store of other input; after an error in
    the input, nothing of this call is left in the folder.
    """
    return _Preparation(sources, tokenizer, folder, options or PrepareOptions(), encoder, held_out).run()


class _Preparation:
    def __init__(
        self,
        sources: Sources,
        tokenizer: str,
        folder: str,
        options: PrepareOptions,
        encoder: EncoderName,
        held_out: Sources | None,
    ) -> None:
        self.sources, self.folder, self.options = sources, storage.require_local(folder), options
        self.all_sources = [*([held_out] if held_out else []), sources]  # held-out text first: see `_documents`
        self.held_out, self.held_out_keys = held_out, set[bytes]()
        self.file_number = _numbered(sources, held_out)
        self.tokenizer_location = tokenizer
        self.vocabulary: Vocabulary = read_vocabulary(tokenizer)
        self.byte_length = np.array(self.vocabulary.byte_length, np.int32)
        self.wanted: EncoderName = encoder
        self.encoder, self.referee = open_encoder(tokenizer, encoder)
        self.dtype = store.token_dtype(self.vocabulary.size)
        self.counts, self.duplicates = Counts(), Duplicates()
        self.shards: list[dict[str, Any]] = []
        self.blocks = 0
        self.passed = 0
        self.pending: dict[str, _Pending] = {"train": _Pending(), "valid": _Pending()}
        self.with_sentences = all(one.layout == "sentences" and one.only_plain_text for one in self.all_sources)

    def run(self) -> store.TokenStore:
        self.origin = fingerprint(self.sources) + (fingerprint(self.held_out) if self.held_out else [])
        self.plan = storage.sha256_of(
            [
                manifests.FORMAT,
                [[os.path.basename(record["location"]), record] for record in _placeless(self.origin)],
                self.vocabulary.fingerprint,
                asdict(self.options),
                self.sources.layout,
                self.sources.text_column,
                self.sources.on_bad_input,
                *([len(self.held_out.files), self.held_out.layout] if self.held_out else []),
            ]
        )
        if finished := self._finished():
            return finished
        if os.path.exists(self.folder) and not os.path.isdir(self.folder):
            raise InputError("is a file, but a folder is needed", where=self.folder, fix="choose another --to")
        lock = os.path.join(self.folder, LOCK)
        with storage.new_folder(self.folder), storage.locked(lock, remove=True):
            self._resume()
            try:
                self._note()
                gc.freeze()  # garbage collection then skips what imports have made: a twelfth of the time
                try:
                    self._work()
                finally:
                    gc.unfreeze()
            except Exception as error:
                # The noted blocks are kept for the next try, unless the input itself was bad.
                if isinstance(error, InputError) or not self.shards:
                    self._clean()
                raise
        return store.TokenStore(self.folder)

    # ---- what is already there -------------------------------------------------------------------------------

    def _finished(self) -> store.TokenStore | None:
        path = os.path.join(self.folder, "manifest.json")
        if not os.path.exists(path):
            return None
        if manifests.read_manifest(self.folder).get("plan") != self.plan:
            fix = "choose another --to"
            raise InputError("already holds a store made from other text or options", where=self.folder, fix=fix)
        ready = store.TokenStore(self.folder)
        ready.verify()
        say(f"{self.folder} is already prepared and every hash is right: nothing to do")
        return ready

    def _resume(self) -> None:
        path = os.path.join(self.folder, "prepare.json")
        if not os.path.exists(path):
            names = os.listdir(self.folder)
            if [name for name in names if name != LOCK and not storage.is_temporary(name)]:
                raise InputError("is not empty", where=self.folder, fix="choose another --to")
            return
        noted = _read_note(path, self.dtype)
        if noted["plan"] != self.plan:
            fix = "delete it, or choose another --to"
            raise InputError("holds an unfinished store made from other text or options", where=self.folder, fix=fix)
        for shard in noted["shards"]:
            for record in shard["files"].values():
                file = os.path.join(self.folder, record["name"])
                if not os.path.exists(file) or storage.sha256_of_file(file) != record["sha256"]:
                    raise StoreError("was changed since it was written", where=file, fix=f"delete {self.folder}")
        for name in os.listdir(self.folder):
            if storage.is_temporary(name):  # a shard that was being written when the run was cut
                os.unlink(os.path.join(self.folder, name))
        self.shards, self.blocks, self.passed = noted["shards"], noted["blocks"], noted["counts"]["read"]
        if self.blocks:
            say(f"continuing after {self.passed:,} documents in {self.blocks} blocks")

    def _clean(self) -> None:
        for name in os.listdir(self.folder):
            if name == "prepare.json" or manifests.is_shard_name(name):
                os.unlink(os.path.join(self.folder, name))

    # ---- the work --------------------------------------------------------------------------------------------

    def _work(self) -> None:
        batch: list[tuple[str, Document]] = []
        characters = 0
        with progress("prepare", sum(sum(one.sizes) for one in self.all_sources), "bytes") as bar:
            for held_out, document in self._documents():
                bar.advance(sum(one.bytes_read for one in self.all_sources) - bar.done)
                split = self._sort(document, held_out=held_out)
                if split and self.counts.read > self.passed:
                    batch.append((split, document))
                    characters += document.characters
                if characters >= ENCODE_CHARACTERS:
                    self._encode(batch)
                    batch, characters = [], 0
                    if sum(pending.tokens for pending in self.pending.values()) >= self.options.shard_tokens:
                        self._commit()
            self._encode(batch)
        self._commit()
        self._finish()

    def _documents(self) -> Iterator[tuple[bool, Document]]:
        """(whether it is of the held-out files, document). Those come first, so that what training has of them is known
        when it comes."""
        for sources in self.all_sources:
            for document in sources:
                yield sources is self.held_out, document

    def _sort(self, document: Document, *, held_out: bool) -> str | None:
        """Counts a document. Returns its split, or None if it is not kept."""
        self.counts.read += 1
        options, size = self.options, document.characters
        if size < options.min_characters:
            self.counts.too_short += 1
        elif options.max_characters is not None and size > options.max_characters:
            self.counts.too_long += 1
        else:
            key = text_key(document.utf8)
            if held_out:
                self.held_out_keys.add(key)
            leaks = not held_out and key in self.held_out_keys
            if not leaks and (options.keep_duplicates or self.duplicates.is_new(key)):
                self.counts.kept += 1
                return "valid" if held_out or is_held_out(key, options.valid_fraction) else "train"
            self.counts.duplicates += 1
        return None

    def _encode(self, batch: list[tuple[str, Document]]) -> None:
        if not batch:
            return
        if self.referee is not self.encoder:
            samples = [document.text[:SAMPLE_CHARACTERS] for _, document in batch[:SAMPLE_DOCUMENTS]]
            self.encoder = proven(self.encoder, self.referee, samples, self.tokenizer_location, self.wanted)
            self.referee = self.encoder  # once is enough
        for split, pending in self.pending.items():
            documents = [document for side, document in batch if side == split]
            if documents:
                encoded = encode_documents(self.encoder, documents, self.byte_length)
                origins = [(self.file_number[document.source], document.line) for document in documents]
                pending.encoded.append(replace(encoded, ids=encoded.ids.astype(self.dtype)))
                pending.origins += origins
                pending.tokens += len(encoded.ids)

    def _commit(self) -> None:
        if not any(pending.tokens for pending in self.pending.values()):
            return
        for split, pending in self.pending.items():
            if pending.tokens:
                self.shards.append(self._write_shard(split, pending))
        self.blocks += 1
        self.pending = {"train": _Pending(), "valid": _Pending()}
        self._note()

    def _note(self) -> None:
        counts = asdict(self.counts) | {"read": max(self.counts.read, self.passed)}
        note = {"plan": self.plan, "blocks": self.blocks, "counts": counts, "shards": self.shards}
        storage.write_json(os.path.join(self.folder, "prepare.json"), note)

    def _write_shard(self, split: str, pending: _Pending) -> dict[str, Any]:
        names = store.shard_names(split, self.blocks, self.dtype, self.with_sentences)
        tokens = np.concatenate([part.ids for part in pending.encoded])
        content = {
            "tokens": tokens.astype(np.dtype(self.dtype).newbyteorder("<"), copy=False),
            "documents": np.cumsum(np.concatenate([part.document_sizes for part in pending.encoded]), dtype="<u8"),
            "sentences": np.cumsum(np.concatenate([part.sentence_sizes for part in pending.encoded]), dtype="<u8"),
            "origins": np.array(pending.origins, "<u8").reshape(-1),
        }
        # `<unk>` may be right: a vocabulary without all bytes has it for the bytes that it lacks.
        special = np.zeros(self.vocabulary.size, bool)
        special[sorted(self.vocabulary.special - {self.vocabulary.unk})] = True
        if special[tokens].any():
            fix = "mark its special tokens as special"
            raise TokenizerError("turned text into special ids", where=self.tokenizer_location, fix=fix)
        files = {}
        for role, name in names.items():
            path = os.path.join(self.folder, name)
            with storage.atomic_writer(path) as file:
                file.write(content[role].view(np.uint8).data)
            files[role] = {"name": name, **asdict(storage.digest(path))}
        return {
            "split": split,
            "tokens": pending.tokens,
            "documents": len(content["documents"]),
            "sentences": len(content["sentences"]) if self.with_sentences else None,
            "files": files,
        }

    def _finish(self) -> None:
        if not self.shards:
            raise StoreError(
                f"no document is left of {self.counts.read:,} read ({self.counts.too_short:,} too short, "
                f"{self.counts.too_long:,} too long)",
                where=self.sources.files[0],
                fix="check the files, --layout and the length limits",
            )
        splits = {
            name: {
                total: sum(shard[total] or 0 for shard in self.shards if shard["split"] == name)
                for total in ("tokens", "documents", "sentences")
            }
            for name in ("train", "valid")
        }
        if (self.options.valid_fraction or self.held_out) and not splits["valid"]["documents"]:
            raise self._nothing_held_out()
        copy_tokenizer(self.tokenizer_location, os.path.join(self.folder, "tokenizer"))
        manifest = {
            "format": manifests.FORMAT,
            "fingerprint": manifests.fingerprint(self.dtype, self.vocabulary.fingerprint, self.shards),
            "dtype": self.dtype,
            "tokenizer": {
                "fingerprint": self.vocabulary.fingerprint,
                "sha256": storage.sha256_of_file(tokenizer_file(self.tokenizer_location)),
                "vocab_size": self.vocabulary.size,
            },
            "splits": splits,
            "counts": asdict(self.counts),
            "options": {
                **asdict(self.options),
                "layout": self.sources.layout,
                "text_column": self.sources.text_column,
                "on_bad_input": self.sources.on_bad_input,
                **({"valid_files": len(self.held_out.files)} if self.held_out else {}),
            },
            "plan": self.plan,
            "sources": self.origin,
            "versions": {
                name: importlib.metadata.version(name)
                for name in sorted({"maskwright", "tokenizers", self.encoder.name})
            },
            "shards": self.shards,
        }
        storage.write_json(os.path.join(self.folder, "manifest.json"), manifest)
        os.unlink(os.path.join(self.folder, "prepare.json"))

    def _nothing_held_out(self) -> InputError:
        kept, guess = self.counts.kept, self.sources.guess
        if self.held_out:
            what = f"none of its documents is held out: all {self.counts.duplicates:,} are repeats"
            return InputError(what, where=self.held_out.files[0], fix="name other text as --valid-files")
        fix = "give more documents, name held-out text as --valid-files, take a --valid-fraction such as "
        fix += f"{min(0.5, 10 / kept):.2g}, "
        more = {name: count for name, count in guess.documents.items() if count > kept} if guess else {}
        fix += "".join(f"or --layout {name} (about {count:,} documents), " for name, count in more.items())
        what = f"none of {kept:,} documents fell into the held-out share of {self.options.valid_fraction:g}"
        return InputError(what, where=self.sources.files[0], fix=fix + "or --valid-fraction 0 to hold none out")


@dataclass
class _Pending:
    """Encoded documents that are not yet in a shard: 2 or 4 bytes a token, as on disk."""

    encoded: list[Encoded] = field(default_factory=list)
    origins: list[tuple[int, int]] = field(default_factory=list)
    """(number of the file, line) of each document."""
    tokens: int = 0


def _numbered(sources: Sources, held_out: Sources | None) -> dict[str, int]:
    """Each file's number in the manifest's sources. Raises `InputError` for one that is trained on and held out."""
    files = [*sources.files, *(held_out.files if held_out else [])]
    both = set(sources.files) & set(held_out.files if held_out else [])
    if both:
        fix = "leave it out of one of them"
        raise InputError("is among the files to train on and in --valid-files", where=min(both), fix=fix)
    return {name: number for number, name in enumerate(files)}


def _read_note(path: str, dtype: str) -> dict[str, Any]:
    """The contents of `prepare.json`. Raises `InputError` unless `_note` could have written them."""
    noted, fix = storage.read_json(path), f"delete {os.path.dirname(path)}, and prepare again"
    counts = noted.get("counts") if isinstance(noted, dict) else None
    numbers = [counts.get("read"), noted.get("blocks")] if isinstance(counts, dict) else []
    if not numbers or not all(type(number) is int and number >= 0 for number in numbers) or "plan" not in noted:
        raise StoreError("is not the note of a stopped preparation", where=path, fix=fix)
    manifests.require_shards(noted.get("shards"), dtype, path)
    return noted


def _placeless(origin: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The sources without their folders: the same files in another place are the same input."""
    return [{**record, "location": os.path.basename(record["location"])} for record in origin]


def report(ready: store.TokenStore) -> str:
    """Describes a store for a person."""
    manifest = ready.manifest
    counts = manifest["counts"]
    lines = [
        f"{ready.location}: format {manifest['format']}, {manifest['dtype']}, fingerprint {ready.fingerprint[:16]}",
        f"tokenizer: {manifest['tokenizer']['vocab_size']:,} tokens, fingerprint {ready.vocabulary.fingerprint[:16]}",
        f"documents: {counts['read']:,} read, {counts['kept']:,} kept, {counts['duplicates']:,} duplicates, "
        f"{counts['too_short']:,} too short, {counts['too_long']:,} too long",
    ]
    for name, split in manifest["splits"].items():
        sentences = f", {split['sentences']:,} sentences" if split["sentences"] else ""
        lines.append(f"{name}: {split['documents']:,} documents, {split['tokens']:,} tokens{sentences}")
    size = sum(file["bytes"] for shard in ready.shards for file in shard["files"].values())
    lines.append(f"shards: {len(ready.shards)}, {size:,} bytes")
    return "\n".join(lines)
