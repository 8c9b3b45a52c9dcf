"""One run as a report reads it: every record that its folder holds, on this machine or in a bucket. Each may be
missing, as in a run that has only begun."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeGuard

from maskwright.core import records
from maskwright.core.console import several
from maskwright.core.errors import InputError
from maskwright.core.folder import Folder
from maskwright.monitor import status
from maskwright.run.directory import DATA_CARD, HISTORY, MANIFEST, Status, read_lines, step_folder

Points = list[tuple[float, float]]
CONFIG, METRICS = "config.resolved.json", "metrics.jsonl"
TELLS = {
    "status.json": "the state of the run",
    METRICS: "points of the curves",
    HISTORY: "saves, restarts, spikes and ends",
    DATA_CARD: "the data card",
    "environment.json": "the machine and the versions",
    "results.json": "the scores",
    MANIFEST: "the digest of the weights",
}
"""What a page has from each record."""


@dataclass(frozen=True)
class RecordedRun:
    name: str
    """Short, and another one for each run of a page."""
    look: status.RunReport
    record: dict[str, Any]
    """`config.resolved.json`."""
    environment: dict[str, Any]
    card: dict[str, Any]
    """`data.json`."""
    metrics: list[dict[str, Any]]
    history: list[dict[str, Any]]
    results: dict[str, Any]
    """Of a fine-tuned run."""
    given: str | None
    """`config.yaml`."""
    saved: dict[str, Any]
    """`step` and `weights_sha256` of the newest checkpoint; empty where there is none."""
    damaged: tuple[str, ...] = ()
    """A line for each record that is damaged: which, what the page is without, and how to have it."""
    told: str = ""
    """The state, where `look` could not read it."""

    @property
    def state(self) -> str:
        return self.told or self.look.state

    @property
    def location(self) -> str:
        return self.look.run

    @property
    def config(self) -> dict[str, Any]:
        """Values by dotted key."""
        found = self.record.get("config")
        return found if isinstance(found, dict) else {}

    @property
    def is_finetuning(self) -> bool:
        return "task" in self.record

    @property
    def step(self) -> int:
        seen = [line["step"] for line in self.metrics] + ([self.look.status.step] if self.look.status else [])
        return max([0, *seen])

    @property
    def of(self) -> int:
        planned = self.config.get("schedule.steps") if self.told else None
        return max((self.look.status.of if self.look.status else planned or 0), self.step)

    def points(self, key: str) -> Points:
        """(step, value) of each log line that has a finite number there."""
        return [(float(line["step"]), float(value)) for line in self.metrics if _is_number(value := line.get(key))]

    def last(self, key: str) -> float | None:
        found = self.points(key)
        return found[-1][1] if found else None

    def at(self, event: str) -> list[dict[str, Any]]:
        """The lines of history that say so."""
        return [line for line in self.history if line.get("event") == event]

    @property
    def chance(self) -> float | None:
        """Loss of a uniform guess."""
        known = self.card.get("chance")
        if _is_number(known):
            return float(known)
        size = (self.record.get("model") or {}).get("vocab_size")
        return math.log(size) if isinstance(size, int) and size > 0 and not self.is_finetuning else None

    @cached_property
    def held_out(self) -> list[str]:
        """Names of the sets that the run is judged by, where they have names."""
        keys = {key for line in self.metrics for key in line if key.startswith("valid_") and key.endswith("_loss")}
        return sorted(key.removeprefix("valid_").removesuffix("_loss") for key in keys if key != "valid_loss")

    def baseline(self, name: str = "") -> tuple[float, float] | None:
        """(loss, accuracy) of the unigram baseline; without a name, of what counts as the run's held-out loss."""
        known = self.card.get("unigram")
        if not isinstance(known, dict) or not known:
            return None
        found = known.get(name) if name else next(iter(known.values()))
        if not isinstance(found, dict) or not all(_is_number(found.get(key)) for key in ("loss", "accuracy")):
            return None
        return float(found["loss"]), float(found["accuracy"])

    @cached_property
    def spans(self) -> list[tuple[float, float]]:
        """(begin, end) in Unix seconds of each start, as far as the run's own lines tell."""
        times = sorted(float(line["time"]) for line in (*self.metrics, *self.history) if _is_number(line.get("time")))
        if self.look.status and times:
            times.append(max(times[-1], self.look.status.heartbeat))
        begins = [float(line["time"]) for line in self.at("started") if _is_number(line.get("time"))]
        if times and (not begins or times[0] < begins[0]):
            begins.insert(0, times[0])  # starts of an earlier version, which wrote no history
        found = []
        for number, begin in enumerate(begins):
            end = begins[number + 1] if number + 1 < len(begins) else math.inf
            inside = [time for time in times if begin <= time < end]
            found.append((begin, max(inside, default=begin)))
        return found

    @property
    def seconds(self) -> float | None:
        """That it has worked, over all its starts."""
        return sum(end - begin for begin, end in self.spans) if self.spans else None


