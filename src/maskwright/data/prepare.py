"""`maskwright data prepare`: documents to a token store, resumable and with the same bytes for the same input.

Work goes in blocks of full documents, which `StoreWriter` writes. A preparation that was cut goes on after the last
block: the documents before it are only hashed, not encoded.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.core import storage
from maskwright.core.console import progress, several
from maskwright.core.errors import InputError, StoreError, TokenizerError
from maskwright.data import manifest as manifests
from maskwright.data import store
from maskwright.data.encode import Encoded, encode_documents, without_empty
from maskwright.data.writer import CLEANING, StoreWriter
from maskwright.text.cleaning.language import together
from maskwright.text.cleaning.steps import C4_LINES, CleaningOptions, changed
from maskwright.text.cleaning.survey import DUPLICATE, STAYS, TOO_LONG, TOO_SHORT, Limits, Outcome, survey
from maskwright.text.compression import changed_while_read
from maskwright.text.dedup import Duplicates, is_held_out
from maskwright.text.document import Document
from maskwright.text.encoder import EncoderName, open_encoder, proven, require_equal
from maskwright.text.fingerprint import fingerprint
from maskwright.text.kept import EVERYTHING, Kept, kept_by
from maskwright.text.layout import share_held_out, smaller
from maskwright.text.sources import Sources
from maskwright.text.vocabulary import read_vocabulary

ENCODE_CHARACTERS = 4_000_000
"""Text handed to the tokenizer's threads at once: large enough that they never wait, small enough for a laptop."""
SAMPLE_DOCUMENTS, SAMPLE_CHARACTERS = 32, 500
"""The sample from the text's beginning on which a fast encoder is compared with the reference one: 5 milliseconds. Of
each later batch, its first document's beginning is."""


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
    empty: int = 0
    """Without an id: the tokenizer keeps nothing of them."""
    left_out: dict[str, int] = field(default_factory=dict)
    """By cleaning, for each of its rules."""
    changed: dict[str, int] = field(default_factory=dict)
    """Personal data that was masked in what is kept, by kind, and lines that C4's rules left out of it."""

    def record(self) -> dict[str, Any]:
        """Without what cleaning alone counts, where nothing was cleaned, and without a count of none that are empty."""
        return {name: value for name, value in asdict(self).items() if value != {} and (name != "empty" or value)}


