"""Dynamic loss scaling for fp16, by the rules of `torch.amp.GradScaler` (Micikevicius et al. 2018, arXiv:1710.03740).

fp16 holds nothing below 6e-8 and nothing above 65,504. So the loss is multiplied before the backward pass and its
gradient is divided afterwards, in fp32. A gradient that overflows anyway halves the scale, and its update is skipped.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from maskwright.core.console import warn
from maskwright.core.errors import HealthError
from maskwright.engines.base import ScaleState

FIRST_SCALE = 2.0**16
DOUBLED_AFTER_UPDATES = 2000


class LossScale:
    """The loss scale and its counts. They stay on the device, which may run ahead of the host. Every rank has the same
    numbers, because each judges the gradient of all ranks.

    `losses`: approximate number of predicted positions or examples in a micro-batch. The engine sums their losses, and
    the scale is for their mean: otherwise the first scale would overflow at once. The share is a power of two, so it
    rounds nothing."""

    def __init__(self, losses: float, device: str) -> None:
        self._share = 2.0 ** -math.floor(math.log2(max(losses, 1.0)))
        self._scale = torch.full((), FIRST_SCALE, device=device)
        self._good_in_a_row, self._skipped, self._last_skipped = (
            torch.zeros((), dtype=torch.int32, device=device) for _ in range(3)
        )
        self._said = 0

    @property
    def factor(self) -> Tensor:
        """fp32 scalar by which the sum of the losses is multiplied."""
        return self._scale * self._share

    @property
    def too_small(self) -> Tensor:
        """Whether the scale cannot be lowered further: the gradient itself overflows."""
        return self._scale < 1.0

    def update(self, finite: Tensor, step: int) -> None:
        """Adjusts the scale after the gradient of update `step`. `finite`: whether it did not overflow."""
        good = self._good_in_a_row + 1
        grows = finite & (good == DOUBLED_AFTER_UPDATES)
        doubled = torch.where(torch.isfinite(self._scale * 2.0), self._scale * 2.0, self._scale)
        self._scale = torch.where(finite, torch.where(grows, doubled, self._scale), self._scale * 0.5)
        self._good_in_a_row = torch.where(finite & ~grows, good, 0)
        self._skipped = self._skipped + (~finite).int()
        self._last_skipped = torch.where(finite, self._last_skipped, step)

    def warn_of_skipped(self) -> None:
        """Warns of newly skipped updates. Waits for the device."""
        new, self._said = int(self._skipped) - self._said, int(self._skipped)
        if new:
            count_note = f" ({new} updates were skipped since the last look)" if new > 1 else ""
            warn(
                f"step {int(self._last_skipped)}: the gradient overflowed fp16, so this update is skipped{count_note}; "
                f"the loss scale is {float(self._scale):,g} now"
            )

    def read(self) -> ScaleState:
        return {
            "loss_scale": float(self._scale),
            "good_updates_in_a_row": int(self._good_in_a_row),
            "skipped_updates": int(self._skipped),
        }

    def write(self, state: ScaleState | None) -> None:
        """Sets the state; None resets it."""
        state = state or {"loss_scale": FIRST_SCALE, "good_updates_in_a_row": 0, "skipped_updates": 0}
        self._scale = torch.full_like(self._scale, state["loss_scale"])
        self._good_in_a_row = torch.full_like(self._good_in_a_row, int(state["good_updates_in_a_row"]))
        self._skipped = torch.full_like(self._skipped, int(state["skipped_updates"]))
        self._said = int(state["skipped_updates"])


def scale_too_small(step: int) -> HealthError:
    return HealthError(
        f"step {step}: the gradient overflows fp16 even with a loss scale below 1; stopped before the update",
        step=step,
        fix="start a new run with engine.dtype: fp32 or a lower optimizer.learning_rate; RUN/not-finite names the text",
    )
