"""Plots as inline SVG. Places along the width are percentages, so that a plot fits a phone and a desk alike and its
text keeps its size. Colours are classes of the page's style; a sign stands beside each colour."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from maskwright.verdict import wording
from maskwright.verdict.judge import Comparison, Score
from maskwright.verdict.results import Task

LEFT, RIGHT = 3.0, 97.0
"""Percent of the width that the scale takes."""
ROW, HEAD, AXIS = 46, 16, 30
"""Heights in pixels: of an arm's row of dots, of its name above them, of the axis."""
SQUARE, STRIP = 220, 44
"""Heights of the reliability plot, and of the counts below it."""
MARKS = {"helped": "▲", "hurt": "▼", "no difference shown": "●", "cannot conclude": "?"}
LONGEST_NAME = 44


@dataclass(frozen=True)
class Scale:
    low: float
    high: float
    step: float

    def x(self, value: float) -> str:
        return f"{LEFT + (RIGHT - LEFT) * (value - self.low) / (self.high - self.low):.2f}%"

    def ticks(self) -> list[float]:
        return [self.low + number * self.step for number in range(round((self.high - self.low) / self.step) + 1)]

    def label(self, value: float, *, sign: bool = False) -> str:
        return wording.number(value, max(0, -math.floor(math.log10(self.step) + 1e-9)), sign=sign)


def scale(values: Sequence[float]) -> Scale:
    """From a round number to a round number, with at most seven marks."""
    low, high = min(values), max(values)
    width = max(high - low, 0.1)
    power = 10.0 ** math.floor(math.log10(width / 6))
    step = next(part * power for part in (1, 2, 5, 10, 20) if width / (part * power) <= 5)
    low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    return Scale(low, high if high > low else low + step, step)


def forest(comparisons: Sequence[Comparison]) -> str:
    """A row for each comparison, the difference and its interval on one scale of points."""
    shared = scale([100 * value for found in comparisons for value in (0.0, found.low, found.high)])
    zero = shared.x(0)
    rows = []
    for found in comparisons:
        low, middle, high = (shared.x(100 * value) for value in (found.low, found.difference, found.high))
        places = wording.places_of(found)
        value = f"{wording.points(found.difference, places, sign=True)} ({wording.interval(found)})"
        text = f"{found.other} against {found.base} on {found.task}: {value} points, {found.verdict}"
        kind = found.verdict.replace(" ", "-")
        rows.append(
            f'<div class="row"><p><span class="{kind}" aria-hidden="true">{MARKS[found.verdict]}</span> '
            f"{escape(found.task)}: {escape(found.other)} <small>against {escape(found.base)}</small> "
            f"<b>{escape(value)}</b></p>"
            f'{_open(22, text)}<line class="zero" x1="{zero}" x2="{zero}" y1="0" y2="22"/>'
            f'<line class="bar {kind}" x1="{low}" x2="{high}" y1="11" y2="11"/>'
            f'<circle class="{kind}" cx="{middle}" cy="11" r="5"/></svg></div>'
        )
    axis = _axis(shared, 0, "points", sign=True)
    return f'<div class="forest">{"".join(rows)}<svg aria-hidden="true" height="{AXIS + 14}">{axis}</svg></div>'


def strip(task: Task, scores: Sequence[Score], *, paired: bool) -> str:
    """A row of dots for each arm: its seeds, or its pretraining runs' means. Lines join the runs of one seed."""
    dots = [
        [100 * value for value in score.runs[0]] if paired else [100 * sum(own) / len(own) for own in score.runs]
        for score in scores
    ]
    shared = scale([value for own in dots for value in own])
    height = len(scores) * ROW + AXIS + 14
    what = "seed" if paired else "pretraining run"
    means = "; ".join(f"{score.arm} {wording.mean_and_deviation(score.mean, score.deviation)}" for score in scores)
    parts = [_open(height, f"{task.name}: the {wording.metric_name(task)} of every {what}, in points. {means}")]
    level = [number * ROW + HEAD + 12 for number in range(len(scores))]
    if paired:
        for (above, own), (below, others) in pairwise(zip(level, dots, strict=True)):
            for a, b in zip(own, others, strict=True):
                kind = "rise" if b > a else "fall" if b < a else "same"
                ends = f'x1="{shared.x(a)}" x2="{shared.x(b)}" y1="{above}" y2="{below}"'
                parts.append(f'<line class="pair {kind}" {ends}/>')
    for y, own, score in zip(level, dots, scores, strict=True):
        middle = shared.x(100 * score.mean)
        parts.append(f'<line class="mean" x1="{middle}" x2="{middle}" y1="{y - 10}" y2="{y + 10}"/>')
        parts += [f'<circle class="seed" cx="{shared.x(value)}" cy="{y}" r="4"/>' for value in own]
        parts.append(f'<text class="name" x="0" y="{y - 14}">{escape(_short(score.arm))}</text>')
    parts.append(_axis(shared, len(scores) * ROW + 4, f"{wording.metric_name(task)}, points"))
    return "".join(parts) + "</svg>"