@dataclass(frozen=True)
class Request:
    """What a store is to be made of, and how. `encoder` changes the speed, never an id."""

    sources: Sources
    tokenizer: str
    folder: str
    options: PrepareOptions
    encoder: EncoderName = "auto"
    held_out: Sources | None = None
    """Text that is held out in full, instead of a share of `sources`; where both have a document, training does not
    get it."""
    cleaning: CleaningOptions | None = None

    def __post_init__(self) -> None:
        storage.require_local(self.folder)
        if self.cleaning and not self.cleaning.any:
            object.__setattr__(self, "cleaning", None)

    @property
    def all_sources(self) -> list[Sources]:
        """Held-out text first, so that what training has of it is known when it comes."""
        return [*([self.held_out] if self.held_out else []), self.sources]

    @property
    def limits(self) -> Limits:
        options = self.options
        return Limits(options.min_characters, options.max_characters, options.keep_duplicates, self.kept)

    @cached_property
    def kept(self) -> Kept:
        """What of a document decides about its side, and whether it is another's duplicate."""
        return kept_by(self.tokenizer)

    @property
    def with_sentences(self) -> bool:
        return all(one.layout == "sentences" and one.only_plain_text for one in self.all_sources)

    @cached_property
    def cleaning_record(self) -> dict[str, Any]:
        return self.cleaning.record() if self.cleaning else {}

    @cached_property
    def file_number(self) -> dict[str, int]:
        """Each file's number in the manifest's sources. Raises `InputError` for one that is trained on and held out."""
        files = [*self.sources.files, *(self.held_out.files if self.held_out else [])]
        both = set(self.sources.files) & set(self.held_out.files if self.held_out else [])
        if both:
            fix = "leave it out of one of them"
            raise InputError("is among the files to train on and in --valid-files", where=min(both), fix=fix)
        return {name: number for number, name in enumerate(files)}

    def plan(self, origin: list[dict[str, Any]]) -> str:
        """Digest of all that decides the store's bytes. `origin`: the fingerprints of its files. The same files in
        another place are the same input."""
        sources, held_out = self.sources, self.held_out
        placeless = [{**record, "location": os.path.basename(record["location"])} for record in origin]
        return storage.sha256_of(
            [
                manifests.FORMAT,
                [[record["location"], record] for record in placeless],
                read_vocabulary(self.tokenizer).fingerprint,
                asdict(self.options),
                sources.layout,
                sources.text_column,
                sources.on_bad_input,
                *([len(held_out.files), held_out.layout] if held_out else []),
                *([self.cleaning_record] if self.cleaning else []),
                *([sources.letters] if sources.letters != "upper" else []),
                *([asdict(self.kept)] if self.kept != EVERYTHING else []),
            ]
        )

    def writer(self, origin: list[dict[str, Any]]) -> StoreWriter:
        return StoreWriter(self.folder, self.tokenizer, self.plan(origin), with_sentences=self.with_sentences)

    def finish(self, writer: StoreWriter, counts: Counts, origin: list[dict[str, Any]], encoder: str) -> None:
        """Writes the manifest. Raises `InputError` where nothing is left, or nothing is held out."""
        if not writer.shards:
            raise StoreError(
                f"no document is left of {counts.read:,} read ({counts.too_short:,} too short, "
                f"{counts.too_long:,} too long, {counts.empty:,} empty, "
                f"{sum(counts.left_out.values()):,} left out by cleaning)",
                where=self.sources.files[0],
                fix="check the files, --layout, the length limits and the filters: `text audit` shows what they find",
            )
        if (self.options.valid_fraction or self.held_out) and not writer.totals()["valid"]["documents"]:
            raise self._nothing_held_out(counts)
        options = {
            **asdict(self.options),
            "layout": self.sources.layout,
            "text_column": self.sources.text_column,
            "on_bad_input": self.sources.on_bad_input,
            **({"valid_files": len(self.held_out.files)} if self.held_out else {}),
            **({"cleaning": self.cleaning_record} if self.cleaning else {}),
            **({"letters": self.sources.letters} if self.sources.letters != "upper" else {}),
        }
        packages = {"tokenizers", encoder, *(self.cleaning.packages if self.cleaning else [])}
        packages |= {name for one in self.all_sources for name in one.packages}
        writer.finish(counts.record(), options, origin, packages)

    def _nothing_held_out(self, counts: Counts) -> InputError:
        kept, guess = counts.kept, self.sources.guess
        if self.held_out:
            what = f"none of its documents is held out: all {counts.duplicates:,} are repeats"
            return InputError(what, where=self.held_out.files[0], fix="name other text as --valid-files")
        fix = "give more documents, name held-out text as --valid-files, take a --valid-fraction such as "
        fix += f"{share_held_out(kept):.2g}, "
        more = smaller(self.sources.layout, guess.documents, kept) if guess else []
        fix += "".join(f"or {layout}, " for layout in more)
        what = f"none of {kept:,} documents fell into the held-out share of {self.options.valid_fraction:g}"
        return InputError(what, where=self.sources.files[0], fix=fix + "or --valid-fraction 0 to hold none out")


def prepare(
    sources: Sources,
    tokenizer: str,
    folder: str,
    options: PrepareOptions | None = None,
    encoder: EncoderName = "auto",
    *,
    held_out: Sources | None = None,
    cleaning: CleaningOptions | None = None,
    workers: int = 1,
) -> store.TokenStore:
    """Writes the store that a `Request` of these asks for, and returns it opened. `workers`: processes that clean.

    Raises `InputError` (exit 2) on bad text, a foreign folder, or an unfinished store of other input; after an error in
    the input, nothing of this call is left in the folder.
    """
    request = Request(sources, tokenizer, folder, options or PrepareOptions(), encoder, held_out, cleaning)
    return prepare_here(request, workers)


def prepare_here(request: Request, workers: int = 1) -> store.TokenStore:
    return _Preparation(request, workers).run()


