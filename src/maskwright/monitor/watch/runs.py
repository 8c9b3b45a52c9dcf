"""All runs below some folders, each in a row: its status and its newest numbers. A file that cannot have
changed is not read again."""

from __future__ import annotations

import functools
import hashlib
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from maskwright.core.console import several
from maskwright.core.errors import InputError, MaskwrightError, StoppedEarly
from maskwright.core.folder import Folder
from maskwright.core.secrets import redact
from maskwright.monitor.status import RunReport, look, read_record
from maskwright.monitor.watch.find import FoundRuns, RunLocation, find
from maskwright.monitor.watch.numbers import Numbers
from maskwright.run.directory import HISTORY, step_folder
from maskwright.run.grown import METRICS, Grown, lines_of
from maskwright.run.record import CONFIG

FIND_SECONDS, FIND_SHARE = 10.0, 0.05
"""Folders are searched again after this time, or later if searching would take more than this share of time."""
FAR_SECONDS, LIST_SECONDS = 10.0, 60.0
"""Between two looks at a running run at a URL; and between two listings of a bucket, which other runs, copies of
checkpoints and searches for runs need."""
AT_ONCE = 8
"""Runs at URLs that are read at the same time."""
SIGNED = ("status.json", "lease.json", CONFIG, "processes", "checkpoints")
"""A finished run has not changed if the sizes and times of these have not."""
clean = functools.lru_cache(4096)(redact)
"""Cached, since the same few texts come every two seconds, and the environment with the secrets does not change."""
ADVANCING = frozenset({"running", "starting"})
"""States in which a run has a speed."""
GOING = ADVANCING | {"hung", "lost", "silent"}
"""States of a run that has not recorded its end."""
RANKS = ("fine", "slow", "hung", "lost", "silent", "ended")


@dataclass
class Watched:
    """One run directory and the state read from it."""

    place: RunLocation
    id: str
    folder: Folder
    report: RunReport
    numbers: Numbers
    history: Grown
    inside: str
    """Where its records lie below the folder: with copies of checkpoints, next to the newest, with a slash at the
    end."""
    kind: str = ""
    metric: str = ""
    """The metric that judges a fine-tuning run; empty if unknown."""
    looked: float = 0.0
    signature: object = None
    checkpoints: tuple[float, list[dict[str, Any]]] = (-math.inf, [])
    """At a URL: (when they were listed, the checkpoints)."""
    counts: Counter[str] = field(default_factory=Counter)
    """Number of events of each kind in its history."""
    started: float | None = None
    problem: str = ""

    def row(self) -> dict[str, Any]:
        """The run for the table and the page; every number is finite. docs/watch.md lists the keys."""
        report, status, numbers = self.report, self.report.status, self.numbers.last
        saved = report.checkpoint
        beats = [rank.beat for rank in report.ranks]
        heard = max([status.heartbeat if status else 0.0, *(beat.time for beat in beats)])
        verdicts: Counter[str] = Counter(rank.verdict for rank in report.ranks)
        started = self.started or min((beat.started for beat in beats), default=None)
        advancing = status if report.state in ADVANCING else None
        return {
            "id": self.id,
            "name": clean(self.place.name),
            "location": clean(report.run),
            "kind": self.kind,
            "state": report.state,
            "why": clean(report.why),
            "fix": clean(report.fix),
            "limits": report.limits(),
            "health": clean(self._health()),
            "step": status.step if status else saved.step if saved else 0,
            "of": status.of if status else (saved.of if saved else None) or 0,
            "loss": known(numbers.get("loss", status.loss if status else None)),
            "valid_loss": known(numbers.get("valid_loss")),
            "metric": clean(self.metric) or None,
            "score": known(numbers.get(f"valid_{self.metric}")) if self.metric else None,
            "learning_rate": known(numbers.get("learning_rate")),
            "tokens_per_second": known(advancing.tokens_per_second if advancing else None),
            "eta_seconds": known(advancing.eta_seconds if advancing else None),
            "started": known(started),
            "heartbeat": known(heard) or (saved.saved if saved else None) or 0.0,
            "spark": self.numbers.spark(),
            "world_size": beats[0].world_size if beats else 0,
            "ranks": {word: verdicts[word] for word in RANKS},
            "checkpoint_step": saved.step if saved else None,
            "looked": None if self.folder.path is not None else self.looked,
        }

    def _health(self) -> str:
        """The run's problem in few words, or `fine`; empty if nothing runs."""
        report, loss = self.report, self.numbers.last.get("loss")
        if self.problem:
            return self.problem
        if report.state in ("hung", "lost", "silent", "failed"):
            return report.why
        if report.ending:
            return report.ending
        if loss is not None and not math.isfinite(loss):
            return "the loss is NaN" if math.isnan(loss) else "the loss is infinite"
        slow = [str(rank.beat.rank) for rank in report.ranks if rank.verdict == "slow"]
        skipped = report.status.skipped_updates if report.status else 0
        problems = [
            f"rank {', '.join(slow[:4])} slow" if slow else "",
            several(self.counts["spiked"], "spike") if self.counts["spiked"] else "",
            f"{several(skipped, 'update')} skipped" if skipped else "",
        ]
        return ", ".join(filter(None, problems)) or ("fine" if report.state in ("running", "starting", "done") else "")


