"""Masked-LM training as an objective: batches from the loader; loss and masked accuracy of held-out sets on fixed
masks."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from maskwright.config.pretraining import reads_causally, stage_at
from maskwright.core.console import note, progress
from maskwright.data.batch import Batch
from maskwright.data.loader import Loader
from maskwright.engines.base import Engine, EvalStats
from maskwright.run.best import Best
from maskwright.training.objective import UpdateCounts


class MaskedLM:
    """See `Objective`. `sets`: validation batches of each held-out set by its name, all of one shape; empty without
    held-out text. The first set's loss and accuracy are the run's. A single set may have an empty name."""

    evaluates_at_start = True

    def __init__(
        self, loader: Loader, sets: dict[str, list[Batch]], vocab_size: int, patience: int | None = None
    ) -> None:
        self.loader, self.sets, self.chance = loader, sets, math.log(vocab_size)
        self.batches, self.trials = loader.batches, loader.trials
        self.rope_theta, self.epoch = loader.rope_theta, loader.epoch
        self.best = Best(patience, lower=True)
        self.held_out = [batch for batches in sets.values() for batch in batches]

    def work(self, step: int) -> UpdateCounts:
        tokens, pairs = self.loader.work(step)
        return UpdateCounts(tokens, pairs, tokens * self.loader.masking_rate(step))

    def logged(self, step: int) -> dict[str, float]:
        masks, config = masks_at(self.loader, step), self.loader.config
        if not config.phases:
            return masks
        stages, current = config.stages, self.loader.at(step)
        number = stages.index(stage_at(stages, step))
        return {**masks, "phase": number, "seq_len": current.data.seq_len, "rows_per_step": current.rows_per_step}

    def evaluate(self, engine: Engine, step: int, look: Callable[[], bool]) -> dict[str, float] | None:
        metrics: dict[str, float] = {}
        for name, batches in self.sets.items():
            stats = self._measure(engine, batches, look)
            if stats is None:
                return None
            metrics |= {} if metrics else {"valid_loss": stats.loss, "valid_accuracy": stats.accuracy}
            metrics |= {f"valid_{name}_loss": stats.loss, f"valid_{name}_accuracy": stats.accuracy} if name else {}
            if math.isfinite(stats.loss_sum):
                of = f" of {name}" if name else ""
                note(f"step {step}: held-out loss{of} {stats.loss:.4f}, masked accuracy {stats.accuracy:.2%}")
        if step and metrics:
            self.best.seen.append((step, metrics["valid_loss"]))
        return metrics

    def _measure(self, engine: Engine, held_out: list[Batch], look: Callable[[], bool]) -> EvalStats | None:
        stats = EvalStats()
        with progress("validate", len(held_out), "batches") as bar:
            for begin in range(0, len(held_out), engine.dp_degree):
                if look():
                    return None
                batches = held_out[begin : begin + engine.dp_degree]
                stats += engine.evaluate(batches)
                bar.advance(len(batches))
        return stats

    def remember(self, lines: Sequence[Mapping[str, Any]], saved: Collection[int]) -> None:
        self.best.remember(((line["step"], line["valid_loss"]) for line in lines if line["step"]), saved)

    @property
    def best_step(self) -> int | None:
        return None if self.best.patience is None else self.best.step


def masks_at(loader: Loader, step: int) -> dict[str, float]:
    """The masking rate of an update, and the share of its rows that are read causally in a run with causal rows."""
    masks = {"masking_rate": loader.masking_rate(step)}
    if reads_causally(loader.config):
        masks["causal_share"] = loader.at(step).masking.causal_share
    return masks
