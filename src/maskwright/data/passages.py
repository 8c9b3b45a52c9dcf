"""Passages of the held-out text that training reads too: of windows that overlap, near copies, or boilerplate.

A passage is `PASSAGE` tokens in a row, wherever they begin. The same one of 16 passages is compared on both sides,
chosen by its hash.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.data.store import Split, TokenStore

PASSAGE = 32
"""Tokens; a power of two."""
MOST_TOKENS = 1 << 28
"""Of the training text, from its beginning, at 8 ns each. Of the held-out text, the same share is compared, and no more
tokens, whose hashes take half a byte each."""
BLOCK_TOKENS = 1 << 14
FEWEST = 100
"""Held-out passages below which nothing is concluded."""
ODD = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio: its products spread over the upper bits."""


def also_trained_on(store: TokenStore) -> float:
    """The share of different held-out passages that are also in the training text; 0 if few are held out."""
    train, valid = store.split("train"), store.split("valid")
    compared = min(1.0, MOST_TOKENS / max(train.tokens, 1))
    held_out = np.unique(
        np.concatenate([np.zeros(0, "<u8"), *_hashes(valid, min(int(valid.tokens * compared), MOST_TOKENS))])
    )
    if len(held_out) < FEWEST:
        return 0.0
    is_found = np.zeros(len(held_out), bool)
    for hashes in _hashes(train, MOST_TOKENS):
        place = np.minimum(np.searchsorted(held_out, hashes), len(held_out) - 1)
        is_found[place[held_out[place] == hashes]] = True
    return float(is_found.mean())


def _hashes(side: Split, most: int) -> Iterator[NDArray[np.uint64]]:
    """The hashes of the chosen passages of up to `most` tokens, in blocks."""
    for shard_idx, shard in enumerate(side.shards):
        ids = side.ids(shard_idx)
        for begin in range(0, min(shard.tokens, most), BLOCK_TOKENS):
            yield chosen(ids[begin : min(begin + BLOCK_TOKENS + PASSAGE - 1, most)])
        most -= shard.tokens


def chosen(ids: NDArray[Any]) -> NDArray[np.uint64]:
    """The hashes of one of 16 passages of `ids` [n]: polynomials in `ODD`, modulo 2^64."""
    hashes, width, power = ids.astype("<u8") + np.uint64(1), 1, ODD
    while width < PASSAGE:
        hashes = hashes[:-width] * np.uint64(power) + hashes[width:]
        width, power = 2 * width, power * power % 2**64
    hashes *= np.uint64(ODD)
    hashes ^= hashes >> np.uint64(32)
    hashes *= np.uint64(ODD)
    return hashes[hashes >> np.uint64(60) == 0]
