"""Texts to ids in bulk: Hugging Face `tokenizers`, or gigatoken (the `fast` extra) if it gives exactly the same ids."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from maskwright.core import extras
from maskwright.core.console import say
from maskwright.core.errors import TokenizerError
from maskwright.machine import hardware
from maskwright.text.pieces import BREAK, PIECE_CHARACTERS
from maskwright.text.spacing import spacing_of
from maskwright.text.special_tokens import letters_of
from maskwright.text.tokenizer import load_tokenizer, no_panic
from maskwright.text.vocabulary import prepends_space, read_tokenizer, tokens_in_text

EncoderName = Literal["auto", "tokenizers", "gigatoken"]
# Texts on which reimplementations of splitting and normalizing fail most often: white space, contractions, digits,
# marks, special tokens, long runs, characters with several forms, case.
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
"""For `tokenizers`: words whose ids it caches (10,000 by default), and texts per thread and call. Books are encoded 1.4
times as fast as with 10,000 and 20,000, since results of few sentences stay in the processor's cache."""

CALL_CHARACTERS = 4_000_000
"""Most characters of one call to `tokenizers`. Texts above `PIECE_CHARACTERS` go in pieces."""
BREAK_CHARACTERS, MOST_BREAKS = 200, 20
"""Context on each side by which a cut is tested, and how many neighbouring positions are tried."""

USE_TOKENIZERS = "use --encoder tokenizers"

Ids = NDArray[np.uint32]
Texts = list[str] | list[bytes]


class Encoder(Protocol):
    name: str
    by_sentence: bool
    """Whether sentences are encoded faster than whole documents: by a tenth with tokenizers, but not with gigatoken."""

    sentence_prefix: str
    """Prefix with which a sentence gets the ids that it has inside its document: a space; empty for tokenizers that put
    one before each text themselves."""

    added: tuple[str, ...]
    """Added tokens before which a sentence's space stays, even if the tokenizer puts one before each text."""
    before_space: dict[int, str]
    """Added tokens, by id, after which `sentence_prefix` is wrong, since they take the white space, or since the rest
    is a text of its own to a tokenizer that puts a space before each."""

    def encode(self, texts: Texts) -> tuple[Ids, NDArray[np.int64]]:
        """(ids of all texts, one after the other, without special tokens; [texts] ids of each). Bytes are UTF-8."""
        ...


class TokenizersEncoder:
    name = "tokenizers"
    by_sentence = True

    def __init__(self, location: str) -> None:
        self.location, self.sentence_prefix, self._cut = location, _sentence_prefix(location), _cutter(location)
        self.added, self.before_space = _added(location)
        self._tokenizer = load_tokenizer(location, special_tokens_are_text=True)
        if hasattr(self._tokenizer.model, "_resize_cache"):  # BPE and Unigram
            self._tokenizer.model._resize_cache(CACHED_WORDS)

    def encode(self, texts: Texts) -> tuple[Ids, NDArray[np.int64]]:
        return _in_pieces(self._encode_all, texts, self.sentence_prefix, self._cut)

    def _encode_all(self, texts: Texts) -> tuple[Ids, NDArray[np.int64]]:
        parts = [self._encode(batch) for batch in _calls(texts)]
        return np.concatenate([ids for ids, _ in parts]), np.concatenate([counts for _, counts in parts])

    def _encode(self, texts: Texts) -> tuple[Ids, NDArray[np.int64]]:
        words = [text if isinstance(text, str) else text.decode() for text in texts]
        with no_panic(self.location):
            ids = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(words, add_special_tokens=False)]
        counts = np.fromiter(map(len, ids), np.int64, len(ids))
        return np.fromiter(itertools.chain.from_iterable(ids), np.uint32, int(counts.sum())), counts


