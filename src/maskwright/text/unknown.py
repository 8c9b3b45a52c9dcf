"""Why a tokenizer has no token for a part of a text."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from maskwright.core.errors import StoreError
from maskwright.text.spacing import SPECIAL, Spacing, spacing_of
from maskwright.text.special_tokens import longest_of
from maskwright.text.tokenizer import load_tokenizer, no_panic
from maskwright.text.vocabulary import read_tokenizer, steps, tokens_in_text
from maskwright.text.vocabulary_files import UNKNOWN_RUN

MANY, MOST = 0.01, 0.5
"""Shares of unknown tokens: a warning from the first on, an error above the second. Texts in a language of the
tokenizer have far fewer."""
SHOWN_LETTERS = 20
WINDOW_CHARACTERS = 10_000
OTHER = "use the tokenizer of a model of such text, or train one on it with `maskwright tokenizer train`"


def fix_of(letter: str) -> str:
    """What to do about a letter of DNA that is in no k-mer."""
    of_rna = "write T for U first, such as with sed '/^>/!y/uU/tT/'"
    return of_rna if letter in "uU" else "cut DNA at other letters than A, C, G, T with --letters plain"


class Unknown(NamedTuple):
    """A part of a text that became an unknown token."""

    word: str
    """Its first letters."""
    why: str
    """The end of a sentence that begins with the word."""
    fix: str


def require_known(unknown: int, tokens: int, where: str, example: str, fix: str) -> None:
    """Raises `StoreError` if more than half of the tokens are unknown. `example`: a sentence on one of them."""
    if unknown > MOST * tokens:
        what = f"{unknown:,} of {tokens:,} tokens are unknown, so there is nothing to learn"
        raise StoreError(f"{what}{': ' if example else ''}{example}", where=where, fix=fix)


def first_unknown(location: str, text: str) -> Unknown | None:
    """The first unknown token of the text; None if there is none."""
    content, vocabulary = read_tokenizer(location)
    if vocabulary.unk is None:
        return None
    tokenizer, spacing = load_tokenizer(location, special_tokens_are_text=True), spacing_of(location)
    between = longest_of(token["content"] for token in tokens_in_text(location))
    for begin in range(0, len(text), WINDOW_CHARACTERS):
        window = text[begin : begin + WINDOW_CHARACTERS]
        if spacing:
            found = [*between.findall(window), ""]
            spaced = map(spacing.spaced, between.split(window))
            window = "".join(itertools.chain.from_iterable(zip(spaced, found, strict=True)))
        with no_panic(location):
            encoding = tokenizer.encode(window, add_special_tokens=False)
        if vocabulary.unk in encoding.ids:
            start, end = encoding.offsets[encoding.ids.index(vocabulary.unk)]
            return _explained(content, tokenizer, spacing, window[start:end])
    return None


def _explained(content: dict[str, Any], tokenizer: Any, spacing: Spacing | None, word: str) -> Unknown:
    model, shown = content["model"], repr(word if len(word) <= SHOWN_LETTERS else f"{word[:SHOWN_LETTERS]}…")
    if not isinstance(model["vocab"], dict) or "merges" in model:
        return Unknown(shown, "has no token", OTHER)
    vocab, prefix = model["vocab"], str(model.get("continuing_subword_prefix") or "##")
    normal = (tokenizer.normalizer.normalize_str(word) if tokenizer.normalizer else word).strip()
    if "max_input_chars_per_word" not in model:
        if SPECIAL.fullmatch(word) and word in vocab:
            return Unknown(
                shown, "is a special token, whose name a text may not use", "write another word, such as SEP"
            )
        fix = "train a tokenizer that splits words, with `maskwright tokenizer train --kind bpe`, or one with a larger "
        return Unknown(shown, "is not among its words", f"{fix}--vocab-size")
    letters = {*"".join(token for token in vocab if not SPECIAL.fullmatch(token))}
    if strange := next((letter for letter in normal if letter not in letters), ""):
        if strange == UNKNOWN_RUN:  # a normalizer's replacement of letters without a token
            strange = word.strip()[:1] or strange
        return _strange_letter(shown, strange, letters, content, spacing)
    if spacing and len(normal) < spacing.k:
        return Unknown(shown, f"is shorter than its tokens of {spacing.k} letters", "leave such sequences out")
    if any(f"{prefix}{letter}" not in vocab for letter in normal[1:]) or normal[:1] not in vocab:
        if len(normal) > 1 and not any(token.startswith(prefix) for token in vocab):
            fix = "put spaces between its tokens, or make a tokenizer that needs none, with `maskwright tokenizer "
            why = f"is one word of {len(word):,} letters, and this tokenizer needs spaces between its tokens"
            return Unknown(shown, why, f"{fix}train --kind characters` or `--kind kmer`")
        return Unknown(shown, "cannot be built from its tokens", OTHER)
    limit = model["max_input_chars_per_word"]
    why = f"is one word of {len(word):,} letters, more than max_input_chars_per_word of this tokenizer, {limit:,}"
    return Unknown(shown, why, "raise it in tokenizer.json, or put spaces into such words")


def _strange_letter(
    shown: str, strange: str, letters: set[str], content: dict[str, Any], spacing: Spacing | None
) -> Unknown:
    other = strange.swapcase()
    if other == strange or other not in letters:
        fix = fix_of(strange) if spacing and spacing.k > 1 else OTHER
        return Unknown(shown, f"has {strange!r}, which is in none of its tokens", fix)
    steps_of_text = steps(content.get("normalizer"))
    lowers = any(step.get("lowercase") or step.get("type") == "Lowercase" for step in steps_of_text)
    to = f'set "lowercase": {"false" if lowers else "true"} in its tokenizer.json (without one, "do_lower_case" in '
    to += "tokenizer_config.json)"
    if lowers:
        return Unknown(shown, "is turned into lower case, but the vocabulary is in upper case", to)
    if strange.isupper():
        return Unknown(shown, "is in upper case, but the vocabulary in lower case", to)
    return Unknown(shown, "is in lower case, but the vocabulary in upper case", "convert the text to upper case")
