"""The curves of a run, read as its `metrics.jsonl` grows and reduced to as many points as a page can show."""

from __future__ import annotations

import math
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from maskwright.core.folder import Folder
from maskwright.monitor.watch.numbers import is_number
from maskwright.run.grown import METRICS, Grown, lines_of

MOST_POINTS = 5_000
KEPT_ANSWERS = 32
"""Answers cached for each run: a page requests the same curves every two seconds, and few have grown."""


@dataclass
class _Column:
    """All numbers of one name. `steps` ascend."""

    steps: array[int] = field(default_factory=lambda: array("I"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def add(self, step: int, value: float) -> None:
        if self.steps and step <= self.steps[-1]:  # computed again after a restart, so the later value counts
            first = bisect_left(self.steps, step)
            del self.steps[first:], self.values[first:]
        self.steps.append(step)
        self.values.append(value)


def buckets(
    steps: Sequence[int], values: Sequence[float], points: int, first: int | None = None, last: int | None = None
) -> dict[str, list[Any]]:
    """Columns `step`, `value`, `low` and `high` of at most `points` buckets of equally many numbers (or one more), for
    the steps from `first` to `last`. A bucket has the step of its last number, their mean and their extremes. The mean
    is None if one of them is not finite, and the extremes are the finite ones'."""
    begin = 0 if first is None else bisect_left(steps, first)
    end = len(steps) if last is None else bisect_right(steps, last)
    count = max(min(points, end - begin), 0)
    edges = [begin + (end - begin) * number // count for number in range(count + 1)] if count else []
    columns: dict[str, list[Any]] = {"step": [], "value": [], "low": [], "high": []}
    for start, stop in zip(edges, edges[1:], strict=False):
        part = values[start:stop]
        total = sum(part)
        if math.isfinite(total):
            mean, inside = total / len(part), part
        else:
            mean, inside = None, [value for value in part if math.isfinite(value)]
        columns["step"].append(steps[stop - 1])
        columns["value"].append(mean)
        columns["low"].append(min(inside) if inside else None)
        columns["high"].append(max(inside) if inside else None)
    return columns


class RunCurves:
    """The curves of one run, 12 bytes for each number. Several threads may call its methods."""

    def __init__(self, folder: Folder, name: str = METRICS) -> None:
        self._grown = Grown(folder, name)
        self._folder, self._name = folder, name
        self._columns: dict[str, _Column] = {}
        self._answers: dict[tuple[Any, ...], dict[str, list[Any]]] = {}
        self._lock = threading.Lock()

    def curves(
        self, names: Sequence[str], points: int, first: int | None = None, last: int | None = None
    ) -> dict[str, dict[str, list[Any]]]:
        """`buckets` of each name that the run has. Raises `MaskwrightError` if the file cannot be read."""
        points = min(max(points, 1), MOST_POINTS)
        with self._lock:
            self._read(names)
            curves = {}
            for name in names:
                if not self._columns[name].steps:
                    continue
                key = (name, points, first, last)
                if key not in self._answers:
                    while len(self._answers) >= KEPT_ANSWERS:
                        del self._answers[next(iter(self._answers))]
                    column = self._columns[name]
                    self._answers[key] = buckets(column.steps, column.values, points, first, last)
                curves[name] = self._answers[key]
            return curves

    def _read(self, names: Sequence[str]) -> None:
        """Reads the file's news. A new name makes it read all names from the file's start."""
        if not self._columns.keys() >= set(names):
            self._columns |= {name: _Column() for name in names}
            self._grown = Grown(self._folder, self._name)
        for block in self._grown.news():
            self._answers.clear()
            if block is None:
                self._columns = {name: _Column() for name in self._columns}
                continue
            columns = list(self._columns.items())
            for line in lines_of(block):
                step = line["step"]
                for name, column in columns:
                    value = line.get(name)
                    if value is not None and is_number(value) and 0 <= step < 1 << 32:
                        column.add(step, value)
