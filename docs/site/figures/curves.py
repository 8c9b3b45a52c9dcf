"""The loss of runs that were killed beside that of runs that were left alone, as `benchmarks/curves.py` measured it."""

from __future__ import annotations

import math
from typing import Any

from drawing import MARGIN, WIDTH, Point, line, paragraph, svg, text
from results import measured_on, read

SIDES = {"hf_trainer": ("Hugging Face Trainer", "other"), "maskwright": ("maskwright", "ours")}
LEFT, RIGHT, LOSS, BETWEEN, DIFFERENCE = 64, WIDTH - MARGIN, 150, 22, 76
Side = dict[str, Any]


class Scale:
    """From values to places on the page, of which `top` is that of `most`."""

    def __init__(self, least: float, most: float, top: float, bottom: float) -> None:
        self.least, self.most, self.top, self.bottom = least, most, top, bottom

    def __call__(self, value: float) -> float:
        return self.bottom + (value - self.least) / (self.most - self.least) * (self.top - self.bottom)


def every_loss(sides: dict[str, Side]) -> list[float]:
    runs = [run for side in sides.values() for run in (side["straight"], *(one["losses"] for one in side["attempts"]))]
    return [loss for run in runs for loss in run]


def points(first: int, values: list[float], across: Scale, up: Scale) -> list[Point]:
    return [(across(first + number), up(value)) for number, value in enumerate(values, 1)]


def axis(up: Scale, ticks: tuple[float, ...]) -> list[str]:
    parts = []
    for tick in ticks:
        parts.append(line((LEFT, up(tick)), (RIGHT, up(tick)), kind="grid"))
        parts.append(text(LEFT - 8, up(tick) + 4, f"{tick:+g}" if up.least < 0 and tick else f"{tick:g}", "tick end"))
    return parts


def panel(
    side: Side, title: str, kind: str, top: float, across: Scale, ranges: tuple[float, float, float]
) -> list[str]:
    """Losses and, below them, how far they are from those of the run that was left alone."""
    least, most, apart = ranges
    up = Scale(least, most, top + 52, top + 52 + LOSS)
    below = Scale(-apart, apart, up.bottom + BETWEEN, up.bottom + BETWEEN + DIFFERENCE)
    whole = math.ceil(least), math.floor(most)
    parts = [text(MARGIN, top + 8, title, f"head {kind}"), text(MARGIN, top + 28, in_words(side), "small")]
    parts += axis(up, tuple(range(whole[0], whole[1] + 1))) + axis(below, (-apart, 0, apart))
    for attempt in side["attempts"]:
        if attempt["killed"]:
            at = across(attempt["began_at"] + len(attempt["losses"]))
            parts.append(line((at, up.top), (at, below.bottom), kind="line dashed"))
    parts.append(line(*points(0, side["straight"], across, up), kind="alone thick"))
    for attempt in side["attempts"]:
        first, values = attempt["began_at"], attempt["losses"]
        beside = side["straight"][first : first + len(values)]
        parts.append(line(*points(first, values, across, up), kind=f"{kind} thin"))
        away = [value - other for value, other in zip(values, beside, strict=True)]
        parts.append(line(*points(first, away, across, below), kind=kind))
    names = (
        text(MARGIN, up.top - 9, "loss", "tick"),
        text(MARGIN, below.top - 9, "difference", "tick"),
    )
    return [*parts, *names]


def in_words(side: Side) -> str:
    end, kills = side["end"], sum(attempt["killed"] for attempt in side["attempts"])
    if end["different_steps"] == end["different_tensors"] == 0:
        return f"{kills} kills: all {end['steps_compared']} losses and all {end['tensors']} tensors are the same bits"
    return (
        f"{kills} kills: {end['different_steps']} of {end['steps_compared']} losses differ, by up to "
        f"{end['largest_loss_difference']:.2g}; {end['different_tensors']} of {end['tensors']} tensors differ"
    )


def curves() -> str:
    record = read("curves")
    sides, setting = record["sides"], record["setting"]
    every = every_loss(sides)
    apart = max(side["end"]["largest_loss_difference"] for side in sides.values())
    ranges = math.floor(min(every) * 2) / 2, math.ceil(max(every) * 2) / 2, math.ceil(apart * 10) / 10
    across = Scale(0, setting["steps"], RIGHT, LEFT)
    parts = [
        text(MARGIN, 34, "A run killed by kill -9 and started again, beside one left alone", "head"),
        line((MARGIN, 55), (MARGIN + 30, 55), kind="alone thick"),
        text(MARGIN + 38, 60, "left alone", "small"),
        line((140, 55), (170, 55), kind="ours"),
        line((174, 55), (204, 55), kind="other"),
        text(212, 60, "killed and started again", "small"),
        line((402, 46), (402, 64), kind="line dashed"),
        text(412, 60, "kill -9", "small"),
    ]
    top, height = 92.0, 52 + LOSS + BETWEEN + DIFFERENCE + 40
    for name, (title, kind) in SIDES.items():
        parts += panel(sides[name], title, kind, top, across, ranges)
        top += height
        for tick in range(0, setting["steps"] + 1, 50):
            parts.append(text(across(tick), top - 22, f"{tick}" if tick else "step 0", "tick middle"))
    alike = all(side["straight_twice"]["different_steps"] == 0 for side in sides.values())
    control = "On both sides, a second run that nobody killed repeated the first, bit by bit. " if alike else ""
    caption = (
        f"RoBERTa of size {setting['size']}, {setting['rows']} rows of {setting['seq_len']} tokens, a save every "
        f"{setting['save_every_steps']} steps; fp32, dropout, random masks. {control}transformers "
        f"{record['versions']['transformers']}. {measured_on([record])}"
    )
    lines = paragraph(top + 14, caption)
    told = [f"{title}: {in_words(sides[name])}." for name, (title, _) in SIDES.items()]
    return svg(
        top + 14 + 20 * len(lines),
        "The loss of a run that is killed and started again, beside that of one left alone",
        " ".join(told),
        [*parts, *lines],
        style=".thick{stroke-width:5}.thin{stroke-width:1.2}",
    )
