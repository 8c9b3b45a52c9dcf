"""Numbers of a run as they come: sums since the last log line, throughput, TensorBoard events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from maskwright.core.console import warn
from maskwright.engines.base import StepStats


@dataclass
class Counters:
    """Totals that a checkpoint keeps, so that a resumed run logs the same lines as an unbroken one."""

    tokens: int = 0
    """Text and frame tokens trained on; padding does not count."""
    loss_sum: float = 0.0
    """Since the last log line."""
    weight: float = 0.0
    """Since the last log line."""

    def __post_init__(self) -> None:
        self._waiting: list[StepStats] = []
        self.empty_steps = 0  # the last ones, in a row, that had nothing to predict

    def add(self, stats: StepStats, tokens: int) -> None:
        self.tokens += tokens
        self._waiting.append(stats)

    def _collect(self) -> None:
        """Adds up the waiting steps: not earlier, so that a device may run ahead of the host between two log lines."""
        for stats in self._waiting:
            self.loss_sum += float(stats.loss_sum)
            weight = float(stats.weight)
            self.weight += weight
            self.empty_steps = 0 if weight else self.empty_steps + 1
        self._waiting = []

    def take_loss(self) -> float:
        """Mean loss per predicted token since the last call."""
        self._collect()
        loss = self.loss_sum / max(self.weight, 1.0)
        self.loss_sum = self.weight = 0.0
        return loss

    def to_json(self) -> dict[str, Any]:
        self._collect()
        return asdict(self)


class Speed:
    """Rates over training time only: validation and saving do not count."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.seconds = self.total_seconds = 0.0
        self.tokens = self.total_tokens = 0
        self.flops = 0.0
        self.parts: dict[str, float] = {}
        self._mark = clock()

    def start(self) -> None:
        self._mark = self._clock()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Adds the time inside, by the host's clock, to a part of a step."""
        begin = self._clock()
        try:
            yield
        finally:
            self.add(name, self._clock() - begin)

    def add(self, name: str, seconds: float) -> None:
        self.parts[name] = self.parts.get(name, 0.0) + seconds

    def stop(self, tokens: int, flops: float) -> None:
        seconds = self._clock() - self._mark
        self.seconds += seconds
        self.tokens += tokens
        self.flops += flops
        self.total_seconds += seconds
        self.total_tokens += tokens

    def take(self) -> tuple[float, float]:
        """(tokens a second, FLOP/s) since the last call."""
        seconds = max(self.seconds, 1e-9)
        rates = self.tokens / seconds, self.flops / seconds
        self.seconds, self.tokens, self.flops = 0.0, 0, 0.0
        return rates


class TensorBoard:
    """Scalars as TensorBoard event files, written without torch so that any engine can use it. What goes wrong there is
    said once, and training goes on without."""

    def __init__(self, folder: str, first_step: int) -> None:
        self._folder = folder
        self._writer: Any = None
        with self._or_without():
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog
            from tensorboard.summary.writer.event_file_writer import EventFileWriter

            self._event: Any = Event
            self._writer = EventFileWriter(folder)
            # Tells TensorBoard to forget events after this step that an interrupted attempt wrote.
            self._writer.add_event(Event(step=first_step, session_log=SessionLog(status=SessionLog.START)))

    def add(self, step: int, values: dict[str, Any]) -> None:
        if self._writer is None:
            return
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = [
            Summary.Value(tag=name, simple_value=float(value))
            for name, value in values.items()
            if isinstance(value, int | float) and name != "step"
        ]
        with self._or_without():
            self._writer.add_event(self._event(step=step, wall_time=time.time(), summary=Summary(value=scalars)))

    def close(self) -> None:
        if self._writer is not None:
            with self._or_without():
                self._writer.close()

    @contextmanager
    def _or_without(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._writer = None
            warn(f"{self._folder}: TensorBoard events cannot be written ({error}); metrics.jsonl goes on")
