"""Learning rate as a function of the step."""

from __future__ import annotations

import math

from maskwright.core.config import Schedule


def learning_rate(schedule: Schedule, peak: float, step: int) -> float:
    """Of update `step` (0-based). No update has a rate of 0 unless asked for: warm-up starts at peak / warmup_steps.

    linear   straight down from the peak to `final_lr_share`, reached just after the last step (RoBERTa)
    cosine   half a cosine between the same ends (Loshchilov and Hutter 2017)
    wsd      the peak until the last `decay_steps` (a fifth of the run when not set), then down as 1 - sqrt
             (warmup-stable-decay; the shape is Hägele et al. 2024)
    """
    if step < schedule.warmup_steps:
        return peak * (step + 1) / schedule.warmup_steps
    begin = schedule.warmup_steps
    if schedule.kind == "wsd":
        begin = schedule.steps - wsd_decay_steps(schedule)
    progress = max(0.0, (step - begin) / (schedule.steps - begin))
    if schedule.kind == "linear":
        share = 1.0 - progress
    elif schedule.kind == "cosine":
        share = 0.5 * (1.0 + math.cos(math.pi * progress))
    else:
        share = 1.0 - math.sqrt(progress)
    return peak * (schedule.final_lr_share + (1.0 - schedule.final_lr_share) * share)


def wsd_decay_steps(schedule: Schedule) -> int:
    longest = schedule.steps - schedule.warmup_steps
    return min(longest, schedule.decay_steps or max(1, schedule.steps // 5))