class GigatokenEncoder:
    name = "gigatoken"
    by_sentence = False

    def __init__(self, location: str) -> None:
        import gigatoken

        added = tokens_in_text(location)
        self.sentence_prefix, (self.added, self.before_space) = _sentence_prefix(location), _added(location)
        self.samples = [f"x{token['content']}y {token['content']} z" for token in added]
        # Without the tokens of the five roles; otherwise `<mask>` in a text would become the mask id.
        content = {**read_tokenizer(location)[0], "added_tokens": [{**token, "special": False} for token in added]}
        self._tokenizer: Any = gigatoken.Tokenizer.from_json(json.dumps(content))

    def encode(self, texts: Texts) -> tuple[Ids, NDArray[np.int64]]:
        return _in_pieces(self._encode, texts, self.sentence_prefix)

    def _encode(self, texts: Texts) -> tuple[Ids, NDArray[np.int64]]:
        import awkward

        nested = self._tokenizer.encode_batch(texts)
        ids = np.asarray(awkward.flatten(nested, axis=1)).astype(np.uint32, copy=False)
        return ids, np.asarray(awkward.num(nested, axis=1)).astype(np.int64, copy=False)


Encode = Callable[[Texts], tuple[Ids, NDArray[np.int64]]]


def _calls(texts: Texts) -> Iterator[Texts]:
    """Texts in runs of one call each; one empty run if there is no text."""
    call_texts, begin, characters = TEXTS_PER_THREAD * len(hardware.usable_cpus()), 0, 0
    for text_idx, text in enumerate(texts):
        if text_idx > begin and (text_idx - begin == call_texts or characters + len(text) > CALL_CHARACTERS):
            yield texts[begin:text_idx]
            begin, characters = text_idx, 0
        characters += len(text)
    yield texts[begin:]


def _in_pieces(
    encode: Encode, texts: Texts, sentence_prefix: str, cut: Callable[[str], Iterable[str]] | None = None
) -> tuple[Ids, NDArray[np.int64]]:
    """`encode`, with long texts in pieces. `cut`: gives them, if the tokenizer's splitting is known."""
    if max(map(len, texts), default=0) <= PIECE_CHARACTERS:
        return encode(texts)
    pieces: list[Any] = []
    begins: list[int] = []
    for text in texts:
        begins.append(len(pieces))
        if len(text) <= PIECE_CHARACTERS:
            pieces.append(text)
        else:
            words = text if isinstance(text, str) else text.decode()
            parts = cut(words) if cut else _pieces(encode, words, sentence_prefix)
            pieces += parts if isinstance(text, str) else [piece.encode() for piece in parts]
    ids, counts = encode(pieces)
    return ids, np.add.reduceat(counts, begins)


def _pieces(encode: Encode, text: str, sentence_prefix: str) -> Iterator[str]:
    """Pieces whose ids, joined, are the text's ids. A text without a place to cut is one piece."""
    begin, prefix = 0, ""
    while (cut := _next_cut(encode, text, begin, sentence_prefix)) is not None:
        end, next_begin, next_prefix = cut
        yield prefix + text[begin:end]
        begin, prefix = next_begin, next_prefix
    yield prefix + text[begin:]


def _next_cut(encode: Encode, text: str, begin: int, prefix: str) -> tuple[int, int, str] | None:
    """(end of the piece that begins at `begin`, begin of the next one, its prefix); None for no place to cut."""
    earliest = begin + PIECE_CHARACTERS
    while earliest < len(text):
        place = earliest
        for match in itertools.islice(BREAK.finditer(text, earliest), MOST_BREAKS):
            place = match.start()
            cut = (place, place + 1, prefix) if match.group() == " " else (place + 1, place + 1, "")
            if _changes_no_id(encode, text, cut):
                return cut
        if place == earliest:
            return None
        earliest = place + PIECE_CHARACTERS
    return None


def _changes_no_id(encode: Encode, text: str, cut: tuple[int, int, str]) -> bool:
    """Whether the text around a cut keeps its ids. Splitting and merging look no further than words."""
    end, after, lead = cut
    begin, stop = max(end - BREAK_CHARACTERS, 0), after + BREAK_CHARACTERS
    (whole_ids, _), (piece_ids, _) = (encode([text[begin:stop]]), encode([text[begin:end], lead + text[after:stop]]))
    return np.array_equal(whole_ids, piece_ids)


