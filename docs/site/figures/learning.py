"""The held-out loss of whole recipes over their steps, as `benchmarks/learning.py` measured it."""

from __future__ import annotations

import math
from typing import Any

from curves import Scale
from drawing import MARGIN, Point, line, paragraph, svg, text
from results import measured_on, read

LEFT, RIGHT, HEIGHT = 56, 430, 190
PANELS = (
    ("On books", (("nano", "nano", "other"), ("nano-modern", "modern's settings", "ours"))),
    ("On documentation strings of Python code", (("quickstart", "quickstart", "ours"),)),
)
"""A panel's title, and its curves: the result's name, what it is called, and its colour."""


def panel(title: str, shown: tuple[tuple[str, str, str], ...], curves: dict[str, Any], top: float) -> list[str]:
    every = [loss for name, *_ in shown for _, loss in curves[name]["points"]]
    steps = max(curves[name]["points"][-1][0] for name, *_ in shown)
    across, up = (
        Scale(0, steps, RIGHT, LEFT),
        Scale(math.floor(min(every) - 0.3), math.ceil(max(every)), top, top + HEIGHT),
    )
    parts = [text(MARGIN, top - 16, title, "small head")]
    for tick in range(int(up.least), int(up.most) + 1):
        parts += [
            line((LEFT, up(tick)), (RIGHT, up(tick)), kind="grid"),
            text(LEFT - 8, up(tick) + 4, f"{tick}", "tick end"),
        ]
    for tick in range(0, steps + 1, 1000):
        parts.append(text(across(tick), top + HEIGHT + 20, f"{tick}" if tick else "step 0", "tick middle"))
    unigram = curves[shown[0][0]]["unigram"]
    parts += [
        line((LEFT, up(unigram)), (RIGHT, up(unigram)), kind="line dashed"),
        text(RIGHT + 8, up(unigram) + 4, f"unigram {unigram:.2f}", "small quiet"),
    ]
    for name, called, kind in shown:
        points: list[Point] = [(across(step), up(loss)) for step, loss in curves[name]["points"]]
        last = curves[name]["points"][-1][1]
        parts += [
            line(*points, kind=f"{kind} curve"),
            text(RIGHT + 8, points[-1][1] + 1, f"{called}", f"small {kind}"),
            text(RIGHT + 8, points[-1][1] + 19, f"{last:.2f}", "small quiet"),
        ]
    return parts


def learning() -> str:
    record = read("learning")
    curves = record["curves"]
    parts, top = [text(MARGIN, 34, "Held-out loss, from the first step to the last", "head")], 86.0
    for title, shown in PANELS:
        parts += panel(title, shown, curves, top)
        top += HEIGHT + 72
    caption = (
        "Two layers of 128, rows of 64 tokens, 15 % of held-out tokens masked. The dashed line is what counting tokens "
        f"reaches. {measured_on([record])}"
    )
    lines = paragraph(top - 24, caption)
    told = "; ".join(
        f"{called}: {curves[name]['points'][0][1]:.2f} at first, {curves[name]['points'][-1][1]:.2f} at the end, "
        f"unigram {curves[name]['unigram']:.2f}"
        for _, shown in PANELS
        for name, called, _ in shown
    )
    return svg(
        top - 24 + 20 * len(lines),
        "Held-out loss of whole recipes",
        f"{told}.",
        [*parts, *lines],
        style=".curve{stroke-width:2.5}",
    )
