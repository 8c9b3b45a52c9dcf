"""Distances between tokens and their rows in DeBERTa's table of relative positions (He et al. 2021), and in MPNet's
(Song et al. 2020), in numpy: for every engine and for files.

MPNet adds one number for each head and distance j - i to the score of query i and key j, the same in all layers.

In DeBERTa, a score of query i and key j has up to three terms, and the last two look up d = i - j in the table R:

content to content    q_i . k_j
content to position   q_i . (W_k R[d])        c2p
position to content   (W_q R[d]) . k_j        p2c

Their sum is divided by the root of a head's width times the number of terms. W_q and W_k are also the content's
(`share_att_key`), biases included.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from maskwright.model.config import ModelConfig


def rows_of(config: ModelConfig, distances: NDArray[np.int64]) -> NDArray[np.int64]:
    """The table's row for each distance. With buckets, distances up to half of them have rows of their own, and further
    ones share rows on a logarithmic scale, up to `max_relative_positions`: formulas of `make_log_bucket_position` of
    `transformers`, in fp32 as there."""
    near, placed = config.position_buckets // 2, distances
    if config.position_buckets:
        far = np.maximum(np.abs(distances), max(near, 1)).astype(np.float32)
        with np.errstate(divide="ignore", invalid="ignore"):  # if no row is that long
            share = np.log(far / np.float32(near)) / np.log(np.float32((config.max_relative_positions - 1) / near))
            steps = np.ceil(share * np.float32(near - 1)) + np.float32(near)
        in_steps = np.nan_to_num(steps, posinf=0.0, neginf=0.0).astype(np.int64) * np.sign(distances)
        placed = np.where(np.abs(distances) <= near, distances, in_steps)
    span = config.relative_span
    return np.clip(placed + span, 0, 2 * span - 1)


FURTHEST = 128
"""The distance from which on all have the same number in MPNet."""


def bias_rows(config: ModelConfig, distances: NDArray[np.int64]) -> NDArray[np.int64]:
    """The row of MPNet's table for each distance: half of them for keys to the right. In each half, the first rows are
    for one distance each, and the others for a logarithmic scale up to `FURTHEST`: formulas of
    `relative_position_bucket` of `transformers`, in fp32 as there."""
    half = config.position_buckets // 2
    near, apart = half // 2, np.abs(distances)
    share = np.log(np.maximum(apart, 1).astype(np.float32) / np.float32(near)) / np.float32(np.log(FURTHEST / near))
    far = np.minimum(near + (share * np.float32(half - near)).astype(np.int64), half - 1)
    return np.where(distances > 0, half, 0) + np.where(apart < near, apart, far)


def distances_around(tokens: int) -> NDArray[np.int64]:
    """[2 T]: distances -(T - 1) to T of rows of T tokens. The last one is beyond any, and makes their number even."""
    return np.arange(1 - tokens, tokens + 1)
