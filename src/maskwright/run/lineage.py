"""The checkpoint that a run began from, and the ancestors of that run, as its record has them."""

from __future__ import annotations

import os
from typing import Any

Lineage = dict[str, Any]
"""`run`, `step`, `optimizer` (kept or fresh), identifiers of the parent's weights, text and configuration, and the
parent's `lineage`; `tasks/pretrain/lineage.py` writes it."""


def parse(origin: str) -> tuple[str, int | None]:
    """(run directory, step) of RUN or RUN@STEP."""
    location, at, step = origin.rpartition("@")
    if at and step.isdigit() and not os.path.isdir(origin):
        return location, int(step)
    return origin, None


def ancestors(lineage: Any) -> list[Lineage]:
    """The lineages, the nearest first; empty if the value is not a lineage."""
    nearest_first = []
    while isinstance(lineage, dict) and {"run", "step"} <= set(lineage):
        nearest_first.append(lineage)
        lineage = lineage.get("lineage")
    return nearest_first


def describe(lineage: Any) -> list[str]:
    """A line for each ancestor."""
    lines: list[str] = []
    for ancestor in ancestors(lineage):
        optimizer = "a fresh optimizer" if ancestor.get("optimizer") == "fresh" else "its optimizer's state"
        began = "which began" if lines else "began"
        lines.append(f"{began} from step {ancestor['step']} of {ancestor['run']}, with {optimizer}")
        if isinstance(base := ancestor.get("base"), dict):
            lines.append(f"which continued {base.get('location')}")
    return lines
