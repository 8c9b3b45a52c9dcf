"""The progress of a work whose parts a cluster computes."""

from __future__ import annotations

import os
import statistics
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from maskwright.core.console import Progress, human_bytes, human_seconds, say, several

POLL_SECONDS, WAIT_SECONDS = 2.0, 30.0
SLOW, SLOW_SECONDS = 3.0, 10.0
"""A part is slow once it takes this many times the median, and at least this long."""


@dataclass(frozen=True)
class TaskResult:
    """A task's answer: a result, or an error for the user."""

    node: str
    seconds: float
    peak_bytes: int
    result: Any = None
    error: Exception | None = None


class Watch:
    """Shows a work's progress: parts done, slow parts and their machines, lost parts."""

    def __init__(self, title: str, parts: int, board: str | None, bar: Progress) -> None:
        self.title, self.parts, self.board, self.bar = title, parts, board, bar
        self.losses = Counter[int]()
        self.peak_bytes = 0
        self._seconds: list[float] = []
        self._nodes = Counter[str]()
        self._begun: dict[int, float] = {}
        """When each part was first seen running."""
        self._slow = set[int]()
        self._began = self._polled_at = self._busy_at = time.monotonic()
        self._slots, self.counted_at = 0, -POLL_SECONDS

    def slots(self, count: Callable[[], int]) -> int:
        """The number of slots. `count` polls the cluster every few seconds; between, the last number is returned."""
        now = time.monotonic()
        if now - self.counted_at >= POLL_SECONDS:
            self._slots, self.counted_at = count(), now
        return self._slots

    def lost(self, number: int, what: str) -> int:
        """Records that a part's worker was lost; returns how many times by now."""
        self.losses[number] += 1
        self._begun.pop(number, None)
        where = self._where(number)
        with suppress(OSError):
            os.unlink(os.path.join(self.board or "", str(number)))
        say(f"{self.title}: part {number} {what}{where and f', on {where}'}")
        return self.losses[number]

    def ended(self, number: int, answer: TaskResult, size: int) -> None:
        self._seconds.append(answer.seconds)
        self._nodes[answer.node] += 1
        self._begun.pop(number, None)
        self._busy_at = time.monotonic()
        self.peak_bytes = max(self.peak_bytes, answer.peak_bytes)
        self.bar.advance(size, f"{len(self._seconds):,}/{self.parts:,} parts")

    def poll(self, running: set[int]) -> None:
        now = time.monotonic()
        if now - self._polled_at < POLL_SECONDS:
            return
        self._polled_at = now
        for name in os.listdir(self.board) if self.board else ():
            if name.isdecimal() and int(name) in running:
                self._begun.setdefault(int(name), now)
        usual = statistics.median(self._seconds) if self._seconds else float("inf")
        for number in running - self._slow:
            if number in self._begun and now - self._begun[number] > max(SLOW * usual, SLOW_SECONDS):
                self._slow.add(number)
                taken, where = human_seconds(now - self._begun[number]), self._where(number)
                say(f"{self.title}: part {number} has been running for {taken} on {where}; the median is {usual:.2f} s")
        if self._begun:
            self._busy_at = now
        elif now - self._busy_at > WAIT_SECONDS:
            self._busy_at = now
            say(f"{self.title}: no part has begun for {WAIT_SECONDS:.0f} s: the cluster's CPUs or memory are in use")
        self.bar.advance(0)

    def _where(self, number: int) -> str:
        with suppress(OSError), open(os.path.join(self.board or "", str(number)), encoding="utf-8") as file:
            return file.read()
        return ""

    def conclude(self, size: int) -> None:
        seconds = time.monotonic() - self._began
        repeated = sum(self.losses.values())
        facts = [
            f"{self.title}: {several(self.parts, 'part')} on {several(len(self._nodes), 'machine')}",
            f"{human_bytes(size)} in {human_seconds(seconds)} ({human_bytes(size / max(seconds, 1e-9))}/s)",
            f"at most {human_bytes(self.peak_bytes)} a worker",
            *([f"{repeated} computed again because a worker was lost"] if repeated else []),
        ]
        if self.parts:
            say(", ".join(facts))