def reliability(bins: Sequence[tuple[float, float, float, float, float]], error: float) -> str:
    """Each bin is (low, high, share of all predictions, mean confidence, share that is right); bins without predictions
    are left out. The dashed line is where both would be equal. Below it, how many predictions each bin has."""
    shared, parts = Scale(0.0, 100.0, 20.0), [_open(SQUARE + STRIP + AXIS + 30, f"Calibration: error {error:.4f}")]
    for value in (0.0, 50.0, 100.0):
        y = HEAD + SQUARE * (1 - value / 100)
        parts.append(f'<line class="axis" x1="{shared.x(0)}" x2="{shared.x(100)}" y1="{y:g}" y2="{y:g}"/>')
        parts.append(f'<text x="{shared.x(0)}" y="{y - 4:g}">{value:g} % right</text>')
    base, most = HEAD + SQUARE + STRIP, max((of_all for _, _, of_all, _, _ in bins), default=1.0)
    for low, high, of_all, confidence, right in bins:
        where = f'x="{shared.x(100 * low)}" width="{(RIGHT - LEFT) * (high - low):.2f}%"'
        tall, count = SQUARE * right, (STRIP - 8) * of_all / most
        x, y, expected = shared.x(100 * confidence), HEAD + SQUARE - tall, HEAD + SQUARE * (1 - confidence)
        kind = "rise" if right > confidence else "fall"
        parts.append(f'<rect class="share-right" {where} y="{y:.1f}" height="{tall:.1f}"/>')
        parts.append(f'<line class="pair {kind}" x1="{x}" x2="{x}" y1="{y:.1f}" y2="{expected:.1f}"/>')
        parts.append(f'<circle class="seed" cx="{x}" cy="{y:.1f}" r="4"/>')
        parts.append(f'<rect class="share-of-all" {where} y="{base - count:.1f}" height="{count:.1f}"/>')
    ends = f'x1="{shared.x(0)}" x2="{shared.x(100)}" y1="{HEAD + SQUARE}" y2="{HEAD}"'
    return "".join([*parts, f'<line class="zero" {ends}/>', _axis(shared, base, "confidence, %"), "</svg>"])


def bars(values: Mapping[str, float], unit: str) -> str:
    """A row for each value: its name and the number in words, and a bar below them."""
    most = max(values.values(), default=0) or 1
    rows = []
    for name, value in values.items():
        number = f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
        rows.append(
            f'<div class="row"><p>{escape(name)} <b>{number} {escape(unit)}</b></p><svg aria-hidden="true" height="10">'
            f'<rect class="share-right" x="0" y="1" height="8" width="{100 * value / most:.2f}%"/></svg></div>'
        )
    return f'<div class="forest">{"".join(rows)}</div>'


def _open(height: int, text: str) -> str:
    """What is drawn, in words, for those who do not see it; the table beside it has the numbers."""
    return f'<svg role="img" height="{height}" aria-label="{escape(text, quote=True)}"><title>{escape(text)}</title>'


def _axis(shared: Scale, top: int, unit: str, *, sign: bool = False) -> str:
    parts = [f'<line class="axis" x1="{LEFT}%" x2="{RIGHT}%" y1="{top}" y2="{top}"/>']
    for value in shared.ticks():
        x = shared.x(value)
        parts.append(f'<line class="axis" x1="{x}" x2="{x}" y1="{top}" y2="{top + 5}"/>')
        label = escape(shared.label(value, sign=sign))
        parts.append(f'<text x="{x}" y="{top + 19}" text-anchor="middle">{label}</text>')
    parts.append(f'<text x="50%" y="{top + 36}" text-anchor="middle">{escape(unit)}</text>')
    return "".join(parts)


def _short(name: str) -> str:
    """The middle goes: names of runs differ at their ends."""
    half = LONGEST_NAME // 2 - 1
    return name if len(name) <= LONGEST_NAME else f"{name[:half]}…{name[-half:]}"
