"""Causal rows among masked ones, as GPT-BERT mixes both (Charpentier and Samuel 2024, arXiv 2410.24159).

A causal row has no masks. A token sees itself and earlier tokens of its segment, which negative segment ids request
from the engines. The tokens that masking would predict are predicted at the positions before them, so that rows of both
kinds have the same shapes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from maskwright.data import bits
from maskwright.data.batch import Batch, Int32

CAUSAL_PURPOSE = 3


def is_causal(share: float, *, seed: int, epochs: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[M]: whether each row, named by `epochs` and `rows`, is causal, by a draw of its own with probability `share`."""
    keys = bits.extend(bits.key(seed, CAUSAL_PURPOSE), epochs.astype(np.uint64))
    return bits.below(bits.extend(keys, rows.astype(np.uint64)), share)


def read_causally(batch: Batch, unmasked: Int32, causal: NDArray[np.bool_]) -> Batch:
    """`batch` with its `causal` rows [M] made causal. `unmasked` [M, T]: the tokens of all rows."""
    M, T = unmasked.shape
    slots = len(batch.predict_index) // M
    is_causal_prediction = (batch.weights > 0) & np.repeat(causal, slots)
    index = batch.predict_index - is_causal_prediction.astype(np.int32)
    # A segment's first token has no position before it. With special tokens, it is one and not predicted.
    segments = batch.segment_ids.ravel()
    has_one_before = (batch.predict_index % T > 0) & (segments[index] == segments[batch.predict_index])
    is_lost = is_causal_prediction & ~has_one_before
    return replace(
        batch,
        input_ids=np.where(causal[:, None], unmasked, batch.input_ids),
        segment_ids=np.where(causal[:, None], -batch.segment_ids, batch.segment_ids),
        predict_index=np.where(is_lost, batch.predict_index, index),
        labels=np.where(is_lost, np.int32(0), batch.labels),
        weights=np.where(is_lost, np.float32(0.0), batch.weights),
    )
