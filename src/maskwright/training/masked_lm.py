"""Masked-LM training as an objective: batches from the loader, held-out loss and masked accuracy on fixed masks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from maskwright.core.console import note, progress
from maskwright.data.batch import Batch
from maskwright.data.loader import Loader
from maskwright.engines.base import Engine, EvalStats
from maskwright.training.objective import Work


class MaskedLM:
    """See `Objective`. `held_out`: validation batches, all of one shape; none without held-out text."""

    evaluates_at_start = True
    best_step: int | None = None
    settled = False

    def __init__(self, loader: Loader, held_out: list[Batch], vocab_size: int) -> None:
        self.loader, self.held_out, self.chance = loader, held_out, math.log(vocab_size)

    def batches(self, step: int, data_step: int, virtual_workers: Sequence[int]) -> list[Batch]:
        return self.loader.batches(step, data_step, virtual_workers)

    trial = batches

    def work(self, step: int, data_step: int) -> Work:
        tokens, pairs = self.loader.work(data_step)
        return Work(tokens, pairs, tokens * self.loader.config.masking_at(step).rate)

    def epoch(self, data_step: int) -> float:
        return self.loader.epoch(data_step)

    def logged(self, step: int) -> dict[str, float]:
        return {"masking_rate": self.loader.config.masking_at(step).rate}

    def evaluate(self, engine: Engine, step: int, look: Callable[[], bool]) -> dict[str, float] | None:
        if not self.held_out:
            return {}
        stats = EvalStats()
        with progress("validate", len(self.held_out), "batches") as bar:
            for begin in range(0, len(self.held_out), engine.dp_degree):
                if look():
                    return None
                batches = self.held_out[begin : begin + engine.dp_degree]
                stats += engine.evaluate(batches)
                bar.advance(len(batches))
        if math.isfinite(stats.loss_sum):
            note(f"step {step}: held-out loss {stats.loss:.4f}, masked accuracy {stats.accuracy:.2%}")
        return {"valid_loss": stats.loss, "valid_accuracy": stats.accuracy}

    def remember(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Nothing depends on them."""
