"""Masked-LM masking, dynamic and yet exactly repeatable: a pure function of (seed, epoch, row, position).

Every kind is one algorithm. Tokens form groups that are masked together. A group's key is its start position below
random high bits, so no two groups share a key. Groups are taken in order of key until the row's budget (rate x its text
tokens) is met. The group that crosses the budget is taken with the probability that makes the expected count exact.
  token       every token its own group (RoBERTa)
  whole_word  the tokens of a word: one that begins it (Ġ, ▁, not ##: by the tokenizer's kind) and those after it
  span        runs of words, length geometric(0.2) cut at 10 (SpanBERT, Joshi et al. 2020)
A word of more than 8 tokens (text without spaces is one word) and a span of more than 16 are cut into groups of that
size, so that a group always fits a row's slots and the expected count stays exact. Each group makes one 80/10/10 choice
(fairseq's rule for words). Special tokens are neither masked nor used as replacements. A row has at most `slots`
predictions, so that shapes are static.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from maskwright.config.masking import Masking
from maskwright.data import bits
from maskwright.data.batch import Int32
from maskwright.text.vocabulary import Vocabulary

Kind = Literal["token", "whole_word", "span"]
LONGEST_SPAN_WORDS = 10
LONGER_SPANS = np.array(
    [
        1801439850948198,
        3242591731706757,
        4395513236313604,
        5317850439999081,
        6055720202947463,
        6646016013306169,
        7118252661593134,
        7496041980222705,
        7798273435126363,
    ],
    np.uint64,
)
"""Thresholds of a 53-bit draw for a second word of a span, a third and so on: 2^53 (1 - 0.8^n), as `np.log` rounded it.
They are constants because processors differ in how they round a logarithm."""
LONGEST_GROUP_TOKENS = {"token": 1, "whole_word": 8, "span": 16}
MASK_PURPOSE = 2
# Purposes lie above all positions, or the draws of a row, group or token would meet those of positions.
EDGE_PURPOSE, ACTION_PURPOSE, REPLACEMENT_PURPOSE, LENGTH_PURPOSE = 2**32, 2**33, 2**34, 2**35
NEVER = np.uint32(0xFFFFFFFF)
"""Key of a token that is never taken; every real key is below 2^31."""
FEW = 4


@dataclass(frozen=True)
class Masker:
    """The vocabulary's tables, by id."""

    special: NDArray[np.bool_]
    word_start: NDArray[np.bool_]
    ordinary: Int32
    """Ids that may replace a token."""
    mask_id: int

    @staticmethod
    def of(vocabulary: Vocabulary) -> Masker:
        special = np.zeros(vocabulary.size, bool)
        special[sorted(vocabulary.special)] = True
        word_start = np.array(vocabulary.word_start, bool)
        return Masker(special, word_start, np.flatnonzero(~special).astype(np.int32), vocabulary.mask)

    @cached_property
    def _first_ordinary(self) -> int:
        return int(self.ordinary[0])

    @cached_property
    def _other_special(self) -> list[int]:
        return [index for index in np.flatnonzero(self.special).tolist() if index > self._first_ordinary]

    def may_be_predicted(self, input_ids: Int32) -> NDArray[np.bool_]:
        """[M, T]: whether each token is ordinary. Comparing with a few ids costs a fifth of a table look-up."""
        if len(self._other_special) > FEW:
            return ~self.special[input_ids]
        result = input_ids >= self._first_ordinary
        for index in self._other_special:
            result &= input_ids != index
        return result


def slots_per_row(kind: Kind, rate: float, seq_len: int) -> int:
    """Static number of predictions in a row: a full row's budget plus the longest group that may cross it."""
    return min(seq_len, math.ceil(rate * (seq_len - 1)) + LONGEST_GROUP_TOKENS[kind])


