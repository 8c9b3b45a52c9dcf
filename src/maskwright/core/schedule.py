"""The learning rate over a run: the keys of `schedule:`, and the curve that they describe."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from maskwright.core.settings import Count, Fraction, Refused, Section

GROWING = ("wsd",)
"""Kinds with a phase that does not depend on the number of steps: a run in that phase may get more of them."""


class ScheduleCurve(Section):
    kind: Literal["linear", "cosine", "wsd"] = "linear"
    """Each starts with a warm-up. linear: then a straight line down. cosine: then half a cosine down. wsd: then flat,
    then 1-sqrt down (warmup-stable-decay)."""
    decay_steps: Count | None = None
    """Only for wsd: length of the decay phase; a fifth of the run when not set."""
    final_lr_share: Fraction = 0.0
    """Learning rate just after the last step, as a share of the peak."""

    @model_validator(mode="after")
    def _only_wsd_has_decay_steps(self) -> Self:
        if self.decay_steps is not None and self.kind != "wsd":
            raise Refused(f"kind {self.kind} has no decay_steps", fix="take kind: wsd, or leave decay_steps out")
        return self


class Schedule(ScheduleCurve):
    steps: Count
    """Number of optimizer updates in the whole run. A run with kind wsd may get more of them before its decay."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps in which the learning rate rises linearly to its peak."""

    @model_validator(mode="after")
    def _phases_fit(self) -> Schedule:
        if self.warmup_steps >= self.steps or self.warmup_steps + (self.decay_steps or 0) > self.steps:
            decay = f" --set schedule.decay_steps={max(1, self.steps // 5)}" if self.decay_steps else ""
            raise Refused(
                f"warm-up and decay leave no other step of the {self.steps}: the run would never peak",
                fix=f"raise schedule.steps, or --set schedule.warmup_steps={self.steps // 10}{decay}",
            )
        return self


def decay_begins(schedule: ScheduleCurve, steps: int, warmup_steps: int) -> int:
    """The first update of wsd's decay phase, from 0. All updates before it have the same rates in a longer run."""
    return steps - min(steps - warmup_steps, schedule.decay_steps or max(1, steps // 5))


def rate_at(schedule: ScheduleCurve, steps: int, warmup_steps: int, peak: float, step: int) -> float:
    """See `RunConfig.learning_rate_at`."""
    begin = warmup_steps
    if step < begin:
        return peak * (step + 1) / begin
    if schedule.kind == "wsd":
        begin = decay_begins(schedule, steps, warmup_steps)
    progress = max(0.0, (step - begin) / (steps - begin))
    if schedule.kind == "linear":
        share = 1.0 - progress
    elif schedule.kind == "cosine":
        share = 0.5 * (1.0 + math.cos(math.pi * progress))
    else:
        share = 1.0 - math.sqrt(progress)
    return peak * (schedule.final_lr_share + (1.0 - schedule.final_lr_share) * share)
