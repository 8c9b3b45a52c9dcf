"""Renews the table of records in the README, and its plot: `python benchmarks/records.py`.

The best record of a track is the fastest of those that hold. A record that does not hold is shown, and says so.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

from maskwright.core.console import human_seconds
from maskwright.tasks.speedrun.record import RECORD, Record, Verdict, judge, read_record
from maskwright.tasks.speedrun.tracks import TRACKS, shown

ROOT = Path(__file__).resolve().parents[1]
README, PLOT = ROOT / "README.md", ROOT / "docs" / "pictures" / "speedrun.svg"
BEGIN, END = "<!-- records: python benchmarks/records.py renews them -->\n", "<!-- end of records -->"
WIDTH, ROW, NAMES, NUMBERS = 760, 26, 300, 120
STYLE = """text { font: 14px system-ui, sans-serif; fill: #1b1f24; } .head { font-weight: 600; } rect { fill: #0a6ab8; }
.peer { fill: #b3500b; } .open { fill: #59636e; }
@media (prefers-color-scheme: dark) { text { fill: #e6eaef; } rect { fill: #62b0f5; } .peer { fill: #f0965a; }
.open { fill: #9aa5b1; } }"""
Found = dict[str, list[tuple[str, Record, Verdict]]]


def read(folder: Path) -> Found:
    """(place, record, verdict) by track: those of peers first, as record 0, then by date, and of one day the slowest
    first. Raises `InputError` for a damaged or unfinished one, and for one of another track, text or target than it
    says."""
    found: Found = {name: [] for name, track in TRACKS.items() if track.target is not None}
    for path in sorted(folder.glob(f"*/*/{RECORD}")):
        place, record = path.parent, read_record(str(path.parent))
        track = TRACKS[record.track]
        if place.parent.name != record.track or not record.finished or record.target != track.target:
            sys.exit(f"{place}: is unfinished, or of another track or target than {place.parent.name}'s")
        found[record.track].append((place.relative_to(ROOT).as_posix(), record, judge(record)))
    return {track: sorted(records, key=_order) for track, records in found.items()}


def _order(entry: tuple[str, Record, Verdict]) -> tuple[bool, str, float]:
    _, record, verdict = entry
    return record.program == "maskwright", record.date, -verdict.seconds


def table(found: Found) -> str:
    lines = ["| track | record | mean time | value | seeds | p | |", "|---|---|---|---|---|---|---|"]
    for track, records in found.items():
        if not records:
            lines.append(f"| `{track}` | none yet: {TRACKS[track].aim} | | | | | |")
        best = min((one.seconds for _, _, one in records if one.holds), default=None)
        for place, record, verdict in records:
            value = f"{shown(record.metric, verdict.value)} ± {shown(record.metric, verdict.deviation)}"
            mark = "**best**" if verdict.seconds == best else "" if verdict.holds else "does not hold"
            who, time = f"[{record.name}]({place}), {record.by}, {record.date}", human_seconds(verdict.seconds)
            lines.append(
                f"| `{track}` | {who} | {time} | {record.metric} {value} | {verdict.seeds} | {verdict.p:.1g} | {mark} |"
            )
    return "\n".join(lines) + "\n"


def plot(found: Found) -> str:
    """A bar for each record, on one scale for each track, with its time and value."""
    parts, y = [], 0
    for track, records in found.items():
        if not records:
            continue
        y += ROW
        parts.append(f'<text class="head" x="0" y="{y}">{escape(f"{track}: {TRACKS[track].aim}")}</text>')
        longest = max(verdict.seconds for _, _, verdict in records)
        for _, record, verdict in records:
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
    """What stands between the marks of the README."""
    picture = f"\n![Mean time of each record]({PLOT.relative_to(ROOT).as_posix()})\n" if any(found.values()) else ""
    return f"{BEGIN}\n{table(found)}{picture}\n{END}"


def main() -> None:
    found = read(ROOT / "records")
    text = README.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    README.write_text(before + section(found) + rest.partition(END)[2], encoding="utf-8")
    if any(found.values()):
        PLOT.write_text(plot(found), encoding="utf-8")


if __name__ == "__main__":
    main()
