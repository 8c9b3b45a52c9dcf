"""One micro-batch as an engine takes it: in numpy, with shapes that never change during a run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]


@dataclass(frozen=True)
class Batch:
    """M rows of T tokens with K predicted positions."""

    input_ids: Int32
    """[M, T], masked; padding has the pad id."""
    position_ids: Int32
    """[M, T], 0 at the first token of each chunk; without RoBERTa's offset of 2."""
    segment_ids: Int32
    """[M, T], 0 = padding, 1.. = chunk. Attention stays inside one number."""
    predict_index: Int32
    """[K], positions in the flattened M x T; 0 where the weight is 0."""
    labels: Int32
    """[K], the true ids; 0 where the weight is 0."""
    weights: NDArray[np.float32]
    """[K], 1 = predicted, 0 = filler that keeps K fixed."""

    @property
    def text_tokens(self) -> int:
        """Positions that are not padding."""
        return int(np.count_nonzero(self.segment_ids))

    @property
    def predicted(self) -> float:
        return float(self.weights.sum())

    def part(self, begin: int, end: int) -> Batch:
        """Rows `begin` to `end`. Each row has an equal share of the predicted positions."""
        (M, T), K = self.input_ids.shape, len(self.labels)
        rows, slots = slice(begin, end), slice(begin * K // M, end * K // M)
        weights = self.weights[slots]
        index = np.where(weights > 0, self.predict_index[slots] - begin * T, 0).astype(np.int32)
        ids, positions, segments = (a[rows] for a in (self.input_ids, self.position_ids, self.segment_ids))
        return Batch(ids, positions, segments, index, self.labels[slots], weights)
