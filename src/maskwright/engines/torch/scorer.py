"""Scores of batches without training. The ranks share the batches out, and all get all numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from maskwright.data.batch import Batch
from maskwright.engines.base import EvalStats, LabelScores
from maskwright.engines.processes import Processes
from maskwright.engines.torch.fit import Fit
from maskwright.engines.torch.passes import Passes
from maskwright.engines.torch.processes import Peers
from maskwright.model.torch.heads import loss_sum


class Scorer:
    """See `base.Engine`. `waiting`: what it enters while it waits for other ranks."""

    def __init__(
        self, passes: Passes, fit: Fit, processes: Processes, waiting: Callable[[], AbstractContextManager[object]]
    ) -> None:
        self._passes, self._fit, self._processes, self._waiting = passes, fit, processes, waiting
        self._config = passes.network.config

    def evaluate(self, batches: Sequence[Batch]) -> EvalStats:
        sums = self._shared_out(batches, self.sums, (3,))
        return sum((EvalStats(*of_batch) for of_batch in sums.tolist()), EvalStats())

    def log_probs(self, batches: Sequence[Batch]) -> LabelScores:
        most = max(len(batch.weights) for batch in batches)
        numbers = self._shared_out(batches, lambda batch: torch.cat(self._parts(batch, self._label_scores)), (most, 2))
        counts = [np.count_nonzero(batch.weights > 0) for batch in batches]
        scores = torch.cat([of_batch[:count] for of_batch, count in zip(numbers, counts, strict=True)]).float().numpy()
        return scores[:, 0], scores[:, 1] > 0

    def predict(self, batches: Sequence[Batch]) -> np.ndarray:
        shape = len(batches[0].predict_index), self._config.outputs
        logits = self._shared_out(batches, lambda batch: torch.cat(self._parts(batch, self._passes.forward)), shape)
        return logits.float().flatten(0, 1).numpy()

    def _shared_out(
        self, batches: Sequence[Batch], compute: Callable[[Batch], Tensor], shape: tuple[int, ...]
    ) -> Tensor:
        """float64 [len(batches), *shape]: what `compute` gives of each batch, then zeros. One rank computes each."""
        rank, world_size = self._processes.rank, self._processes.world_size
        numbers = torch.zeros(-(-len(batches) // world_size), *shape, dtype=torch.float64)
        for number, batch in enumerate(batches[rank::world_size]):
            found = compute(batch)
            numbers[number, : len(found)] = found
        if isinstance(self._processes, Peers):
            with self._waiting():
                numbers = self._processes.gather_numbers(numbers).transpose(0, 1).flatten(0, 1)
        return numbers[: len(batches)]

    def sums(self, batch: Batch) -> Tensor:
        """float64 [3]: the numbers of `EvalStats`."""
        return sum(self._parts(batch, self._sums), torch.zeros(3, dtype=torch.float64))

    @torch.no_grad()
    def _parts(self, batch: Batch, compute: Callable[[Batch], Tensor]) -> list[Tensor]:
        """What `compute` gives of the parts of `batch`, on the CPU."""
        self._passes.network.eval()
        return self._fit.run(batch, lambda: [compute(part).cpu() for part in self._fit.parts(batch)])

    def _sums(self, part: Batch) -> Tensor:
        logits, (labels, weights, _) = self._passes.forward(part), self._passes.targets(part)
        loss = loss_sum(self._config.task, logits, labels, weights)
        correct = ((logits.argmax(-1) == labels) * weights).sum()
        return torch.tensor([float(loss), float(weights.sum()), float(correct)], dtype=torch.float64)

    def _label_scores(self, part: Batch) -> Tensor:
        """[n, 2] of the labels with a weight: their log-probability, and 1 where no token is likelier."""
        has_weight = part.weights > 0  # no logits of the filler
        index, labels, weights = part.predict_index[has_weight], part.labels[has_weight], part.weights[has_weight]
        labelled = replace(part, predict_index=index, labels=labels, weights=weights)
        logits, targets = self._passes.forward(labelled), self._passes.targets(labelled).labels
        scores = -F.cross_entropy(logits.float(), targets, reduction="none")
        return torch.stack([scores, (logits.argmax(-1) == targets).float()], 1)
