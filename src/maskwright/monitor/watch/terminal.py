"""The table of all runs: drawn again every two seconds in a terminal, once in a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from maskwright.core.console import human_count, human_seconds, one_line
from maskwright.monitor.watch.runs import Runs

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

REFRESH_SECONDS = 2.0
BARS = "▁▂▃▄▅▆▇█"
GAP = 2
NARROWEST_NAME, WIDEST_HEALTH = 16, 40
MOST_PROBLEMS = 5
BAD = ("hung", "lost", "silent", "failed")
STYLES = {"running": "green", "done": "blue", "stopped": "yellow", "starting": "cyan", **dict.fromkeys(BAD, "bold red")}


@dataclass(frozen=True)
class _Column:
    title: str
    cell: Callable[[dict[str, Any]], str]
    place: int
    """Priority in which columns get room. A narrow terminal leaves out the last."""
    right: bool = True


def _known(key: str, shown: Callable[[Any], str]) -> Callable[[dict[str, Any]], str]:
    return lambda row: "" if row[key] is None else shown(row[key])


def _steps(row: dict[str, Any]) -> str:
    return f"{human_count(row['step'])}/{human_count(row['of'])}" if row["of"] else human_count(row["step"])


def _ranks(row: dict[str, Any]) -> str:
    return ", ".join(f"{count} {word}" for word, count in row["ranks"].items() if count)


COLUMNS = (
    _Column("run", lambda row: row["name"], 0, right=False),
    _Column("state", lambda row: row["state"], 1, right=False),
    _Column("step", _steps, 2),
    _Column("loss", _known("loss", "{:.3f}".format), 3),
    _Column("held out", _known("valid_loss", "{:.3f}".format), 4),
    _Column("loss so far", lambda row: spark(row["spark"], 12), 7, right=False),
    _Column("rate", _known("learning_rate", "{:.2g}".format), 9),
    _Column("tokens/s", _known("tokens_per_second", human_count), 8),
    _Column("ETA", _known("eta_seconds", human_seconds), 5),
    _Column("health", lambda row: _cut(row["health"], WIDEST_HEALTH), 6, right=False),
    _Column("ranks", _ranks, 10, right=False),
)


def spark(values: Sequence[float], width: int) -> str:
    """A line of at most `width` letters, each as high as the mean of its share of `values`."""
    width = min(width, len(values))
    if not width:
        return ""
    edges = [len(values) * number // width for number in range(width + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in zip(edges, edges[1:], strict=False)]
    low, high = min(means), max(means)
    if high - low <= 1e-9 * max(abs(high), abs(low)):
        return BARS[0] * width
    return "".join(BARS[min(int((mean - low) / (high - low) * len(BARS)), len(BARS) - 1)] for mean in means)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def table(
    rows: Sequence[dict[str, Any]],
    problems: Sequence[str],
    folders: Sequence[str],
    *,
    width: int,
    height: int | None,
    waits: bool = False,
) -> RenderableType:
    """The table, `width` letters wide. `height`: lines that fit; None for all. `waits`: a store has not answered
    yet."""
    from rich.console import Group
    from rich.text import Text

    notes = [Text(one_line(f"not readable: {problem}"), style="yellow") for problem in problems[:MOST_PROBLEMS]]
    if len(problems) > MOST_PROBLEMS:
        notes.append(Text(f"… and {len(problems) - MOST_PROBLEMS} more that are not readable", style="yellow"))
    if not rows:
        where = one_line(", ".join(folders))
        return Group(Text(f"looking below {where} …" if waits else f"no runs below {where} yet"), *notes)
    most = len(rows) if height is None else max(height - len(notes) - 3, 1)
    if len(rows) > most:
        notes.insert(0, Text(f"… and {len(rows) - most} more (--json has all)", style="dim"))
    return Group(_grid(rows[:most], width), *notes)


def _grid(rows: Sequence[dict[str, Any]], width: int) -> RenderableType:
    from rich.box import SIMPLE_HEAD
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    cells = {column: [one_line(column.cell(row)) for row in rows] for column in COLUMNS}
    widths = {column: max(map(cell_len, [column.title, *cells[column]])) for column in COLUMNS}
    name, state, *_ = COLUMNS
    shown, left = [name], width - min(widths[name], NARROWEST_NAME) - 1
    for column in sorted(COLUMNS[1:], key=lambda column: column.place):
        if any(cells[column]) and widths[column] + GAP <= left:
            left -= widths[column] + GAP
            shown.append(column)
    name_room = min(widths[name], NARROWEST_NAME + left)
    grid = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, GAP - 1, 0, 0))
    for column in COLUMNS:
        if column in shown:
            room = name_room if column is name else widths[column]
            grid.add_column(
                column.title, justify="right" if column.right else "left", no_wrap=True, overflow="ellipsis",
                min_width=room, max_width=room,
            )  # fmt: skip
    for number, row in enumerate(rows):
        style = STYLES.get(row["state"], "")
        row_cells = {key: Text(cells[key][number], style if key is state else "") for key in COLUMNS if key in shown}
        full = cells[name][number]  # cut at its front, since names of runs differ at their ends
        row_cells[name] = Text(full if len(full) <= name_room else "…" + full[len(full) - name_room + 1 :])
        grid.add_row(*row_cells.values())
    return grid


# ---- showing ---------------------------------------------------------------------------------------------------------


def once(runs: Runs, console: Console) -> None:
    runs.refresh(wait=True)
    console.print(table(runs.rows(), runs.problems, runs.folders, width=console.width, height=None))


def live(
    runs: Runs,
    console: Console,
    *,
    sleep: Callable[[float], None] = time.sleep,
    go_on: Callable[[], bool] = lambda: True,
) -> None:
    from rich.live import Live

    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as drawn:
        while go_on():
            runs.refresh()
            size = {"width": console.width, "height": console.height}
            shown = table(runs.rows(), runs.problems, runs.folders, **size, waits=runs.waits)
            drawn.update(shown, refresh=True)
            sleep(REFRESH_SECONDS)
