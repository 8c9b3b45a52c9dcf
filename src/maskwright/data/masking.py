"""Masked-LM masking, dynamic and yet exactly repeatable: a pure function of (seed, epoch, row, position).

Every kind is one algorithm. Each candidate token gets a random key; tokens with equal keys form a group that is taken
whole. Groups are taken in order of key until the row's budget (rate x its text tokens) is met. The group that crosses
the budget is taken with the probability that makes the expected count exact.
  token       every token its own group (RoBERTa)
  whole_word  the tokens of a word: one that starts with white space (Ġ) and those after it that do not
  span        runs of words, length geometric(0.2) cut at 10 (SpanBERT, Joshi et al. 2020)
A word of more than 8 tokens (text without spaces is one word) and a span of more than 16 are cut into groups of that
size, so that a group always fits a row's slots and the expected count stays exact. One 80/10/10 draw is made for each
group (fairseq's rule for words). Special tokens are never taken nor drawn as replacements. A row has at most `slots`
predictions, so that shapes are static.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from maskwright.data import bits
from maskwright.data.batch import Int32
from maskwright.text.vocabulary import Vocabulary

Kind = Literal["token", "whole_word", "span"]
SPAN_STOP_PROBABILITY, LONGEST_SPAN_WORDS = 0.2, 10
LONGEST_GROUP_TOKENS = {"token": 1, "whole_word": 8, "span": 16}
MASK_PURPOSE = 2
# What is derived inside a row must not meet the numbers of its positions and words, so these lie above them all.
EDGE_PURPOSE, ACTION_PURPOSE, LENGTH_PURPOSE = 2**32 + 1, 2**32 + 2, 2**32 + 3
REPLACEMENT_PURPOSE, PIECE_PURPOSE = 2**33, 2**34


@dataclass(frozen=True)
class Masker:
    """The vocabulary's tables, ready for use. `ordinary`: ids that may replace a token."""

    special: NDArray[np.bool_]
    word_start: NDArray[np.bool_]
    ordinary: Int32
    mask_id: int

    @staticmethod
    def of(vocabulary: Vocabulary) -> Masker:
        special = np.zeros(vocabulary.size, bool)
        special[sorted(vocabulary.special)] = True
        word_start = np.array(vocabulary.word_start, bool)
        return Masker(special, word_start, np.flatnonzero(~special).astype(np.int32), vocabulary.mask)


def slots_per_row(kind: Kind, rate: float, seq_len: int) -> int:
    """Static room for predictions in a row: the budget of a full row, and the longest group that may cross it."""
    return min(seq_len, math.ceil(rate * (seq_len - 1)) + LONGEST_GROUP_TOKENS[kind])


def mask_rows(
    masker: Masker,
    input_ids: Int32,
    segment_ids: Int32,
    *,
    seed: int,
    epochs: NDArray[np.int64],
    rows: NDArray[np.int64],
    kind: Kind,
    rate: float,
    slots: int,
    mask_share: float = 0.8,
    random_share: float = 0.1,
) -> tuple[Int32, Int32, Int32, NDArray[np.float32]]:
    """Masks `input_ids` [M, T] and returns (input_ids, predict_index [M*slots], labels, weights) as in `Batch`.

    `epochs` and `rows` [M] name each row; the result for a row does not depend on the other rows.
    """
    M, T = input_ids.shape
    row_keys = bits.extend(bits.extend(bits.key(seed, MASK_PURPOSE), epochs.astype(np.uint64)), rows.astype(np.uint64))[
        :, None
    ]
    candidate = (segment_ids > 0) & ~masker.special[input_ids]
    keys = np.where(candidate, _group_keys(masker, input_ids, segment_ids, row_keys, kind), bits.NEVER)

    budget = rate * candidate.sum(axis=1)
    edge = bits.uniform(bits.extend(row_keys, _purpose(EDGE_PURPOSE)))[:, 0]
    row, column, count = _choose(keys, budget, edge, slots)

    labels = input_ids[row, column]
    mixed = bits.extend(keys[row, column], _purpose(ACTION_PURPOSE))
    action = bits.uniform(mixed)
    draw = bits.extend(mixed, column.astype(np.uint64) + np.uint64(REPLACEMENT_PURPOSE))
    replacement = masker.ordinary[(draw % np.uint64(len(masker.ordinary))).astype(np.int64)]
    shown = np.where(action < mask_share + random_share, replacement, labels)
    masked = input_ids.copy()
    masked[row, column] = np.where(action < mask_share, masker.mask_id, shown)

    # Each row's predictions at the beginning of its slots; the rest are fillers.
    slot = row * slots + np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    index, padded_labels = np.zeros(M * slots, np.int32), np.zeros(M * slots, np.int32)
    weights = np.zeros(M * slots, np.float32)
    index[slot], padded_labels[slot], weights[slot] = row * T + column, labels, 1.0
    return masked, index, padded_labels, weights


