"""Special tokens written out in a text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

from maskwright.text.special_tokens import WELL_KNOWN
from maskwright.text.tokenizer import load_tokenizer
from maskwright.text.vocabulary import read_vocabulary, token_ids, tokens_in_text


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens to look for."""

    with_role: tuple[str, ...]
    """Tokens of the five roles, which stay text."""
    fate_of_roles: str
    """How `data prepare` treats them."""
    declared: tuple[str, ...] = ()
    """Patterns of the others, which become their ids."""

    @staticmethod
    def of(location: str | None) -> SpecialTokens:
        """A tokenizer's own; without a tokenizer, well-known ones."""
        if location is None:
            names = tuple(chain.from_iterable(WELL_KNOWN.values()))
            return SpecialTokens(names, "keeps them as text, except tokens that a tokenizer declares: name it")
        vocabulary = read_vocabulary(location)
        additional, has_role = vocabulary.additional, vocabulary.special - vocabulary.additional
        names = tuple(sorted(name for name, index in token_ids(location).items() if index in has_role))
        normalizer = load_tokenizer(location, special_tokens_are_text=True).normalizer
        patterns = [_pattern(token, normalizer) for token in tokens_in_text(location) if token["id"] in additional]
        return SpecialTokens(names, "keeps them as text; they never become special ids", tuple(patterns))

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        # Longer tokens first, as in the library: `<s>NOTUSED` is not `<s>`.
        longest_first = sorted([*map(re.escape, self.with_role), *self.declared], key=len, reverse=True)
        return re.compile(f"(?:{'|'.join(longest_first)})")

    def first_in(self, text: str) -> tuple[str | None, str | None]:
        """(the first special token with a role, the first other special token)"""
        with_role = declared = None
        for match in self._expression.finditer(text):
            if match.group() in self.with_role:
                with_role = with_role or match.group()
            else:
                declared = declared or match.group()
            if with_role and (declared or not self.declared):
                break
        return with_role, declared


def _pattern(token: dict[str, Any], normalizer: Any) -> str:
    """Matches a declared token where the tokenizer finds it."""
    whole = re.escape(token["content"])
    whole = rf"(?<!\w){whole}(?!\w)" if token.get("single_word") else whole
    if not token.get("normalized") or normalizer is None:
        return whole
    upper, lower = (normalizer.normalize_str(change(token["content"])) for change in (str.upper, str.lower))
    return f"(?i:{whole})" if upper == lower else whole
