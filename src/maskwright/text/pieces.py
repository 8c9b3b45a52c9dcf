"""Long texts in pieces, to bound memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

PIECE_CHARACTERS = 250_000
"""Longer texts go to `tokenizers` in pieces, since it needs some 100 bytes of memory for each character."""
BREAK = re.compile(r"(?<=[^\W\d_])[ \n](?=[^\W\d_])")
"""A place to cut: a space or a line feed between two letters."""


def pieces(text: str) -> Iterator[str]:
    """Pieces that are the text when joined, of one to two times `PIECE_CHARACTERS`, the last one of fewer. Each ends
    before the space or after the line feed of a `BREAK`, or anywhere if there is none."""
    begin = 0
    while len(text) - begin > PIECE_CHARACTERS:
        match = BREAK.search(text, begin + PIECE_CHARACTERS, begin + 2 * PIECE_CHARACTERS)
        end = match.start() + (match.group() == "\n") if match else begin + 2 * PIECE_CHARACTERS
        yield text[begin:end]
        begin = end
    if begin < len(text):
        yield text[begin:]
