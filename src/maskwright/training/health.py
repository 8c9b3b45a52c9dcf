"""Signs of a failing run while every number is still finite: spikes, a loss that never leaves chance, zeros.

They are judged on the losses of log lines. A continued run reads these back from metrics.jsonl, so it judges as it
would have without the stop.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable

from maskwright.core.console import warn

WINDOW_LINES, FEWEST_LINES, NEW_LEVEL_LINES = 50, 10, 10
SPIKE_DEVIATIONS, SPIKE_SHARE = 8.0, 0.1
"""A spike lies this many robust standard deviations, and this share, above the median of the window before it."""
CHANCE_SHARE = 0.01
"""A loss this close to the logarithm of the number of tokens, or of classes, equals a uniform guess."""
HEALTH_FIX = (
    "start a new run with a lower optimizer.learning_rate or a larger schedule.warmup_share; `maskwright export` makes "
    "a folder of the last good checkpoint for its model.init_from"
)


class LossWatch:
    """Judges the losses of log lines. `chance`: loss of a uniform guess, if there is one. `warmup_steps`: until then a
    loss at chance means nothing."""

    def __init__(self, chance: float | None, warmup_steps: int, before: Iterable[tuple[float, int]] = ()) -> None:
        """`before`: (loss, phase of the run) of the log lines so far, judged again without warnings."""
        self._phase = 0
        self._chance, self._warmup_steps = chance, warmup_steps
        self._losses: deque[float] = deque(maxlen=WINDOW_LINES)
        self._spikes: list[float] = []
        self._warned_of_chance = False
        for loss, phase in before:
            self._enter(phase)
            self._judge(loss)

    def _enter(self, phase: int) -> None:
        """Forgets the losses of another phase, whose rows or masks change the level of the loss."""
        if phase != self._phase:
            self._phase = phase
            self._losses.clear()
            self._spikes.clear()

    def look(self, step: int, loss: float, phase: int = 0) -> bool:
        """Whether the loss of the log line at `step` is a spike; warns of that and of other signs."""
        self._enter(phase)
        usual, lines = statistics.median(self._losses) if self._losses else loss, len(self._losses)
        spike = self._judge(loss)
        if spike:
            warn(f"step {step}: loss {loss:.3f} is far above the {usual:.3f} of the last {lines} log lines")
        if loss == 0.0:
            warn(f"step {step}: the loss is exactly 0, which no text gives; check the data and its masks")
        full = len(self._losses) == WINDOW_LINES
        if self._chance and full and not self._warned_of_chance and step > self._warmup_steps:
            least = min(self._losses)
            if least > self._chance * (1.0 - CHANCE_SHARE):
                self._warned_of_chance = True
                warn(
                    f"step {step}: the loss has stayed at {least:.3f} or above for {WINDOW_LINES} log lines; guessing "
                    f"evenly gives {self._chance:.3f}. The learning rate may be far too high or low"
                )
        return spike

    def _judge(self, loss: float) -> bool:
        """Adds a loss; returns whether it is a spike. Spikes stay out of the window; many in a row are a new level."""
        if self._is_spike(loss):
            self._spikes.append(loss)
            if len(self._spikes) == NEW_LEVEL_LINES:
                self._losses.clear()
                self._losses.extend(self._spikes)
                self._spikes.clear()
            return True
        self._spikes.clear()
        self._losses.append(loss)
        return False

    def _is_spike(self, loss: float) -> bool:
        if len(self._losses) < FEWEST_LINES:
            return False
        usual = statistics.median(self._losses)
        deviation = 1.4826 * statistics.median(abs(value - usual) for value in self._losses)
        return loss - usual > max(SPIKE_DEVIATIONS * deviation, SPIKE_SHARE * usual)
