"""Addresses and numbers of people, replaced by placeholders. The first two are FineWeb's (Penedo et al. 2024,
https://arxiv.org/abs/2406.17557): an address at a domain that is kept for examples, and an IP address at which nobody
answered. The third is of the numbers that are kept for fiction."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from functools import partial

from maskwright.text.document import Document

EMAIL = re.compile(r"[\w.!#$%&'*+/=?^`{|}~-]+@[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9-]*[A-Za-z0-9])+")
IP = re.compile(r"(?<![\d.])\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}(?![\d.]*\d)")
PHONE = re.compile(
    r"(?<![\w+./-])(?:\+\d{1,3}[ .-]?)?(?:\(\d{2,4}\)[ .-]?|\d{2,4}[ .-])\d{3,4}[ .-]\d{3,4}(?![\w/-]|\.\d)"
)
PLACEHOLDERS = {"email": "email@example.com", "ip": "22.214.171.124", "phone": "+1 202-555-0100"}
PATTERNS = {"email": EMAIL, "ip": IP, "phone": PHONE}
SIGNS = {"email": re.compile("@"), "ip": re.compile(r"\d\.\d"), "phone": re.compile(r"\d{3}[ .-]\d{3}")}
"""A pattern is tried only where its sign is."""


def masked(document: Document, kinds: tuple[str, ...], counts: Counter[str]) -> Document:
    """The document with placeholders, the same object where there is nothing to replace. Adds to `counts` by kind."""
    wanted = [kind for kind in kinds if SIGNS[kind].search(document.text)]
    if not wanted:
        return document
    parts = list(document.parts)
    before = counts.total()
    for place, part in enumerate(parts):
        for kind in wanted:
            part = PATTERNS[kind].sub(partial(_placeholder, kind, counts), part)
        parts[place] = part
    if counts.total() == before:
        return document
    return Document(tuple(parts), document.has_sentences, document.source, document.line)


def _placeholder(kind: str, counts: Counter[str], match: re.Match[str]) -> str:
    found = match.group()
    if kind == "ip":
        try:
            public = ipaddress.ip_address(found).is_global
        except ValueError:  # 999.1.1.1, a version number
            public = False
        if not public:
            return found
    counts[kind] += 1
    return PLACEHOLDERS[kind]
