"""`maskwright tokenizer trim`: the part of a tokenizer's vocabulary that a text uses.

Special and added tokens stay, and so do bytes and the parts of kept tokens: the pieces that BPE merges, and the
characters of each. A text whose tokens all stay is split as before. BPE makes the same merges, since all of
them stay, in the old order; WordPiece finds no longer tokens than before, and Unigram no likelier ones. A word with a
removed token is split into smaller ones.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from maskwright.core import storage
from maskwright.core.errors import InputError, TokenizerError
from maskwright.text.arrays import Int64
from maskwright.text.encoder import Encoder, TokenizersEncoder
from maskwright.text.notation import without_effect
from maskwright.text.sample import MAX_BYTES, MeasuredTexts, Piece, describe_fertility, fertility, learn_from
from maskwright.text.sources import Sources
from maskwright.text.spacing import spacing_of
from maskwright.text.special_tokens import CONFIG_FILES
from maskwright.text.tokenizer import changed_copy, load_tokenizer
from maskwright.text.vocabulary import BYTES, Vocabulary, merges_of, read_tokenizer, read_vocabulary, token_ids

BYTE_LETTERS = (*range(33, 127), *range(161, 173), *range(174, 324))
"""GPT-2's stand-ins for the 256 bytes: the visible characters, and 68 that follow Latin-1."""
AT_ONCE = 1_000
"""Texts that are encoded together."""
LOW_IDS = 10
"""RoBERTa and related models count positions from the id of padding. If that is below this, all ids before it stay."""
OLD_IDS = "old_ids.json"
"""The file next to `tokenizer.json` with the old id of each new one."""


@dataclass(frozen=True)
class Trimming:
    """The rest of a vocabulary, and its effect on a text."""

    old_ids: list[int]
    """[new ids]: the id that each token had, in ascending order."""
    removed: int
    """Tokens."""
    documents: int
    """Held-out documents; 0 if there are too few, so that the text itself is measured."""
    fertility: tuple[float, float]
    """Tokens per whitespace-separated word of those documents, before and after trimming by all others. The tokenizer
    that is written keeps their tokens too."""


def trim_tokenizer(
    location: str,
    sources: Sources,
    folder: str,
    *,
    min_frequency: int = 1,
    vocab_size: int | None = None,
    max_bytes: int = MAX_BYTES,
) -> tuple[Trimming, Vocabulary]:
    """Writes the trimmed tokenizer's folder, by the text or by a sample of `max_bytes` of a larger one. A token stays
    if it occurs `min_frequency` times; with `vocab_size`, the most frequent ones stay. The same documents give the same
    files.

    Raises `InputError` for a folder that is not empty, and for a `vocab_size` below the tokens that must stay;
    `TokenizerError` for overlapping k-mers, which need all tokens for spacing."""
    content, vocabulary = read_tokenizer(location)
    if (spacing := spacing_of(location)) and spacing.k > 1:
        what = f"has {spacing}, and could not space a sequence without some of them"
        raise TokenizerError(what, where=location, fix="keep it whole")
    storage.require_empty(folder)
    tokenizer, ids = load_tokenizer(location, special_tokens_are_text=True), token_ids(location)
    besides = without_effect(vocabulary.kind, tokenizer.normalizer)
    encoder = TokenizersEncoder(location)
    learned, held_out, measured = learn_from(
        sources, max_bytes, lambda pieces: _count(pieces, encoder, vocabulary.size), besides
    )
    tokens = _Tokens(content, ids, vocabulary)
    old_ids = tokens.kept(learned + held_out, min_frequency, vocab_size)
    with tempfile.TemporaryDirectory() as scratch:
        with changed_copy(location, f"{scratch}/measured") as temporary:
            _write(location, temporary, content, tokens.kept(learned, min_frequency, vocab_size))
        trimmed = TokenizersEncoder(f"{scratch}/measured")
        ratios = fertility(encoder, measured.texts), fertility(trimmed, measured.texts)
    with changed_copy(location, folder) as temporary:
        _write(location, temporary, content, old_ids)
    removed = len(set(ids.values())) - len(old_ids)
    return Trimming(old_ids, removed, measured.documents, ratios), read_vocabulary(folder)


