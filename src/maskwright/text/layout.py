"""What a document is in plain text, guessed from how files begin: the file, the sentences between blank lines, or a
line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Layout = Literal["auto", "file", "sentences", "lines"]
LAYOUTS = {
    "file": "each file is a document",
    "sentences": "a sentence a line, blank lines between documents",
    "lines": "a document a line",
}
PEEK_BYTES, PEEK_FILES, PEEK_LARGEST = 1 << 20, 20, 5
"""How much of a file is looked at, of how many files, and how many of these are the largest ones."""
ENDS_SENTENCE = re.compile(r"""[.!?:;…。！？؟।۔]["'”’»)\]]*$""")


@dataclass(frozen=True)
class Guess:
    """The layout that was chosen, and how many documents each would give in the `files` that were looked at."""

    layout: Layout
    documents: dict[Layout, int]
    files: int

    def __str__(self) -> str:
        others = [f"{count:,} with --layout {name}" for name, count in self.documents.items() if name != self.layout]
        here = (
            f"{self.documents[self.layout]:,} documents in the {'file' if self.files == 1 else f'{self.files} files'}"
        )
        return f"layout: {self.layout} ({LAYOUTS[self.layout]}): {here} looked at; {', '.join(others)}"


def smaller(layout: str, documents: Mapping[Layout, int], count: int) -> list[str]:
    """Other layouts that give more than `count` documents, and about how many, as a fix has them."""
    more = {name: found for name, found in documents.items() if found > count and name != layout}
    return [f"--layout {name} (about {found:,} documents)" for name, found in more.items()]


def share_held_out(documents: int) -> float:
    """That holds ten of so few documents out, or half of them."""
    return min(0.5, 10 / max(documents, 1))


def looked_at(sizes: Sequence[int]) -> list[int]:
    """Places of the files to look at, of all in their order: the largest, and others from the first to the last."""
    places = range(len(sizes))
    largest = {*sorted(places, key=lambda place: -sizes[place])[:PEEK_LARGEST]}
    others = [place for place in places if place not in largest]
    count = min(PEEK_FILES - PEEK_LARGEST, len(others))
    spread = {others[number * (len(others) - 1) // max(count - 1, 1)] for number in range(count)}
    return sorted(largest | spread)


def guess_layout(beginnings: Sequence[bytes]) -> Guess:
    """`beginnings`: up to `PEEK_BYTES` of up to `PEEK_FILES` files.

    Blank lines part documents of sentences in one file, in large ones, and wherever lines end as sentences do: prose
    whose lines are wrapped ends a line in the middle of a sentence, and prose with a paragraph a line has no two lines
    together. Other small files are a document each. Without blank lines a document is a line.
    """
    blocks = [block for content in beginnings for block in _blocks(content)]
    lines = sum(map(len, blocks))
    documents: dict[Layout, int] = {"sentences": len(blocks), "file": len(beginnings), "lines": lines}
    several = len(beginnings) > 1 and all(len(content) < PEEK_BYTES for content in beginnings)
    inner = [line for block in blocks for line in block[:-1]]
    sentences = sum(ENDS_SENTENCE.search(line) is not None for line in inner) * 2 > len(inner)
    if len(blocks) > len(beginnings) and (sentences or not several):
        return Guess("sentences", documents, len(beginnings))
    return Guess("file" if several else "lines", documents, len(beginnings))


def _blocks(content: bytes) -> list[list[str]]:
    """Lines that have text, in runs without a blank line."""
    found: list[list[str]] = [[]]
    for line in content.decode(errors="replace").split("\n"):
        if stripped := line.strip():
            found[-1].append(stripped)
        elif found[-1]:
            found.append([])
    return [block for block in found if block]
