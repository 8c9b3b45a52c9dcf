"""Samples of a text, from which a vocabulary is learned.

The sample is a function of the documents' text alone: the same documents give the same sample, in any files and any
order. Documents, and pieces of long ones, are ranked by a hash of their text, and the first ranks that fit are used. If
these have too many different words, half of the ranks are used, then a quarter and so on. Forgetting rare words instead
costs Unigram 4 % more tokens (docs/experiments.md).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

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
    """Texts to measure a vocabulary on: the held-out documents, or all if none is held out. At most
    `MEASURED_CHARACTERS` of either are kept."""

    def __init__(self) -> None:
        self.documents = 0
        """Held-out documents that are measured."""
        self._texts: dict[bool, list[str]] = {True: [], False: []}
        self._characters = {True: 0, False: 0}

    def holds_out(self, piece: Piece) -> bool:
        """Whether the piece belongs to a held-out document, which must not be learned from."""
        is_out = is_held_out(piece.document, HELD_OUT_SHARE)
        if self._characters[is_out] < MEASURED_CHARACTERS and (is_out or not self._texts[True]):
            self._texts[is_out].append(piece.text)
            self._characters[is_out] += len(piece.text)
            self.documents += is_out and piece.is_first
        return is_out

    @property
    def texts(self) -> list[str]:
        return self._texts[True] or self._texts[False]


def fertility(encoder: Any, texts: list[str]) -> float:
    """Tokens of an `Encoder` per whitespace-separated word."""
    return len(encoder.encode(texts)[0]) / max(sum(len(text.split()) for text in texts), 1)


def describe_fertility(ratios: tuple[float, float], documents: int) -> str:
    """`ratios`: before and after a change of the tokenizer. `documents`: held-out documents; 0 without any."""
    before, after = ratios
    on = f"{documents:,} held-out documents" if documents else "the text itself, since none is held out"
    return f"fertility {before:.3f} before, {after:.3f} after ({after / before - 1.0:+.1%}), on {on}"


class _Sample:
    """The pieces of the lowest ranks that have up to `max_bytes` together, or of the lowest rank alone, while a text
    goes by. They are kept as UTF-8, with up to 200 bytes more for each."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held: dict[int, list[tuple[bytes, bytes, bool] | bytes]] = {}
        """By rank: (text, key of its document, whether it is the first), or the text of a whole document."""
        self._highest: list[int] = []
        """A heap of these ranks, negative."""
        self._bytes = 0
        self.ranks, self.bytes_read = RANKS, 0
        """All ranks below are held."""

    def add(self, text: str) -> None:
        """Adds a document, in pieces if it is long."""
        utf8 = text.encode()
        key = text_key(utf8)
        if len(text) <= PIECE_CHARACTERS:
            self._add(key, utf8, utf8)
            return
        for number, part in enumerate(map(str.encode, pieces(text))):
            self._add(text_key(part), part, (part, key, number == 0))

    def _add(self, key: bytes, utf8: bytes, held: tuple[bytes, bytes, bool] | bytes) -> None:
        self.bytes_read += len(utf8)
        if (rank := _rank(key)) >= self.ranks:
            return
        if rank not in self._held:
            self._held[rank] = []
            heapq.heappush(self._highest, -rank)
        self._held[rank].append(held)
        self._bytes += len(utf8)
        while self._bytes > self._max_bytes and len(self._held) > 1:
            self.ranks = -heapq.heappop(self._highest)
            self._bytes -= sum(map(_size, self._held.pop(self.ranks)))

    def halve(self) -> None:
        """Drops the pieces of the upper half of the ranks."""
        self.ranks //= 2
        self._held = {rank: pieces for rank, pieces in self._held.items() if rank < self.ranks}
        self._bytes = sum(_size(piece) for pieces in self._held.values() for piece in pieces)

    def __str__(self) -> str:
        return f"{human_bytes(self._bytes)} of {human_bytes(self.bytes_read)} of text"

    def pieces(self) -> Iterator[Piece]:
        with progress("learn", self._bytes, "bytes") as bar:
            for rank in sorted(self._held):
                for held in self._held[rank]:
                    text, key, is_first = held if isinstance(held, tuple) else (held, text_key(held), True)
                    yield Piece(text.decode(), key, is_first)
                    bar.advance(len(text))


def learn_from(
    sources: Sources, max_bytes: int, learn: Callable[[Iterator[Piece]], Learned], besides: Collection[str] = ()
) -> Learned:
    """Returns `learn` of the text, or of a sample if the text has over `max_bytes` or `learn` raises `TooManyWords`. A
    sample has one piece or more. The text is read once; up to `max_bytes` of it are held in memory. `besides`: see
    `warn_of_notations`.

    Raises `InputError` for `max_bytes` above `LARGEST`, `SourceError` for a text without documents."""
    if max_bytes > LARGEST:
        fix = f"give at most {LARGEST}, since the library counts pairs in 32 bits"
        raise InputError(f"--max-bytes {max_bytes} is too large", fix=fix)
    sample, reason = _Sample(max_bytes), "--max-bytes"
    with progress("text", sum(sources.sizes), "bytes") as bar:
        for document in sources:
            sample.add(document.text)
            bar.advance(sources.bytes_read - bar.done)
    say_without_text(sources, sources.documents, sources.without_text, "".join(sources.places_without_text[:1]))
    warn_of_notations(sources.documents, sources.notations, besides)
    if not sources.documents:
        raise SourceError("holds no documents", where=sources.files[0], fix="check the files and --layout")
    while True:
        if sample.ranks < RANKS:
            say(f"learning from {sample} ({reason}), chosen by a hash of the documents' text")
        with suppress(TooManyWords):
            return learn(sample.pieces())
        sample.halve()
        reason = "too many different words"


def _size(held: tuple[bytes, bytes, bool] | bytes) -> int:
    return len(held if isinstance(held, bytes) else held[0])


def _rank(key: bytes) -> int:
    """Rank from other bytes of the key than the train/valid split."""
    return int.from_bytes(key[8:12], "little") % RANKS
