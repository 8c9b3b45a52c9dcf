"""Draws docs/pictures/exact-resume.svg: what a step is made of, and what is saved of it.

python docs/site/figures.py
"""

from __future__ import annotations

from html import escape
from pathlib import Path

PICTURE = Path(__file__).resolve().parents[1] / "pictures" / "exact-resume.svg"
WIDTH, HEIGHT = 880, 640
INK, QUIET, BLUE, PALE, PAPER = "#20242c", "#5b6472", "#3f51b5", "#e8eaf6", "#ffffff"
WORKERS = (170, 350, 530, 710)
"""Middles of the four virtual workers."""


def text(x: float, y: float, words: str, *, size: int = 15, fill: str = INK, weight: int = 400) -> str:
    style = f'font-size="{size}" fill="{fill}" font-weight="{weight}" text-anchor="middle"'
    return f'<text x="{x:g}" y="{y:g}" {style}>{escape(words)}</text>'


def box(x: float, y: float, width: float, lines: tuple[str, ...], *, fill: str = PAPER) -> str:
    """A box of which `x` is the middle and `y` the top; the first line is bold."""
    height = 20 * len(lines) + 16
    parts = [
        f'<rect x="{x - width / 2:g}" y="{y:g}" width="{width:g}" height="{height}" rx="6" fill="{fill}" '
        f'stroke="{BLUE}" stroke-width="1.5"/>'
    ]
    for number, line in enumerate(lines):
        bold = number == 0 and len(lines) > 1
        parts.append(text(x, y + 24 + 20 * number, line, weight=600 if bold else 400, fill=INK if bold else QUIET))
    return "\n".join(parts)


def line(*points: tuple[float, float], arrow: bool = False) -> str:
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    end = ' marker-end="url(#arrow)"' if arrow else ""
    return f'<polyline points="{path}" fill="none" stroke="{QUIET}" stroke-width="1.5"{end}/>'


def picture() -> str:
    middle = WIDTH / 2
    parts = [
        text(middle, 34, "Nothing is drawn from a stream: each is a function of its place", size=17, weight=600),
        box(150, 56, 250, ("order of rows", "(seed, epoch, place)"), fill=PALE),
        box(middle, 56, 250, ("masks", "(seed, epoch, row, position)"), fill=PALE),
        box(730, 56, 250, ("dropout", "(seed, step, virtual worker)"), fill=PALE),
        *(line((x, 112), (x, 142)) for x in (150, middle, 730)),
        line((150, 142), (730, 142)),
        line((middle, 142), (middle, 162), arrow=True),
        box(
            middle,
            166,
            800,
            (
                "one step = one global batch of batch.virtual_workers micro-batches",
                "computed by 1, 2 or 4 devices: each takes an equal share of the virtual workers",
            ),
        ),
        *(line((x, 222), (x, 246), arrow=True) for x in WORKERS),
        *(box(x, 250, 150, (f"virtual worker {number}", "loss, gradient")) for number, x in enumerate(WORKERS)),
    ]
    for left, right in (WORKERS[:2], WORKERS[2:]):
        parts.append(line((left, 306), (left, 324), (right, 324), (right, 306)))
        parts.append(text((left + right) / 2, 346, "+", size=20, fill=BLUE, weight=700))
    halves = [sum(WORKERS[:2]) / 2, sum(WORKERS[2:]) / 2]
    parts += [
        *(line((x, 352), (x, 366)) for x in halves),
        line((halves[0], 366), (halves[1], 366)),
        text(middle, 388, "+", size=20, fill=BLUE, weight=700),
        text(middle + 150, 387, "always in this tree (exact)", fill=QUIET),
        line((middle, 394), (middle, 412), arrow=True),
        box(middle, 416, 520, ("divided once by all predicted positions, clipped, one update",)),
        line((middle, 452), (middle, 476), arrow=True),
        box(
            middle,
            480,
            520,
            ("a checkpoint", "weights, moments and the step: files first, then their manifest"),
            fill=PALE,
        ),
        line((middle, 536), (middle, 560), arrow=True),
        text(
            middle, 584, "A killed run begins again here: the step number is the whole state of the data,", weight=600
        ),
        text(middle, 606, "so resuming is a jump to it, on any number of devices.", weight=600),
    ]
    tip = f'<path d="M0 0 8 4 0 8z" fill="{QUIET}"/>'
    marker = f'<marker id="arrow" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">{tip}</marker>'
    font = "system-ui, 'DejaVu Sans', sans-serif"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="{font}" role="img" '
            'aria-label="How a step is computed, and what is saved of it">',
            f'<defs>{marker}</defs><rect width="{WIDTH}" height="{HEIGHT}" fill="{PAPER}"/>',
            *parts,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