def known(value: float | None) -> float | None:
    """The value, or None for NaN and infinity, which JSON does not have."""
    return value if value is not None and math.isfinite(value) else None


class Runs:
    """The runs below `folders`. Several threads may call its methods. `refresh` reads runs of this machine itself, and
    runs at URLs in a thread of its own, since a store may be slow to answer.

    Raises `InputError` if a folder holds a secret or has no known file system."""

    def __init__(self, folders: Sequence[str], *, clock: Callable[[], float] = time.time) -> None:
        self.folders = [Folder(folder).location for folder in folders]
        far = [folder for folder in self.folders if Folder(folder).path is None]
        near = [folder for folder in self.folders if folder not in far]
        several = len(self.folders) > 1
        self._near, self._far = Below(near, several, clock, far=False), Below(far, several, clock, far=True)
        self._lock = threading.Lock()
        self._beside: threading.Thread | None = None

    def refresh(self, *, wait: bool = False) -> None:
        """Reads all runs again. No file of a run can make it fail; unreadable files are in `problems`. `wait`: until
        runs at URLs are read too."""
        with self._lock:
            self._near.refresh()
            if self._far.folders and not self.waits:
                self._beside = threading.Thread(target=self._far.refresh, daemon=True)
                self._beside.start()
            beside = self._beside
        if wait and beside is not None:
            beside.join()

    @property
    def waits(self) -> bool:
        """Whether a store is being read now."""
        return self._beside is not None and self._beside.is_alive()

    def rows(self) -> list[dict[str, Any]]:
        """Each run's row, without secrets: first running ones by newest start, so that their order is stable; then the
        others by newest sign of life."""
        rows = [watched.row() for half in (self._near, self._far) for watched in half.all()]
        return sorted(rows, key=_place)

    def to_json(self) -> dict[str, Any]:
        return {"time": time.time(), "folders": self.folders, "problems": self.problems, "runs": self.rows()}

    @property
    def problems(self) -> list[str]:
        """A line for each folder that cannot be read."""
        return [*map(clean, [*self._near.problems(), *self._far.problems()])]

    def get(self, id_: str) -> Watched | None:
        return self._near.watched.get(id_) or self._far.watched.get(id_)


def _place(row: dict[str, Any]) -> tuple[bool, float, str]:
    going = row["state"] in GOING
    return not going, -((row["started"] or 0.0) if going else row["heartbeat"]), row["name"]