def mask_rows(
    masker: Masker,
    input_ids: Int32,
    segment_ids: Int32,
    masking: Masking,
    *,
    seed: int,
    epochs: NDArray[np.int64],
    rows: NDArray[np.int64],
    slots: int,
    budgets: NDArray[Any] | None = None,
) -> tuple[Int32, Int32, Int32, NDArray[np.float32]]:
    """Masks `input_ids` [M, T] at `masking.rate`. Returns (input_ids, predict_index [M*slots], labels, weights) as in
    `Batch`.

    `epochs` and `rows` [M] name each row; the result for a row does not depend on the other rows. `budgets` [M]: tokens
    to predict in each, in place of the rate.
    """
    (M, T), kind = input_ids.shape, masking.kind
    row_keys = bits.extend(bits.extend(bits.key(seed, MASK_PURPOSE), epochs.astype(np.uint64)), rows.astype(np.uint64))
    candidate = masker.may_be_predicted(input_ids)
    draws = _position_keys(row_keys, T)
    begins = (
        None if kind == "token" else _group_begins(masker, input_ids, segment_ids, ~candidate, draws, row_keys, kind)
    )
    keys = draws if begins is None else np.take_along_axis(draws, begins, axis=1)
    keys[~candidate] = NEVER
    if budgets is None:  # `np.count_nonzero` along an axis takes twice as long as this sum
        budgets = masking.rate * candidate.view(np.uint8).sum(axis=1, dtype=np.uint32)
    edge = bits.uniform(bits.extend(row_keys, _number(EDGE_PURPOSE)))
    flat, count = _choose(keys, budgets, edge, slots, alone=begins is None)

    labels = input_ids.ravel()[flat]
    keys_of_rows = np.repeat(row_keys, count)
    place = flat - np.repeat(np.arange(M) * T, count)
    begin = place if begins is None else begins.ravel()[flat]
    action = bits.extend(keys_of_rows, begin.astype(np.uint64) + np.uint64(ACTION_PURPOSE))
    is_mask = bits.below(action, masking.mask_share)
    shown = labels + (np.int32(masker.mask_id) - labels) * is_mask  # `np.where` branches, which takes 4 times as long
    replaced = np.flatnonzero(bits.below(action, masking.mask_share + masking.random_share) & ~is_mask)
    draw = bits.extend(keys_of_rows[replaced], place[replaced].astype(np.uint64) + np.uint64(REPLACEMENT_PURPOSE))
    shown[replaced] = masker.ordinary[(draw % np.uint64(len(masker.ordinary))).astype(np.int64)]
    masked = input_ids.copy()
    masked.ravel()[flat] = shown

    # Each row's predictions fill its first slots. Each other slot has a position of its own: a GPU adds up the
    # gradients of one that many share one after the other, which took a fifth of a step of nano on an H200.
    has_label = np.arange(slots) < count[:, None]
    slot = np.flatnonzero(has_label)
    index = (np.arange(0, M * T, T, dtype=np.int32)[:, None] + np.arange(slots, dtype=np.int32)).ravel()
    padded_labels = np.zeros(M * slots, np.int32)
    index[slot], padded_labels[slot] = flat, labels
    return masked, index, padded_labels, has_label.ravel().astype(np.float32)


def _number(value: int) -> bits.Bits:
    return np.array([value], np.uint64)


