"""The interface between the training loop and its objectives, masked-LM training and fine-tuning."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from maskwright.data.batch import Batch
from maskwright.engines.base import Engine
from maskwright.run.best import Best


@dataclass(frozen=True)
class UpdateCounts:
    """Amounts of work in an update, over all ranks."""

    tokens: int
    """Positions that are not padding."""
    pairs: float
    """(query, key) pairs inside segments."""
    predicted: float
    """Positions that the head computes."""


class Objective(Protocol):
    best: Best
    """The run's evaluations. Once they are settled, the run ends before its last step."""

    @property
    def chance(self) -> float | None:
        """Loss of a uniform guess in nats; None if the loss has none."""
        ...

    @property
    def evaluates_at_start(self) -> bool:
        """Whether the model of step 0 is worth an evaluation."""
        ...

    @property
    def held_out(self) -> Sequence[Batch]:
        """Batches of `Engine.evaluate` that the trial before the first step compiles; may be empty."""
        ...

    def batches(self, step: int, virtual_workers: Sequence[int]) -> list[Batch]:
        """The micro-batches of an update, one for each of `virtual_workers`; a pure function."""
        ...

    def trials(self, step: int, virtual_workers: Sequence[int]) -> list[tuple[int, list[Batch]]]:
        """(step, its batches) of updates with all remaining shapes of the run, or the largest ones."""
        ...

    def rope_theta(self, step: int) -> float | None:
        """See `Engine.use_rope_theta`; None for the model's own."""
        ...

    def work(self, step: int) -> UpdateCounts: ...

    def epoch(self, step: int) -> float:
        """Passes over the training data before `step`."""
        ...

    def logged(self, step: int) -> dict[str, float]:
        """Numbers of a log line, except loss and rates."""
        ...

    def evaluate(self, engine: Engine, step: int, look: Callable[[], bool]) -> dict[str, float] | None:
        """Metrics on the validation split, `valid_loss` among them; empty when there is none. All ranks get the same.

        `look` is called often; once it returns true, the evaluation is abandoned and None is returned.
        """
        ...

    def remember(self, lines: Sequence[Mapping[str, Any]], saved: Collection[int]) -> None:
        """Reads the evaluations on the present held-out text from metrics.jsonl. `saved`: see `Best.remember`."""
        ...

    @property
    def best_step(self) -> int | None:
        """The step of the best evaluation, whose checkpoint is kept; None if only the last one counts."""
        ...
