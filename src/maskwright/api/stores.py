"""From text to a token store, from Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

from maskwright.api.given import Location, integer, location, locations, number, require_word
from maskwright.core.console import say, warn
from maskwright.core.errors import InputError
from maskwright.data.prepare.driver import prepare as prepare_store
from maskwright.data.prepare.report import report
from maskwright.data.prepare.request import PrepareOptions, Request
from maskwright.data.store import Split, SplitName, TokenStore
from maskwright.tasks.models.hub import local
from maskwright.text.sources import Fault, Layout, OnBadInput, Sources
from maskwright.text.tokenizer import TrainedKind
from maskwright.text.tokenizer import train_tokenizer as train

Text = Location | Sequence[Location]
"""Files, folders, globs or URLs."""


@dataclass(frozen=True)
class Store:
    """A token store: the text of `prepare`, encoded. Raises `StoreError` when it is first read and is none."""

    location: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "location", location(self.location))

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What the store's own record says: counts, options, sources, checksums (docs/token-store.md)."""
        return TokenStore(self.location).manifest

    @property
    def fingerprint(self) -> str:
        """What runs remember of it: a digest of its content."""
        return TokenStore(self.location).fingerprint

    def documents(self, split: Literal["train", "valid"] = "train") -> int:
        """Number of documents: to train on, or held out. Raises `InputError` for another split."""
        return self._split(split).documents

    def tokens(self, split: Literal["train", "valid"] = "train") -> int:
        """Number of tokens: to train on, or held out. Raises `InputError` for another split."""
        return self._split(split).tokens

    def _split(self, name: SplitName) -> Split:
        if name not in (known := get_args(SplitName)):
            raise InputError(f"has no split {name!r}", where=self.location, fix=f"give one of {', '.join(known)}")
        return TokenStore(self.location).split(name)

    def __str__(self) -> str:
        return report(self.location, self.manifest)


def train_tokenizer(
    text: Text,
    to: Location,
    *,
    kind: TrainedKind = "bpe",
    vocab_size: int = 50265,
    min_frequency: int = 2,
    lowercase: bool = False,
    max_bytes: int = 1_000_000_000,
    layout: Layout = "auto",
    text_column: str = "text",
    on_bad_input: OnBadInput = "error",
    encoding: str = "utf-8",
) -> str:
    """Trains a tokenizer on up to `max_bytes` of `text`, writes the folder `to`, and returns its location.

    The options are those of `maskwright tokenizer train`. Raises `InputError` for a vocabulary that is too small or a
    folder that holds a tokenizer, `SourceError` for text that cannot be read.
    """
    require_word(kind, "kind", TrainedKind)
    folder = location(to)
    train(
        _sources(text, layout, text_column, on_bad_input, encoding),
        folder,
        kind=kind,
        vocab_size=integer(vocab_size, "vocab_size", 1),
        min_frequency=integer(min_frequency, "min_frequency", 1),
        lowercase=lowercase,
        max_bytes=integer(max_bytes, "max_bytes", 1),
    )
    return folder


def prepare(
    text: Text,
    tokenizer: Location,
    to: Location,
    *,
    valid_fraction: float = 0.01,
    valid_files: Text | None = None,
    keep_duplicates: bool = False,
    min_characters: int = 1,
    max_characters: int | None = None,
    layout: Layout = "auto",
    text_column: str = "text",
    on_bad_input: OnBadInput = "error",
    encoding: str = "utf-8",
) -> Store:
    """Encodes documents into the store `to`, or continues one that was stopped.

    `tokenizer`: a folder, or `hf://OWNER/NAME@REVISION`. `valid_fraction`: the share of documents that is held out, by
    a hash of their ids; `valid_files` are held out in full instead. The options are those of `maskwright data
    prepare`; cleaning and clusters are the command's alone. Raises `InputError`, and `SourceError` with file and line.
    """
    valid_fraction = number(valid_fraction, "valid_fraction")
    least = integer(min_characters, "min_characters", 1)
    most = None if max_characters is None else integer(max_characters, "max_characters", least)
    sources = _sources(text, layout, text_column, on_bad_input, encoding)
    held_out = None
    if valid_files is not None:
        same = sources.layout if sources.has_plain_text else layout
        held_out, valid_fraction = _sources(valid_files, same, text_column, on_bad_input, encoding), 0.0
    options = PrepareOptions(valid_fraction, keep_duplicates, least, most)
    folder = location(to)
    prepare_store(Request(sources, local(location(tokenizer), weights=False), folder, options, held_out=held_out))
    return Store(folder)


def _sources(text: Text, layout: Layout, text_column: str, on_bad_input: OnBadInput, encoding: str) -> Sources:
    require_word(layout, "layout", Layout)
    require_word(on_bad_input, "on_bad_input", OnBadInput)

    def on_fault(fault: Fault) -> None:
        warn(f"{fault.where}: {fault.what}")

    sources = Sources(
        locations(text),
        layout=layout,
        text_column=text_column,
        on_bad_input=on_bad_input,
        on_fault=on_fault,
        encoding=encoding,
    )
    for sentence in sources.choice:
        say(sentence)
    return sources
