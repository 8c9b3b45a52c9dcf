"""Names of the numbers of `metrics.jsonl` in other services, equal to Hugging Face's Trainer, so that one plot can show
runs of both. docs/report-to.md lists them."""

from __future__ import annotations

import math
from typing import Any, TypeGuard

HELD_OUT = "valid_"
"""Prefix of the names of held-out numbers in `metrics.jsonl`."""
RENAMED = {"tokens": "num_input_tokens_seen"}
"""Names that differ in the Trainer."""
COORDINATES = ("step", "time")


def is_finite(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_held_out(record: dict[str, Any]) -> bool:
    """Whether a line holds an evaluation, not a training step's numbers."""
    return any(name.startswith(HELD_OUT) for name in record)


def trainer_names(record: dict[str, Any]) -> dict[str, float]:
    """`train/…` and `eval/…`, the names that the Trainer's callbacks give to TensorBoard and W&B. Words, the
    step, the time and numbers that are not finite are left out."""
    found: dict[str, float] = {}
    for name, value in record.items():
        if name in COORDINATES or not is_finite(value):
            continue
        if name.startswith(HELD_OUT):
            found[f"eval/{name.removeprefix(HELD_OUT)}"] = value
        else:
            found[f"train/{RENAMED.get(name, name)}"] = value
    return found
