"""`maskwright tokenizer extend`: more tokens for a tokenizer, learned from a text by the tokens that they save.

BPE continues its own training: the pair of pieces that occurs most often in the text is merged, and each merge is a
token. New merges come after all old ones, so a text is first split as before, and its pieces are then joined.
BPE with ▁ does not split a text before it merges, so pairs are merged only inside words of letters, as in
SentencePiece's trainer. WordPiece and Unigram add whole words, by frequency x (pieces - 1), the tokens that each saves.
Old ids, the splitting rules and special tokens stay.
"""

from __future__ import annotations

import heapq
import math
import os
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from maskwright.core import storage
from maskwright.core.console import say, warn
from maskwright.core.errors import SourceError, TokenizerError
from maskwright.text.encoder import TokenizersEncoder
from maskwright.text.notation import without_effect
from maskwright.text.sample import MAX_BYTES, MeasuredTexts, Piece, describe_fertility, fertility, learn_from
from maskwright.text.sources import Sources
from maskwright.text.special_tokens import longest_of
from maskwright.text.tokenizer import changed_copy, load_tokenizer, split_by
from maskwright.text.vocabulary import BYTES, Vocabulary, added_tokens, read_tokenizer, read_vocabulary, tokens_in_text
from maskwright.text.word_counts import WordCounts

MARGIN = 0.01
Pair = tuple[str, str]


@dataclass
class Extension:
    """The new tokens, and their effect on held-out text."""

    tokens: list[str]
    pieces: list[list[int]]
    """[new tokens]: the old ids of each one's text."""
    merges: list[Pair] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    """[new tokens], for Unigram: the logarithm of the share of words, or just above the sum of the old pieces'."""
    documents: int = 0
    """Held-out documents; 0 if there are too few, so that the text itself is measured."""
    fertility: tuple[float, float] = (0.0, 0.0)
    """Tokens per whitespace-separated word of those documents, before and after."""


def extend_tokenizer(
    location: str, sources: Sources, folder: str, *, tokens: int, min_frequency: int = 2, max_bytes: int = MAX_BYTES
) -> tuple[Extension, Vocabulary]:
    """Writes the extended tokenizer's folder, learned from the text or from a sample of `max_bytes` of a larger one.
    The same documents give the same files.

    Raises `InputError` for a folder that is not empty, `SourceError` for a text without words of several tokens."""
    content, vocabulary = read_tokenizer(location)
    if vocabulary.kind == "words":
        fix = "train another on more text with `maskwright tokenizer train --kind words`"
        raise TokenizerError("is a tokenizer of whole words, with no pieces to join", where=location, fix=fix)
    storage.require_empty(folder)
    tokenizer = load_tokenizer(location, special_tokens_are_text=True)
    apart = BYTES | {token["content"] for token in added_tokens(location)}
    is_whole = vocabulary.kind == "sentencepiece_bpe"  # does not split a text into words
    if is_whole:
        split = _letters(tokenizer, apart)
    else:
        added = [token["content"] for token in tokens_in_text(location)]
        split = _between(added, split_by(tokenizer.normalizer, tokenizer.pre_tokenizer))
    besides = without_effect(vocabulary.kind, tokenizer.normalizer)
    words, measured = learn_from(sources, max_bytes, lambda pieces: _read(pieces, split), besides)
    pieces_of = {word: [piece.value for piece in tokenizer.model.tokenize(word)] for word in words}
    ids = {piece: tokenizer.token_to_id(piece) for pieces in pieces_of.values() for piece in pieces}
    if vocabulary.kind in ("wordpiece", "unigram"):
        extension = _whole_words(words, pieces_of, ids, vocabulary.unk, tokens, min_frequency)
        if vocabulary.kind == "unigram":
            extension.scores = _scores(extension, words, content["model"]["vocab"])
    else:
        known_tokens = set(tokenizer.get_vocab(with_added_tokens=True))
        extension = _more_merges(words, pieces_of, ids, known_tokens, tokens, min_frequency)
    if not extension.tokens:
        fix = "give more text, or text of another kind"
        if vocabulary.kind in ("wordpiece", "unigram"):
            fix = "give more text, with spaces between words: in this kind of tokenizer, a new token is a whole word"
        raise SourceError("holds no word of several tokens that occurs often enough", where=sources.files[0], fix=fix)
    if len(extension.tokens) < tokens:
        warn(f"the text supports {len(extension.tokens):,} new tokens, not {tokens:,}")
    with changed_copy(location, folder) as temporary:
        _write(location, temporary, content, vocabulary, extension)
    extension.documents = measured.documents
    before, after = (fertility(TokenizersEncoder(place), measured.texts) for place in (location, folder))
    extension.fertility = before, after
    return extension, read_vocabulary(folder)


