"""One micro-batch for an engine: numpy arrays whose shapes never change during a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]


@dataclass(frozen=True)
class Batch:
    """M rows of T tokens with K predicted positions. Each row has an equal share of them."""

    input_ids: Int32
    """[M, T], masked; padding has the pad id."""
    position_ids: Int32
    """[M, T], 0 at the first token of each chunk; without `ModelConfig.position_offset`. With token types, a position
    of type t is t * `ModelConfig.token_type_stride` higher."""
    segment_ids: Int32
    """[M, T], 0 = padding, 1.. = chunk. Attention stays inside one number. In rows where they are negative, -1.., a
    token only sees itself and earlier tokens."""
    predict_index: Int32
    """[K], positions in the flattened M x T; where the weight is 0, a position of the same row, or 0. All M x T for
    question_answering."""
    labels: NDArray[Any]
    """int32 [K], the true ids; 0 where the weight is 0. `heads.loss_sum` has the shapes of other tasks."""
    weights: NDArray[np.float32]
    """[K], 1 = predicted, 0 = filler that keeps K fixed; [M] for question_answering."""
    causal: bool | None = False
    """Whether all rows are read causally: `Masking.causal`, the same on all ranks. None: `segment_ids` say which."""

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """All arrays that an engine computes with, by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}

    @property
    def text_tokens(self) -> int:
        """Positions that are not padding."""
        return int(np.count_nonzero(self.segment_ids))

    @property
    def reads_causally(self) -> bool:
        """Whether any row is read causally."""
        return bool((self.segment_ids < 0).any())

    @property
    def predicted(self) -> float:
        return float(self.weights.sum())

    def part(self, begin: int, end: int) -> Batch:
        """Rows `begin` to `end`."""
        M, T = self.input_ids.shape

        def share(array: NDArray[Any]) -> NDArray[Any]:
            return array[begin * len(array) // M : end * len(array) // M]

        ids, positions, segments = (share(a) for a in (self.input_ids, self.position_ids, self.segment_ids))
        index = np.maximum(share(self.predict_index) - np.int32(begin * T), 0)  # filler may have 0
        return Batch(ids, positions, segments, index, share(self.labels), share(self.weights), self.causal)

    def filled_up(self, multiple: int) -> Batch:
        """Pads the predictions to a multiple, whose products a GPU computes fast. Rows then have unequal shares of
        predictions, so do not use it for a batch that is split."""
        more = -len(self.predict_index) % multiple
        index, labels, weights = (np.pad(a, (0, more)) for a in (self.predict_index, self.labels, self.weights))
        return replace(self, predict_index=index, labels=labels, weights=weights) if more else self
