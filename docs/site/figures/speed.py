"""The ratios of speed that were measured, as bars from the line of equal speed. Rows and words are those of the table
in benchmarks/README.md."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

from drawing import MARGIN, WIDTH, line, paragraph, rectangle, svg, text
from results import RESULTS, measured_on, read

sys.path.append(str(RESULTS.parent))
from report import MEMORY, ROWS, value

LEAST, MOST, TICKS = 0.6, 110.0, (1, 2, 5, 10, 20, 50)
TOP, ROW = 84, 46
Row = tuple[str, str, float, dict[str, Any]]


def rows() -> list[Row]:
    """(where, against, ratio, result) of each ratio of speed that has a result, in the order of the table. More is
    better in all of them. Ratios of memory are none of speed, and those of a GPU's step compare maskwright with
    itself."""
    found = []
    for name, where, against, key, unit, _, less in ROWS:
        others = name != MEMORY and not name.startswith("gpu-step")
        if unit == "x" and not less and others and Path(RESULTS, f"{name}.json").exists():
            record = read(name)
            found.append((where.replace("`", ""), against.replace("`", ""), record["ratios"][key], record))
    return found


def place(ratio: float) -> float:
    """Of a ratio, from left to right: on a logarithmic scale."""
    return MARGIN + (WIDTH - 2 * MARGIN) * math.log(ratio / LEAST) / math.log(MOST / LEAST)


def speed() -> str:
    found = rows()
    bottom = TOP + ROW * len(found)
    parts = [text(MARGIN, 34, "How many times as fast", "head")]
    for tick in TICKS:
        parts.append(line((place(tick), TOP - 8), (place(tick), bottom), kind="one" if tick == 1 else "grid"))
        parts.append(text(place(tick), TOP - 16, f"{tick:g} x", "tick middle"))
    for number, (where, against, ratio, _) in enumerate(found):
        y = TOP + ROW * number
        left, right = sorted((place(1), place(ratio)))
        label = value(ratio, "x")
        parts += [
            rectangle(left, y + 26, right - left, 14, "ours" if ratio >= 1 else "other", round_=2),
            text(MARGIN, y + 18, f"{where}, against {against}", "small over"),
            text(right + 6, y + 38, label, "small head over"),
        ]
    caption = (
        "Medians of alternating rounds; of the time to a loss, the worst seed's. The scale is logarithmic. "
        f"{measured_on([record for *_, record in found])}"
    )
    lines = paragraph(bottom + 26, caption)
    return svg(
        bottom + 26 + 20 * len(lines),
        "How many times as fast as others",
        "; ".join(f"{where}, against {against}: {value(ratio, 'x')}" for where, against, ratio, _ in found) + ".",
        [*parts, *lines],
    )
