"""The plots of a verdict: differences, and the scores of every seed."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise

from maskwright.report.plots import AXIS, HEAD, Scale, axis, dot, line, opening, scale, shortened
from maskwright.verdict import wording
from maskwright.verdict.judge import ArmDifference, Score
from maskwright.verdict.results import ComparedTask

LEAST_POINTS = 0.1
"""Width of a scale, in points."""
ROW = 46
"""Height in pixels of an arm's row of dots."""
MARKS = {"helped": "▲", "hurt": "▼", "no difference shown": "●", "cannot conclude": "?"}


def _scale_of(points: Sequence[float]) -> Scale:
    low = min(points)
    return scale(low, max(*points, low + LEAST_POINTS))


def forest(comparisons: Sequence[ArmDifference]) -> str:
    """A row for each comparison, the difference and its interval on one scale of points."""
    shared = _scale_of([100 * value for pair in comparisons for value in (0.0, pair.low, pair.high)])
    zero = shared.x(0)
    rows = []
    for pair in comparisons:
        low, middle, high = (shared.x(100 * value) for value in (pair.low, pair.difference, pair.high))
        digits = wording.places_of(pair)
        value = f"{wording.points(pair.difference, digits, sign=True)} ({wording.interval(pair)})"
        text = f"{pair.other} against {pair.base} on {pair.task}: {value} points, {pair.verdict}"
        kind = pair.verdict.replace(" ", "-")
        rows.append(
            f'<div class="row"><p><span class="{kind}" aria-hidden="true">{MARKS[pair.verdict]}</span> '
            f"{escape(pair.task)}: {escape(pair.other)} <small>against {escape(pair.base)}</small> "
            f"<b>{escape(value)}</b></p>"
            f"{opening(22, text)}{line('zero', zero, zero, 0, 22)}{line(f'bar {kind}', low, high, 11, 11)}"
            f"{dot(kind, middle, 11, 5)}</svg></div>"
        )
    below = axis(shared, 0, "points", sign=True)
    return f'<div class="forest">{"".join(rows)}<svg aria-hidden="true" height="{AXIS + 14}">{below}</svg></div>'


def strip(task: ComparedTask, scores: Sequence[Score], *, paired: bool) -> str:
    """A row of dots for each arm: its seeds, or its pretraining runs' means. Lines join the runs of one seed."""
    dots = [
        [100 * value for value in score.runs[0]] if paired else [100 * sum(seeds) / len(seeds) for seeds in score.runs]
        for score in scores
    ]
    shared = _scale_of([value for row in dots for value in row])
    height = len(scores) * ROW + AXIS + 14
    unit = "seed" if paired else "pretraining run"
    means = "; ".join(f"{score.arm} {wording.mean_and_deviation(score.mean, score.deviation)}" for score in scores)
    parts = [opening(height, f"{task.name}: the {wording.metric_name(task)} of every {unit}, in points. {means}")]
    heights = [index * ROW + HEAD + 12 for index in range(len(scores))]
    if paired:
        for (above, row), (below, next_row) in pairwise(zip(heights, dots, strict=True)):
            for a, b in zip(row, next_row, strict=True):
                kind = "rise" if b > a else "fall" if b < a else "same"
                parts.append(line(f"pair {kind}", shared.x(a), shared.x(b), above, below))
    for y, row, score in zip(heights, dots, scores, strict=True):
        middle = shared.x(100 * score.mean)
        parts += [line("mean", middle, middle, y - 10, y + 10), *(dot("seed", shared.x(value), y) for value in row)]
        parts.append(f'<text class="name" x="0" y="{y - 14}">{escape(shortened(score.arm))}</text>')
    parts.append(axis(shared, len(scores) * ROW + 4, f"{wording.metric_name(task)}, points"))
    return "".join(parts) + "</svg>"
