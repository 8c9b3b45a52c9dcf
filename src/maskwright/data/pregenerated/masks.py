"""Static masks as BERT's scripts count them: so many predictions a sequence, whole words or single tokens.

Dynamic masking (`data/masking.py`) has an exact mean rate; here the number is min(max_predictions_per_seq, max(1,
round(masked_lm_prob x tokens))), and words are taken in random order as long as they fit. Each word makes one choice
of 80/10/10. Special tokens are neither predicted nor drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from maskwright.data import bits
from maskwright.data.masking import Masker
from maskwright.data.pregenerated.examples import Examples

Int64 = NDArray[np.int64]
MASK_SHARE, RANDOM_SHARE = 0.8, 0.1
ACTION_PURPOSE, REPLACEMENT_PURPOSE = np.uint64(2**33), np.uint64(2**35)


@dataclass(frozen=True)
class Unmasked:
    """One sequence before masking."""

    ids: NDArray[np.int32]
    first_segment: int
    random_next: bool
    key: np.uint64
    """What its random numbers depend on."""


def word_begins(
    ids: NDArray[np.int32], first_segment: int, masker: Masker, *, whole_words: bool
) -> tuple[Int64, Int64]:
    """(begin, tokens) of each word in a sequence, or of each token; special tokens belong to none. A word begins where
    the tokenizer says so (Ġ, ▁, not ##), after a special token, and with a segment."""
    special = masker.special[ids]
    starts = ~special
    if whole_words:
        begins = masker.word_start[ids].copy()
        begins[0] = True
        begins[1:] |= special[:-1]
        if first_segment < len(ids):
            begins[first_segment] = True
        starts &= begins
    at = np.flatnonzero(starts)
    ends = np.flatnonzero(np.append(starts | special, True))
    return at, ends[np.searchsorted(ends, at, side="right")] - at


def choose(begins: Int64, sizes: Int64, wanted: int, most: int, key: np.uint64) -> Int64:
    """Numbers of the words to predict, ascending: in the order of their keys, each that fits into `wanted` tokens. If
    none fits, the first that has at most `most`."""
    order = np.argsort(bits.extend(key, begins.astype(np.uint64)), kind="stable")
    if len(sizes) == sizes.sum():  # single tokens, which all fit
        return np.sort(order[:wanted])
    taken, left = [], wanted
    for number, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
        if size <= left:
            taken.append(number)
            left -= size
            if not left:
                break
    if not taken:
        taken = [number for number in order.tolist() if sizes[number] <= most][:1]
    return np.sort(np.array(taken, np.int64))


def masked(
    sequences: list[Unmasked],
    masker: Masker,
    *,
    rate: float,
    most: int,
    whole_words: bool,
    wanted: list[int] | None = None,
) -> Examples:
    """Masks each sequence by its own key. `wanted`: how many predictions each gets, instead of `rate` x its tokens."""
    tokens, positions, labels, counts = [], [], [], []
    for number, one in enumerate(sequences):
        begins, sizes = word_begins(one.ids, one.first_segment, masker, whole_words=whole_words)
        budget = min(most, max(1, round(len(one.ids) * rate))) if wanted is None else wanted[number]
        chosen = choose(begins, sizes, budget, most, one.key)
        begin, size = begins[chosen], sizes[chosen]
        at = np.repeat(begin - np.cumsum(size) + size, size) + np.arange(size.sum())
        ids = one.ids.copy()
        labels.append(one.ids[at])
        ids[at] = shown(one.ids[at], at, np.repeat(begin, size), masker, one.key)
        tokens.append(ids)
        positions.append(at)
        counts.append(len(at))
    return Examples(
        tokens=np.concatenate(tokens),
        lengths=np.array([len(one.ids) for one in sequences]),
        first_segment=np.array([one.first_segment for one in sequences]),
        random_next=np.array([one.random_next for one in sequences], np.uint8),
        positions=np.concatenate(positions),
        labels=np.concatenate(labels),
        predictions=np.array(counts),
    )


def shown(ids: NDArray[np.int32], at: Int64, begins: Int64, masker: Masker, key: np.uint64) -> NDArray[np.int32]:
    """What stands at the predicted places `at` of words that begin at `begins`: `<mask>`, another token, or its own."""
    draw = bits.uniform(bits.extend(key, begins.astype(np.uint64) + ACTION_PURPOSE))
    other = bits.extend(key, at.astype(np.uint64) + REPLACEMENT_PURPOSE) % np.uint64(len(masker.ordinary))
    result = np.where(draw < MASK_SHARE + RANDOM_SHARE, masker.ordinary[other.astype(np.int64)], ids)
    return np.where(draw < MASK_SHARE, masker.mask_id, result).astype(np.int32)
