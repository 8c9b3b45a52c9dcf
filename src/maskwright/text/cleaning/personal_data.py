"""E-mail addresses, IP addresses and phone numbers, replaced by placeholders. The first two placeholders are FineWeb's
(Penedo et al. 2024, https://arxiv.org/abs/2406.17557): an address at a domain reserved for examples, and an IP address
at which nobody answered. The third is a number reserved for fiction."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable
from functools import partial

from maskwright.text.document import Document

NAME = r"[\w.!#$%&'*+/=?^`{|}~-]"
EMAIL = re.compile(
    rf"(?<!{NAME}){NAME}++@[A-Za-z0-9](?:[A-Za-z0-9-]{{0,61}}[A-Za-z0-9])?(?:\.[A-Za-z0-9-]{{0,61}}[A-Za-z0-9])+"
)
"""Possessive, and with domain labels of at most 63 characters (RFC 1035). Otherwise an image in base64 after an @ took
minutes."""
IP = re.compile(r"(?<![A-Za-z\d.])\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}(?![\d.]*\d|[A-Za-z])")
PHONE = re.compile(
    r"(?<![\w+./-])(?:\+\d{1,3}[ .-]?|1[ .-](?=\(?[2-9]))?(?:\(\d{2,4}\)[ .-]?|\d{2,4}[ .-])"
    r"\d{3,4}[ .-]\d{3,4}(?![\w/-]|\.\d)"
)
"""A 1 before an area code is North America's prefix."""
NUMBERED = re.compile(r"(?:\b(?:version|ver|release|build|section|sec|chapter|v)\b\.?|§)\s*$", re.IGNORECASE)
NUMBERED_CHARACTERS = 12
"""Words before four numbers that are not an IP address, and the characters before the numbers that are searched."""
SHOWN_CHARACTERS, SHOWN_MATCH = 12, 40
"""Characters shown of the text on each side of a replacement, and of the replaced text."""
PLACEHOLDERS = {"email": "email@example.com", "ip": "22.214.171.124", "phone": "+1 202-555-0100"}
PATTERNS = {"email": EMAIL, "ip": IP, "phone": PHONE}
OnChange = Callable[[str, str], None]
"""Called for each change with its kind and an excerpt of the text before and after."""
SIGNS = {"email": re.compile("@"), "ip": re.compile(r"\d\.\d"), "phone": re.compile(r"\d{3}[ .-]\d{3}")}
"""Cheap signs without which a pattern cannot match."""


def with_placeholders(
    document: Document, kinds: tuple[str, ...], counts: Counter[str], on_change: OnChange | None = None
) -> Document:
    """The document with placeholders; the same object if nothing is replaced. Adds replacements to `counts` by kind."""
    wanted = [kind for kind in kinds if SIGNS[kind].search(document.text)]
    if not wanted:
        return document
    parts = list(document.parts)
    before = counts.total()
    for kind in wanted:
        replace = partial(_placeholder, kind, counts, on_change)
        parts = [PATTERNS[kind].sub(replace, part) for part in parts]
    if counts.total() == before:
        return document
    return Document(tuple(parts), document.has_sentences, document.source, document.line)


def _placeholder(kind: str, counts: Counter[str], on_change: OnChange | None, match: re.Match[str]) -> str:
    text = match.group()
    if kind == "ip":
        before = match.string[max(0, match.start() - NUMBERED_CHARACTERS) : match.start()]
        try:
            is_public = ipaddress.ip_address(text).is_global and not NUMBERED.search(before)
        except ValueError:  # 999.1.1.1, a version number
            is_public = False
        if not is_public:
            return text
    elif kind == "phone" and (_is_part(match) or _is_amount(text)):
        return text
    counts[kind] += 1
    if on_change:
        begin = match.string[max(0, match.start() - SHOWN_CHARACTERS) : match.start()]
        end = match.string[match.end() : match.end() + SHOWN_CHARACTERS]
        on_change(kind, f"{begin}{text[:SHOWN_MATCH]}{end} -> {begin}{PLACEHOLDERS[kind]}{end}")
    return PLACEHOLDERS[kind]


def _is_part(match: re.Match[str]) -> bool:
    """Whether another group of digits is joined to the phone number as its own groups are: four groups are a card's."""
    gaps = re.findall("[ .-]", match.group())
    before, after = match.string[max(0, match.start() - 2) : match.start()], match.string[match.end() : match.end() + 2]
    return (after[:1] == gaps[-1] and after[1:].isdigit()) or (before[1:] == gaps[0] and before[:1].isdigit())


def _is_amount(text: str) -> bool:
    """Whether the match is three years (1914 1918 1939), or one number with dots for thousands (12.345.678)."""
    if text.startswith(("+", "(")):
        return False
    groups = re.findall(r"\d+", text)
    in_thousands = re.fullmatch(r"\d+(\.\d{3})+", text) is not None
    return in_thousands or (len(groups) == 3 and all(len(group) == 4 for group in groups))
