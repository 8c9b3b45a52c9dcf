"""The names of encodings of text."""

from __future__ import annotations

import codecs
import difflib
from encodings import aliases

UTF8 = "utf-8"
OF_NO_FILE = ("idna", "punycode", "raw_unicode_escape", "undefined", "unicode_escape")
"""Codecs of Python that decode names and source code."""


def codec_name(name: str) -> str:
    """Python's name of an encoding, such as iso8859-1 for latin-1. Raises `LookupError`, whose text is a fix."""
    try:
        codec = codecs.lookup(name)
    except (LookupError, ValueError):  # ValueError: a null character
        codec = None
    if codec is None or not codec._is_text_encoding or codec.name in OF_NO_FILE:
        wanted = name.lower().replace("-", "_").replace(" ", "_").replace("windows_", "cp").replace("win", "cp")
        near = difflib.get_close_matches(wanted, [*aliases.aliases, *aliases.aliases.values()], n=1)
        known = aliases.aliases.get(near[0], near[0]) if near else "cp1252, cp1251, cp932 (Shift-JIS) or gb18030"
        raise LookupError(f"give a name of Python's codecs, such as {known}")
    return UTF8 if codec.name == "utf-8-sig" else codec.name
