"""The agreement of a run's ranks, after each step, to continue, to save or to stop."""

from __future__ import annotations

import math
import time

from maskwright.config.pretraining import CheckpointSection
from maskwright.engines.processes import Processes
from maskwright.training.stop import StopRequest

VOTE_STEPS = 2
"""Steps until every rank has seen a rank's vote."""
SAVE, STOP, END = 1, 2, 3
"""A rank's possible votes, in addition to 0. END is a final stop. All ranks follow the highest, after the same step."""


class Vote:
    """One rank's vote, and the vote that all ranks have agreed on."""

    def __init__(self, options: CheckpointSection, stop: StopRequest, processes: Processes, step: int) -> None:
        self._options, self._stop = options, stop
        self._alone, self._is_rank_0 = processes.world_size == 1, processes.rank == 0
        self._saved_at, self._saved_step = time.monotonic(), step
        self.own = self.agreed = 0

    def begin(self) -> None:
        """Votes before the first step. A single rank agrees with itself at once; several need a step for it, unless
        all see the reason."""
        if self._alone or self._stop.everywhere:
            self.take(0)

    def take(self, highest: int) -> None:
        """Votes after a step. `highest`: the highest vote of all ranks that the step has received."""
        self.own = self._choose()
        self.agreed = END if self._stop.everywhere else self.own if self._alone else highest

    @property
    def stops(self) -> bool:
        return self.agreed >= STOP

    def _choose(self) -> int:
        if self._stop.requested:
            return END if self._stop.is_final else STOP
        every = self._options.save_every_seconds or math.inf
        by_clock = self._is_rank_0 and time.monotonic() - self._saved_at >= every
        return SAVE if by_clock or self._stop.save_wanted else 0

    def due_to_save(self, step: int) -> bool:
        # Votes cast before a save may arrive up to VOTE_STEPS after it; ignore those.
        voted = self.agreed == SAVE and (self._alone or step > self._saved_step + VOTE_STEPS)
        return voted or is_due(self._options.save_every_steps, step)

    def saved(self, step: int) -> None:
        self._saved_at, self._saved_step, self._stop.save_wanted = time.monotonic(), step, False


def is_due(every: int | None, step: int) -> bool:
    return every is not None and step % every == 0