class Below:
    """The runs below folders of this machine, or below URLs. One thread refreshes them, others may read."""

    def __init__(self, folders: Sequence[str], several: bool, clock: Callable[[], float], *, far: bool) -> None:
        self.folders, self._several, self._clock, self._is_far = folders, several, clock, far
        self._search = FoundRuns()
        self._searched = self._search_seconds = -math.inf
        self._not_runs: dict[str, str] = {}
        self.watched: dict[str, Watched] = {}

    def all(self) -> list[Watched]:
        return list(self.watched.values())

    def problems(self) -> list[str]:
        unread = [watched.problem for watched in self.all() if watched.problem]
        return [*self._search.problems, *list(self._not_runs.values()), *unread]

    def refresh(self) -> None:
        now = self._clock()
        least = LIST_SECONDS if self._is_far else FIND_SECONDS
        if now - self._searched >= max(least, self._search_seconds / FIND_SHARE):
            self._search = find(self.folders, several=self._several)
            self._searched, self._search_seconds = now, self._clock() - now
        places = {id_of(place.location): place for place in self._search.places}
        self.watched = {key: watched for key, watched in self.watched.items() if key in places}
        self._not_runs = {key: problem for key, problem in self._not_runs.items() if key in places}
        due = [key for key in places if self._is_due(key, now)]
        if not self._is_far:
            for key in due:
                self._look(key, places[key], now)
        elif due:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                list(pool.map(lambda key: self._look(key, places[key], now), due))

    def _is_due(self, key: str, now: float) -> bool:
        old = self.watched.get(key)
        if old is None or not self._is_far:
            return True
        return now - old.looked >= (FAR_SECONDS if old.report.state in GOING else LIST_SECONDS)

    def _look(self, key: str, place: RunLocation, now: float) -> None:
        old = self.watched.get(key)
        signature = None if self._is_far else _signature(place.location)
        unchanged = signature is not None and old is not None and old.signature == signature
        self._not_runs.pop(key, None)
        try:
            if old is not None and unchanged and old.report.over:
                watched = old
            else:
                watched = _seen(key, place, look(place.location, clock=self._clock), old)
                watched.signature = signature
        except StoppedEarly:  # a signal's
            raise
        except MaskwrightError as error:
            if old is not None:
                old.problem, old.looked = str(error), now
            elif not isinstance(error, InputError):  # an InputError: it only looks like a run
                self._not_runs[key] = str(error)
            return
        watched.looked, watched.problem = now, ""
        try:
            watched.numbers.refresh()
            _read_history(watched)
        except StoppedEarly:  # a signal's
            raise
        except MaskwrightError as error:
            watched.problem = str(error)
        self.watched[key] = watched


def id_of(location: str) -> str:
    return hashlib.sha256(location.encode(errors="surrogateescape")).hexdigest()[:12]


def _signature(location: str) -> tuple[Any, ...]:
    """A value that changes whenever a local run's records change."""
    stats = []
    for name in SIGNED:
        with suppress(OSError):
            stat = os.stat(os.path.join(location, name))
            stats.append((name, stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(stats)


def _seen(key: str, place: RunLocation, report: RunReport, old: Watched | None) -> Watched:
    """The run with a new report; its lines that were read are kept."""
    inside = ""
    if report.state == "only checkpoints" and report.checkpoint:
        inside = f"{step_folder(report.checkpoint.step)}/"  # copies hold the run's records next to each checkpoint
    if old is None or old.inside != inside:
        folder = Folder(place.location)
        numbers, history = Numbers(folder, inside + METRICS), Grown(folder, inside + HISTORY)
        old = Watched(place, key, folder, report, numbers, history, inside)
    old.report = report
    if not old.kind and (record := read_record(old.folder, inside)):
        old.kind, old.metric = record.kind, record.metric if record.kind == "finetune" else ""
    return old


def _read_history(watched: Watched) -> None:
    for block in watched.history.news():
        if block is None:
            watched.counts, watched.started = Counter(), None
            continue
        for line in lines_of(block):
            event, when = line.get("event"), line.get("time")
            watched.counts[str(event)] += 1
            if event == "started" and watched.started is None and isinstance(when, int | float):
                watched.started = float(when)
