"""The newest numbers of a run's `metrics.jsonl` and the shape of its loss, without reading a long file whole."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from maskwright.core.folder import Folder
from maskwright.run.grown import METRICS, Grown, backwards, lines_of

LOSS = "loss"
"""Only the lines of training have it."""
POINTS = 60
"""Points of the sparkline, at most."""
WHOLE_BYTES, END_BYTES = 256 << 10, 32 << 10
"""A file up to the first size is read whole; a longer one, for the second size at its end."""
SAMPLE_BYTES = 4 << 10
"""Bytes read at each of the other places: about ten lines."""
PLACES, PLACES_URL = 40, 10
"""At a URL each place is a request."""
FAR_BYTES = 1 << 20


class Numbers:
    """The numbers of a run. `last`: the newest number of each name. `names`: all names seen. Words are left out; NaN
    and infinity stay."""

    def __init__(self, folder: Folder, name: str = METRICS) -> None:
        self._folder, self._name = folder, name
        self._grown = Grown(folder, name)
        self._forget()

    def refresh(self) -> None:
        """Raises `MaskwrightError` where the file cannot be read."""
        for block in self._grown.news():
            if block is not None:
                self._take(block)
                continue
            self._forget()
            if self._grown.size > WHOLE_BYTES:
                self._sample(self._grown.size - END_BYTES)
                self._grown.begin(self._grown.size - END_BYTES)

    def spark(self) -> list[float]:
        """At most `POINTS` means of the loss, each of about equally many lines. Losses that are not finite are left
        out."""
        return list(self._points)

    def _forget(self) -> None:
        self.last: dict[str, float] = {}
        self.names: set[str] = set()
        self._points: list[float] = []
        self._lines_a_point = 1
        self._waiting: list[float] = []

    def _take(self, block: bytes) -> None:
        for line in lines_of(block):
            self._remember(line)
            if LOSS in line:
                self._waiting += finite([line[LOSS]])
                if len(self._waiting) >= self._lines_a_point:
                    self._add(self._waiting)
                    self._waiting = []

    def _remember(self, line: dict[str, Any]) -> None:
        numbers = {name: float(value) for name, value in line.items() if is_number(value)}
        self.last |= numbers
        self.names |= numbers.keys()

    def _add(self, losses: list[float]) -> None:
        if not losses:
            return
        self._points.append(sum(losses) / len(losses))
        if len(self._points) > POINTS:
            pairs = zip(self._points[::2], self._points[1::2], strict=False)
            left = self._points[-1:] if len(self._points) % 2 else []
            self._points = [(first + second) / 2 for first, second in pairs] + left
            self._lines_a_point *= 2

    def _sample(self, end: int) -> None:
        """Reads a few places before the byte `end`."""
        places = PLACES if self._folder.path is not None else PLACES_URL
        lengths = []
        for number in range(places):
            start = end * number // places
            content = self._folder.get(self._name, start, min(start + SAMPLE_BYTES, end)) or b""
            content = content[content.find(b"\n") + 1 if start else 0 : content.rfind(b"\n") + 1]
            lines = list(lines_of(content))
            trained = [line for line in lines if LOSS in line]
            for line in [*trained[-1:], *(line for line in lines if LOSS not in line)]:
                self._remember(line)
            self._add(finite(line[LOSS] for line in trained))
            lengths.append(len(content) / max(len(lines), 1))
        usual = sorted(lengths)[len(lengths) // 2] or 1.0
        self._lines_a_point = max(1, round(end / places / usual))
        self._remember(self._evaluation(end))

    def _evaluation(self, end: int) -> dict[str, Any]:
        """The last line before the byte `end` with a held-out loss; at a URL at most about `FAR_BYTES` are searched."""
        for begin, block in backwards(self._folder, self._name, 0, end):
            lines = lines_of(block) if b'"valid_loss"' in block else []
            if found := [line for line in lines if "valid_loss" in line]:
                return found[-1]
            if self._folder.path is None and end - begin >= FAR_BYTES:
                break
        return {}


def is_number(value: Any) -> bool:
    """Whether a value is a number of a run. NaN is, but an integer beyond the range of floats is not."""
    return isinstance(value, float) or (type(value) is int and value.bit_length() < 1000)


def finite(values: Iterable[Any]) -> list[float]:
    return [float(value) for value in values if is_number(value) and math.isfinite(value)]