class _Records:
    """Reads records of a run's folder; what is damaged is noted, and left out."""

    def __init__(self, folder: Folder, inside: str) -> None:
        self.folder, self.inside = folder, inside
        self.damaged: list[str] = []

    def note(self, name: str, what: str, *, some: bool = False) -> None:
        lacks = ("some " if some else "") + TELLS[os.path.basename(name)]
        fix = "restore the file, and make the page again"
        self.damaged.append(f"{self.folder.location}/{self.inside}{name}: {what}; the page lacks {lacks}. Fix: {fix}")

    def json(self, name: str) -> dict[str, Any]:
        content = self.folder.get(self.inside + name)
        if content is None:
            return {}
        try:
            value = json.loads(content)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            self.note(name, "is damaged")
            return {}
        return value

    def lines(self, name: str, *, over: bool, awaited: bool) -> list[dict[str, Any]]:
        """`over`: nobody is writing a line now. `awaited`: there has to be one, even where there is no file."""
        content = self.folder.get(self.inside + name)
        *whole, last = (content or b"").decode("utf-8", "replace").split("\n")
        found = read_lines("\n".join([*whole, ""]))
        given = [line for line in (*whole, last if over else "") if line.strip()]
        if not found and (awaited or given or last.strip()):
            self.note(name, "has no whole line")
        elif len(given) > len(found):
            count = f"{len(given) - len(found):,} of {several(len(given), 'line')}"
            self.note(name, f"{count} {'is' if len(given) == len(found) + 1 else 'are'} damaged", some=True)
        return found


def read(location: str) -> RecordedRun:
    """Raises `InputError` where there is no run, or its configuration is damaged."""
    folder = Folder(location, reach=True)
    try:
        look = status.look(location)
    except InputError:
        if "compare.json" in folder.names():
            fix = "open its verdict.html; runs/ below it has the runs that it compared"
            raise InputError("is a comparison, which has a page of its own", where=location, fix=fix) from None
        raise
    inside = ""
    if look.state == "only checkpoints" and look.checkpoint and "checkpoints" not in folder.names():
        inside = f"{step_folder(look.checkpoint.step)}/"  # copies have the run's records beside each checkpoint
    record, read_from, state = _record(folder, inside), _Records(folder, inside), ""
    content = folder.get("status.json")
    if look.status is None and content is not None and records.read(Status, content) is None:
        read_from.note("status.json", "is damaged")
        if look.state in ("only checkpoints", "never started"):
            look = replace(look, why="", fix="")
            state = "not known"
    given = folder.get(inside + "config.yaml")
    return RecordedRun(
        name=os.path.basename(look.run.rstrip("/")) or look.run,
        look=look,
        record=record,
        environment=read_from.json("environment.json"),
        card=read_from.json(DATA_CARD),
        metrics=read_from.lines(METRICS, over=look.over, awaited=_has_logged(look.status, record)),
        history=read_from.lines(HISTORY, over=look.over, awaited=False),
        results=read_from.json("results.json"),
        given=None if given is None else given.decode("utf-8", "replace"),
        saved=_saved(read_from, look),
        damaged=tuple(read_from.damaged),
        told=state,
    )


def _has_logged(found: Status | None, record: dict[str, Any]) -> bool:
    """Whether the last start alone came to a step at which a line is written."""
    every = record.get("config", {}).get("logging.every_steps")
    return found is not None and isinstance(every, int) and found.step - found.began >= every


def _saved(read_from: _Records, look: status.RunReport) -> dict[str, Any]:
    if look.checkpoint is None:
        return {}
    step = look.checkpoint.step
    place = "" if read_from.inside else f"checkpoints/{step_folder(step)}/"
    weights = (read_from.json(f"{place}{MANIFEST}").get("files") or {}).get("model.safetensors") or {}
    return {"step": step, "weights_sha256": weights.get("sha256")}


def read_all(locations: Sequence[str]) -> list[RecordedRun]:
    """With names that differ. Raises `InputError` for a run that is given twice."""
    found = [read(location) for location in locations]
    if len({run.location for run in found}) < len(found):
        twice = next(run.location for run in found if [one.location for one in found].count(run.location) > 1)
        raise InputError("is given twice", where=twice, fix="give each run once")
    for depth in range(2, 12):
        if len({run.name for run in found}) == len(found):
            break
        found = [replace(run, name="/".join(run.location.rstrip("/").split("/")[-depth:])) for run in found]
    return found


def _record(folder: Folder, inside: str) -> dict[str, Any]:
    content = folder.get(inside + CONFIG)
    if content is None:
        return {}
    try:
        record = json.loads(content)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict) or not isinstance(record.get("config"), dict):
        where = f"{folder.location}/{inside}{CONFIG}"
        raise InputError("is not a run's record", where=where, fix="restore the file, or start a new run")
    return record


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
