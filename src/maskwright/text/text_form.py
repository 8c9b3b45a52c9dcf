"""The form of a text that decides its ids: its case, accents and white space, as far as the tokenizer keeps them.

Dedup keys and the train/valid split are of this form. So texts of the same ids are duplicates, and never on both sides.
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
from maskwright.text.spacing import spacing_of
from maskwright.text.tokenizer import normalizer_of
from maskwright.text.vocabulary import read_tokenizer, steps, tokens_in_text

LONG_WORD = 64
"""Words of this length and more are not cached."""
LOSE_WHITE_SPACE = ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")
LOSE_NOTHING = ("Sequence", "Prepend", "Strip", "ByteLevel")
"""Steps that keep everything: documents have no outer white space that `Strip` could take."""


@dataclass(frozen=True)
class TextForm:
    """The properties of a text that a tokenizer keeps; in doubt, fewer. So texts that differ in, say, spaces before
    commas alone may count as duplicates, and texts of the same ids always do, unless only unknown characters differ."""

    white_space: bool = True
    case: bool = True
    accents: bool = True
    controls: bool = True
    """Control characters and others without a glyph."""
    form: Literal["", "NFC", "NFKC"] = ""
    """Unicode's normal form; empty for a text as it is."""
    normalizer: str = ""
    """JSON of a normalizer that the other fields cannot describe, and that is applied itself."""

    def key(self, utf8: bytes) -> bytes:
        """The `text_key` of the text in this form."""
        return text_key(self.of(utf8) if self != WHOLE_TEXT else utf8)

    def of(self, utf8: bytes) -> bytes:
        """A text in this form."""
        if self.normalizer:
            normalizer = normalizer_of(self.normalizer)
            utf8 = "".join(map(normalizer.normalize_str, _pieces(utf8.decode()))).encode()
        if not utf8.isascii():
            text, fold = utf8.decode(), _fold(self)
            if self.white_space:
                utf8 = fold.__wrapped__(text).encode()
            else:
                words = [
                    word if word.isascii() else fold(word) if len(word) < LONG_WORD else fold.__wrapped__(word)
                    for word in text.split()
                ]
                utf8 = "".join(words).encode()
        table, deleted = _ascii(self)
        return utf8.translate(table, deleted)


WHOLE_TEXT = TextForm()


def form_of(location: str | None) -> TextForm:
    """The form that the tokenizer of a folder keeps; the whole text without a folder. Raises `TokenizerError`."""
    if not location:
        return WHOLE_TEXT
    content, vocabulary = read_tokenizer(location)
    lost: dict[str, Any] = {}
    declared = [token for token in tokens_in_text(location) if token["id"] in vocabulary.additional]
    if any(token.get("lstrip") or token.get("rstrip") for token in declared):
        lost["white_space"] = False
    if (spacing := spacing_of(location)) and spacing.case != "any":
        lost["case"] = False
    for step in steps(content.get("pre_tokenizer")):
        if step.get("type") in LOSE_WHITE_SPACE or step.get("behavior") == "Removed":
            lost["white_space"] = False
    for step in steps(content.get("normalizer")):
        fields = _lost_by(step)
        if fields is None:
            lost["normalizer"] = json.dumps(content["normalizer"], sort_keys=True)
        else:
            lost |= fields if lost.get("form") != "NFKC" else {**fields, "form": "NFKC"}
    return TextForm(**lost)


def _lost_by(step: dict[str, Any]) -> dict[str, Any] | None:
    """Fields of `TextForm` for a normalizer's step; None for one that has to be applied itself."""
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
        kept = {"case": not lowered, "accents": not (lowered if stripped is None else stripped)}
        cleaned = {"controls": False, "white_space": False} if step.get("clean_text") else {}
        return {name: False for name, value in kept.items() if not value} | cleaned
    pattern, new = step.get("pattern"), step.get("content")
    old = pattern.get("String") if isinstance(pattern, dict) else None
    if kind == "Replace" and old == " " and new:
        return {}
    if kind == "Replace" and old and isinstance(new, str) and new.lower() == old.lower():
        return {"case": False}
    return None


@cache
def _fold(form: TextForm) -> Any:
    """Returns the function that folds a text or word, but for its ASCII. Most words repeat: the cache makes it four
    times as fast."""

    @lru_cache(1 << 16)
    def fold(text: str) -> str:
        if form.form or not form.accents:
            text = unicodedata.normalize("NFKD" if form.form == "NFKC" else "NFD", text)
        if not form.accents:
            text = _without("Mn", text)
        if not form.case:
            text = text.lower().casefold()
        if not form.controls:
            text = _without("Cc Cf Cn Co", text.replace("\ufffd", ""))
        return unicodedata.normalize(form.form or "NFC", text) if form.form or not form.accents else text

    return fold


@cache
def _ascii(form: TextForm) -> tuple[bytes, bytes]:
    """(translation of each byte, bytes to delete), for `bytes.translate`."""
    table = bytes(range(256)) if form.case else bytes(range(256)).lower()
    spaces = [byte for byte in range(128) if chr(byte).isspace()]
    controls = [byte for byte in range(128) if unicodedata.category(chr(byte)) == "Cc"]
    return table, bytes({*(() if form.white_space else spaces), *(() if form.controls else controls)})


def _without(categories: str, text: str) -> str:
    """The text without characters of these categories of Unicode."""
    wanted = {*categories.split()}

    def others(run: re.Match[str]) -> str:
        return "".join(character for character in run.group() if unicodedata.category(character) not in wanted)

    return _candidates(categories).sub(others, text)


@cache
def _candidates(categories: str) -> re.Pattern[str]:
    """Matches runs of characters of these categories below U+10000, and of any above: a list of the latter would slow
    `re`."""
    wanted = {*categories.split()}
    codes = (code for code in range(0x10000) if unicodedata.category(chr(code)) in wanted)
    runs = [[code for _, code in run] for _, run in groupby(enumerate(codes), lambda pair: pair[1] - pair[0])]
    below = "".join(f"{re.escape(chr(run[0]))}-{re.escape(chr(run[-1]))}" for run in runs)
    return re.compile(f"[{below}\U00010000-\U0010ffff]+")


def _pieces(text: str) -> Iterator[str]:
    """Pieces of a long text, each from a space on, across which no characters combine."""
    begin = 0
    while len(text) - begin > PIECE_CHARACTERS and (end := text.find(" ", begin + PIECE_CHARACTERS)) > 0:
        yield text[begin:end]
        begin = end
    yield text[begin:]
