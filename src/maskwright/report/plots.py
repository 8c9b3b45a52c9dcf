"""Plots as inline SVG. Positions along the width are percentages, so that a plot fits a phone and a desktop, and its
text keeps its size. Colours are CSS classes, each with a sign next to it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

from maskwright.core.console import several
from maskwright.report import words

LEFT, RIGHT = 3.0, 97.0
"""Begin and end of the scale, in percent of the width."""
HEAD, AXIS = 16, 30
"""Heights in pixels of a name and of the axis."""
LONGEST_NAME = 44


@dataclass(frozen=True)
class Scale:
    low: float
    high: float
    step: float

    def share(self, value: float) -> float:
        """0 at the low end, 1 at the high one."""
        return (value - self.low) / (self.high - self.low)

    def x(self, value: float) -> str:
        return f"{LEFT + (RIGHT - LEFT) * self.share(value):.2f}%"

    def marks(self) -> list[float]:
        return [self.low + number * self.step for number in range(round((self.high - self.low) / self.step) + 1)]

    def label(self, value: float, *, sign: bool = False) -> str:
        return words.number(value, decimals(self.step), sign=sign)


def scale(low: float, high: float, most: int = 5) -> Scale:
    """A scale between round numbers around `low` and `high`, which are not equal, of at most `most` and two marks."""
    step = round_step(high - low, most)
    first, end = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return Scale(first * step, end * step, step)


def round_step(width: float, most: int) -> float:
    """The least of 1, 2 and 5 times a power of ten, so that at most `most` steps fit into the width."""
    power = 10.0 ** math.floor(math.log10(width / most))
    return next(factor * power for factor in (1, 2, 5, 10, 20) if width / (factor * power) <= most)


def decimals(step: float) -> int:
    """Decimals of marks that are a step apart."""
    return max(0, -math.floor(math.log10(step) + 1e-9))


Place = float | str


def line(kind: str, x1: Place, x2: Place, y1: Place, y2: Place, inside: str = "") -> str:
    ends = f'<line class="{kind}" x1="{x1}" x2="{x2}" y1="{y1}" y2="{y2}"'
    return f"{ends}>{inside}</line>" if inside else f"{ends}/>"


def dot(kind: str, x: Place, y: Place, radius: float = 4) -> str:
    return f'<circle class="{kind}" cx="{x}" cy="{y}" r="{radius}"/>'


def bars(values: Mapping[str, float], unit: str) -> str:
    """A row for each value: its name and amount, and a bar below them. `unit`: the singular noun, if values are
    counts."""
    largest = max(values.values(), default=0) or 1
    rows = []
    for name, value in values.items():
        rows.append(
            f'<div class="row"><p>{escape(name)} <b>{escape(amount(value, unit))}</b></p>'
            '<svg aria-hidden="true" height="10">'
            f'<rect class="share-right" x="0" y="1" height="8" width="{100 * value / largest:.2f}%"/></svg></div>'
        )
    return f'<div class="forest">{"".join(rows)}</div>'


def amount(value: float, unit: str) -> str:
    return f"{value:,.1f} {unit}" if isinstance(value, float) else several(value, unit)


def opening(height: int, text: str) -> str:
    """Begins an SVG with a text for readers who do not see it; the table next to it has the numbers."""
    return f'<svg role="img" height="{height}" aria-label="{escape(text, quote=True)}"><title>{escape(text)}</title>'


def axis(shared: Scale, top: int, unit: str, *, sign: bool = False) -> str:
    parts = [line("axis", f"{LEFT}%", f"{RIGHT}%", top, top)]
    for value in shared.marks():
        x = shared.x(value)
        parts.append(line("axis", x, x, top, top + 5))
        label = escape(shared.label(value, sign=sign))
        parts.append(f'<text x="{x}" y="{top + 19}" text-anchor="middle">{label}</text>')
    parts.append(f'<text x="50%" y="{top + 36}" text-anchor="middle">{escape(unit)}</text>')
    return "".join(parts)


def shortened(name: str) -> str:
    """The name without its middle if it is long, since names of runs differ at their ends."""
    half = LONGEST_NAME // 2 - 1
    return name if len(name) <= LONGEST_NAME else f"{name[:half]}…{name[-half:]}"
