"""Documents that may not be plain text: those in the notation of data or markup, whose brackets, quotes, keys and tags
would become tokens, and windows that overlap."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from maskwright.core.console import warn

BEGINNING_CHARACTERS, SHOWN_CHARACTERS = 1_000, 60
HEAD_CHARACTERS, TAIL_CHARACTERS = 64, 100_000
"""What has to overlap, and how much of the document before is searched."""
MANY = 0.1
"""Share of documents from which on there is a warning."""
NOTATIONS = {
    "list": (
        "are lists with brackets and quotes",
        'save them as JSON lines, such as {"text": ["first", "second"]}, where lists of words become text',
    ),
    "object": ("are objects with keys, as in JSON", "save them as JSON lines in a file whose name ends in .jsonl"),
    "markup": ("have tags of HTML or XML", "extract the text first, such as with trafilatura or BeautifulSoup"),
    "overlap": (
        "begin inside the document before, so that held-out text is trained on too and its loss is too low",
        "cut the text without overlap, or hold whole files out with --valid-files",
    ),
}
"""Kind -> (description of such documents, fix)."""
Noted = Mapping[str, tuple[int, str]]
"""Kind -> (number of documents, the first one's place and beginning)."""
QUOTED = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
LIST = re.compile(rf"[\[(][\[(\s]*{QUOTED}\s*(?:,\s*)?(?:{QUOTED}|\])")
OBJECT = re.compile(rf"(?:\[\s*)?\{{\s*{QUOTED}\s*:")
TAGS = "html|head|body|div|span|p|br|ul|ol|li|table|tr|td|th|h[1-6]|img|strong|em|font|script|style|doc|title"
MARKUP = re.compile(rf"<(?:!doctype\s|\?xml\s|/?(?:{TAGS})(?:\s[^<>]*)?/?>|a\s+href)", re.IGNORECASE)


def notation_of(text: str) -> str:
    """The kind of notation that a document's text is in, by its beginning; empty for plain text."""
    if text[0] in "[({":
        beginning = text[:BEGINNING_CHARACTERS]
        if LIST.match(beginning):
            return "list"
        if OBJECT.match(beginning):
            return "object"
    found = text.find("<", 0, BEGINNING_CHARACTERS)
    return "markup" if found >= 0 and MARKUP.search(text, found, BEGINNING_CHARACTERS) else ""


def overlaps(before: str, text: str) -> bool:
    """Whether a text begins inside the one before, as overlapping windows do: not where that begins, nor in a run."""
    head = text[:HEAD_CHARACTERS]
    is_candidate = len(head) == HEAD_CHARACTERS and len({*head}) > 3 and not before.startswith(head)
    return is_candidate and before.find(head, 1) > 0  # last, since it reads the whole tail


def beginning_of(place: str, text: str) -> str:
    """A document's place and beginning."""
    return f"{place}: {' '.join(text[:SHOWN_CHARACTERS].split())}"


def together(parts: Iterable[Noted]) -> Noted:
    """The notes of several parts, in their order."""
    result: dict[str, tuple[int, str]] = {}
    for part in parts:
        for kind, (count, first) in part.items():
            before, known = result.get(kind, (0, first))
            result[kind] = before + count, known
    return result


def warn_of_notations(documents: int, noted: Noted) -> None:
    """Warns of each notation that many of the documents are in."""
    for kind, (count, first) in noted.items():
        what, fix = NOTATIONS[kind]
        what += "" if kind == "overlap" else ", which become tokens"
        if count > MANY * documents:
            warn(f"{count:,} of {documents:,} documents {what}, such as {first} …; {fix}")