def report(trimming: Trimming, vocabulary: Vocabulary, folder: str) -> str:
    return "\n".join(
        [
            f"{folder}: {vocabulary.size:,} tokens, {trimming.removed:,} were removed, fingerprint "
            f"{vocabulary.fingerprint[:16]}",
            describe_fertility(trimming.fertility, trimming.documents),
        ]
    )


def _count(pieces: Iterable[Piece], encoder: Encoder, size: int) -> tuple[Int64, Int64, MeasuredTexts]:
    """(count of each id in the rest, and in the held-out documents, [size] each; texts to measure on)"""
    measured, waiting_texts = MeasuredTexts(), (list[str](), list[str]())
    counts = (np.zeros(size, np.int64), np.zeros(size, np.int64))

    def count(is_held_out: bool) -> None:
        counts[is_held_out][:] += np.bincount(encoder.encode(waiting_texts[is_held_out])[0], minlength=size)
        waiting_texts[is_held_out].clear()

    for piece in pieces:
        is_held_out = measured.holds_out(piece)
        waiting_texts[is_held_out].append(piece.text)
        if len(waiting_texts[is_held_out]) == AT_ONCE:
            count(is_held_out)
    count(False)
    count(True)
    return *counts, measured


# ---- kept tokens ----------------------------------------------------------------------------------------------------


class _Tokens:
    """The tokens of a vocabulary, and the parts that each is built from."""

    def __init__(self, content: dict[str, Any], ids: dict[str, int], vocabulary: Vocabulary) -> None:
        model = content["model"]
        self._ids = ids
        self._tokens = {index: token for token, index in ids.items()}
        self._prefix = str(model.get("continuing_subword_prefix") or ("##" if vocabulary.kind == "wordpiece" else ""))
        self._is_bpe = "merges" in model
        self._merges = {pair: rank for rank, pair in enumerate(merges_of(model))}
        self._always = {int(token["id"]) for token in content.get("added_tokens") or []} | vocabulary.special
        self._always |= set(range(vocabulary.pad)) if vocabulary.pad < LOW_IDS else set()
        letters = map(chr, BYTE_LETTERS) if vocabulary.kind == "byte_level_bpe" else ()
        self._always |= self._ids_of([*BYTES, *letters])

    def _ids_of(self, tokens: Iterable[str]) -> set[int]:
        """The ids of those that are tokens."""
        return {self._ids[token] for token in tokens if token in self._ids}

    def kept(self, counts: Int64, min_frequency: int, vocab_size: int | None) -> list[int]:
        """The ids that stay, in ascending order. `counts`: [old ids], of each token in the text."""
        ids = set(self._always)
        for index in np.flatnonzero(counts).tolist():
            ids |= self._ids_of(self._characters(self._tokens.get(index, "")))
        if vocab_size is not None and len(ids) > vocab_size:
            what = f"--vocab-size {vocab_size} is too small, since {len(ids):,} tokens must stay"
            raise InputError(what, fix=f"give {len(ids)} or more, for special and added tokens, bytes and characters")
        by_frequency = np.lexsort((np.arange(len(counts)), -counts))
        for index in by_frequency[: np.count_nonzero(counts >= min_frequency)].tolist():
            if index not in ids and (token := self._tokens.get(index)) is not None:
                needed = {index, *self._built_from(token)} - ids
                if vocab_size is None or len(ids) + len(needed) <= vocab_size:
                    ids |= needed
        return sorted(ids)

    def _characters(self, token: str) -> list[str]:
        """The tokens of one character that encode a token if it is removed."""
        continues = bool(self._prefix) and token.startswith(self._prefix)
        begin, *rest = list(token.removeprefix(self._prefix)) or [""]
        return [f"{self._prefix}{begin}" if continues else begin, *(f"{self._prefix}{letter}" for letter in rest)]

    def _built_from(self, token: str) -> set[int]:
        """The ids of all tokens that BPE merges on the way from the characters of `token` to it; none if it merges them
        to another token, as for a token that only `ignore_merges` finds."""
        if not self._is_bpe:
            return set()
        parts, tokens = list(token), set[str](token)
        while len(parts) > 1:
            ranks = [self._merges.get((left, right)) for left, right in pairwise(parts)]
            if (best := min((rank for rank in ranks if rank is not None), default=None)) is None:
                return set()
            index = ranks.index(best)
            parts[index : index + 2] = ["".join(parts[index : index + 2])]
            tokens.add(parts[index])
        return self._ids_of(tokens)


