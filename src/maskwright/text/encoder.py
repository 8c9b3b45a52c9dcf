"""Texts to ids in bulk: Hugging Face `tokenizers`, or gigatoken (the `fast` extra) where it gives the very same ids."""

from __future__ import annotations

import itertools
import json
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from maskwright.core import extras, hardware
from maskwright.core.console import say
from maskwright.core.errors import TokenizerError
from maskwright.text.tokenizer import load_tokenizer
from maskwright.text.vocabulary import ordinary_added_tokens, prepends_space, read_tokenizer

EncoderName = Literal["auto", "tokenizers", "gigatoken"]
# What splitting and normalizing are most often got wrong on: white space, contractions, digits, marks, specials, long
# runs, characters that have several forms, case.
ODD_TEXTS = (
    "  two  spaces \t tab\n\nlines \r\n end ",
    "I'll we've DON'T it's 'tis o'clock 's 't",
    "1234567890 3.14 1,000 ½ ² ٣٤ x86_64 v2.0-rc1",
    "naïve Ελληνικά русский 中文字符 日本語 한국어 العربية עברית हिन्दी ไทย",
    "emoji 👩‍👩‍👧‍👦 🇩🇪 e\u0301 \u00a0nbsp\u2009thin\u3000wide \u200bzero \ufeffbom",
    "<s> </s> <pad> <unk> <mask> [CLS] [SEP] [MASK] <bos> <eos> <|endoftext|>",
    "ﬁne ﬀ ＡＢＣ １２ ㍿ a\u0308 \u212b \u1112\u1161\u11ab \u0928\u093c Σς İı ß ÉCOLE ▁low ▁ ##ing",
    "!!!??? --- ... ''\"\"«» #hash @at $5 100% a/b\\c {}[]()<>",
    "a" * 300 + " " * 40 + "." * 300 + "\x00\x01\x1f\x7f",
)

CACHED_WORDS, TEXTS_PER_THREAD = 200_000, 128
"""For `tokenizers`: words whose ids it remembers (10,000 unless told), and texts handed to a thread at once. Books are
encoded 1.4 times as fast as with 10,000 and 20,000: what it makes of few sentences stays in the processor's cache."""

USE_TOKENIZERS = "use --encoder tokenizers"

Ids = NDArray[np.uint32]
Texts = list[str] | list[bytes]


class Encoder(Protocol):
    name: str
    by_sentence: bool
    """Whether it encodes sentences faster than the documents that they make: tokenizers by a tenth, gigatoken not."""

    joint: str
    """What a sentence that follows another is encoded with before it, so that it gets the ids it has in its document: a
    space, but for tokenizers that put one before each text themselves."""

    def encode(self, texts: Texts) -> tuple[Ids, NDArray[np.int64]]:
        """Ids of all texts, one after the other, without special tokens; and how many each has. Bytes are UTF-8."""
        ...


class TokenizersEncoder:
    name = "tokenizers"
    by_sentence = True

    def __init__(self, location: str) -> None:
        self.joint = _joint(location)
        self._tokenizer = load_tokenizer(location, special_tokens_are_text=True)
        if hasattr(self._tokenizer.model, "_resize_cache"):  # BPE and Unigram
            self._tokenizer.model._resize_cache(CACHED_WORDS)

    def encode(self, texts: Texts) -> tuple[Ids, NDArray[np.int64]]:
        size = TEXTS_PER_THREAD * len(hardware.usable_cpus())
        parts = [self._encode(texts[first : first + size]) for first in range(0, max(len(texts), 1), size)]
        return np.concatenate([ids for ids, _ in parts]), np.concatenate([counts for _, counts in parts])

    def _encode(self, texts: Texts) -> tuple[Ids, NDArray[np.int64]]:
        words = [text if isinstance(text, str) else text.decode() for text in texts]
        ids = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(words, add_special_tokens=False)]
        counts = np.fromiter(map(len, ids), np.int64, len(ids))
        return np.fromiter(itertools.chain.from_iterable(ids), np.uint32, int(counts.sum())), counts


class GigatokenEncoder:
    name = "gigatoken"
    by_sentence = False

    def __init__(self, location: str) -> None:
        import gigatoken

        content, vocabulary = read_tokenizer(location)
        ordinary = ordinary_added_tokens(content, vocabulary.special)
        self.joint = _joint(location)
        self.samples = [f"x{token['content']}y {token['content']} z" for token in ordinary]
        # Without the special ones, or `<mask>` in a text would become the mask id.
        self._tokenizer: Any = gigatoken.Tokenizer.from_json(json.dumps({**content, "added_tokens": ordinary}))

    def encode(self, texts: Texts) -> tuple[Ids, NDArray[np.int64]]:
        import awkward

        nested = self._tokenizer.encode_batch(texts)
        ids = np.asarray(awkward.flatten(nested, axis=1)).astype(np.uint32, copy=False)
        return ids, np.asarray(awkward.num(nested, axis=1)).astype(np.int64, copy=False)


def _joint(location: str) -> str:
    return "" if prepends_space(read_tokenizer(location)[0]) else " "


def open_encoder(location: str, wanted: EncoderName = "auto") -> tuple[Encoder, Encoder]:
    """The encoder to use and the one to compare it with on the text to come, which may be the same.

    `auto` takes gigatoken where it is installed and gives the ids of `tokenizers` on texts that are hard to split, and
    says so.

    Raises `InputError` when gigatoken is asked for and cannot be had, `TokenizerError` when it gives other ids.
    """
    installed = extras.installed("gigatoken")
    if wanted == "gigatoken" and not installed:
        raise extras.missing("gigatoken", "--encoder")
    referee = TokenizersEncoder(location)
    if wanted == "tokenizers" or not installed:
        return referee, referee
    try:
        encoder = GigatokenEncoder(location)
    except Exception as error:  # whatever its Rust side raises for a kind it does not know
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        if wanted == "gigatoken":
            raise TokenizerError(f"gigatoken cannot read it: {reason}", where=location, fix=USE_TOKENIZERS) from None
        say(f"gigatoken cannot read this tokenizer ({reason}): encoding with tokenizers, which is slower")
        return referee, referee
    chosen = proven(encoder, referee, [*ODD_TEXTS, *encoder.samples], location, wanted)
    if chosen is encoder:
        say("encoding with gigatoken, compared with tokenizers on a sample")
    return chosen, referee


def proven(encoder: Encoder, referee: Encoder, texts: list[str], where: str, wanted: EncoderName) -> Encoder:
    """`encoder` if it gives the ids of `referee` on all the texts. Else `referee`, saying so, when any is wanted.

    Raises `TokenizerError` when the one that differs was asked for by name.
    """
    try:
        require_equal(encoder, referee, texts, where)
    except TokenizerError as error:
        if wanted != "auto":
            raise
        say(f"{error.what}: encoding with {referee.name}, which is slower")
        return referee
    return encoder


def require_equal(encoder: Encoder, referee: Encoder, texts: list[str], where: str) -> None:
    """Raises `TokenizerError` when the two encoders differ on any of the texts."""
    for text in texts:
        found, expected = encoder.encode([text])[0], referee.encode([text])[0]
        if not np.array_equal(found, expected):
            at = next(
                (i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b),
                min(len(found), len(expected)),
            )
            what = f"{encoder.name} encodes {text[:40]!r} otherwise than {referee.name} (from token {at} on)"
            raise TokenizerError(what, where=where, fix=USE_TOKENIZERS)
