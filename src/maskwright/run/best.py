"""The best evaluation so far, and whether enough evaluations have passed without a better one."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field


@dataclass
class Best:
    patience: int | None
    """Evaluations in a row without a better value after which a run is settled; None for never."""
    lower: bool
    """Whether a lower value is better."""
    seen: list[tuple[int, float]] = field(default_factory=list)
    """(step, value) of each evaluation."""

    def remember(self, seen: Iterable[tuple[int, float]], saved: Collection[int]) -> None:
        """Replaces the evaluations. `saved`: the steps with a checkpoint. The best evaluation is ignored if its
        checkpoint was deleted: patience may have been switched on only later."""
        self.seen, there, gone = list(seen), {*saved}, set[int]()
        for step, _ in sorted(filter(_is_finite, self.seen), key=self._rank):
            if step in there:
                break
            gone.add(step)
        self.seen = [one for one in self.seen if one[0] not in gone]

    @property
    def step(self) -> int | None:
        """The step of the best evaluation; None before the first with a finite value. Of equals the first, but of
        scores of 0, such as the F1 of entities before any is found, the last: there, patience does not begin."""
        best = min(filter(_is_finite, self.seen), key=self._rank, default=None)
        return best[0] if best else None

    def _rank(self, one: tuple[int, float]) -> tuple[float, int]:
        """Lower for a better evaluation."""
        step, value = one
        return (value, step) if self.lower else (-value, step if value else -step)

    @property
    def settled(self) -> bool:
        best = self.step
        since = sum(step > best for step, _ in self.seen) if best is not None else 0
        return self.patience is not None and since >= self.patience


def _is_finite(one: tuple[int, float]) -> bool:
    return math.isfinite(one[1])
