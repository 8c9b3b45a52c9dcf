"""The details of one run on its page, next to its row: configuration, checkpoints, incidents, ranks, and its log."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from maskwright.core.errors import MaskwrightError
from maskwright.core.folder import Folder
from maskwright.core.secrets import redact, redact_all
from maskwright.monitor.logs import LOG
from maskwright.monitor.status import read_record
from maskwright.monitor.watch.numbers import is_number
from maskwright.monitor.watch.runs import GOING, LIST_SECONDS, Watched, known
from maskwright.run.directory import HISTORY, MANIFEST, read_lines, step_folder, step_of
from maskwright.run.grown import backwards
from maskwright.run.record import RecordedChange, describe

MOST_INCIDENTS = 500
MOST_LINES, MOST_LETTERS = 1_000, 4_000
"""Limits: lines of an answer, letters of a line."""
READ_BYTES = 64 << 20
"""Bytes of the log that are searched for one answer, in about 0.2 seconds."""


def details(watched: Watched) -> dict[str, Any]:
    """The run's row and `config`, `checkpoints` and when they were `listed`, `incidents`, `ranks` (one by one),
    `metrics`, `changes`, `lineage`; without secrets. Raises `MaskwrightError` if a file cannot be read."""
    folder, report = watched.folder, watched.report
    record = read_record(folder, watched.inside)
    listed, checkpoints = _listed(watched)
    facts = {
        "config": dict(sorted(record.keys.items())) if record else {},
        "checkpoints": checkpoints,
        "listed": listed,
        "incidents": _incidents(folder.get(watched.inside + HISTORY) or b"", report.changes),
        "ranks": [rank | {"why": rank["why"] or rank["message"]} for rank in report.to_json()["ranks"]],
        "metrics": sorted(watched.numbers.names - {"step"}),
        "changes": [asdict(change) for change in report.changes],
        "lineage": describe(report.began_from),
    }
    return watched.row() | redact_all(_finite(facts))


def _finite(value: Any) -> Any:
    """The value with None for NaN and infinity, which a run's records may hold, but JSON cannot."""
    if isinstance(value, dict):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return known(value) if isinstance(value, float) else value


def _listed(watched: Watched) -> tuple[float | None, list[dict[str, Any]]]:
    """(when the checkpoints were listed, the checkpoints). At a URL, where listing costs requests, it is done seldom;
    on this machine it is done now, and the time is None."""
    if watched.folder.path is not None:
        return None, _checkpoints(watched)
    if watched.report.time - watched.checkpoints[0] >= LIST_SECONDS:
        watched.checkpoints = watched.report.time, _checkpoints(watched)
    return watched.checkpoints


def _checkpoints(watched: Watched) -> list[dict[str, Any]]:
    """All checkpoints by step, whole or without a manifest."""
    folder, inside = watched.folder, "" if watched.inside else "checkpoints/"
    checkpoints = []
    for step in sorted(step for name in folder.names(inside.rstrip("/")) if (step := step_of(name)) is not None):
        place = f"{inside}{step_folder(step)}"
        manifest = folder.get_json(f"{place}/{MANIFEST}")
        files = (manifest or {}).get("files")
        saved = folder.modified(f"{place}/{MANIFEST}") if manifest is not None else None
        size = _told(files) if isinstance(files, dict) else _measured(folder, place)
        checkpoints.append({"step": step, "saved": saved, "bytes": size, "state": "whole" if manifest else "partial"})
    return checkpoints


def _told(files: dict[str, Any]) -> int:
    return sum(size for file in files.values() if isinstance(file, dict) and isinstance(size := file.get("bytes"), int))


def _measured(folder: Folder, place: str) -> int:
    total = 0
    for name in folder.names(place):
        with suppress(MaskwrightError):
            total += folder.size(f"{place}/{name}") or 0
    return total


def _incidents(history: bytes, changes: Iterable[RecordedChange]) -> list[dict[str, Any]]:
    """Events in the order of time: `event` is the word in the history, or `gone` and `changed`; `what` describes it.
    The last `MOST_INCIDENTS`."""
    incidents: list[dict[str, Any]] = []
    before: dict[str, Any] = {}
    for line in read_lines(history.decode("utf-8", "replace")):
        if line.get("event") == "started" and before and before.get("event") != "ended":
            incidents.append(_incident(before, "gone", "the process died without recording why"))
        if said := _said(line, first=not before):
            incidents.append(_incident(line, str(line.get("event")), said))
        before = line
    for change in changes:
        incidents.append(_incident(asdict(change), "changed", f"changed: {', '.join(change.keys)}"))
    return sorted(incidents, key=lambda incident: incident["time"] or 0.0)[-MOST_INCIDENTS:]


def _incident(line: dict[str, Any], event: str, what: str) -> dict[str, Any]:
    when = line.get("time")
    return {"step": line["step"], "time": when if is_number(when) else None, "event": event, "what": what}


def _said(line: dict[str, Any], *, first: bool) -> str:
    event = line.get("event")
    if event == "started":
        return f"started on {line.get('host')}" if first else f"attempt {line.get('attempt')} on {line.get('host')}"
    if event == "saved":
        return "saved"
    if event == "spiked":
        loss = line.get("loss")
        return f"spike: loss {loss:.3f}" if isinstance(loss, float) and math.isfinite(loss) else "spike"
    if event == "ended":
        message, code = str(line.get("message") or ""), line.get("exit")
        return f"{line.get('phase')}" + (f" (exit {code})" if code else "") + (f": {message}" if message else "")
    return ""


# ---- the log ---------------------------------------------------------------------------------------------------------


def log(watched: Watched, search: str, lines: int, before: int | None, after: int | None) -> dict[str, Any]:
    """The last `lines` lines of log.txt with `search` in them, in any case of letters, of those between the bytes
    `after` and `before`. The answer is about the bytes from `start` to `end`: older lines are before `start`, since
    at most `READ_BYTES` are read for it, and later ones after `end`. A line that the run is still writing is left out.
    Raises `MaskwrightError` if the file cannot be read."""
    folder, name = watched.folder, watched.inside + LOG
    size = folder.size(name) or 0
    start = end = size if before is None else min(before, size)
    first = after if after is not None and after <= end else 0  # a file that was cut is read again
    whole = before is not None or watched.report.state not in GOING
    lines, wanted, found = min(max(lines, 1), MOST_LINES), search.casefold(), list[dict[str, Any]]()
    for begin, block in backwards(folder, name, first, end):
        start = begin
        if not whole:
            lines_end = block.rfind(b"\n") + 1
            end, block, whole = begin + lines_end, block[:lines_end], True
        if wanted in block.decode("utf-8", "replace").casefold():
            found += itertools.islice(_matching(begin, block, wanted), lines - len(found))
        if len(found) == lines:
            start = found[-1]["at"]
        if len(found) == lines or end - start >= READ_BYTES:
            break
    return {"lines": found[::-1], "start": start, "end": end}


def _matching(begin: int, block: bytes, wanted: str) -> Iterator[dict[str, Any]]:
    """Yields the lines of a block that begins at this byte, from the last to the first, if they have `wanted`."""
    at = begin + len(block) + (not block.endswith(b"\n"))
    for raw in reversed(block.removesuffix(b"\n").split(b"\n") if block else []):
        at -= len(raw) + 1
        text = raw.decode("utf-8", "replace").rstrip("\r")
        # Search the redacted text, so that no reader can guess a secret letter by letter.
        if wanted in text.casefold() and wanted in (text := redact(text)).casefold():
            yield {"at": at, "text": text[:MOST_LETTERS]}
