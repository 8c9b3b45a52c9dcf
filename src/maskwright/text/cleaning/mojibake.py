"""Mojibake: text that was decoded with the wrong encoding, such as `cafÃ©`, and encoded again. ftfy
(https://ftfy.readthedocs.io) finds and repairs it."""

from __future__ import annotations

from collections import Counter
from itertools import takewhile

from maskwright.text.cleaning.personal_data import OnChange
from maskwright.text.document import Document

LINES_MENDED = "lines of mojibake"
SHOWN_CHARACTERS = 40


def mojibake_in(text: str) -> str:
    """The first mojibake in a text, with its surroundings; empty without any."""
    if text.isascii():
        return ""
    from ftfy.badness import BADNESS_RE

    match = BADNESS_RE.search(text)
    return _shown(text, match.start()) if match else ""


def without_mojibake(document: Document, counts: Counter[str], on_change: OnChange | None = None) -> Document:
    """The document with repaired lines; the same object if no line changes. Only the encoding is repaired; quotes,
    ligatures and normal forms stay. Adds the lines to `counts`."""
    if document.text.isascii():
        return document
    parts = tuple("\n".join(_mended(line, counts, on_change) for line in part.split("\n")) for part in document.parts)
    if parts == document.parts:
        return document
    return Document(parts, document.has_sentences, document.source, document.line)


def _mended(line: str, counts: Counter[str], on_change: OnChange | None) -> str:
    import ftfy

    repaired = ftfy.fix_encoding(line)
    if repaired != line:
        counts[LINES_MENDED] += 1
        if on_change:
            begin = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(line, repaired, strict=False)))
            on_change(LINES_MENDED, f"{_shown(line, begin)} -> {_shown(repaired, begin)}")
    return repaired


def _shown(text: str, begin: int) -> str:
    return text[max(0, begin - SHOWN_CHARACTERS // 2) : begin + SHOWN_CHARACTERS // 2].strip()
