"""The request for a token store: its text and options, the digest of its plan, and the final checks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from maskwright.core import storage
from maskwright.core.errors import InputError, StoreError
from maskwright.data import manifest as manifests
from maskwright.data.writer import StoreWriter
from maskwright.text.cleaning.limits import Limits
from maskwright.text.cleaning.steps import CleaningOptions
from maskwright.text.encoder import EncoderName
from maskwright.text.layout import finer_layouts, share_held_out
from maskwright.text.sources import Sources
from maskwright.text.vocabulary import read_vocabulary

RULES = 2
"""Version of the rules that decide a store's documents, their sides and its shards."""


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
                fix="give 0.01 to hold out one document in a hundred, or 1 for a store that is only a test set",
            )
        if self.shard_tokens < 1 or self.min_characters < 1:
            raise InputError("--shard-tokens and --min-characters must be at least 1", fix="raise them")


@dataclass
class PrepareCounts:
    """Documents by outcome."""

    read: int = 0
    kept: int = 0
    duplicates: int = 0
    too_short: int = 0
    too_long: int = 0
    empty: int = 0
    """Documents that the tokenizer encodes to no id."""
    without_text: int = 0
    """Records of tables that are null or blank, and so no documents; not counted in `read`."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Dropped by cleaning, by rule."""
    changed: dict[str, int] = field(default_factory=dict)
    """In kept documents: masked personal data by kind, and lines that C4's rules dropped."""

    def record(self) -> dict[str, Any]:
        """The counts, without cleaning's if nothing was cleaned, and without `empty` and `without_text` if 0."""
        optional = ("empty", "without_text")
        return {name: value for name, value in asdict(self).items() if value != {} and (value or name not in optional)}


