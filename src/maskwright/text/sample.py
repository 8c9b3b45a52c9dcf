"""Samples of a text, from which a vocabulary is learned.

The sample is a function of the documents' text alone: the same documents give the same sample, in whatever files and
order they come. Documents, and pieces of long ones, are ranked by a hash of their text, and the first ranks that fit
are taken. If these have too many different words, half of the ranks are taken, then a quarter and so on. Forgetting
rare words instead costs Unigram 4 % more tokens (docs/experiments.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import numpy as np

from maskwright.core.console import human_bytes, progress, say
from maskwright.core.errors import InputError, SourceError
from maskwright.text.dedup import is_held_out, text_key
from maskwright.text.notation import warn_of_notations
from maskwright.text.pieces import PIECE_CHARACTERS, pieces
from maskwright.text.sources import Sources, say_without_text
from maskwright.text.word_counts import TooManyWords

MAX_BYTES = 1_000_000_000
LARGEST = 2**31 - 1
"""`tokenizers` counts pairs of characters in 32 bits, and is silent when these overflow."""
RANKS = 1 << 20
HELD_OUT_SHARE, MEASURED_CHARACTERS = 0.1, 20_000_000
Learned = TypeVar("Learned")


class Piece(NamedTuple):
    """A document, or a piece of a long one."""

    text: str
    document: bytes
    """The `text_key` of its document."""
    is_first: bool
    """Whether its document begins with it."""


class MeasuredTexts:
    """Texts to measure a vocabulary on: those of the documents that are held out, or all where none is. No more than
    `MEASURED_CHARACTERS` of either are kept."""

    def __init__(self) -> None:
        self.documents = 0
        """Held-out ones that are measured."""
        self._texts: dict[bool, list[str]] = {True: [], False: []}
        self._characters = {True: 0, False: 0}

    def holds_out(self, piece: Piece) -> bool:
        """Whether the piece is of a held-out document, from which nothing is learned."""
        is_out = is_held_out(piece.document, HELD_OUT_SHARE)
        if self._characters[is_out] < MEASURED_CHARACTERS and (is_out or not self._texts[True]):
            self._texts[is_out].append(piece.text)
            self._characters[is_out] += len(piece.text)
            self.documents += is_out and piece.is_first
        return is_out

    @property
    def texts(self) -> list[str]:
        return self._texts[True] or self._texts[False]


def fertility(tokenizer: Any, texts: Iterable[str]) -> float:
    """Tokens per whitespace-separated word."""
    tokens = words = 0
    for text in texts:
        tokens += len(tokenizer.encode(text, add_special_tokens=False).ids)
        words += len(text.split())
    return tokens / max(words, 1)


def describe_fertility(ratios: tuple[float, float], documents: int) -> str:
    """`ratios`: before and after a change of the tokenizer. `documents`: held-out ones; 0 if none is."""
    before, after = ratios
    on = f"{documents:,} held-out documents" if documents else "the text itself: none is held out"
    return f"fertility {before:.3f} before, {after:.3f} after ({after / before - 1.0:+.1%}), on {on}"


class _Larger(Exception):
    """The text has more bytes than may be taken."""


def learn_from(sources: Sources, max_bytes: int, learn: Callable[[Iterator[Piece]], Learned]) -> Learned:
    """Returns `learn` of the text, or of a sample if the text has over `max_bytes` or `learn` raises `TooManyWords`. A
    sample has one piece or more.

    Raises `InputError` for `max_bytes` above `LARGEST`, `SourceError` for a text without documents."""
    if max_bytes > LARGEST:
        fix = f"give at most {LARGEST}: the library counts pairs in 32 bits"
        raise InputError(f"--max-bytes {max_bytes} is too large", fix=fix)
    if sum(sources.sizes) <= max_bytes:
        with suppress(_Larger, TooManyWords):
            return learn(_all(sources, max_bytes))
    sizes = np.zeros(RANKS, np.int64)  # bytes of the pieces of each rank
    for rank, piece_bytes, _ in _ranked(sources, "text"):
        sizes[rank] += piece_bytes
    cumulative = sizes.cumsum()
    ranks = int(np.searchsorted(cumulative, max(max_bytes, cumulative[cumulative > 0][0]), side="right"))
    reason = "--max-bytes"
    while True:
        if ranks < RANKS:
            sample_size, size = human_bytes(cumulative[ranks - 1]), human_bytes(cumulative[-1])
            say(f"learning from {sample_size} of {size} of text ({reason}): documents chosen by a hash of their text")
        with suppress(TooManyWords):
            return learn(piece for rank, _, piece in _ranked(sources, "sample") if rank < ranks)
        ranks, reason = ranks // 2, "too many different words"


def _all(sources: Sources, max_bytes: int) -> Iterator[Piece]:
    read_bytes = 0
    for _, size, piece in _ranked(sources, "text"):
        read_bytes += size
        if read_bytes > max_bytes:
            raise _Larger
        yield piece


def _ranked(sources: Sources, label: str) -> Iterator[tuple[int, int, Piece]]:
    """(rank, bytes of UTF-8, piece) of the whole text."""
    with progress(label, sum(sources.sizes), "bytes") as bar:
        for document in sources:
            yield from _pieces_of(document.text)
            bar.advance(sources.bytes_read - bar.done)
    if label == "text":
        say_without_text(sources, sources.documents, sources.without_text, "".join(sources.places_without_text[:1]))
        warn_of_notations(sources.documents, sources.notations)
    if not sources.documents:
        raise SourceError("holds no documents", where=sources.files[0], fix="check the files and --layout")


def _pieces_of(text: str) -> Iterator[tuple[int, int, Piece]]:
    if len(text) <= PIECE_CHARACTERS:
        utf8 = text.encode()
        key = text_key(utf8)
        yield _rank(key), len(utf8), Piece(text, key, True)
        return
    document = text_key(text.encode())
    for number, part in enumerate(pieces(text)):
        utf8 = part.encode()
        yield _rank(text_key(utf8)), len(utf8), Piece(part, document, number == 0)


def _rank(key: bytes) -> int:
    """From other bytes of the key than the train/valid split."""
    return int.from_bytes(key[8:12], "little") % RANKS
