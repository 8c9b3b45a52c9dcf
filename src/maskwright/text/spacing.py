"""Sequences without spaces for WordPiece vocabularies of single letters (ProtBERT's) or of all k-mers (DNABERT's).

Such a tokenizer finds a token only between spaces, so that a whole sequence is one unknown word. Here the spaces are
added: between letters, or between k-mers that begin at each letter, as those models were trained. Text with spaces
stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from maskwright.text.pieces import PIECE_CHARACTERS
from maskwright.text.vocabulary import added_tokens, read_tokenizer, steps

SPLITS_AT_SPACES = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit", "Sequence"}
SPECIAL = re.compile(r"\[.+\]|<.+>")


@dataclass(frozen=True)
class Spacing:
    k: int
    """Letters of each token."""
    case: Literal["upper", "lower", "any"]
    """The case of all tokens; `any` for both."""

    def spaced(self, text: str) -> str:
        """The text with a space between tokens, and in the vocabulary's case."""
        return self._runs.sub(lambda run: self._spelt(run[0]), text)

    def _spelt(self, run: str) -> str:
        run = run.upper() if self.case == "upper" else run.lower() if self.case == "lower" else run
        if len(run) <= self.k:
            return run
        return f" {' '.join([run[begin : begin + self.k] for begin in range(len(run) - self.k + 1)])} "

    def pieces(self, text: str) -> Iterator[str]:
        """Pieces of a long text whose tokens, joined, are the text's tokens. Pieces of k-mers overlap."""
        begin = 0
        while len(text) - begin > PIECE_CHARACTERS and (place := self._break.search(text, begin + PIECE_CHARACTERS)):
            is_space = place[0].isspace()
            end = place.start() + (0 if is_space else self.k)
            yield text[begin : end if is_space else end + self.k - 1]
            begin = end
        yield text[begin:]

    @cached_property
    def _runs(self) -> re.Pattern[str]:
        return re.compile(rf"{self._letter}+")

    @cached_property
    def _break(self) -> re.Pattern[str]:
        return re.compile(rf"\s|{self._letter}{{{2 * self.k}}}")

    @property
    def _letter(self) -> str:
        """Pattern of the characters of a sequence; for single letters also stops, gaps and the digits of SMILES."""
        return r"\S" if self.k == 1 else r"[^\W\d_]"

    def __str__(self) -> str:
        return "single letters" if self.k == 1 else f"overlapping {self.k}-mers"


def spacing_of(location: str) -> Spacing | None:
    """The spacing that a tokenizer needs, or None."""
    content = read_tokenizer(location)[0]
    model = content["model"]
    splitters = {step.get("type") for step in steps(content.get("pre_tokenizer"))}
    if not isinstance(model.get("vocab"), dict) or "merges" in model or not splitters or splitters - SPLITS_AT_SPACES:
        return None
    added = {token["content"] for token in added_tokens(location)}
    tokens = [token for token in model["vocab"] if token not in added and not SPECIAL.fullmatch(token)]
    sizes, alphabet = {len(token) for token in tokens}, {*"".join(tokens)}
    if len(sizes) != 1 or len(tokens) != len(alphabet) ** max(sizes):
        return None
    letters = [letter for letter in alphabet if letter.isalpha()]
    if not letters or (max(sizes) > 1 and len(letters) < len(alphabet)):
        return None
    is_upper, is_lower = (all(same(letter) == letter for letter in letters) for same in (str.upper, str.lower))
    return Spacing(max(sizes), "any" if is_upper == is_lower else "upper" if is_upper else "lower")
