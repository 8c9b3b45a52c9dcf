"""The layout of plain text, guessed from the beginnings of files: a document is a file, the lines between blank ones,
or a line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Layout = Literal["auto", "file", "sentences", "lines"]
LAYOUTS = {
    "file": "each file is a document",
    "sentences": "one sentence per line, blank lines between documents",
    "lines": "a document a line",
}
PEEK_BYTES, PEEK_FILES, PEEK_LARGEST = 1 << 20, 20, 5
"""Bytes sampled per file, sampled files, and the number of the largest among them."""
ENDS_SENTENCE = re.compile(r"""[.!?:;…。！？．｡؟۔।॥։܀-܂།༎။።፧፨᙮។៕᠃᠉᱾᱿꯫]["'”’»)\]」』）】]*$""")
"""Latin, Chinese, Arabic, Urdu, Indic, Armenian, Syriac, Tibetan, Burmese, Ethiopic, Canadian, Khmer, Mongolian, Ol
Chiki and Meetei marks. Thai and Lao sentences end without one."""


@dataclass(frozen=True)
class LayoutGuess:
    """The layout that was chosen, and the documents that each layout would give in the sampled `files`."""

    layout: Layout
    documents: dict[Layout, int]
    files: int

    def __str__(self) -> str:
        others = [f"{count:,} with --layout {name}" for name, count in self.documents.items() if name != self.layout]
        here = (
            f"{self.documents[self.layout]:,} documents in the {'file' if self.files == 1 else f'{self.files} files'}"
        )
        return f"layout: {self.layout} ({LAYOUTS[self.layout]}): {here} sampled; {', '.join(others)}"


def finer_layouts(layout: str, documents: Mapping[Layout, int], count: int) -> list[str]:
    """Fixes: the other layouts with more than `count` documents, with their approximate number."""
    finer = {name: total for name, total in documents.items() if total > count and name != layout}
    return [f"--layout {name} (about {total:,} documents)" for name, total in finer.items()]


def share_held_out(documents: int, tried: float = 0.0) -> float:
    """A `--valid-fraction` that holds out about ten documents, at most half of them. `tried`: a share that held out
    none. If it should have held out ten, the documents are repeats of a few, and ten times the share is returned."""
    share = 10 / max(documents, 1)
    return min(0.5, share if share > tried else 10 * tried)


def sampled(sizes: Sequence[int]) -> list[int]:
    """Indices of the files to sample, rising: the largest, and others spread from the first to the last."""
    indices = range(len(sizes))
    largest = {*sorted(indices, key=lambda index: -sizes[index])[:PEEK_LARGEST]}
    others = [index for index in indices if index not in largest]
    count = min(PEEK_FILES - PEEK_LARGEST, len(others))
    spread = {others[number * (len(others) - 1) // max(count - 1, 1)] for number in range(count)}
    return sorted(largest | spread)


def guess_layout(beginnings: Sequence[bytes]) -> LayoutGuess:
    """`beginnings`: up to `PEEK_BYTES` of up to `PEEK_FILES` files.

    Blank lines separate documents of sentences in a single file, in large files, and in small files whose lines end as
    sentences do and are not indented. Other small files are a document each: source code, prose with wrapped lines, or
    with a paragraph on each line. Without blank lines, a document is a line.
    """
    blocks = [block for content in beginnings for block in _blocks(content)]
    lines = sum(map(len, blocks))
    documents: dict[Layout, int] = {"sentences": len(blocks), "file": len(beginnings), "lines": lines}
    several = len(beginnings) > 1 and all(len(content) < PEEK_BYTES for content in beginnings)
    inner = [line for block in blocks for line in block[:-1]]
    ended = sum(ENDS_SENTENCE.search(line) is not None for line in inner)
    indented = sum(line[0].isspace() for line in inner)
    sentences = ended * 2 > len(inner) and indented * 5 < len(inner)
    if len(blocks) > len(beginnings) and (sentences or not several):
        return LayoutGuess("sentences", documents, len(beginnings))
    return LayoutGuess("file" if several else "lines", documents, len(beginnings))


def _blocks(content: bytes) -> list[list[str]]:
    """Runs of lines between blank ones."""
    blocks: list[list[str]] = [[]]
    text = content.decode(errors="replace")
    for line in text.split("\n" if "\n" in text else "\r"):
        if stripped := line.rstrip():
            blocks[-1].append(stripped)
        elif blocks[-1]:
            blocks.append([])
    return [block for block in blocks if block]