# ---- files -----------------------------------------------------------------------------------------------------------


def _write(location: str, folder: str, content: dict[str, Any], old_ids: Sequence[int]) -> None:
    """Writes the folder with ids from 0 on. tokenizer.json comes last and makes the folder whole."""
    new_id = {old: index for index, old in enumerate(old_ids)}
    ordered = sorted(token_ids(location).items(), key=lambda pair: pair[1])
    ids = {token: new_id[old] for token, old in ordered if old in new_id}
    model = dict(content["model"])
    if isinstance(model["vocab"], dict):
        model["vocab"] = ids
    else:
        # The library numbers added tokens that the list lacks from its end on, so all must be in it to stay.
        scores = dict(map(tuple, model["vocab"]))
        model["vocab"] = [[token, scores.get(token, 0.0)] for token in ids]
        if model.get("unk_id") is not None:
            model["unk_id"] = new_id[model["unk_id"]]
    if "merges" in model:
        pairs = [pair for pair in merges_of(model) if {*pair, "".join(pair)} <= ids.keys()]
        is_text = bool(model["merges"]) and isinstance(model["merges"][0], str)
        model["merges"] = [*map(" ".join if is_text else list, pairs)]
    _renew_config(folder, new_id)
    storage.write_json(os.path.join(folder, OLD_IDS), list(old_ids))
    tokenizer = {**content, "model": model}
    tokenizer["added_tokens"] = [{**token, "id": new_id[token["id"]]} for token in content.get("added_tokens") or []]
    tokenizer["post_processor"] = _renumbered(content.get("post_processor"), ids)
    tokenizer |= {"padding": None, "truncation": None}
    storage.write_json(os.path.join(folder, "tokenizer.json"), tokenizer)


def _renumbered(step: Any, ids: dict[str, int]) -> Any:
    """A post-processor with the new ids of the tokens that it names: `["</s>", 2]`, or `ids` next to `tokens`."""
    if isinstance(step, list):
        is_token = len(step) == 2 and isinstance(step[0], str) and type(step[1]) is int and step[0] in ids
        return [step[0], ids[step[0]]] if is_token else [_renumbered(part, ids) for part in step]
    if not isinstance(step, dict):
        return step
    changed = {key: _renumbered(part, ids) for key, part in step.items()}
    if isinstance(step.get("tokens"), list) and isinstance(step.get("ids"), list):
        changed["ids"] = [ids[token] for token in step["tokens"]]
    return changed


def _renew_config(folder: str, new: dict[int, int]) -> None:
    """Renews the ids in `tokenizer_config.json`, where older versions of `transformers` wrote some."""
    path = os.path.join(folder, CONFIG_FILES[0])
    config = storage.read_json_or({}, path)
    if decoder := config.get("added_tokens_decoder"):
        kept = {str(new[int(old)]): token for old, token in decoder.items() if int(old) in new}
        storage.write_json(path, {**config, "added_tokens_decoder": kept})