@dataclass(frozen=True)
class Request:
    """The text, tokenizer, folder and options of a store. `encoder` changes the speed, never an id."""

    sources: Sources
    tokenizer: str
    folder: str
    options: PrepareOptions = field(default_factory=PrepareOptions)
    encoder: EncoderName = "auto"
    held_out: Sources | None = None
    """Text that is held out in full, instead of a share of `sources`. A document in both is held out."""
    cleaning: CleaningOptions | None = None
    command: Sequence[str] = ()
    """The words that the user typed behind `maskwright`, for the manifest alone; none from Python."""

    def __post_init__(self) -> None:
        storage.require_local(self.folder)
        if self.cleaning and not self.cleaning.any:
            object.__setattr__(self, "cleaning", None)

    @property
    def all_sources(self) -> list[Sources]:
        """All text, held-out text first, so that its repeats in the training text are the later ones."""
        return [*([self.held_out] if self.held_out else []), self.sources]

    @property
    def limits(self) -> Limits:
        options = self.options
        return Limits(options.min_characters, options.max_characters, options.keep_duplicates)

    @property
    def with_sentences(self) -> bool:
        return all(sources.layout == "sentences" and sources.only_plain_text for sources in self.all_sources)

    @cached_property
    def cleaning_record(self) -> dict[str, Any]:
        return self.cleaning.record() if self.cleaning else {}

    @cached_property
    def file_number(self) -> dict[str, int]:
        """Each file's index in the manifest's sources. Raises `InputError` for a file that is on both sides."""
        files = [*self.sources.files, *(self.held_out.files if self.held_out else [])]
        held_out = {*map(storage.identity, self.held_out.files)} if self.held_out else ()
        if both := [name for name in self.sources.files if storage.identity(name) in held_out]:
            fix = "leave it out of one of them"
            raise InputError("is among the files to train on and in --valid-files", where=both[0], fix=fix)
        return {name: index for index, name in enumerate(files)}

    def plan(self, origin: Sequence[dict[str, Any]]) -> str:
        """Digest of everything that decides the store's bytes. `origin`: records of its files; folders do not count."""
        sources, held_out, vocabulary = self.sources, self.held_out, read_vocabulary(self.tokenizer)
        records = [{**record, "location": os.path.basename(record["location"])} for record in origin]
        return storage.sha256_of(
            [
                [manifests.FORMAT, RULES],
                [[record["location"], record] for record in records],
                vocabulary.fingerprint,
                asdict(self.options),
                sources.layout,
                sources.text_column,
                sources.on_bad_input,
                *([len(held_out.files), held_out.layout] if held_out else []),
                *([self.cleaning_record] if self.cleaning else []),
                *([f"group {sources.group_column}"] if sources.group_column else []),
                *([sources.letters] if sources.letters != "upper" else []),
                *([] if sources.encoding.is_utf8 else [sources.encoding.name]),
                *([vocabulary.additional_sha256] if vocabulary.additional else []),  # roles: `StoreWriter.finished`
            ]
        )

    def writer(self, origin: Sequence[dict[str, Any]]) -> StoreWriter:
        options = {
            **asdict(self.options),
            "layout": self.sources.layout,
            "text_column": self.sources.text_column,
            "on_bad_input": self.sources.on_bad_input,
            **({"valid_files": len(self.held_out.files)} if self.held_out else {}),
            **({"cleaning": self.cleaning_record} if self.cleaning else {}),
            **({"group_column": self.sources.group_column} if self.sources.group_column else {}),
            **({"letters": self.sources.letters} if self.sources.letters != "upper" else {}),
            **({} if self.sources.encoding.is_utf8 else {"encoding": self.sources.encoding.name}),
        }
        sentences = self.with_sentences
        return StoreWriter(self.folder, self.tokenizer, self.plan(origin), options, origin, with_sentences=sentences)

    def finish(self, writer: StoreWriter, counts: PrepareCounts, encoder: str) -> None:
        """Writes the manifest. Raises `InputError` if no document is left, or none is held out."""
        if not writer.shards:
            raise StoreError(
                f"no document is left of {counts.read:,} read ({counts.too_short:,} too short, "
                f"{counts.too_long:,} too long, {counts.empty:,} empty, "
                f"{sum(counts.left_out.values()):,} left out by cleaning; "
                f"{counts.without_text:,} records without text)",
                where=self.sources.files[0],
                fix="check the files, --layout, the length limits and the filters; `data audit` shows their effect",
            )
        if (self.options.valid_fraction or self.held_out) and not writer.totals()["valid"]["documents"]:
            raise self._nothing_held_out(counts)
        packages = {"tokenizers", encoder, *(self.cleaning.packages if self.cleaning else [])}
        packages |= {name for sources in self.all_sources for name in sources.packages}
        writer.finish(counts.record(), packages, manifests.typed(self.command))

    def _nothing_held_out(self, counts: PrepareCounts) -> InputError:
        kept, guess = counts.kept, self.sources.guess
        if self.held_out:
            what = f"none of its documents is held out: all {counts.duplicates:,} are repeats"
            return InputError(what, where=self.held_out.files[0], fix="name other text as --valid-files")
        if self.sources.group_column:
            share = min(0.5, 10 * self.options.valid_fraction)
            what = f"none of the groups of {kept:,} documents fell into the held-out share of "
            fix = f"use a --valid-fraction such as {share:.2g}, or 0 to hold none out"
            return InputError(f"{what}{self.options.valid_fraction:g}", where=self.sources.files[0], fix=fix)
        fix = "give more documents, name held-out text as --valid-files, use a --valid-fraction such as "
        fix += f"{share_held_out(kept, self.options.valid_fraction):.2g}, "
        more = finer_layouts(self.sources.layout, guess.documents, kept) if guess else []
        fix += "".join(f"or {layout}, " for layout in more)
        what = f"none of {kept:,} documents fell into the held-out share of {self.options.valid_fraction:g}"
        if counts.duplicates > kept:
            what += f" ({counts.duplicates:,} of {counts.read:,} are duplicates of others and left out)"
            fix += "keep these with --keep-duplicates, "
        return InputError(what, where=self.sources.files[0], fix=fix + "or --valid-fraction 0 to hold none out")
