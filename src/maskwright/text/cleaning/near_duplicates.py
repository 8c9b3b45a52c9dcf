"""Near duplicates by MinHash (Broder 1997) and locality-sensitive hashing, in the words of Mining of Massive Datasets,
chapter 3: https://mmds.org.

A document is the set of its `SHINGLE_WORDS` words in a row. Its signature has `SIGNATURE` minima, cut into bands; two
documents are near duplicates if they have an equal band. rensa (the `clean` extra) computes the signatures.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from maskwright.text.arrays import UInt64, mix
from maskwright.text.cleaning import words

SHINGLE_WORDS = 5
"""FineWeb's value (Penedo et al. 2024, https://arxiv.org/abs/2406.17557)."""
SIGNATURE = 128
SEED = 1


@cache
def bands_and_rows(share: float) -> tuple[int, int]:
    """(bands, rows of each) with the least error at a Jaccard similarity of `share`: false positives below it plus
    misses above it, as areas under the curve of `found_with`."""
    below, above = np.linspace(0, share, 200), np.linspace(share, 1, 200)

    def error(bands: int, rows: int) -> float:
        wrong, missed = found_with(below, bands, rows), 1 - found_with(above, bands, rows)
        return float(np.trapezoid(wrong, below) + np.trapezoid(missed, above))

    shapes = [(bands, rows) for rows in range(1, SIGNATURE + 1) for bands in range(1, SIGNATURE // rows + 1)]
    return min(shapes, key=lambda shape: error(*shape))


def found_with(similarity: NDArray[np.float64], bands: int, rows: int) -> NDArray[np.float64]:
    """The probability that two documents of this Jaccard similarity share a band."""
    return 1 - (1 - similarity**rows) ** bands


def signatures(texts: Sequence[bytes]) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
    """([texts, SIGNATURE] minima of UTF-8 texts, [texts] whether each has enough words for a shingle)."""
    import rensa

    shingles, first = words.ngrams(words.normalized(texts), SHINGLE_WORDS)
    offsets = first.astype(np.uint64)
    matrix = rensa.RMinHash.digest_matrix_from_flat_token_hashes(shingles, offsets, SIGNATURE, SEED)
    return np.array(matrix.to_rows(), np.uint32).reshape(len(texts), SIGNATURE), np.diff(first) > 0


def band_keys(texts: Sequence[bytes], share: float) -> UInt64:
    """[texts, bands] dedup keys: texts with an equal key in some column are near duplicates. A text with fewer words
    than a shingle has no keys: zeros."""
    bands, rows = bands_and_rows(share)
    minima, has_keys = signatures(texts)
    keys = np.zeros((len(texts), bands), np.uint64)
    for band in range(bands):
        total = np.full(len(texts), band + 1, np.uint64)
        for row in range(rows):
            total = mix(total * np.uint64(words.BASE) + minima[:, band * rows + row])
        keys[:, band] = np.where(has_keys, np.maximum(total, np.uint64(1)), np.uint64(0))
    return keys
