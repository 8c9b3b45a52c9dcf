"""Curves as inline SVG: panels below each other on one axis of steps. Lines stretch with the page, text does not.

A curve has at most four points for each of `COLUMNS` columns: the first, the last, the lowest and the highest. So a
spike of one log line among 100,000 is still seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from maskwright.core.console import human_count
from maskwright.report import words
from maskwright.report.plots import Scale, decimals, dot, line, round_step, scale
from maskwright.report.run import Points

LEFT, WIDTH = 8.0, 91.0
"""Begin and width of the area of curves, in percent of the page's width."""
COLUMNS = 400
UNITS = 1000
"""Width of the area of curves in its own units."""
TOP, BETWEEN_MARKS, FOOT = 22, 26, 38
"""Pixels above the area for the panel's title, between two marks of its scale, and below the last panel for steps."""
FAR, TOO_FAR = 20.0, 3.0
"""A scale is logarithmic if its highest value is `FAR` times the median. Otherwise values that are `TOO_FAR` times
higher than all but the highest hundredth are cut off."""
UNITS_OF_MARKS = ((1e12, 1e12, "T"), (1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"))
"""(least highest mark of a scale, its unit, the unit's suffix)"""
TickKind = Literal["saved", "started", "spiked"]


@dataclass(frozen=True)
class Curve:
    name: str
    points: Points
    kind: str = "s0"
    """CSS class of its colour."""
    dots: bool = False
    """Whether each point has a dot, for few points."""


@dataclass(frozen=True)
class Level:
    """A horizontal line, which the figure's legend names."""

    name: str
    """Its name with its value."""
    value: float


@dataclass(frozen=True)
class Tick:
    step: float
    kind: TickKind
    text: str
    colour: str = ""
    """CSS class of the colour of its run, if there are several."""


@dataclass(frozen=True)
class Panel:
    title: str
    series: Sequence[Curve]
    levels: Sequence[Level] = ()
    ticks: Sequence[Tick] = ()
    height: int = 90
    from_zero: bool = False
    may_be_log: bool = False

    @property
    def empty(self) -> bool:
        return not any(curve.points for curve in self.series)


@dataclass(frozen=True)
class _Heights:
    """A panel's scale, upright. `log`: its numbers are powers of ten."""

    scale: Scale
    log: bool = False

    def share(self, value: float) -> float:
        """The height of a value, from 0 at the bottom to 1 at the top."""
        return min(1.0, max(0.0, self.scale.share(math.log10(max(value, 1e-30)) if self.log else value)))

    def marks(self) -> list[float]:
        return [10**mark if self.log else mark for mark in self.scale.marks()]

    def label(self, value: float) -> str:
        """The text of a mark, in thousands or millions where the highest mark is."""
        if self.log:
            return human_count(value) if value >= 10_000 else words.rate(value)
        if not value:
            return "0"
        top = max(map(abs, self.scale.marks()))
        size, suffix = next(((size, suffix) for least, size, suffix in UNITS_OF_MARKS if top >= least), (1.0, ""))
        digits = decimals(self.scale.step / size)
        return words.rate(value) if digits > 3 else words.number(value / size, digits) + suffix


def stack(panels: Sequence[Panel], last_step: float, description: str) -> str:
    """The HTML of one figure. `last_step`: the highest step; `description`: text for readers who do not see it."""
    shown = [panel for panel in panels if not panel.empty]
    parts = [_panel(panel, last_step, index == len(shown) - 1) for index, panel in enumerate(shown)]
    return f'<div class="curves" role="img" aria-label="{escape(description, quote=True)}">{"".join(parts)}</div>'


def thinned(points: Points, last: float) -> Points:
    """At most four points for each column: see the module."""
    if len(points) <= 4 * COLUMNS:
        return points
    kept: Points = []
    column: Points = []
    column_idx = -1
    for point in [*points, (math.inf, 0.0)]:
        point_column = -2 if point[0] == math.inf else int(point[0] / max(last, 1.0) * COLUMNS)
        if point_column != column_idx and column:
            lowest, highest = min(column, key=lambda pair: pair[1]), max(column, key=lambda pair: pair[1])
            kept += sorted({column[0], lowest, highest, column[-1]})
            column = []
        column_idx = point_column
        column.append(point)
    return kept


def _panel(panel: Panel, last: float, with_steps: bool) -> str:
    heights = _heights(panel)
    bottom = TOP + panel.height

    def x(step: float) -> str:
        return f"{LEFT + WIDTH * step / max(last, 1.0):.2f}%"

    def y(value: float) -> float:
        return round(bottom - panel.height * heights.share(value), 1)

    def level(kind: str, height: float) -> str:
        return line(kind, f"{LEFT}%", f"{LEFT + WIDTH}%", height, height)

    parts = [f'<svg aria-hidden="true" height="{bottom + (FOOT if with_steps else 8)}">']
    parts.append(f'<text class="name" x="0" y="12">{escape(panel.title)}</text>')
    for value in heights.marks():
        parts.append(level("axis", y(value)))
        parts.append(f'<text x="{LEFT - 1}%" y="{y(value) + 4}" text-anchor="end">{heights.label(value)}</text>')
    parts += [level("zero", y(each.value)) for each in panel.levels]
    columns = {(tick.kind, tick.colour, int(tick.step / max(last, 1.0) * COLUMNS / 2)): tick for tick in panel.ticks}
    parts += [_tick(tick, x(tick.step), bottom, panel.height) for tick in columns.values()]
    parts.append(
        f'<svg class="area" x="{LEFT}%" y="0" width="{WIDTH}%" height="{bottom}" viewBox="0 0 {UNITS} {bottom}" '
        'preserveAspectRatio="none">'
    )
    parts += [_line(curve, last, y) for curve in panel.series if len(curve.points) > 1]
    parts.append("</svg>")
    for curve in panel.series:
        if curve.dots or len(curve.points) == 1:
            dots = thinned(curve.points, last)
            parts += [dot(curve.kind, x(step), y(value), 2.5) for step, value in dots]
    if with_steps:
        parts.append(_steps(last, bottom, x))
    return "".join([*parts, "</svg>"])


def _line(curve: Curve, last: float, y: Callable[[float], float]) -> str:
    vertices = [f"{UNITS * step / max(last, 1.0):.1f} {y(value):g}" for step, value in thinned(curve.points, last)]
    kind = f"{curve.kind} bold" if curve.dots else curve.kind
    return f'<path class="line {kind}" vector-effect="non-scaling-stroke" d="M{"L".join(vertices)}"/>'


def _tick(tick: Tick, x: str, bottom: int, height: int) -> str:
    top = bottom - 8 if tick.kind == "saved" else bottom - height
    title = f"<title>{escape(tick.text)}</title>"
    kind = f"tick {tick.kind}" + (f" own {tick.colour}" if tick.colour else "")
    upright = line(kind, x, x, top, bottom, title)
    mark = {"started": "▶", "spiked": "▲"}.get(tick.kind)
    if mark is None:
        return upright
    attributes = f'x="{x}" y="{bottom - height - 1}" text-anchor="middle"'
    return f'{upright}<text class="{kind}" {attributes}>{mark}</text>'


def _steps(last: float, bottom: int, x: Callable[[float], str]) -> str:
    step = round_step(last, 5)
    parts = []
    for mark in range(int(last / step + 1e-9) + 1):
        position, anchor = mark * step, "middle" if mark * step < 0.97 * last else "end"
        parts.append(f'<text x="{x(position)}" y="{bottom + 16}" text-anchor="{anchor}">{human_count(position)}</text>')
    parts.append(f'<text x="{LEFT + WIDTH / 2}%" y="{bottom + 33}" text-anchor="middle">step</text>')
    return "".join(parts)


def _heights(panel: Panel) -> _Heights:
    values = sorted(value for curve in panel.series for _, value in curve.points)
    low, high = min([values[0], *(level.value for level in panel.levels)]), values[-1]
    if panel.may_be_log and low > 0 and high > FAR * values[len(values) // 2]:
        lowest, highest = math.floor(math.log10(low)), math.ceil(math.log10(high) + 1e-9)
        return _Heights(Scale(lowest, max(highest, lowest + 1), 1.0), log=True)
    high = min(high, TOO_FAR * max(values[int(0.99 * (len(values) - 1))], 1e-12)) if high > 0 else high
    high = max([high, *(level.value for level in panel.levels)])
    low = min(low, 0.0) if panel.from_zero else low
    if high - low < 1e-12:
        low, high = low - 0.5 * abs(low or 1.0), high + 0.5 * abs(high or 1.0)
    return _Heights(scale(low, high, max(2, panel.height // BETWEEN_MARKS)))
