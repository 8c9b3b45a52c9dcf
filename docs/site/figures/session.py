"""The moving picture of two terminals, as `benchmarks/kill_session.py` recorded them: each line comes when it came. A
pane ends where its last line stands, so one animation of its height shows all. The finished session is what is seen
first, for a moment, and what is seen without motion."""

from __future__ import annotations

import textwrap
from typing import Any

from drawing import MARGIN, WIDTH, paragraph, rectangle, svg, text
from results import measured_on, read

COLUMNS, LINE, TIMES = 64, 19, 3
"""Letters in a row, units between rows, and how often all of it is played."""
BEFORE, AFTER = 2.0, 4.0
"""Seconds that the finished session stands, before and after it is played."""
ROWS = (8, 21, 4)
"""Of each terminal."""
SCREEN = """.screen{fill:#15191f;stroke:#3a444f}
.session text.row{fill:#d7dde4;white-space:pre}.session text.typed{fill:#7ec8ff}
.session text.fault{fill:#ffab70}.clock{fill:#0a6ab8}"""


def wrapped(words: str) -> list[str]:
    """In rows that a picture has room for, between two words."""
    return textwrap.wrap(words, COLUMNS, subsequent_indent="  ", break_on_hyphens=False) or [""]


def kind(words: str) -> str:
    return "typed" if words.startswith("$ ") else "fault" if "Killed" in words else ""


def scroll(name: str, lines: list[dict[str, Any]], seconds: float) -> tuple[list[str], str]:
    """The rows of a terminal, from the height of its last one upwards, and the animation that brings them up."""
    rows: list[tuple[float, str, str]] = []
    for one in lines:
        rows += [(one["at"], part, kind(one["text"])) for part in wrapped(one["text"])]
    parts = [
        text(MARGIN + 10, -LINE * (len(rows) - 1 - number), words, f"code row {kind_}".rstrip())
        for number, (_, words, kind_) in enumerate(rows)
    ]
    left = {at: len(rows) - number for number, (at, _, _) in enumerate(rows, 1)}
    stops = ["0%{transform:none}", f"{BEFORE / seconds:.2%}{{transform:translateY({LINE * (len(rows) + 1)}px)}}"]
    stops += [f"{(BEFORE + at) / seconds:.2%}{{transform:translateY({LINE * rest}px)}}" for at, rest in left.items()]
    stops.append("100%{transform:none}")
    return parts, moving(name, "".join(stops), f"{seconds:g}s step-end {TIMES}")


def moving(name: str, stops: str, how: str) -> str:
    """For those whom motion does not make ill."""
    animation = f"@media (prefers-reduced-motion:no-preference){{.{name}{{animation:{name} {how}}}}}"
    return f"@keyframes {name}{{{stops}}}{animation}"


def session() -> str:
    record = read("kill-session")
    ratios = record["ratios"]
    seconds = round(BEFORE + ratios["seconds"] + AFTER, 1)
    parts, style, y = [text(MARGIN, 34, "kill -9, and the same command again", "head")], SCREEN, 50.0
    for number, (terminal, rows) in enumerate(zip(record["terminals"], ROWS, strict=True)):
        height = LINE * rows
        lines, animation = scroll(f"pane{number}", terminal["lines"], seconds)
        style += animation
        parts += [
            text(MARGIN, y + 16, terminal["title"], "small quiet"),
            rectangle(MARGIN, y + 24, WIDTH - 2 * MARGIN, height + 16, "screen"),
            f'<svg y="{y + 32:g}" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">',
            f'<g class="session" transform="translate(0 {height - 5})"><g class="pane{number}">',
            *lines,
            "</g></g></svg>",
        ]
        y += 24 + height + 16 + 12
    parts.append(rectangle(MARGIN, y - 4, WIDTH - 2 * MARGIN, 3, "clock", round_=0))
    begin, end = (f"{at / seconds:.2%}" for at in (BEFORE, BEFORE + ratios["seconds"]))
    style += f".clock{{transform-origin:{MARGIN}px 0}}"
    style += moving(
        "clock",
        f"0%{{transform:none;animation-timing-function:step-end}}{begin}{{transform:scaleX(0)}}{end}{{transform:none}}",
        f"{seconds:g}s linear {TIMES}",
    )
    same = "the same" if ratios["digests_that_differ"] == 0 else "different"
    caption = (
        f"Both terminals at the same time, one above the other. Recorded in {ratios['seconds']:.3g} s, and played "
        f"in as many. {measured_on([record])}"
    )
    told = (
        f"In one terminal a run is left alone. In the other the same run is killed by kill -9, and the same command "
        f"continues it at step {ratios['continued_at_step']:g}. The digests of both runs' weights are {same}."
    )
    lines = paragraph(y + 24, caption)
    return svg(y + 24 + 20 * len(lines), "kill -9, and the same command again", told, [*parts, *lines], style=style)
