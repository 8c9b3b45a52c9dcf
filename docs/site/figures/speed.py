"""Five ratios of speed that were measured, as bars from the line of equal speed. Rows and words are those of the table
in benchmarks/README.md, which has all of them."""

from __future__ import annotations

import math
import sys
from typing import Any

from drawing import MARGIN, WIDTH, line, paragraph, rectangle, svg, text
from results import RESULTS, measured_on, read

sys.path.append(str(RESULTS.parent))
from report import ROWS, value

SHOWN = (
    ("cpu-base", "over_hf_best"),
    ("cpu-small", "over_hf_best"),
    ("cpu-mini", "over_hf_best"),
    ("time-to-loss", "hf_seconds_over_ours"),
    ("prepare", "fast_over_datasets_map"),
)
LEFT, RIGHT, TOP, ROW, MOST, TICKS = 280, 520, 84, 50, 55.0, (1, 2, 5, 10, 20, 50)
Row = tuple[str, str, float, dict[str, Any]]


def rows() -> list[Row]:
    """(where, against, ratio, result)."""
    named = {(name, key): (where, against) for name, where, against, key, *_ in ROWS}
    found = []
    for name, key in SHOWN:
        where, against = (words.replace("`", "") for words in named[name, key])
        record = read(name)
        found.append((where, against, record["ratios"][key], record))
    return found


def place(ratio: float) -> float:
    """From left to right, on a logarithmic scale."""
    return LEFT + (RIGHT - LEFT) * math.log(ratio) / math.log(MOST)


def speed() -> str:
    found = rows()
    bottom = TOP + ROW * len(found)
    parts = [text(MARGIN, 34, "How many times as fast", "head")]
    for tick in TICKS:
        parts.append(line((place(tick), TOP - 8), (place(tick), bottom), kind="one" if tick == 1 else "grid"))
        parts.append(text(place(tick), TOP - 16, f"{tick:g} x", "tick middle"))
    for number, (where, against, ratio, _) in enumerate(found):
        y = TOP + ROW * number
        parts += [
            text(MARGIN, y + 18, where, "small head"),
            text(MARGIN, y + 36, f"against {against}", "small quiet"),
            rectangle(LEFT, y + 14, place(ratio) - LEFT, 18, "ours", round_=2),
            text(WIDTH - MARGIN, y + 28, value(ratio, "x"), "small head end"),
        ]
    caption = (
        "Medians of alternating rounds; for the time to a loss, the worst seed. The scale is logarithmic. "
        f"{measured_on([record for *_, record in found])}"
    )
    lines = paragraph(bottom + 26, caption)
    return svg(
        bottom + 26 + 20 * len(lines),
        "How many times as fast as others",
        "; ".join(f"{where}, against {against}: {value(ratio, 'x')}" for where, against, ratio, _ in found) + ".",
        [*parts, *lines],
    )
