"""Passages that do not stand where their record says: where they are, and how they were counted."""

from __future__ import annotations

import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import islice

MOST_PLACES = 100
"""Places of a passage that are tried."""


def _leading(text: str) -> int:
    return len(text) - len(text.lstrip())


WAYS: dict[str, Callable[[str, int], int]] = {
    "in UTF-16 units": lambda text, index: len(text[:index].encode("utf-16-le")) // 2,
    "in bytes of UTF-8": lambda text, index: len(text[:index].encode()),
    "without the white space before the text": lambda text, index: index - _leading(text),
    "with two characters for each line end": lambda text, index: index + text.count("\n", 0, index),
    "with one character for each line end": lambda text, index: index - text.count("\r\n", 0, index),
    "from 1": lambda text, index: index + 1,
}
"""Other ways to count: each gives the number of a text's character `index`, and never falls."""
LAST_INCLUDED = "with the last character included"
IN_PYTHON = {
    "in UTF-16 units": ': in Python, len(text.encode("utf-16-le")[: 2 * start].decode("utf-16-le"))',
    "in bytes of UTF-8": ": in Python, len(text.encode()[:start].decode())",
}


def elsewhere(text: str, passage: str, start: int) -> tuple[str, str]:
    """(where the `passage` stands that is not at `start`, what is to be added to the fix "count in characters")."""
    places = [*islice(_places(text, passage), MOST_PLACES)]
    if not places:
        alike = _without_form(passage) in _without_form(text)
        return "it stands nowhere" + ", but for its case, white space or accents" * alike, ""
    for place in places:
        for way, count in WAYS.items():
            if count(text, place) == start:
                return f"{_at(place, start)}, as if counted {way}", IN_PYTHON.get(way, "")
    nearest = min(places, key=lambda place: abs(place - start))
    return f"{_at(nearest, start)}{', as if never counted' if start in (0, -1) else ''}", ""


def _without_form(text: str) -> str:
    """In small letters, without accents, with single spaces."""
    letters = (letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter))
    return " ".join("".join(letters).casefold().split())


def _at(place: int, start: int) -> str:
    return f"it is at {place:,}, {abs(place - start):,} {'less' if place < start else 'more'} than written"


def _places(text: str, passage: str) -> Iterator[int]:
    place = text.find(passage)
    while place >= 0:
        yield place
        place = text.find(passage, place + 1)


def counted_otherwise(text: str, start: int, end: int) -> Iterator[tuple[str, int, int]]:
    """(way of counting, start, end in characters) of every other reading of a span that lies in the text."""
    if 0 <= start <= end < len(text):
        yield LAST_INCLUDED, start, end + 1
    for way, count in WAYS.items():
        ends = [_index(text, offset, count) for offset in (start, end)]
        if ends != [start, end] and None not in ends:
            yield way, ends[0] or 0, ends[1] or 0


def _index(text: str, offset: int, count: Callable[[str, int], int]) -> int | None:
    index = bisect_left(range(len(text) + 1), offset, key=lambda index: count(text, index))
    return index if index <= len(text) and count(text, index) == offset else None
