"""Counts of the words of a text, in memory that does not grow with the text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

MOST_CHARACTERS = 20_000_000
"""Characters of all different words. A trainer needs some 120 bytes of memory for each."""
PENDING_CHARACTERS, PENDING_PARTS = 64_000_000, 1_000_000
"""Characters of texts that wait to be split, and the different parts among them."""
SPACE = re.compile(r"(?<=\S)(?= \S)")
"""Before a single space between two other characters."""


class TooManyWords(Exception):
    """The different words have over `MOST_CHARACTERS`."""


class WordCounts:
    """Counts of the words into which `split` splits each text.

    `at_spaces`: `split` may be applied to the parts between single spaces, each with the space before it, since no word
    reaches over one. Most parts are repeats, and a repeat is split once.
    """

    def __init__(self, split: Callable[[str], Iterable[str]], *, at_spaces: bool) -> None:
        self._split, self._at_spaces = split, at_spaces
        self._words: dict[str, int] = {}
        self._characters = 0
        self._pending: Counter[str] = Counter()
        self._pending_characters = 0

    def add(self, text: str) -> None:
        """Adds a text. Raises `TooManyWords`."""
        if not self._at_spaces:
            self._count({text: 1})
            return
        self._pending.update(SPACE.split(text))
        self._pending_characters += len(text)
        if self._pending_characters > PENDING_CHARACTERS or len(self._pending) > PENDING_PARTS:
            self._count_pending()

    def counted(self) -> dict[str, int]:
        """The counts of all words. Raises `TooManyWords`."""
        self._count_pending()
        return self._words

    def _count_pending(self) -> None:
        self._count(self._pending)
        self._pending.clear()
        self._pending_characters = 0

    def _count(self, parts: Mapping[str, int]) -> None:
        words = self._words
        for part, count in parts.items():
            for word in self._split(part):
                earlier_count = words.get(word, 0)
                words[word] = earlier_count + count
                if not earlier_count:
                    self._characters += len(word)
            if self._characters > MOST_CHARACTERS:
                raise TooManyWords
