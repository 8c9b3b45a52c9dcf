"""How often each word of a text occurs, in memory that does not grow with the text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from maskwright.core.console import say

MOST_CHARACTERS = 20_000_000
"""Of all different words together. A trainer takes some 120 bytes of memory for each."""
PENDING_CHARACTERS, PENDING_PARTS = 64_000_000, 1_000_000
"""Of texts that are not split yet, and how many different parts these may have."""
SPACE = re.compile(r"(?<=\S)(?= \S)")
"""Before a single space between two other characters."""


class WordCounts:
    """Counts of the words that `split` makes of each text. Where they become too many, the rarest are forgotten until
    half as many characters are left: the threshold rises with the counts, so that it happens seldom.

    `at_spaces`: that no word reaches over a single space, and `split` gives the same for what comes before it and for
    it and what comes after it. Most of these parts were met before, and are split once.
    """

    def __init__(self, split: Callable[[str], Iterable[str]], *, at_spaces: bool) -> None:
        self._split, self._at_spaces = split, at_spaces
        self._words: dict[str, int] = {}
        self._characters = self._forgotten = self._read = self._fit = 0
        self._pending: Counter[str] = Counter()
        self._pending_characters = 0

    def add(self, text: str) -> None:
        self._read += len(text)
        if not self._at_spaces:
            self._count({text: 1})
            return
        self._pending.update(SPACE.split(text))
        self._pending_characters += len(text)
        if self._pending_characters > PENDING_CHARACTERS or len(self._pending) > PENDING_PARTS:
            self._count_pending()

    def counted(self) -> dict[str, int]:
        """The counts. Says what share of the text was forgotten."""
        self._count_pending()
        if self._forgotten:
            share = self._forgotten / (self._forgotten + sum(self._words.values()))
            say(
                f"too many different words to hold: the rarest, {share:.1%} of the text, are not counted (all fit with "
                f"--max-bytes {max(self._fit, MOST_CHARACTERS)})"
            )
        return self._words

    def _count_pending(self) -> None:
        self._count(self._pending)
        self._pending.clear()
        self._pending_characters = 0

    def _count(self, parts: Mapping[str, int]) -> None:
        words = self._words
        for part, count in parts.items():
            for word in self._split(part):
                known = words.get(word, 0)
                words[word] = known + count
                if not known:
                    self._characters += len(word)
            if self._characters > MOST_CHARACTERS:
                words = self._forget_the_rarest()
        if not self._forgotten:
            self._fit = self._read

    def _forget_the_rarest(self) -> dict[str, int]:
        by_count: Counter[int] = Counter()
        for word, count in self._words.items():
            by_count[count] += len(word)
        least, left = 0, self._characters
        for count in sorted(by_count):
            if left <= MOST_CHARACTERS // 2:
                break
            least, left = count, left - by_count[count]
        kept = {word: count for word, count in self._words.items() if count > least}
        self._forgotten += sum(self._words.values()) - sum(kept.values())
        self._words, self._characters = kept, left
        return kept
