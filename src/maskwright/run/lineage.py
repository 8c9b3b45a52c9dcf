"""Which checkpoint of which run a run began from, and that run in turn: as its record has it."""

from __future__ import annotations

import os
from typing import Any

Lineage = dict[str, Any]
"""`run`, `step`, `optimizer` (kept or fresh), what identifies the parent's weights, text and configuration, and
`lineage`, the parent's own; made by `tasks/pretrain/lineage.py`."""


def parse(given: str) -> tuple[str, int | None]:
    """(run directory, step) of RUN or RUN@STEP."""
    location, at, step = given.rpartition("@")
    if at and step.isdigit() and not os.path.isdir(given):
        return location, int(step)
    return given, None


def ancestors(lineage: Any) -> list[Lineage]:
    """The nearest first. What is no lineage has none: a status shows what it can read."""
    found = []
    while isinstance(lineage, dict) and {"run", "step"} <= set(lineage):
        found.append(lineage)
        lineage = lineage.get("lineage")
    return found


def describe(lineage: Any) -> list[str]:
    """A line for each ancestor."""
    lines: list[str] = []
    for one in ancestors(lineage):
        how = "a fresh optimizer" if one.get("optimizer") == "fresh" else "its optimizer's state"
        began = "which began" if lines else "began"
        lines.append(f"{began} from step {one['step']} of {one['run']}, with {how}")
        if isinstance(base := one.get("base"), dict):
            lines.append(f"which continued {base.get('location')}")
    return lines
