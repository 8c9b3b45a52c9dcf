"""The verdict of a quickstart, and all verdicts that were measured, as differences with their 95 % intervals."""

from __future__ import annotations

import math
from statistics import mean
from typing import Any

from curves import Scale
from drawing import MARGIN, WIDTH, line, paragraph, rectangle, svg, text
from results import measured_on, read

LEFT, RIGHT, ROW = 240, 425, 24
KINDS = {"helped": "ours", "hurt": "other"}
PLAIN = "rect.plain{fill:#8a94a0}"
"""A grey that light and dark pages can both show."""


def signed(value: float) -> str:
    return f"{value:+g}".replace("-", "−")


def bar(across: Scale, y: float, one: dict[str, Any]) -> list[str]:
    """The interval, its middle, and the line of no difference."""
    kind = KINDS.get(one["verdict"], "plain")
    low, high = across(one["low"]), across(one["high"])
    return [
        rectangle(low, y - 2.5, max(high - low, 2), 5, kind, round_=2),
        rectangle(across(one["difference"]) - 4, y - 7, 8, 14, kind, round_=2),
    ]


def in_words(one: dict[str, Any]) -> str:
    return f"{signed(one['difference'])} [{signed(one['low'])}, {signed(one['high'])}]"


def groups() -> list[dict[str, Any]]:
    return [*read("verdicts")["groups"]]


def forest() -> str:
    parts, told, y = [text(MARGIN, 34, "Verdicts that were measured, in points", "head")], [], 60.0
    parts += [
        rectangle(MARGIN, y - 10, 14, 10, "ours", round_=2),
        text(MARGIN + 20, y, "helped", "small"),
        rectangle(100, y - 10, 14, 10, "other", round_=2),
        text(120, y, "hurt", "small"),
        rectangle(170, y - 10, 14, 10, "plain", round_=2),
        text(190, y, "no difference shown, or too few seeds to conclude", "small"),
    ]
    for group in groups():
        rows = group["rows"]
        least, most = min(0.0, *(one["low"] for one in rows)), max(0.0, *(one["high"] for one in rows))
        across = Scale(least, most, RIGHT, LEFT)
        y += 40
        parts.append(text(MARGIN, y, group["title"], "small head"))
        parts.append(line((across(0), y + 8), (across(0), y + 12 + ROW * len(rows)), kind="one"))
        for one in rows:
            y += ROW
            parts += [text(MARGIN, y + 5, one["what"], "small quiet"), *bar(across, y, one)]
            parts.append(text(WIDTH - MARGIN, y + 5, in_words(one), "small end"))
            told.append(f"{one['what']}: {in_words(one)}, {one['verdict']}")
        y += 8
    caption = (
        "The upright line is no difference; each group has a scale of its own. Bars are 95 % intervals over seeds and "
        "test examples. Relatedness counts hundredths of Pearson's r, and Cranfield those of nDCG@10."
    )
    lines = paragraph(y + 30, caption)
    return svg(
        y + 30 + 20 * len(lines), "Verdicts that were measured", "; ".join(told) + ".", [*parts, *lines], style=PLAIN
    )


def verdict() -> str:
    record = read("quickstart")
    one, scores = record["verdict"], record["scores"]
    every = [value for values in scores.values() for value in values]
    across = Scale(math.floor(min(every)) - 1, math.ceil(max(every)) + 1, WIDTH - MARGIN - 20, 170)
    said = {"helped": "Pretraining helped", "hurt": "Pretraining hurt"}.get(one["verdict"], "No difference shown")
    before, after = (mean(scores[name]) for name in ("random", "pretrained"))
    parts = [
        text(MARGIN, 36, f"{said}: {signed(one['difference'])} points", "ours verdict"),
        text(
            MARGIN,
            62,
            f"95 % interval {one['low']:g} to {one['high']:g}; p = {one['p']:.2g}; {len(scores['random'])} seeds",
            "small",
        ),
        text(MARGIN, 106, "random weights", "small"),
        text(MARGIN, 124, f"mean {before:.1f}", "small quiet"),
        text(MARGIN, 156, "pretrained", "small head"),
        text(MARGIN, 174, f"mean {after:.1f}", "small quiet"),
    ]
    for first, second in zip(scores["random"], scores["pretrained"], strict=True):
        parts.append(line((across(first), 110), (across(second), 160), kind="alone"))
    for name, y, kind in (("random", 110, "plain"), ("pretrained", 160, "ours")):
        parts += [rectangle(across(value) - 5, y - 5, 10, 10, kind, round_=5) for value in scores[name]]
    ticks = range(math.ceil(across.least / 5) * 5, int(across.most) + 1, 5)
    for tick in ticks:
        parts += [
            line((across(tick), 92), (across(tick), 180), kind="grid"),
            text(across(tick), 198, f"{tick}", "tick middle"),
        ]
    parts.append(text(MARGIN, 198, f"{record['metric']}, points", "small quiet"))
    shift = Scale(min(0.0, one["low"]) - 1, max(0.0, one["high"]) + 1, WIDTH - MARGIN - 20, 170)
    parts += [
        text(MARGIN, 243, "difference", "small"),
        line((shift(0), 222), (shift(0), 254), kind="one"),
        *bar(shift, 238, one),
        text(shift(0), 272, "0", "tick middle"),
    ]
    parts += [text(shift(at), 272, f"+{at}", "tick middle") for at in range(2, int(shift.most) + 1, 2)]
    caption = (
        f"One quickstart: {record['task']}, {record['test_examples']:,} test examples. Each line joins both arms' "
        f"runs of one seed. {measured_on([record])}"
    )
    lines = paragraph(304, caption)
    told = (
        f"{said}: against random weights the {record['metric']} went from {before:.1f} to {after:.1f}, "
        f"{in_words(one)} points, p = {one['p']:.2g}. A line for each of {len(scores['random'])} seeds."
    )
    return svg(
        304 + 20 * len(lines),
        "Did pretraining help?",
        told,
        [*parts, *lines],
        style=PLAIN + ".verdict{font-size:22px;font-weight:600}",
    )