class _Preparation:
    def __init__(self, request: Request, workers: int) -> None:
        self.request, self.workers = request, workers
        self.options, self.cleaning = request.options, request.cleaning
        self.all_sources, self.held_out = request.all_sources, request.held_out
        self.held_out_keys = set[bytes]()
        self.outcome: Outcome | None = None
        self.changes = Counter[str]()
        self.file_number = request.file_number
        vocabulary = read_vocabulary(request.tokenizer)
        self.special = store.special_table(vocabulary)
        self.byte_length = np.array(vocabulary.byte_length, np.int32)
        self.encoder, self.referee = open_encoder(request.tokenizer, request.encoder)
        self.compared = False
        self.counts, self.duplicates = Counts(), Duplicates()
        self.origin = fingerprint(request.sources) + (fingerprint(request.held_out) if request.held_out else [])
        self.writer = request.writer(self.origin)

    def run(self) -> store.TokenStore:
        if finished := self.writer.finished():
            return finished
        with self.writer.open(self.counts.record()):
            self.counts.empty = self.writer.empty
            self.counts.kept = -self.counts.empty  # they are among the documents that are sorted again
            gc.freeze()  # garbage collection then skips what imports have made: a twelfth of the time
            try:
                if self.cleaning:
                    self._clean(self.cleaning)
                self._work()
            finally:
                gc.unfreeze()
        return store.TokenStore(self.writer.folder)

    # ---- the work --------------------------------------------------------------------------------------------

    def _clean(self, cleaning: CleaningOptions) -> None:
        self.outcome = survey(
            self.all_sources,
            cleaning,
            self.request.limits,
            os.path.join(self.writer.folder, CLEANING),
            self.writer.plan,
            workers=self.workers,
            held_out=self.held_out,
        )
        self.counts.left_out = self.outcome.by_cleaning()

    def _cleaned(self, document: Document, outcome: Outcome) -> Document:
        """The next document as training gets it, if it does."""
        if self.counts.read == len(outcome.codes):
            raise changed_while_read(document.source)
        if self.cleaning and outcome.codes[self.counts.read] == STAYS:
            document = changed(document, self.cleaning, self.changes)
            self.counts.changed = dict(sorted(self.changes.items()))
        return document

    def _work(self) -> None:
        batch: list[tuple[str, Document]] = []
        characters = 0
        with progress("prepare", sum(sum(one.sizes) for one in self.all_sources), "bytes") as bar:
            for held_out, document in self._documents():
                if self.outcome:
                    document = self._cleaned(document, self.outcome)
                bar.advance(sum(one.bytes_read for one in self.all_sources) - bar.done)
                split = self._sort(document, held_out=held_out)
                if split and self.counts.read > self.writer.passed:
                    batch.append((split, document))
                    characters += document.characters
                if characters >= ENCODE_CHARACTERS:
                    self._encode(batch)
                    batch, characters = [], 0
                    if self.writer.pending_tokens >= self.options.shard_tokens:
                        self.writer.commit(self.counts.record())
            self._encode(batch)
        self.writer.commit(self.counts.record())
        for one in self.all_sources:
            one.require_unchanged()
        self.request.finish(self.writer, self.counts, self.origin, self.encoder.name)

    def _documents(self) -> Iterator[tuple[bool, Document]]:
        """(whether it is of the held-out files, document)"""
        for sources in self.all_sources:
            for document in sources:
                yield sources is self.held_out, document

    def _sort(self, document: Document, *, held_out: bool) -> str | None:
        """Counts a document. Returns its split, or None if it is not kept."""
        self.counts.read += 1
        if self.outcome:
            return self._sort_cleaned(document, self.outcome.codes[self.counts.read - 1], held_out=held_out)
        options, size = self.options, document.characters
        if size < options.min_characters:
            self.counts.too_short += 1
        elif options.max_characters is not None and size > options.max_characters:
            self.counts.too_long += 1
        else:
            key = self.request.kept.key(document.utf8)
            if held_out:
                self.held_out_keys.add(key)
            leaks = not held_out and key in self.held_out_keys
            if not leaks and (options.keep_duplicates or self.duplicates.is_new(key)):
                self.counts.kept += 1
                return "valid" if held_out or is_held_out(key, options.valid_fraction) else "train"
            self.counts.duplicates += 1
        return None

    def _sort_cleaned(self, document: Document, code: int, *, held_out: bool) -> str | None:
        self.counts.too_short += int(code == TOO_SHORT)
        self.counts.too_long += int(code == TOO_LONG)
        self.counts.duplicates += int(code == DUPLICATE)
        if code != STAYS:
            return None
        self.counts.kept += 1
        key = self.request.kept.key(document.utf8)
        return "valid" if held_out or is_held_out(key, self.options.valid_fraction) else "train"

    def _encode(self, batch: list[tuple[str, Document]]) -> None:
        if not batch:
            return
        if self.referee is not self.encoder:
            self._compare([document.text[:SAMPLE_CHARACTERS] for _, document in batch[:SAMPLE_DOCUMENTS]])
        for split in ("train", "valid"):
            documents = [document for side, document in batch if side == split]
            if documents:
                origins = [(self.file_number[document.source], document.line) for document in documents]
                encoded = encode_documents(self.encoder, documents, self.byte_length)
                require_text(encoded, self.special, self.request.tokenizer)
                encoded, some = without_empty(encoded, documents)
                lacking = len(documents) - int(some.sum())
                self.counts.kept, self.counts.empty = self.counts.kept - lacking, self.counts.empty + lacking
                self.writer.add(split, encoded, np.array(origins, np.uint64)[some])

    def _compare(self, samples: list[str]) -> None:
        """The first batch chooses the encoder, which has to give the referee's ids where each later one begins, too."""
        if self.compared:
            require_equal(self.encoder, self.referee, samples[:1], self.request.tokenizer)
            return
        self.encoder = proven(self.encoder, self.referee, samples, self.request.tokenizer, self.request.encoder)
        self.compared = True