def report(extension: Extension, vocabulary: Vocabulary, folder: str) -> str:
    """In byte-level BPE, tokens are shown as the letters that their bytes are, and the space as Ġ."""
    shown = extension.tokens[:12]
    if vocabulary.kind == "byte_level_bpe":
        tokenizer = load_tokenizer(folder, special_tokens_are_text=True)
        shown = [tokenizer.decode([tokenizer.token_to_id(token)]).replace(" ", "Ġ") for token in shown]
    return "\n".join(
        [
            f"{folder}: {vocabulary.size:,} tokens, {len(extension.tokens):,} of them new, fingerprint "
            f"{vocabulary.fingerprint[:16]}",
            f"new: {', '.join(shown)} …",
            describe_fertility(extension.fertility, extension.documents),
        ]
    )


def _between(tokens: list[str], split: Callable[[str], Iterable[str]]) -> Callable[[str], Iterable[str]]:
    """Splits the text between `tokens`, whose letters are no words."""
    if not tokens:
        return split
    found = longest_of(tokens)
    return lambda text: (word for part in found.split(text) for word in split(part))


def _letters(tokenizer: Any, apart: Collection[str]) -> Callable[[str], Iterable[str]]:
    """Splits a text into words of letters, with ▁ before them or not, and yields the words of several pieces.
    `apart`: pieces that are never joined."""

    # Whether two pieces are joined depends on them alone, so a new merge has the same effect in any text.

    def joined(left: str, right: str) -> bool:
        left_fits = left == "▁" or unicodedata.category(left[-1])[0] in "LM"
        return left_fits and left not in apart and right not in apart and unicodedata.category(right[0])[0] in "LM"

    def words(text: str) -> Iterable[str]:
        word, previous = "", ""
        for piece in [*tokenizer.encode(text, add_special_tokens=False).tokens, "▁"]:
            if previous and joined(previous, piece):
                word = (word or previous) + piece
            else:
                if word:
                    yield word
                word = ""
            previous = piece

    return words


def _read(pieces: Iterable[Piece], split: Callable[[str], Iterable[str]]) -> tuple[dict[str, int], MeasuredTexts]:
    """(count of each word, texts to measure on)"""
    words, measured = WordCounts(split, at_spaces=False), MeasuredTexts()
    for piece in pieces:
        if not measured.holds_out(piece):
            words.add(piece.text)
    counted = words.counted()
    say(f"{len(counted):,} different words")
    return counted, measured


def _whole_words(
    words: dict[str, int], pieces_of: dict[str, list[str]], ids: dict[str, int], unk: int | None, limit: int, least: int
) -> Extension:
    gains = [
        (-count * (len(pieces) - 1), word)
        for word, count in words.items()
        if count >= least
        and len(pieces := pieces_of[word]) > 1
        and {None, unk}.isdisjoint(map(ids.__getitem__, pieces))
    ]
    chosen = [word for _, word in heapq.nsmallest(limit, gains)]
    return Extension(chosen, [[ids[piece] for piece in pieces_of[word]] for word in chosen])


def _scores(extension: Extension, words: dict[str, int], vocab: list[list[Any]]) -> list[float]:
    """Scores with which a new token is the likeliest segmentation of its word."""
    total = sum(words.values())
    return [
        round(max(math.log(words[token] / total), sum(vocab[index][1] for index in pieces) + MARGIN), 6)
        for token, pieces in zip(extension.tokens, extension.pieces, strict=True)
    ]


