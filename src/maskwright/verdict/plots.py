"""The plots of a verdict: differences, and the scores of every seed."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise

from maskwright.report.plots import AXIS, HEAD, axis, opening, scale, shortened
from maskwright.verdict import wording
from maskwright.verdict.judge import ArmDifference, Score
from maskwright.verdict.results import ComparedTask

ROW = 46
"""Height in pixels of an arm's row of dots."""
MARKS = {"helped": "▲", "hurt": "▼", "no difference shown": "●", "cannot conclude": "?"}


def forest(comparisons: Sequence[ArmDifference]) -> str:
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
            f'{opening(22, text)}<line class="zero" x1="{zero}" x2="{zero}" y1="0" y2="22"/>'
            f'<line class="bar {kind}" x1="{low}" x2="{high}" y1="11" y2="11"/>'
            f'<circle class="{kind}" cx="{middle}" cy="11" r="5"/></svg></div>'
        )
    below = axis(shared, 0, "points", sign=True)
    return f'<div class="forest">{"".join(rows)}<svg aria-hidden="true" height="{AXIS + 14}">{below}</svg></div>'


def strip(task: ComparedTask, scores: Sequence[Score], *, paired: bool) -> str:
    """A row of dots for each arm: its seeds, or its pretraining runs' means. Lines join the runs of one seed."""
    dots = [
        [100 * value for value in score.runs[0]] if paired else [100 * sum(own) / len(own) for own in score.runs]
        for score in scores
    ]
    shared = scale([value for own in dots for value in own])
    height = len(scores) * ROW + AXIS + 14
    what = "seed" if paired else "pretraining run"
    means = "; ".join(f"{score.arm} {wording.mean_and_deviation(score.mean, score.deviation)}" for score in scores)
    parts = [opening(height, f"{task.name}: the {wording.metric_name(task)} of every {what}, in points. {means}")]
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
        parts.append(f'<text class="name" x="0" y="{y - 14}">{escape(shortened(score.arm))}</text>')
    parts.append(axis(shared, len(scores) * ROW + 4, f"{wording.metric_name(task)}, points"))
    return "".join(parts) + "</svg>"
