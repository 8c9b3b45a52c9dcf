"""A run's records as a report reads them, from its folder on this machine or in a bucket. Each may be missing."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from maskwright.core import records
from maskwright.core.console import several
from maskwright.core.errors import InputError
from maskwright.core.folder import Folder
from maskwright.monitor import status
from maskwright.run.directory import (
    DATA_CARD,
    HISTORY,
    MANIFEST,
    Status,
    ended_files,
    read_lines,
    step_folder,
    whole_steps,
)
from maskwright.run.grown import METRICS
from maskwright.run.metric_names import is_finite as _is_number
from maskwright.run.record import CONFIG, RunRecord, evaluations, parse

Points = list[tuple[float, float]]
CONTENTS = {
    "status.json": "the state of the run",
    METRICS: "points of the curves",
    HISTORY: "saves, restarts, spikes and ends",
    DATA_CARD: "the data card",
    "environment.json": "the machine and the versions",
    "results.json": "the scores",
    MANIFEST: "the digest of the weights",
}
"""Contents of a page by the record that they are read from."""


@dataclass(frozen=True)
class RecordedRun:
    name: str
    """Short, and different for each run of a page."""
    report: status.RunReport
    record: RunRecord | None
    """None before it is written."""
    environment: dict[str, Any]
    card: dict[str, Any]
    metrics: list[dict[str, Any]]
    history: list[dict[str, Any]]
    results: dict[str, Any]
    """Scores of a fine-tuned run."""
    config_text: str | None
    saved: dict[str, Any]
    """`step` and `weights_sha256` of the newest checkpoint; empty without one."""
    steps: tuple[int, ...] = ()
    """Steps of the checkpoints that are kept."""
    damaged: tuple[str, ...] = ()
    """A line for each damaged record: its path, what the page lacks, and the fix."""
    known_state: str = ""
    """The state if `report` could not read it."""

    @property
    def state(self) -> str:
        return self.known_state or self.report.state

    @property
    def location(self) -> str:
        return self.report.run

    @property
    def config(self) -> dict[str, Any]:
        """Values by dotted key."""
        return self.record.keys if self.record else {}

    @property
    def is_finetuning(self) -> bool:
        return self.record is not None and self.record.kind == "finetune"

    @property
    def step(self) -> int:
        steps = [line["step"] for line in self.metrics] + ([self.report.status.step] if self.report.status else [])
        return max([0, *steps])

    @property
    def planned(self) -> int | None:
        """Steps of the whole run; None if no record gives them."""
        status, checkpoint = self.report.status, self.report.checkpoint
        known = (status and status.of) or (checkpoint and checkpoint.of)
        return known or (self.record.steps if self.record else None)

    @property
    def of(self) -> int:
        """Steps of the whole run, or the known ones."""
        return max(self.planned or 0, self.step)

    def points(self, key: str) -> Points:
        """(step, value) of each log line with a finite number for `key`."""
        return [(float(line["step"]), float(value)) for line in self.metrics if _is_number(value := line.get(key))]

    def last(self, key: str) -> float | None:
        points = self.points(key)
        return points[-1][1] if points else None

    @cached_property
    def judged(self) -> Mapping[str, Any]:
        """The evaluation of the model: its best step's if evaluations choose it, else the last."""
        if self.record is None:
            return {}
        lines = evaluations(self.metrics, self.record.judges)
        best = self.record.best(self.metrics, self.steps).step if self.record.keeps_best else None
        best = (self.results or {}).get("step", best)
        return next((line for line in lines if line["step"] == best), lines[-1] if lines else {})

    def score(self, key: str) -> float | None:
        """A number of `judged`."""
        value = self.judged.get(key)
        return float(value) if _is_number(value) else None

    @property
    def has_ended(self) -> bool:
        record = self.record
        return record is not None and record.has_ended(self.metrics, self.steps, has_results=bool(self.results))

    def at(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.history if line.get("event") == event]

    @property
    def chance(self) -> float | None:
        """Loss of a uniform guess."""
        chance = self.card.get("chance")
        return float(chance) if _is_number(chance) else None

    @cached_property
    def held_out(self) -> list[str]:
        """Names of the held-out sets, if they have names."""
        keys = {key for line in self.metrics for key in line if key.startswith("valid_") and key.endswith("_loss")}
        return sorted(key.removeprefix("valid_").removesuffix("_loss") for key in keys if key != "valid_loss")

    def baseline(self, name: str = "") -> tuple[float, float] | None:
        """(loss, accuracy) of the unigram baseline; without a name, for the run's held-out loss."""
        baselines = self.card.get("unigram")
        if not isinstance(baselines, dict) or not baselines:
            return None
        baseline = baselines.get(name) if name else next(iter(baselines.values()))
        if not isinstance(baseline, dict) or not all(_is_number(baseline.get(key)) for key in ("loss", "accuracy")):
            return None
        return float(baseline["loss"]), float(baseline["accuracy"])

    @cached_property
    def spans(self) -> list[tuple[float, float]]:
        """(begin, end) in Unix seconds of each start, from the run's own lines."""
        times = sorted(float(line["time"]) for line in (*self.metrics, *self.history) if _is_number(line.get("time")))
        if self.report.status and times:
            times.append(max(times[-1], self.report.status.heartbeat))
        begins = [float(line["time"]) for line in self.at("started") if _is_number(line.get("time"))]
        if times and (not begins or times[0] < begins[0]):
            begins.insert(0, times[0])  # starts of an earlier version, which wrote no history
        spans = []
        for index, begin in enumerate(begins):
            end = begins[index + 1] if index + 1 < len(begins) else math.inf
            inside = [time for time in times if begin <= time < end]
            spans.append((begin, max(inside, default=begin)))
        return spans

    @property
    def seconds(self) -> float | None:
        """Seconds of work, over all its starts."""
        return sum(end - begin for begin, end in self.spans) if self.spans else None


