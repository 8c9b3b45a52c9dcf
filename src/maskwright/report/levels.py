"""Lines across a panel of curves. The name of each stands where the fewest curves run, and below the curves where all
places are taken, so that it hides none of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal, NamedTuple

from maskwright.report.run import Points

COLUMNS = 100
LETTER, NARROW = 7.2, 320
"""Pixels of a letter, on average, and of the curves' width on a phone. A name that is free there is free everywhere."""
ABOVE, BELOW, ASCENT, DESCENT = -4, 13, 11, 3
"""Pixels from a line to the base of its name on either side, and what letters take above and below the base."""
Anchor = Literal["start", "middle", "end"]
PLACES: tuple[tuple[float, Anchor], ...] = (
    (1.0, "end"),
    (0.01, "start"),
    (0.25, "middle"),
    (0.5, "middle"),
    (0.75, "middle"),
)
"""Along the width, the best ones first."""
TAKEN, CROSSED, OUTSIDE = 4.0, 0.5, 1.0
"""How much worse a place is that another name takes, that another line crosses or that lies outside the panel than one
of which each column has a curve."""


@dataclass(frozen=True)
class Level:
    """A line across."""

    name: str
    """With its value."""
    value: float


class Box(NamedTuple):
    """From 0 to 1 along the width, and in pixels from the top."""

    left: float
    right: float
    top: float
    bottom: float

    def meets(self, other: Box) -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


class Name(NamedTuple):
    x: float
    """From 0 to 1 along the width."""
    base: float
    anchor: Anchor
    box: Box


def names(texts: Sequence[tuple[str, float]], curves: Sequence[Points], top: float, bottom: float) -> list[Name]:
    """Where the name of each line stands. `texts`: names, and the heights of their lines; `curves`: points from 0 to 1
    along the width, in pixels from the top, as `top` and `bottom` of the panel."""
    columns, found = extents(curves), list[Name]()
    for number, (text, line) in enumerate(texts):
        others = [height for place, (_, height) in enumerate(texts) if place != number]

        def cost(name: Name, others: Sequence[float] = others) -> float:
            box = name.box
            crossed = any(box.top < height < box.bottom for height in others)
            outside = box.bottom > bottom + 3 or (box.top < top and name.anchor != "end")
            taken = any(box.meets(one.box) for one in found)
            return share_taken(columns, box) + CROSSED * crossed + OUTSIDE * outside + TAKEN * taken

        found.append(min(_places(text, line), key=cost))
    return found


def extents(curves: Sequence[Points]) -> list[list[tuple[float, float]]]:
    """The highest and the lowest point of each curve in each column."""
    found: list[list[tuple[float, float]]] = [[] for _ in range(COLUMNS)]
    for points in curves:
        for (x, y), (end, to) in zip(points, points[1:] or points, strict=False):
            first, last = (min(COLUMNS - 1, int(at * COLUMNS)) for at in (x, end))
            slope = (to - y) / (end - x) if end > x else 0.0
            for column in range(first, last + 1):
                begins, ends = max(x, column / COLUMNS), min(end, (column + 1) / COLUMNS)
                heights = (y, to) if end <= x else (y + slope * (begins - x), y + slope * (ends - x))
                found[column].append((min(heights), max(heights)))
    return found


def share_taken(columns: Sequence[Sequence[tuple[float, float]]], box: Box) -> float:
    """Share of the box's columns in which a curve runs."""
    inside = columns[int(box.left * COLUMNS) : max(int(box.right * COLUMNS), int(box.left * COLUMNS) + 1)]
    taken = sum(any(top < box.bottom and bottom > box.top for top, bottom in column) for column in inside)
    return taken / max(len(inside), 1)


def _places(text: str, line: float) -> Iterator[Name]:
    width = min(1.0, LETTER * len(text) / NARROW)
    for x, anchor in PLACES:
        left = {"start": x, "middle": x - width / 2, "end": x - width}[anchor]
        left = min(max(left, 0.0), 1.0 - width)
        for away in (ABOVE, BELOW):
            base = line + away
            yield Name(x, base, anchor, Box(left, left + width, base - ASCENT, base + DESCENT))


def drawn(
    texts: Sequence[tuple[str, float]],
    curves: Sequence[Points],
    across: tuple[float, float],
    top: float,
    bottom: float,
) -> str:
    """As SVG. `across`: where the curves begin and end, in percent of the figure's width."""
    begin, end = across
    found = [f'<line class="zero" x1="{begin}%" x2="{end}%" y1="{line}" y2="{line}"/>' for _, line in texts]
    for (text, _), name in zip(texts, names(texts, curves, top, bottom), strict=True):
        anchor = "" if name.anchor == "start" else f' text-anchor="{name.anchor}"'
        x = begin + (end - begin) * name.x
        found.append(f'<text x="{x:g}%"{anchor} y="{name.base:g}">{escape(text)}</text>')
    return "".join(found)
