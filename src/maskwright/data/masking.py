"""Masked-LM masking that is dynamic and exactly repeatable: a pure function of (seed, epoch, row, position).

Every kind is one algorithm. Tokens form groups that are masked together. A group's key is its start position below
random high bits, so no two groups share a key. Groups are taken in order of key until the row's budget (rate x its text
tokens) is met. The group that crosses the budget is taken with the probability that makes the expected count exact.
  token       every token its own group (RoBERTa)
  whole_word  the tokens of a word: one that begins it (Ġ, ▁, not ##: by the tokenizer's kind) and those after it
  span        runs of words, length geometric(0.2) cut at 10 (SpanBERT, Joshi et al. 2020)
A word of more than 8 tokens (text without spaces is one word) and a span of more than 16 are cut into groups of this
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
A span has at most 10 words. They are constants because processors differ in how they round a logarithm."""
LONGEST_GROUP_TOKENS = {"token": 1, "whole_word": 8, "span": 16}
MASK_PURPOSE = 2
# Purposes lie above all positions; otherwise draws of a row, group or token would repeat draws of positions.
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

    def is_special(self, input_ids: Int32) -> NDArray[np.bool_]:
        """[M, T]: whether each token is special. Comparing with a few ids costs a fifth of a table look-up."""
        if len(self._other_special) > FEW:
            return self.special[input_ids]
        result = input_ids < self._first_ordinary
        for index in self._other_special:
            result |= input_ids == index
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
) -> tuple[Int32, Int32, Int32, NDArray[np.float32]]:
    """Masks `input_ids` [M, T] at `masking.rate`. Returns (input_ids, predict_index [M*slots], labels, weights) as in
    `Batch`.

    `epochs` and `rows` [M] name each row; the result for a row does not depend on the other rows.
    """
    (M, T), kind = input_ids.shape, masking.kind
    row_keys = bits.extend(bits.extend(bits.key(seed, MASK_PURPOSE), epochs.astype(np.uint64)), rows.astype(np.uint64))
    special = masker.is_special(input_ids)
    draws = _position_keys(row_keys, T)
    begins = None if kind == "token" else _group_begins(masker, input_ids, segment_ids, special, draws, row_keys, kind)
    keys = draws if begins is None else draws.ravel().take(begins)
    special_idx = np.flatnonzero(special)  # few, most often
    keys.ravel()[special_idx] = NEVER
    candidates = T - np.bincount(special_idx // T, minlength=M)
    edge = bits.uniform(bits.extend(row_keys, _number(EDGE_PURPOSE)))
    flat_idx, count = _choose(keys, masking.rate * candidates, edge, slots, candidates if begins is None else None)

    labels = input_ids.ravel()[flat_idx]
    keys_of_rows, row_begins = np.repeat(row_keys, count), np.repeat(np.arange(0, M * T, T), count)
    positions = flat_idx - row_begins
    group_begins = positions if begins is None else begins.ravel()[flat_idx] - row_begins
    action = bits.extend(keys_of_rows, group_begins.astype(np.uint64) + np.uint64(ACTION_PURPOSE))
    is_mask = bits.below(action, masking.mask_share)
    shown = labels + (np.int32(masker.mask_id) - labels) * is_mask  # `np.where` branches, which takes 4 times as long
    random = np.flatnonzero(bits.below(action, masking.mask_share + masking.random_share) & ~is_mask)
    draw = bits.extend(keys_of_rows[random], positions[random].astype(np.uint64) + np.uint64(REPLACEMENT_PURPOSE))
    shown[random] = masker.ordinary[(draw % np.uint64(len(masker.ordinary))).astype(np.int64)]
    masked = input_ids.copy()
    masked.ravel()[flat_idx] = shown

    # Each row's predictions fill its first slots. Each other slot has a position of its own: a GPU adds up the
    # gradients of one that many share one after the other, which took a fifth of a step of nano on an H200.
    slot = np.arange(slots, dtype=np.int32)
    has_label = slot < count.astype(np.int32)[:, None]
    index = np.arange(0, M * T, T, dtype=np.int32)[:, None] + slot
    padded_labels = np.zeros((M, slots), np.int32)
    index[has_label], padded_labels[has_label] = flat_idx.astype(np.int32), labels
    return masked, index.ravel(), padded_labels.ravel(), has_label.ravel().astype(np.float32)


def _number(value: int) -> bits.Bits:
    return np.array([value], np.uint64)


def _places(T: int) -> np.uint32:
    """The lower bits of a key, which are its position."""
    return np.uint32((1 << (T - 1).bit_length()) - 1)


def _position_keys(row_keys: bits.Bits, T: int) -> NDArray[np.uint32]:
    """[M, T]: the position, with random bits above it, below 2^31. One 64-bit draw serves two positions."""
    pairs = np.arange((T + 1) // 2, dtype=np.uint64)[None, :]
    draws = bits.extend(row_keys[:, None], pairs).astype("<u8", copy=False).view("<u4")[:, :T]
    keys = draws >> np.uint32(1)
    keys &= ~_places(T)
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
    """[M, T]: start of each token's group, an index into the flattened rows."""
    starts_run = np.ones_like(special)
    np.not_equal(segment_ids[:, 1:], segment_ids[:, :-1], out=starts_run[:, 1:])
    starts_word = masker.word_start.take(input_ids) | special | starts_run
    starts_word[:, 1:] |= special[:, :-1]
    words = np.flatnonzero(starts_word)
    first = words if kind == "whole_word" else _span_begins(words, starts_run, draws, row_keys)
    begins = first.take(np.cumsum(starts_word) - 1).reshape(special.shape)
    longest = LONGEST_GROUP_TOKENS[kind]  # a power of 2
    position = np.arange(special.size).reshape(special.shape)
    return position - ((position - begins) & (longest - 1))


def _span_begins(
    words: NDArray[np.intp], starts_run: NDArray[np.bool_], draws: NDArray[np.uint32], row_keys: bits.Bits
) -> NDArray[np.intp]:
    """[words]: start of the span of each word, given the words' starts. Each word starts a span of random length, whose
    key is its priority; a word joins the span of least key among the spans of its run that cover it."""
    T = starts_run.shape[1]
    priority, run = draws.ravel().take(words), np.cumsum(starts_run, dtype=np.int32).take(words)
    column = priority & _places(T)
    draw = bits.extend(row_keys.take(words // T), column + np.uint64(LENGTH_PURPOSE)) >> np.uint64(11)
    best = priority.copy()
    for distance, longer in enumerate(LONGER_SPANS[: len(words) - 1], 1):
        reaches = (draw[:-distance] >= longer) & (run[:-distance] == run[distance:])
        np.minimum(best[distance:], priority[:-distance] | (NEVER * ~reaches), out=best[distance:])
    return words - column + (best & _places(T))


def _choose(
    keys: NDArray[np.uint32],
    budget: NDArray[Any],
    edge: NDArray[np.float64],
    slots: int,
    alone: NDArray[np.intp] | None,
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """(ascending indices of the taken tokens in the flattened rows, [M] taken tokens of each row). `alone`: [M] tokens
    of each row that may be taken, where each is a group."""
    # All taken tokens lie among a row's `slots` smallest keys, so only those are sorted: a group that starts within the
    # budget is no longer than the slots beyond it, and a group that starts later is never taken.
    smallest = np.partition(keys, slots - 1, axis=1)[:, :slots]
    smallest.sort(axis=1)
    within = np.minimum(budget.astype(np.intp), slots - 1)
    crossing = smallest[np.arange(len(keys)), within]  # the key of the group that crosses the budget
    if alone is not None:
        before, size = np.minimum(within, alone), 1
    else:
        before = np.count_nonzero(smallest < crossing[:, None], axis=1)
        size = np.count_nonzero(smallest == crossing[:, None], axis=1)
    is_taken = (before + edge * size < budget) & (crossing != NEVER)
    return np.flatnonzero(keys < (crossing + is_taken)[:, None]), before + size * is_taken