def _purpose(number: int) -> bits.Bits:
    return np.array([number], np.uint64)


def _group_keys(masker: Masker, input_ids: Int32, segment_ids: Int32, row_keys: bits.Bits, kind: Kind) -> bits.Bits:
    """[M, T] random bits, equal for the tokens of one group."""
    T = input_ids.shape[1]
    position = np.arange(T, dtype=np.uint64)[None, :]
    if kind == "token":
        return bits.extend(row_keys, position)
    special = masker.special[input_ids]
    start = masker.word_start[input_ids] | special
    start[:, 0] = True
    start[:, 1:] |= special[:, :-1] | (segment_ids[:, 1:] != segment_ids[:, :-1])
    word = np.cumsum(start, axis=1) - 1  # [M, T] number of the word that each token belongs to
    per_word = bits.extend(row_keys, position)  # [M, T] used by word number; the last ones stay unused
    first_word = np.broadcast_to(np.arange(T), word.shape)  # [M, T] by word number: the word where its group starts
    if kind == "span":
        per_word, first_word = _span_keys(per_word, word, segment_ids)
    # Cut long groups: the first piece keeps its key, so spans of ordinary length keep their order of priority.
    first_token = np.zeros(word.shape, np.int64)  # [M, T] by word number
    row, column = np.nonzero(start)
    first_token[row, word[row, column]] = column
    group_start = np.take_along_axis(first_token, np.take_along_axis(first_word, word, axis=1), axis=1)
    piece = (np.arange(T) - group_start) // LONGEST_GROUP_TOKENS[kind]
    keys = np.take_along_axis(per_word, word, axis=1)
    return np.where(piece == 0, keys, bits.extend(keys, piece.astype(np.uint64) + np.uint64(PIECE_PURPOSE)))


def _span_keys(per_word: bits.Bits, word: NDArray[np.int64], segment_ids: Int32) -> tuple[bits.Bits, NDArray[np.int64]]:
    """Each word starts a span of random length and priority; a word's key is the best priority that covers it.

    Returns, by word number, the keys and the word where the best span starts.
    """
    M, T = per_word.shape
    draw = 1.0 - bits.uniform(bits.extend(per_word, _purpose(LENGTH_PURPOSE)))  # in (0, 1]
    length = 1 + np.floor(np.log(draw) / math.log(1.0 - SPAN_STOP_PROBABILITY))
    length = np.minimum(length, LONGEST_SPAN_WORDS)
    segment = np.zeros((M, T), np.int32)
    np.put_along_axis(segment, word, segment_ids, axis=1)
    best, starts = per_word.copy(), np.tile(np.arange(T), (M, 1))
    for distance in range(1, min(LONGEST_SPAN_WORDS, T)):
        covers = (length[:, :-distance] > distance) & (segment[:, :-distance] == segment[:, distance:])
        better = covers & (per_word[:, :-distance] < best[:, distance:])
        best[:, distance:][better] = per_word[:, :-distance][better]
        starts[:, distance:] = np.where(better, np.arange(T - distance), starts[:, distance:])
    return best, starts


def _choose(
    keys: bits.Bits, budget: NDArray[np.float64], edge: NDArray[np.float64], slots: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(row, column) of the taken tokens in reading order, and how many each row has.

    Whatever is taken lies among a row's `slots` smallest keys, so only those are sorted: a group that starts within the
    budget is no longer than the slots beyond it, and one that starts later is not taken, however long it is.
    """
    M = len(keys)
    smallest = np.sort(np.partition(keys, slots - 1, axis=1)[:, :slots], axis=1)
    place = np.arange(slots)
    first = np.ones((M, slots), bool)
    first[:, 1:] = smallest[:, 1:] != smallest[:, :-1]
    before = np.maximum.accumulate(np.where(first, place, 0), axis=1)  # tokens taken before this group
    last = np.ones((M, slots), bool)
    last[:, :-1] = first[:, 1:]
    after = np.minimum.accumulate(np.where(last, place + 1, slots)[:, ::-1], axis=1)[:, ::-1]
    taken = (before + edge[:, None] * (after - before) < budget[:, None]) & (smallest != bits.NEVER)
    count = taken.sum(axis=1)  # groups are taken in order, so these are the first ones
    threshold = smallest[np.arange(M), np.maximum(count - 1, 0)]
    row, column = np.nonzero((keys <= threshold[:, None]) & (count > 0)[:, None])
    return row, column, count