def _more_merges(
    words: dict[str, int], pieces_of: dict[str, list[str]], ids: dict[str, int], known: set[str], limit: int, least: int
) -> Extension:
    """Merges the most frequent pair until `limit` tokens are new or no pair occurs `least` times. Of equal
    counts, the first pair in the alphabet goes first."""
    rows = [(list(pieces_of[word]), count) for word, count in sorted(words.items()) if len(pieces_of[word]) > 1]
    counts: Counter[Pair] = Counter()
    words_with: defaultdict[Pair, set[int]] = defaultdict(set)
    for word_idx, (pieces, count) in enumerate(rows):
        for pair in pairwise(pieces):
            counts[pair] += count
            words_with[pair].add(word_idx)
    heap = [(-count, pair) for pair, count in counts.items()]
    heapq.heapify(heap)
    new_pieces: dict[str, list[int]] = {}
    merges: list[Pair] = []
    while heap and len(new_pieces) < limit:
        negative, pair = heapq.heappop(heap)
        if -negative != counts[pair]:  # an older count of a pair that has changed since
            continue
        if -negative < least:
            break
        new = "".join(pair)
        if new in known:  # ids of texts with this token would depend on the order of old and new merges
            continue
        merges.append(pair)
        new_pieces.setdefault(new, [index for piece in pair for index in (new_pieces.get(piece) or [ids[piece]])])
        changed = set[Pair]()
        for word_idx in sorted(words_with.pop(pair)):
            changed |= _merge(rows, word_idx, pair, counts, words_with)
        for neighbour in changed - {pair}:
            if counts[neighbour] > 0:
                heapq.heappush(heap, (-counts[neighbour], neighbour))
    return Extension(list(new_pieces), list(new_pieces.values()), merges)


def _merge(
    rows: list[tuple[list[str], int]],
    word_idx: int,
    pair: Pair,
    counts: Counter[Pair],
    words_with: defaultdict[Pair, set[int]],
) -> set[Pair]:
    """Merges a pair in one word. Returns the pairs whose counts have changed."""
    pieces, count = rows[word_idx]
    merged, index = list[str](), 0
    while index < len(pieces):
        is_pair = tuple(pieces[index : index + 2]) == pair
        merged.append("".join(pair) if is_pair else pieces[index])
        index += 2 if is_pair else 1
    rows[word_idx] = (merged, count)
    before, after = Counter(pairwise(pieces)), Counter(pairwise(merged))
    changed = {neighbour for neighbour in before | after if before[neighbour] != after[neighbour]}
    for neighbour in changed:
        counts[neighbour] += count * (after[neighbour] - before[neighbour])
        (words_with[neighbour].add if after[neighbour] else words_with[neighbour].discard)(word_idx)
    return changed


# ---- files -----------------------------------------------------------------------------------------------------------


def _write(location: str, folder: str, content: dict[str, Any], vocabulary: Vocabulary, extension: Extension) -> None:
    """Writes the `tokenizer.json`. New ids follow all old ones."""
    model = dict(content["model"])
    new = {token: vocabulary.size + index for index, token in enumerate(extension.tokens)}
    # The library numbers added tokens that the vocabulary lacks from its end on, so all must be in it to stay.
    added = {token["content"]: token["id"] for token in content.get("added_tokens") or []}
    if isinstance(model["vocab"], dict):
        model["vocab"] = {**model["vocab"], **added, **new}
    else:
        beyond_vocab = sorted((index, token) for token, index in added.items() if index >= len(model["vocab"]))
        old = [*model["vocab"], *([token, 0.0] for _, token in beyond_vocab)]
        if len(old) != vocabulary.size:
            fix = "save the folder again with `transformers`"
            raise TokenizerError("has ids without a token", where=location, fix=fix)
        model["vocab"] = [*old, *map(list, zip(new, extension.scores, strict=True))]
    if extension.merges:
        is_text = bool(model["merges"]) and isinstance(model["merges"][0], str)
        model["merges"] = [*model["merges"], *map(" ".join if is_text else list, extension.merges)]
    storage.write_json(os.path.join(folder, "tokenizer.json"), {**content, "model": model})
