"""What a tokenizer keeps of a text. Duplicates and held-out documents go by it: texts of the same ids are one text,
however they are written, so none is on both sides.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import groupby
from typing import Any, Literal

from maskwright.text.dedup import text_key
from maskwright.text.pieces import PIECE_CHARACTERS
from maskwright.text.tokenizer import normalizer_of
from maskwright.text.vocabulary import read_tokenizer, steps

LONG_WORD = 64
"""Characters from which on a word is not remembered."""
LOSE_WHITE_SPACE = ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")
LOSE_NOTHING = ("Sequence", "Prepend", "Strip", "ByteLevel")
"""Normalizers; the outer white space that one of them strips is in no document."""


@dataclass(frozen=True)
class Kept:
    """What ids tell of a text. Where in doubt, less: a text may count as another's repeat that differs in nothing but,
    say, spaces before commas; never are two of the same ids two texts, unless characters without a token differ."""

    white_space: bool = True
    case: bool = True
    accents: bool = True
    controls: bool = True
    """Characters that are not shown."""
    form: Literal["", "NFC", "NFKC"] = ""
    """Unicode's normal form; empty for a text as it is."""
    normalizer: str = ""
    """JSON of one that does more than what the other fields say, and is asked itself."""

    def key(self, utf8: bytes) -> bytes:
        """16 bytes that stand for what is kept of a text: see `text_key`."""
        return text_key(self.of(utf8) if self != EVERYTHING else utf8)

    def of(self, utf8: bytes) -> bytes:
        """What is kept of a text, in one spelling."""
        if self.normalizer:
            normalizer = _normalizer(self.normalizer)
            utf8 = "".join(map(normalizer.normalize_str, _pieces(utf8.decode()))).encode()
        if not utf8.isascii():
            text, fold = utf8.decode(), _fold(self)
            if self.white_space:
                utf8 = fold.__wrapped__(text).encode()
            else:
                words = [
                    one if one.isascii() else fold(one) if len(one) < LONG_WORD else fold.__wrapped__(one)
                    for one in text.split()
                ]
                utf8 = "".join(words).encode()
        table, deleted = _ascii(self)
        return utf8.translate(table, deleted)


EVERYTHING = Kept()


def kept_by(location: str | None) -> Kept:
    """What the tokenizer of a folder keeps; everything where none is named. Raises `TokenizerError`."""
    if not location:
        return EVERYTHING
    content = read_tokenizer(location)[0]
    lost: dict[str, Any] = {}
    for step in steps(content.get("pre_tokenizer")):
        if step.get("type") in LOSE_WHITE_SPACE or step.get("behavior") == "Removed":
            lost["white_space"] = False
    for step in steps(content.get("normalizer")):
        found = _lost_by(step)
        if found is None:
            lost["normalizer"] = json.dumps(content["normalizer"], sort_keys=True)
        else:
            lost |= found if lost.get("form") != "NFKC" else {**found, "form": "NFKC"}
    return Kept(**lost)


def _lost_by(step: dict[str, Any]) -> dict[str, Any] | None:
    """Fields of `Kept`; None for a step that has to be asked."""
    kind = step.get("type")
    if kind in LOSE_NOTHING:
        return {}
    if kind in ("NFC", "NFD", "NFKC", "NFKD"):
        return {"form": "NFKC" if "K" in kind else "NFC"}
    if kind == "Lowercase":
        return {"case": False}
    if kind == "StripAccents":
        return {"accents": False}
    if kind == "BertNormalizer":
        lowered, stripped = step.get("lowercase"), step.get("strip_accents")
        found = {"case": not lowered, "accents": not (lowered if stripped is None else stripped)}
        cleaned = {"controls": False, "white_space": False} if step.get("clean_text") else {}
        return {name: False for name, value in found.items() if not value} | cleaned
    pattern, new = step.get("pattern"), step.get("content")
    old = pattern.get("String") if isinstance(pattern, dict) else None
    if kind == "Replace" and old == " " and new:
        return {}
    if kind == "Replace" and old and isinstance(new, str) and new.lower() == old.lower():
        return {"case": False}
    return None


@cache
def _fold(kept: Kept) -> Any:
    """What is kept of a text or word, but for its ASCII. Most words are plain, or were met before: remembering them is
    four times as fast."""

    @lru_cache(1 << 16)
    def fold(text: str) -> str:
        if kept.form or not kept.accents:
            text = unicodedata.normalize("NFKD" if kept.form == "NFKC" else "NFD", text)
        if not kept.accents:
            text = _without("Mn", text)
        if not kept.case:
            text = text.lower().casefold()
        if not kept.controls:
            text = _without("Cc Cf Cn Co", text.replace("\ufffd", ""))
        return unicodedata.normalize(kept.form or "NFC", text) if kept.form or not kept.accents else text

    return fold


@cache
def _ascii(kept: Kept) -> tuple[bytes, bytes]:
    """(what each byte becomes, those that are left out)"""
    table = bytes(range(256)) if kept.case else bytes(range(256)).lower()
    spaces = [byte for byte in range(128) if chr(byte).isspace()]
    controls = [byte for byte in range(128) if unicodedata.category(chr(byte)) == "Cc"]
    return table, bytes({*(() if kept.white_space else spaces), *(() if kept.controls else controls)})


def _without(categories: str, text: str) -> str:
    """The text without characters of these categories of Unicode."""
    wanted = {*categories.split()}

    def others(run: re.Match[str]) -> str:
        return "".join(character for character in run.group() if unicodedata.category(character) not in wanted)

    return _candidates(categories).sub(others, text)


@cache
def _candidates(categories: str) -> re.Pattern[str]:
    """Runs of characters of these categories below U+10000, and of all above: `re` looks through a long list for each
    of the latter."""
    wanted = {*categories.split()}
    own = (code for code in range(0x10000) if unicodedata.category(chr(code)) in wanted)
    runs = [[code for _, code in run] for _, run in groupby(enumerate(own), lambda pair: pair[1] - pair[0])]
    below = "".join(f"{re.escape(chr(run[0]))}-{re.escape(chr(run[-1]))}" for run in runs)
    return re.compile(f"[{below}\U00010000-\U0010ffff]+")


@cache
def _normalizer(description: str) -> Any:
    return normalizer_of(json.loads(description))


def _pieces(text: str) -> Iterator[str]:
    """Pieces of which each but the first begins with a space, where there is one: there no two characters are one."""
    begin = 0
    while len(text) - begin > PIECE_CHARACTERS and (end := text.find(" ", begin + PIECE_CHARACTERS)) > 0:
        yield text[begin:end]
        begin = end
    yield text[begin:]