def _cutter(location: str) -> Callable[[str], Iterable[str]] | None:
    """Cuts sequences into pieces of whole tokens, for a tokenizer of `sequences` or one with a `Spacing`; None for
    other tokenizers."""
    content, added = read_tokenizer(location)[0], tokens_in_text(location)
    if spacing := spacing_of(location):
        return None if added else spacing.pieces  # a piece might end inside a declared token
    letters = letters_of(location)
    if letters is None or (content.get("pre_tokenizer") or {}).get("pattern") != {"Regex": f"(?m:{letters})"}:
        return None
    # A token that may begin inside a group, or that depends on its neighbours, leaves no safe place to cut.
    if any(token["content"][:1].isalpha() or token.get("single_word") or token.get("normalized") for token in added):
        return None
    whole = [_with_space(token) for token in sorted(added, key=lambda token: -len(token["content"]))]
    group = "|".join([*whole, letters])
    return re.compile(f"(?:{group}){{1,{PIECE_CHARACTERS}}}+", re.DOTALL | re.ASCII | re.IGNORECASE).findall


def _with_space(token: dict[str, Any]) -> str:
    """A pattern for an added token and the white space that it takes."""
    before, after = (r"(?u:\s*)" if token.get(side) else "" for side in ("lstrip", "rstrip"))
    return f"{before}(?-i:{re.escape(token['content'])}){after}"


def _sentence_prefix(location: str) -> str:
    return "" if prepends_space(read_tokenizer(location)[0]) else " "


def _added(location: str) -> tuple[tuple[str, ...], dict[int, str]]:
    """(`added`, `before_space`) of an encoder."""
    tokens, all_of_them = tokens_in_text(location), prepends_space(read_tokenizer(location)[0])
    before_space = {token["id"]: token["content"] for token in tokens if all_of_them or token.get("rstrip")}
    return tuple(token["content"] for token in tokens), before_space


def open_encoder(location: str, name: EncoderName = "auto") -> tuple[Encoder, Encoder]:
    """(encoder, reference encoder for comparisons while encoding; possibly the same).

    `auto` uses gigatoken if it is installed and gives the ids of `tokenizers` on `ODD_TEXTS`, with a note. Raises
    `InputError` if gigatoken is requested but not installed, `TokenizerError` if it gives other ids.
    """
    installed = extras.installed("gigatoken")
    if name == "gigatoken" and not installed:
        raise extras.missing("gigatoken", "--encoder")
    referee = TokenizersEncoder(location)
    if name == "tokenizers" or not installed:
        return referee, referee
    try:
        encoder = GigatokenEncoder(location)
    except Exception as error:  # its Rust side may raise anything for an unsupported kind
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        if name == "gigatoken":
            raise TokenizerError(f"gigatoken cannot read it: {reason}", where=location, fix=USE_TOKENIZERS) from None
        say(f"encoding with tokenizers; gigatoken, which is faster, does not support this kind of tokenizer ({reason})")
        return referee, referee
    chosen = verified(encoder, referee, [*ODD_TEXTS, *encoder.samples], location, name)
    if chosen is encoder:
        say("encoding with gigatoken, compared with tokenizers on a sample")
    return chosen, referee


def verified(encoder: Encoder, referee: Encoder, texts: list[str], where: str, name: EncoderName) -> Encoder:
    """`encoder` if it gives all texts the ids of `referee`; else `referee`, with a note. Raises `TokenizerError` if
    an encoder that differs was requested by name."""
    try:
        require_equal(encoder, referee, texts, where)
    except TokenizerError as error:
        if name != "auto":
            raise
        say(f"{error.what}: encoding with {referee.name}, which is slower")
        return referee
    return encoder


def require_equal(encoder: Encoder, referee: Encoder, texts: list[str], where: str) -> None:
    """Raises `TokenizerError` when the two encoders differ on any of the texts."""
    for text in texts:
        ids, expected = encoder.encode([text])[0], referee.encode([text])[0]
        if not np.array_equal(ids, expected):
            token_idx = next(
                (i for i, (a, b) in enumerate(zip(ids, expected, strict=False)) if a != b), min(len(ids), len(expected))
            )
            what = f"{encoder.name} encodes {text[:40]!r} differently from {referee.name} (from token {token_idx} on)"
            raise TokenizerError(what, where=where, fix=USE_TOKENIZERS)