class _Records:
    """Reads records of a run's folder, and notes damaged ones, which it leaves out."""

    def __init__(self, folder: Folder, inside: str, ended: dict[str, str]) -> None:
        """`ended`: see `ended_files`. They replace the files in the folder."""
        self.folder, self.inside, self._ended = folder, inside, ended
        self.damaged: list[str] = []

    def _get(self, name: str) -> bytes | None:
        return self._ended[name].encode() if name in self._ended else self.folder.get(self.inside + name)

    def note(self, name: str, what: str, *, is_partial: bool = False) -> None:
        missing = ("some " if is_partial else "") + CONTENTS[os.path.basename(name)]
        fix = "restore the file, and repeat the command"
        self.damaged.append(f"{self.folder.location}/{self.inside}{name}: {what}; the page lacks {missing}. Fix: {fix}")

    def json(self, name: str) -> dict[str, Any]:
        content = self._get(name)
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

    def lines(self, name: str, *, is_over: bool, is_expected: bool) -> list[dict[str, Any]]:
        """Reads lines. `is_over`: no process writes one now. `is_expected`: a line must exist, even without a file."""
        content = self._get(name)
        *complete, last = (content or b"").decode("utf-8", "replace").split("\n")
        parsed = read_lines("\n".join([*complete, ""]))
        written = [line for line in (*complete, last if is_over else "") if line.strip()]
        if not parsed and (is_expected or written or last.strip()):
            self.note(name, "has no whole line")
        elif len(written) > len(parsed):
            count = f"{len(written) - len(parsed):,} of {several(len(written), 'line')}"
            self.note(name, f"{count} {'is' if len(written) == len(parsed) + 1 else 'are'} damaged", is_partial=True)
        return parsed


def read(location: str) -> RecordedRun:
    """Reads a run's records. Raises `InputError` without a run, or for a damaged configuration."""
    folder = Folder(location, reach=True)
    try:
        report = status.look(location)
    except InputError:
        if "compare.json" in folder.names():
            fix = "open its verdict.html, or a run below its runs/"
            raise InputError("is a comparison, which writes its own page", where=location, fix=fix) from None
        raise
    inside, ended = "", dict[str, str]()
    if report.state == "only checkpoints" and report.checkpoint and "checkpoints" not in folder.names():
        inside = f"{step_folder(report.checkpoint.step)}/"  # copies hold the run's records next to each checkpoint
        ended = ended_files(folder, report.checkpoint.step)
    record, read_from, state = _record(folder, inside), _Records(folder, inside, ended), ""
    content = folder.get("status.json")
    if report.status is None and content is not None and records.read(Status, content) is None:
        read_from.note("status.json", "is damaged")
        if report.state in ("only checkpoints", "never started"):
            report = replace(report, why="", fix="")
            state = "not known"
    config_text = folder.get(inside + "config.yaml")
    return RecordedRun(
        name=os.path.basename(report.run.rstrip("/")) or report.run,
        report=report,
        record=record,
        environment=read_from.json("environment.json"),
        card=read_from.json(DATA_CARD),
        metrics=read_from.lines(METRICS, is_over=report.over, is_expected=_has_logged(report.status, record)),
        history=read_from.lines(HISTORY, is_over=report.over, is_expected=False),
        results=read_from.json("results.json"),
        config_text=None if config_text is None else config_text.decode("utf-8", "replace"),
        saved=_saved(read_from, report),
        steps=tuple(whole_steps(folder, "" if inside else "checkpoints/")),
        damaged=tuple(read_from.damaged),
        known_state=state,
    )


def _has_logged(run_status: Status | None, record: RunRecord | None) -> bool:
    """Whether the last start alone reached a step that writes a line."""
    if run_status is None or record is None:
        return False
    return run_status.step - run_status.began >= record.config.logging.every_steps


def _saved(read_from: _Records, report: status.RunReport) -> dict[str, Any]:
    if report.checkpoint is None:
        return {}
    step = report.checkpoint.step
    folder = "" if read_from.inside else f"checkpoints/{step_folder(step)}/"
    weights = (read_from.json(f"{folder}{MANIFEST}").get("files") or {}).get("model.safetensors") or {}
    return {"step": step, "weights_sha256": weights.get("sha256")}


def read_all(locations: Sequence[str]) -> list[RecordedRun]:
    """Reads several runs, with names that differ. Raises `InputError` for a run that is given twice."""
    runs = [read(location) for location in locations]
    if len({run.location for run in runs}) < len(runs):
        twice = next(run.location for run in runs if [other.location for other in runs].count(run.location) > 1)
        raise InputError("is given twice", where=twice, fix="give each run once")
    for depth in range(2, 12):
        if len({run.name for run in runs}) == len(runs):
            break
        runs = [replace(run, name="/".join(run.location.rstrip("/").split("/")[-depth:])) for run in runs]
    return runs


def _record(folder: Folder, inside: str) -> RunRecord | None:
    content = folder.get(inside + CONFIG)
    if content is None:
        return None
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        values = None
    written = folder.get_json(inside + "environment.json") or {}
    return parse(values, f"{folder.location}/{inside}{CONFIG}", str(written.get("maskwright") or ""))
