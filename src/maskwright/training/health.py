"""Signs of a run that goes wrong while every number is still finite: spikes, a loss that never leaves chance, zeros.

All are judged on the losses of log lines, which a continued run reads back from metrics.jsonl: so it judges as it would
have without the stop.
"""

from __future__ import annotations

import math
import os
import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from maskwright.core import storage
from maskwright.core.console import warn
from maskwright.core.run_directory import RunDirectory

WINDOW_LINES, FEWEST_LINES = 50, 10
SPIKE_DEVIATIONS, SPIKE_SHARE = 8.0, 0.1
"""A spike lies this many robust standard deviations, and this share, above the median of the window before it."""
CHANCE_SHARE = 0.01
"""A loss this close to ln(vocabulary) is that of guessing evenly."""


class LossWatch:
    """`vocabulary`: number of tokens; `warmup_steps`: until then a loss at chance is no sign."""

    def __init__(self, vocabulary: int, warmup_steps: int, before: Iterable[float] = ()) -> None:
        self._chance, self._warmup_steps = math.log(vocabulary), warmup_steps
        self._losses: deque[float] = deque(before, maxlen=WINDOW_LINES)
        self._told_of_chance = False

    def look(self, step: int, loss: float) -> bool:
        """Whether the loss of the log line at `step` is a spike; warns of that and of other signs."""
        spike = self._is_spike(loss)
        if spike:
            usual = statistics.median(self._losses)
            warn(f"step {step}: loss {loss:.3f} is far above the {usual:.3f} of the last {len(self._losses)} log lines")
        else:
            self._losses.append(loss)  # a spike does not make the next one look usual
        if loss == 0.0:
            warn(f"step {step}: the loss is exactly 0, which no text gives; look at the data and its masks")
        full = len(self._losses) == WINDOW_LINES
        if full and not self._told_of_chance and step > self._warmup_steps:
            least = min(self._losses)
            if least > self._chance * (1.0 - CHANCE_SHARE):
                self._told_of_chance = True
                warn(
                    f"step {step}: the loss has stayed at {least:.3f} or above for {WINDOW_LINES} log lines; guessing "
                    f"evenly among all tokens gives {self._chance:.3f}. The learning rate may be far too high or low"
                )
        return spike

    def _is_spike(self, loss: float) -> bool:
        if len(self._losses) < FEWEST_LINES:
            return False
        usual = statistics.median(self._losses)
        deviation = 1.4826 * statistics.median(abs(value - usual) for value in self._losses)
        return loss - usual > max(SPIKE_DEVIATIONS * deviation, SPIKE_SHARE * usual)


@dataclass(frozen=True)
class Rollback:
    """At log line `seen` the loss spiked; the run went back to the checkpoint at `step` and left out as many steps of
    data as lay between."""

    seen: int
    step: int


class Rollbacks:
    """`rollbacks.json` of a run directory: which data each step sees is a function of the step and of this list."""

    def __init__(self, directory: RunDirectory) -> None:
        self._path = directory.path("rollbacks.json")
        noted = storage.read_json(self._path) if os.path.exists(self._path) else []
        self.all = [Rollback(**record) for record in noted]

    def add(self, rollback: Rollback) -> None:
        self.all.append(rollback)
        storage.write_json(self._path, [asdict(record) for record in self.all])

    def data_step(self, step: int) -> int:
        """The step of the undisturbed order whose rows update `step` takes."""
        return step + sum(record.seen - record.step for record in self.all if record.step <= step)
