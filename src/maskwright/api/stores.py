"""From text to a token store, from Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from maskwright.api.given import Location, checked, location, locations
from maskwright.config.settings import Count, Fraction
from maskwright.data.prepare.report import report
from maskwright.data.store import SplitName, TokenStore
from maskwright.tasks.store import Cleaning, Kept, TextReading, prepare_store
from maskwright.text.records import Letters
from maskwright.text.sequences import make_tokenizer
from maskwright.text.sources import Layout, OnBadInput
from maskwright.text.tokenizer import TrainedKind
from maskwright.text.tokenizer import train_tokenizer as train

Text = Location | Sequence[Location]
"""Files, folders, globs or URLs."""


@dataclass(frozen=True)
class Store:
    """A token store: the text of `prepare`, encoded. Raises `StoreError` at the first read if it is none."""

    location: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "location", location(self.location))

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The store's own record: counts, options, checksums, the number of source files and the first ten
        (docs/token-store.md). `sources` lists all of them."""
        return TokenStore(self.location).manifest

    @property
    def sources(self) -> Iterator[dict[str, Any]]:
        """All files of its text, read one by one: location, bytes, and sha256 (`prepare`) or time of change."""
        return TokenStore(self.location).sources()

    @property
    def fingerprint(self) -> str:
        """The digest of its content that runs record."""
        return TokenStore(self.location).fingerprint

    @checked
    def documents(self, split: SplitName = "train") -> int:
        """Number of documents: to train on, or held out. Raises `InputError` for another split."""
        return TokenStore(self.location).split(split).documents

    @checked
    def tokens(self, split: SplitName = "train") -> int:
        """Number of tokens: to train on, or held out. Raises `InputError` for another split."""
        return TokenStore(self.location).split(split).tokens

    def __str__(self) -> str:
        return report(self.location, self.manifest)


@checked
def train_tokenizer(
    text: Text,
    to: Location,
    *,
    kind: TrainedKind | Literal["characters", "kmer"] = "bpe",
    vocab_size: Count = 50265,
    min_frequency: Count = 2,
    lowercase: bool = False,
    alphabet: Literal["dna", "protein"] | None = None,
    kmer: Count = 6,
    max_bytes: Count = 1_000_000_000,
    layout: Layout = "auto",
    text_column: str = "text",
    on_bad_input: OnBadInput = "error",
    encoding: str = "utf-8",
) -> str:
    """Trains a tokenizer on up to `max_bytes` of `text`, writes the folder `to`, and returns its location.

    Options as for `maskwright tokenizer train`. Raises `InputError` for a vocabulary that is too small or a folder that
    holds a tokenizer, `SourceError` for text that cannot be read.
    """
    sources, folder = TextReading(layout, text_column, on_bad_input, encoding).open(locations(text)), location(to)
    if kind == "characters" or kind == "kmer":
        make_tokenizer(sources, folder, kind, alphabet, kmer, max_bytes)
    else:
        learned = {"vocab_size": vocab_size, "min_frequency": min_frequency, "max_bytes": max_bytes}
        train(sources, folder, kind=kind, lowercase=lowercase, **learned)
    return folder


@checked
def prepare(
    text: Text,
    tokenizer: Location,
    to: Location,
    *,
    valid_fraction: Fraction | None = None,
    valid_files: Text | None = None,
    group_column: str | None = None,
    keep_duplicates: bool = False,
    min_characters: Count = 1,
    max_characters: Count | None = None,
    shard_tokens: Count = 64_000_000,
    encoder: Literal["auto", "tokenizers", "gigatoken"] = "auto",
    layout: Layout = "auto",
    text_column: str = "text",
    on_bad_input: OnBadInput = "error",
    encoding: str = "utf-8",
    letters: Letters = "upper",
    filter: Sequence[str] = (),
    language: Sequence[str] = (),
    language_probability: float = 0.5,
    near_duplicates: float | None = None,
    decontaminate: Text = (),
    decontaminate_words: Count = 13,
    mask_pii: Sequence[str] = (),
    workers: Count | None = None,
) -> Store:
    """Encodes documents into the store `to` on all cores, or in `workers` processes, or continues one that was stopped.

    `tokenizer`: a folder, or `hf://OWNER/NAME@REVISION`. Options as for `maskwright data prepare`. Raises `InputError`,
    and `SourceError` with file and line.
    """
    sizes = keep_duplicates, min_characters, max_characters, shard_tokens, encoder
    kept = Kept(valid_fraction, tuple(locations(valid_files or ())), group_column, *sizes)
    rules = tuple(filter), tuple(language), language_probability, near_duplicates, tuple(locations(decontaminate))
    cleaning = Cleaning(*rules, decontaminate_words, tuple(mask_pii))
    reading, folder = TextReading(layout, text_column, on_bad_input, encoding, letters), location(to)
    prepare_store(locations(text), location(tokenizer), folder, kept, reading, cleaning, workers=workers)
    return Store(folder)
