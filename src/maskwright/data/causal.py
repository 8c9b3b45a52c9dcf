"""Rows that are read causally, beside masked ones, as GPT-BERT mixes both (Charpentier and Samuel 2024, arXiv
2410.24159).

Nothing of such a row is hidden. A token sees itself and those before it in its segment, which negative segment ids tell
the engines. The tokens that would have been masked are predicted, each at the position before its own, so that rows of
both kinds have the same shapes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from maskwright.data import bits
from maskwright.data.batch import Batch, Int32

CAUSAL_PURPOSE = 3


def is_causal(share: float, *, seed: int, epochs: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[M], for the rows that `epochs` and `rows` name: each by itself, so that `share` of many are causal."""
    keys = bits.extend(bits.key(seed, CAUSAL_PURPOSE), epochs.astype(np.uint64))
    return bits.uniform(bits.extend(keys, rows.astype(np.uint64))) < share


def read_causally(batch: Batch, unmasked: Int32, causal: NDArray[np.bool_]) -> Batch:
    """`batch` with its `causal` rows [M] read as above. `unmasked` [M, T] are their tokens."""
    M, T = unmasked.shape
    slots = len(batch.predict_index) // M
    taken = (batch.weights > 0) & np.repeat(causal, slots)
    index = batch.predict_index - taken.astype(np.int32)
    # What begins a segment has no position before it. It is a special token, which is not predicted, if there are any.
    segments = batch.segment_ids.ravel()
    has_one_before = (batch.predict_index % T > 0) & (segments[index] == segments[batch.predict_index])
    lost = taken & ~has_one_before
    return replace(
        batch,
        input_ids=np.where(causal[:, None], unmasked, batch.input_ids),
        segment_ids=np.where(causal[:, None], -batch.segment_ids, batch.segment_ids),
        predict_index=np.where(lost, batch.predict_index, index),
        labels=np.where(lost, np.int32(0), batch.labels),
        weights=np.where(lost, np.float32(0.0), batch.weights),
    )
