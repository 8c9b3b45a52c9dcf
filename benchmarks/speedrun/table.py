"""Renews the table of records in README.md, and its plot: `python benchmarks/speedrun/table.py`.

Seconds of different machines say nothing about recipes, so each kind of machine has its own best record of a track: the
fastest of those that hold. A record that does not hold is shown, and says so.
"""

from __future__ import annotations

import re
import sys
from html import escape
from itertools import groupby
from pathlib import Path

from record import RECORD, RecordVerdict, SpeedrunRecord, judge, read_record
from tracks import TRACKS, shown

from maskwright.core.console import human_seconds
from maskwright.report.markdown import literal

ROOT = Path(__file__).resolve().parent
PAGE, PLOT = ROOT / "README.md", ROOT.parents[1] / "docs" / "pictures" / "speedrun-records.svg"
BEGIN, END = "<!-- records: python benchmarks/speedrun/table.py renews them -->\n", "<!-- end of records -->"
PRECISIONS = {"bfloat16": "bf16", "float32": "fp32"}
WIDTH, ROW, NAMES, NUMBERS = 760, 26, 300, 120
STYLE = """text { font: 14px system-ui, sans-serif; fill: #1b1f24; } .head { font-weight: 600; } rect { fill: #0a6ab8; }
.peer { fill: #b3500b; } .open { fill: #59636e; }
@media (prefers-color-scheme: dark) { text { fill: #e6eaef; } rect { fill: #62b0f5; } .peer { fill: #f0965a; }
.open { fill: #9aa5b1; } }"""
Found = dict[str, list[tuple[str, SpeedrunRecord, RecordVerdict]]]


def read(folder: Path) -> Found:
    """(place, record, verdict) by track, and in it by machine: peers' first, as record 0, then by date, and on one day
    the slowest first. Raises `InputError` for a damaged or unfinished one, and for one of another track, text or target
    than it says."""
    found: Found = {name: [] for name, track in TRACKS.items() if track.target is not None}
    for path in sorted(folder.glob(f"*/*/{RECORD}")):
        place, record = path.parent, read_record(str(path.parent))
        track = TRACKS[record.track]
        if place.parent.name != record.track or not record.finished or record.target != track.target:
            sys.exit(f"{place}: is unfinished, or of another track or target than {place.parent.name}'s")
        found[record.track].append((place.relative_to(ROOT).as_posix(), record, judge(record)))
    return {track: sorted(records, key=_order) for track, records in found.items()}


def _order(entry: tuple[str, SpeedrunRecord, RecordVerdict]) -> tuple[str, bool, str, float]:
    _, record, verdict = entry
    return machine_kind(record), record.program == "maskwright", record.date, -verdict.seconds


def machine_kind(record: SpeedrunRecord) -> str:
    """Some names mean several generations of processors, which their instructions distinguish."""
    return f"{record.kind.get('processor')} {record.kind.get('instructions')}"


def machine(record: SpeedrunRecord) -> str:
    name = re.sub(r"\((R|TM)\)|\b(CPU|Processor)\b", "", record.kind.get("processor", "not known"))
    return " ".join(name.split())


def precision(record: SpeedrunRecord) -> str:
    """Of a run of ours; a peer does not describe its own."""
    return next((short for long, short in PRECISIONS.items() if long in record.kind.get("engine", "")), "")


def table(found: Found) -> str:
    lines = ["| track | record | machine | mean time | value | seeds | p | |", "|---|---|---|---|---|---|---|---|"]
    for track, records in found.items():
        if not records:
            lines.append(f"| `{track}` | none yet: {TRACKS[track].aim} | | | | | | |")
        best: dict[str, float] = {}
        for _, record, verdict in records:
            if verdict.holds:
                kind = machine_kind(record)
                best[kind] = min(verdict.seconds, best.get(kind, verdict.seconds))
        for place, record, verdict in records:
            value = f"{record.metric} {shown(record.metric, verdict.value)} ± {shown(record.metric, verdict.deviation)}"
            first = verdict.seconds == best.get(machine_kind(record))
            mark = "does not hold" if not verdict.holds else "**best**" if first else ""
            who = f"[{literal(record.name)}]({place}), {literal(record.by)}, {literal(record.date)}"
            time, where = human_seconds(verdict.seconds), ", ".join(filter(None, (machine(record), precision(record))))
            cells = (f"`{track}`", who, literal(where), time, value, verdict.seeds, f"{verdict.p:.1g}", mark)
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def plot(found: Found) -> str:
    """A bar for each record, with its time and value. Those of one track and machine have one scale."""
    parts, y = [], 0
    everything = [(track, *entry) for track, records in found.items() for entry in records]
    for (track, _), group in groupby(everything, lambda one: (one[0], machine_kind(one[2]))):
        entries = [(record, verdict) for _, _, record, verdict in group]
        head = f"{track}: {TRACKS[track].aim}, {machine(entries[0][0])}"
        y += ROW
        parts.append(f'<text class="head" x="0" y="{y}">{escape(head)}</text>')
        longest = max(verdict.seconds for _, verdict in entries)
        for record, verdict in entries:
            y += ROW
            kind = "open" if not verdict.holds else "" if record.program == "maskwright" else "peer"
            width = (WIDTH - NAMES - NUMBERS) * verdict.seconds / longest
            parts.append(f'<text x="0" y="{y}">{escape(record.name[:42])}</text>')
            parts.append(f'<rect class="{kind}" x="{NAMES}" y="{y - 13}" height="16" width="{width:.1f}"/>')
            value = f"loss {verdict.value:.2f}" if record.metric == "loss" else f"{verdict.value:.1%}"
            parts.append(f'<text x="{NAMES + width + 8:.1f}" y="{y}">{human_seconds(verdict.seconds)}, {value}</text>')
        y += ROW // 2
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 6}" role="img">'
    title = "<title>Mean time and value of each record of the speedrun</title>"
    return f"{head}{title}<style>{STYLE}</style>{''.join(parts)}</svg>\n"


def section(found: Found) -> str:
    """The text between the marks of the page."""
    picture = f"\n![Mean time of each record](../../docs/pictures/{PLOT.name})\n" if any(found.values()) else ""
    return f"{BEGIN}\n{table(found)}{picture}\n{END}"


def main() -> None:
    found = read(ROOT / "records")
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(before + section(found) + rest.partition(END)[2], encoding="utf-8")
    if any(found.values()):
        PLOT.write_text(plot(found), encoding="utf-8")


if __name__ == "__main__":
    main()
