"""E-mail addresses, IP addresses and phone numbers, replaced by placeholders. The first two placeholders are FineWeb's
(Penedo et al. 2024, https://arxiv.org/abs/2406.17557): an address at a domain reserved for examples, and an IP address
that did not answer. The third is a number reserved for fiction."""

from __future__ import annotations

import dataclasses
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
COUNTRY = (
    r"(?:7|2[07]|3[0-469]|4[013-9]|5[1-8]|6[0-6]|8[1246]|9[0-58]"
    r"|(?:2[1-689]|3[578]|42|5[09]|6[7-9]|8[0578]|9[679])\d)"
)
"""Country codes of ITU-T E.164, except North America's 1."""
PHONE = re.compile(
    r"(?<![\w+./-])(?:"
    r"\+1[ .-]?(?:\([2-9]\d\d\)|[2-9]\d\d)[ .-]?\d{3}[ .-]?\d{4}"
    rf"|\+{COUNTRY}(?:[ .-]?\(\d{{1,4}}\))?(?:[ \u00a0\u202f./-]?\d){{5,13}}"
    r"|(?:1[ .-](?=\(?[2-9]))?(?:\(\d{2,4}\)[ .-]?|\d{2,4}[ .-])\d{3,4}[ .-]\d{3,4}"
    r")(?![\w/-]|\.\d)"
)
"""Of North America, of any other country with a plus, and of three groups without one. A 1 before an area code is North
America's prefix."""
PHONE_DIGITS = (8, 15)
"""Digits of a number with its country code; one more without any gap. E.164 allows at most 15."""
NUMBERED = re.compile(r"(?:\b(?:version|ver|release|build|section|sec|chapter|v)\b\.?|§)\s*$", re.IGNORECASE)
NUMBERED_CHARACTERS = 12
"""Words that show that the four numbers after them are no IP address, and how many characters before are searched."""
SHOWN_CHARACTERS, SHOWN_MATCH = 12, 40
"""Characters shown of the text on each side of a replacement, and of the replaced text."""
PLACEHOLDERS = {"email": "email@example.com", "ip": "22.214.171.124", "phone": "+1 202-555-0100"}
PATTERNS = {"email": EMAIL, "ip": IP, "phone": PHONE}
OnChange = Callable[[str, str], None]
"""Called for each change with its kind and an excerpt of the text before and after."""
SIGNS = {"email": re.compile("@"), "ip": re.compile(r"\d\.\d"), "phone": re.compile(r"\d{3}[ .-]\d{3}|\+\d")}
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
    return dataclasses.replace(document, parts=tuple(parts))


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
    elif kind == "phone" and (_is_part(match) or _is_other_number(text)):
        return text
    counts[kind] += 1
    if on_change:
        begin = match.string[max(0, match.start() - SHOWN_CHARACTERS) : match.start()]
        end = match.string[match.end() : match.end() + SHOWN_CHARACTERS]
        on_change(kind, f"{begin}{text[:SHOWN_MATCH]}{end} -> {begin}{PLACEHOLDERS[kind]}{end}")
    return PLACEHOLDERS[kind]


def _is_part(match: re.Match[str]) -> bool:
    """Whether another group of digits is joined like the phone number's own, since four groups are a card's."""
    gaps = re.findall("[ .-]", match.group())
    if not gaps or match.group().startswith("+"):
        return False
    before, after = match.string[max(0, match.start() - 2) : match.start()], match.string[match.end() : match.end() + 2]
    return (after[:1] == gaps[-1] and after[1:].isdigit()) or (before[1:] == gaps[0] and before[:1].isdigit())


def _is_other_number(text: str) -> bool:
    """Whether the match is an amount in thousands (12 345 678, 12.345.678), three years (1914 1918 1939), or after a
    plus a decimal number, or a number of too few or too many digits. Three groups of three digits after a country code
    are a phone number, as in Spain and Poland (+48 601 234 567)."""
    thousands = re.fullmatch(r"\+?[1-9]\d{0,2}(?:([ \u00a0\u202f.])\d{3})((?:\1\d{3})*)", text)
    if not text.startswith("+"):
        return thousands is not None or [*map(len, re.findall(r"\d+", text))] == [4, 4, 4]
    fewest, most = PHONE_DIGITS
    if not fewest + text[1:].isdigit() <= sum(map(str.isdigit, text)) <= most or re.fullmatch(r"\+\d{4,}\.\d+", text):
        return True
    return thousands is not None and (len(thousands[2]) < 8 or re.search(r"\D0", text[1:]) is not None)