def require_text(encoded: Encoded, special: NDArray[np.bool_], tokenizer: str) -> None:
    """Raises `TokenizerError` if a text has ids that are `special` [vocabulary]."""
    if special[encoded.ids].any():
        fix = "mark its special tokens as special"
        raise TokenizerError("turned text into special ids", where=tokenizer, fix=fix)


LEFT_OUT = {
    "duplicates": "duplicates",
    "too_short": "too short",
    "too_long": "too long",
    "empty": "empty",
    "special_tokens": "special tokens left out",
    "unknown_tokens": "unknown tokens",
}
"""What became of other documents than those kept, and of ids, in stores of text and in converted ones."""


CHANGES = {
    "email": ("masked", "email address", "email addresses"),
    "ip": ("masked", "IP address", "IP addresses"),
    "phone": ("masked", "phone number", "phone numbers"),
    C4_LINES: ("left out", "line by C4's rules", "lines by C4's rules"),
}
"""What cleaning did to documents that it kept."""


MOST_FILES = 10
"""Of a store's text, named to a person; `--json` names all."""


def came_from(manifest: dict[str, Any]) -> str:
    """Names the files of a store's text, which only who did not just prepare it has to be told."""
    files = [str(one["location"]) for one in manifest["sources"]]
    more = f" and {len(files) - MOST_FILES:,} more" if len(files) > MOST_FILES else ""
    return f"text: {several(len(files), 'file')}, {', '.join(files[:MOST_FILES])}{more}"


def report(location: str, manifest: dict[str, Any]) -> str:
    """Describes a store for a person."""
    counts, words = manifest["counts"], manifest["tokenizer"]
    lines = [
        f"{location}: format {manifest['format']}, {manifest['dtype']}, fingerprint {manifest['fingerprint'][:16]}",
        f"tokenizer: {words['vocab_size']:,} tokens, fingerprint {words['fingerprint'][:16]}",
        f"documents: {counts['read']:,} read, {counts['kept']:,} kept, "
        + ", ".join(f"{counts[name]:,} {said}" for name, said in LEFT_OUT.items() if name in counts),
    ]
    for name, count in together(counts.get("left_out", {})).items():
        lines.append(f"cleaning left out {several(count, 'document')} ({name})")
    for name, count in counts.get("changed", {}).items():
        done, one, more = CHANGES[name]
        lines.append(f"cleaning {done} {several(count, one, more)}")
    for name, split in manifest["splits"].items():
        sentences = f", {split['sentences']:,} sentences" if split["sentences"] else ""
        lines.append(f"{name}: {several(split['documents'], 'document')}, {split['tokens']:,} tokens{sentences}")
    shards = manifest["shards"]
    size = sum(file["bytes"] for shard in shards for file in shard["files"].values())
    lines.append(f"shards: {len(shards)}, {size:,} bytes")
    return "\n".join(lines)
