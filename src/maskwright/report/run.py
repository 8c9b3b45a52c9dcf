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

from maskwright.core.errors import InputError
from maskwright.core.folder import Folder
from maskwright.monitor import status
from maskwright.run.directory import DATA_CARD, HISTORY, MANIFEST, read_lines, step_folder

Points = list[tuple[float, float]]
CONFIG = "config.resolved.json"


@dataclass(frozen=True)
class Run:
    name: str
    """Short, and another one for each run of a page."""
    look: status.Report
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
        return max((self.look.status.of if self.look.status else 0), self.step)

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


def read(location: str) -> Run:
    """Raises `InputError` where there is no run, or its record is damaged."""
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

    def lines(name: str) -> list[dict[str, Any]]:
        return read_lines((folder.get(inside + name) or b"").decode("utf-8", "replace"))

    given = folder.get(inside + "config.yaml")
    return Run(
        name=os.path.basename(look.run.rstrip("/")) or look.run,
        look=look,
        record=_record(folder, inside),
        environment=folder.get_json(inside + "environment.json") or {},
        card=folder.get_json(inside + DATA_CARD) or {},
        metrics=lines("metrics.jsonl"),
        history=lines(HISTORY),
        results=folder.get_json(inside + "results.json") or {},
        given=None if given is None else given.decode("utf-8", "replace"),
        saved=_saved(folder, inside, look),
    )


def _saved(folder: Folder, inside: str, look: status.Report) -> dict[str, Any]:
    if look.checkpoint is None:
        return {}
    step = look.checkpoint.step
    manifest = folder.get_json(f"{inside or f'checkpoints/{step_folder(step)}/'}{MANIFEST}") or {}
    weights = (manifest.get("files") or {}).get("model.safetensors") or {}
    return {"step": step, "weights_sha256": weights.get("sha256")}


def read_all(locations: Sequence[str]) -> list[Run]:
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
