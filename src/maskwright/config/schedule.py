"""The learning rate over a run: the keys of `schedule:`, and the curve that they describe."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from maskwright.config.settings import Count, Fraction, Needed, Refused, Section

GROWING = ("wsd", "constant", "inverse_sqrt")
"""Kinds with a phase that does not depend on the number of steps, so that a run in it may get more steps."""
ENDLESS = ("constant", "inverse_sqrt")
"""Kinds without a last step."""
INVERSE_SQRT_STEPS = 10_000
"""Steps in which inverse_sqrt falls by the root of 2 without a warm-up; the number is from transformers."""


EXCLUSIVE = (("steps", "epochs"), ("warmup_steps", "warmup_share"), ("decay_steps", "decay_share"))
"""Keys of `schedule` with one meaning: an option that sets one replaces the file's other."""


class Length(Section):
    """The length of a run, given once."""

    epochs: Annotated[float, Field(gt=0.0)] | None = None
    """Passes over the training examples. Default: 3, unless steps is set."""
    steps: Count | None = None
    """Number of optimizer updates in the whole run, instead of epochs."""

    @model_validator(mode="after")
    def _said_once(self) -> Self:
        for pair in EXCLUSIVE:
            if all(key in self.model_fields_set and getattr(self, key) is not None for key in pair):
                raise Refused(f"schedule has {' and '.join(pair)}", fix="give one of them")
        return self


class ScheduleCurve(Length):
    kind: Literal["linear", "cosine", "wsd", "constant", "polynomial", "inverse_sqrt"] = "linear"
    """Shape of the learning rate after the warm-up. linear: a straight line down. cosine: half a cosine down. wsd:
    flat, then 1-sqrt down (warmup-stable-decay). constant: flat. polynomial: as linear, to the power of `power`.
    inverse_sqrt: 1 / sqrt(step)."""
    warmup_share: Fraction | None = None
    """Share of the run in which the learning rate rises linearly to its peak."""
    decay_steps: Count | None = None
    """Only for wsd: steps of the decay. Default: a fifth of the run, unless decay_share is set."""
    decay_share: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Only for wsd: share of the run for the decay."""
    final_lr_share: Fraction = 0.0
    """Learning rate just after the last step, as a share of the peak. Not for constant and inverse_sqrt."""
    power: Annotated[float, Field(gt=0.0)] | None = None
    """Only for polynomial: power of the share of steps that are left. Default: 1, a straight line."""

    @model_validator(mode="after")
    def _keys_fit_the_kind(self) -> Self:
        odd = {
            "decay_steps": self.decay_steps is not None and self.kind != "wsd",
            "decay_share": self.decay_share is not None and self.kind != "wsd",
            "power": self.power is not None and self.kind != "polynomial",
            "final_lr_share": self.final_lr_share > 0.0 and self.kind in ENDLESS,
        }
        takes = {"power": "polynomial", "final_lr_share": "linear, cosine, wsd or polynomial"}
        for key in (key for key, is_odd in odd.items() if is_odd):
            unset = f"leave {key} out (--set schedule.{key}=null)" if key != "final_lr_share" else f"leave {key} out"
            raise Refused(f"kind {self.kind} has no {key}", fix=f"set kind: {takes.get(key, 'wsd')}, or {unset}")
        if (self.warmup_share or 0.0) + (self.decay_share or 0.0) > 1.0:
            fix = "lower schedule.warmup_share or schedule.decay_share"
            raise Refused("warmup_share and decay_share add up to more than 1, so the run would never peak", fix=fix)
        return self


class Schedule(ScheduleCurve):
    steps: Annotated[Count | None, Needed] = None
    """Number of optimizer updates in the whole run, unless you set epochs. You may raise it later for kind constant and
    inverse_sqrt, and for wsd before its decay."""
    epochs: Annotated[float, Field(gt=0.0)] | None = None
    """Passes over the training rows, instead of steps. The token store then determines the steps."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps of the warm-up, instead of warmup_share."""

    @model_validator(mode="after")
    def _has_a_peak(self) -> Schedule:
        if self.steps is not None:
            require_peak(self, self.steps)
        elif self.epochs is None:
            raise PydanticCustomError("missing", "schedule has neither steps nor epochs")
        return self


def require_peak(schedule: Schedule, steps: int) -> None:
    """Raises `Refused` if warm-up and decay are longer than the run."""
    warmup_steps, decay_steps = warmup_of(schedule, schedule.warmup_steps, steps), schedule.decay_steps
    if warmup_steps >= steps or warmup_steps + (decay_steps or 0) > steps:
        shares = " --set schedule.decay_share=0.2" if decay_steps else ""
        shares = f" --set schedule.warmup_share=0.1{shares}" if schedule.warmup_steps else shares
        raise Refused(
            f"warm-up and decay leave no other step of the {steps}, so the run would never peak",
            fix=f"raise schedule.{'epochs' if schedule.epochs else 'steps'}, or{shares}",
        )


def warmup_of(schedule: ScheduleCurve, warmup_steps: int, steps: int) -> int:
    """Steps of the warm-up in a run of `steps`: `warmup_steps` if the schedule gives no share. A share is rounded up,
    as in transformers, and leaves a step at the peak."""
    if schedule.warmup_share is None:
        return warmup_steps
    return min(math.ceil(schedule.warmup_share * steps), steps - 1)


def decay_begins(schedule: ScheduleCurve, steps: int, warmup_steps: int) -> int:
    """The first update of wsd's decay phase, from 0. All updates before it have the same rates in a longer run."""
    if schedule.kind != "wsd":
        return steps
    fifth = steps // 5 if schedule.decay_share is None else round(schedule.decay_share * steps)
    return steps - min(steps - warmup_steps, schedule.decay_steps or max(1, fifth))


def rate_at(schedule: ScheduleCurve, steps: int, warmup_steps: int, peak: float, step: int) -> float:
    """See `RunConfig.learning_rate_at`."""
    begin = warmup_steps
    if step < begin:
        return peak * (step + 1) / begin
    if schedule.kind == "constant":
        return peak
    if schedule.kind == "inverse_sqrt":
        scale = begin or INVERSE_SQRT_STEPS
        return peak / math.sqrt((step - begin + scale) / scale)
    if schedule.kind == "wsd":
        begin = decay_begins(schedule, steps, warmup_steps)
    progress = max(0.0, (step - begin) / (steps - begin))
    if schedule.kind == "linear":
        share = 1.0 - progress
    elif schedule.kind == "polynomial":
        share = (1.0 - progress) ** (1.0 if schedule.power is None else schedule.power)
    elif schedule.kind == "cosine":
        share = 0.5 * (1.0 + math.cos(math.pi * progress))
    else:
        share = 1.0 - math.sqrt(progress)
    return peak * (schedule.final_lr_share + (1.0 - schedule.final_lr_share) * share)