def _position_keys(row_keys: bits.Bits, T: int) -> NDArray[np.uint32]:
    """[M, T]: the position, with random bits above it, below 2^31. One 64-bit draw serves two positions."""
    place = (1 << (T - 1).bit_length()) - 1
    pairs = np.arange((T + 1) // 2, dtype=np.uint64)[None, :]
    draws = bits.extend(row_keys[:, None], pairs).astype("<u8", copy=False).view("<u4")[:, :T]
    keys = draws >> np.uint32(1)
    keys &= np.uint32(0xFFFFFFFF ^ place)
    keys |= np.arange(T, dtype=np.uint32)
    return keys


def _group_begins(
    masker: Masker,
    input_ids: Int32,
    segment_ids: Int32,
    special: NDArray[np.bool_],
    draws: NDArray[np.uint32],
    row_keys: bits.Bits,
    kind: Kind,
) -> NDArray[np.intp]:
    """[M, T]: start position of each token's group."""
    T = input_ids.shape[1]
    position = np.arange(T)
    start = masker.word_start[input_ids] | special
    start[:, 0] = True
    start[:, 1:] |= special[:, :-1] | (segment_ids[:, 1:] != segment_ids[:, :-1])
    begins = np.maximum.accumulate(np.where(start, position, 0), axis=1)
    if kind == "span":
        begins = _span_begins(start, begins, segment_ids, draws, row_keys)
    longest = LONGEST_GROUP_TOKENS[kind]
    return begins + (position - begins) // longest * longest


def _span_begins(
    start: NDArray[np.bool_],
    begins: NDArray[np.intp],
    segment_ids: Int32,
    draws: NDArray[np.uint32],
    row_keys: bits.Bits,
) -> NDArray[np.intp]:
    """[M, T]: start position of the span of each token's word. Each word starts a span of random length, whose key is
    its priority; a word joins the span of least key among those that cover it."""
    M = len(start)
    row, column = np.nonzero(start)
    words = np.bincount(row, minlength=M)
    word_idx = np.arange(len(row)) - np.repeat(np.cumsum(words) - words, words)  # in its row
    W = int(words.max(initial=1))
    priority, origin = np.full((M, W), NEVER), np.zeros((M, W), np.intp)
    segment, length = np.full((M, W), -1, np.int32), np.zeros((M, W), np.int8)
    priority[row, word_idx], origin[row, word_idx] = draws[row, column], column
    segment[row, word_idx] = segment_ids[row, column]
    draw = bits.extend(row_keys[row], column.astype(np.uint64) + np.uint64(LENGTH_PURPOSE)) >> np.uint64(11)
    length[row, word_idx] = 1 + np.searchsorted(LONGER_SPANS, draw, side="right")
    best, first = priority.copy(), origin.copy()
    for distance in range(1, min(LONGEST_SPAN_WORDS, W)):
        better = (length[:, :-distance] > distance) & (segment[:, :-distance] == segment[:, distance:])
        better &= priority[:, :-distance] < best[:, distance:]
        np.copyto(best[:, distance:], priority[:, :-distance], where=better)
        np.copyto(first[:, distance:], origin[:, :-distance], where=better)
    of_token = np.cumsum(start, axis=1) - 1
    return np.take_along_axis(first, of_token, axis=1)


def _choose(
    keys: NDArray[np.uint32], budget: NDArray[Any], edge: NDArray[np.float64], slots: int, *, alone: bool
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """(ascending indices of the taken tokens in the flattened rows, [M] taken tokens of each row). `alone`: every token
    is a group."""
    # All taken tokens lie among a row's `slots` smallest keys, so only those are sorted: a group that starts within the
    # budget is no longer than the slots beyond it, and a group that starts later is never taken.
    M = len(keys)
    smallest = np.partition(keys, slots - 1, axis=1)[:, :slots]
    smallest.sort(axis=1)
    place = np.arange(slots)
    if alone:
        crossing = place + edge[:, None]
    else:
        first = np.ones((M, slots), bool)
        np.not_equal(smallest[:, 1:], smallest[:, :-1], out=first[:, 1:])
        before = np.maximum.accumulate(np.where(first, place, 0), axis=1)
        last = np.ones((M, slots), bool)
        last[:, :-1] = first[:, 1:]
        after = np.minimum.accumulate(np.where(last, place + 1, slots)[:, ::-1], axis=1)[:, ::-1]
        crossing = before + edge[:, None] * (after - before)
    taken = (crossing < budget[:, None]) & (smallest != NEVER)
    count = np.count_nonzero(taken, axis=1)  # groups are taken in order, so these are the first ones
    bound = np.where(count > 0, smallest[np.arange(M), np.maximum(count - 1, 0)] + np.uint32(1), np.uint32(0))
    return np.flatnonzero(keys < bound[:, None]), count
