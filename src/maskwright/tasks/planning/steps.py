"""Timing a few real steps of a prepared run, for `plan` and `--dry-run`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from maskwright.config.finetuning import FinetuneConfig
from maskwright.config.pretraining import RunConfig
from maskwright.data.batch import Batch
from maskwright.engines.base import Engine
from maskwright.tasks.planning.interval import Interval, mean_of
from maskwright.training.objective import Objective

GOLDEN = 0.6180339887498949
"""The golden ratio. Its multiples, less their whole part, lie evenly from 0 to 1 however many they are: so do the
measured steps of a run with phases, so that each phase has its share of them."""


Program = tuple[tuple[int, ...], ...]
"""Shapes of all micro-batches of an update: for each, JAX compiles a program of its own."""


def program_of(batches: Sequence[Batch]) -> Program:
    return tuple((*batch.input_ids.shape, len(batch.weights)) for batch in batches)


@dataclass(frozen=True)
class StepTiming:
    seconds: Interval
    """Mean of a step, with its 95 % interval."""
    count: int
    """Number of measured steps."""
    micro_batches: int
    """Micro-batches of an update that were computed; the others were counted like the second of them."""
    cores: float
    """CPU seconds of all threads in each second of measuring."""


class Stepper:
    """Steps with the loop's own batches and rates: in order or, where a run has phases, spread over it. Time is that of
    the host, after the device is done; compiling does not count. `steps`: those to compute in turn instead."""

    def __init__(
        self, engine: Engine, objective: Objective, config: RunConfig | FinetuneConfig, steps: Sequence[int] = ()
    ) -> None:
        self._engine, self._objective, self._config, self._steps, self._number = engine, objective, config, steps, 0
        self._compiled: set[Program] = set()
        self._cpu = self._wall = 0.0
        self.restart()

    def step(self, local: Sequence[int]) -> float:
        number = self._next()
        if self._config.engine.kind == "jax":
            self._compile(self._objective.batches(number, local))

        def once() -> None:
            batches = self._objective.batches(number, local)
            rate = self._config.learning_rate_at(min(number, self._config.steps - 1))
            self._engine.step(batches, rate, lambda: False)
            self._engine.check()

        return seconds_of(self._engine, once)

    def _compile(self, batches: Sequence[Batch]) -> None:
        """Compiles in a dry run, which gives no warning of it."""
        if (program := program_of(batches)) not in self._compiled:
            self._engine.dry_run(batches, [])
            self._compiled.add(program)

    def _next(self) -> int:
        number = self._number
        self._number += 1
        if self._steps:
            return self._steps[number % len(self._steps)]
        spread = isinstance(self._config, RunConfig) and bool(self._config.phases)
        return int(self._config.steps * (number * GOLDEN % 1.0)) if spread else number

    def restart(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def taken(self) -> tuple[float, float]:
        """CPU seconds of this process, and seconds, since `restart`."""
        return time.process_time() - self._cpu, time.perf_counter() - self._wall


def take_steps(
    stepper: Stepper, turns: Sequence[Sequence[int]], rounds: int, *, seconds: float, least: int, most: int
) -> StepTiming:
    """Times steps for `seconds`, but no fewer than `least` and no more than `most`. `turns`: the micro-batches of a
    whole update, or those of one and of two of its `rounds`."""
    stepper.restart()
    count, times = 0, [list[float]() for _ in turns]
    until = time.perf_counter() + seconds
    while count < most and (count < least or time.perf_counter() < until):
        times[count % len(turns)].append(stepper.step(turns[count % len(turns)]))
        count += 1
    cpu, wall = stepper.taken()
    means = [mean_of(group) for group in times]
    step = means[0] if len(turns) == 1 else extrapolated(means[0], means[1], rounds)
    return StepTiming(step, count, len(turns[-1]), cpu / wall)


def extrapolated(first: Interval, both: Interval, rounds: int) -> Interval:
    """The time of a step of `rounds`, from the times of its `first` round and of `both` of its first two: each further
    round adds the difference."""
    more = rounds - 1
    low, high = max(both.low - first.high, 0.0), both.high - first.low
    mid = max(both.mid - first.mid, 0.0)
    return Interval(first.low + more * low, first.mid + more * mid, first.high + more * high)


def seconds_of(engine: Engine, compute: Callable[[], object]) -> float:
    """The time of `compute`, less that of compiling."""
    began, before = time.perf_counter(), compiling_seconds(engine)
    compute()
    return time.perf_counter() - began - (compiling_seconds(engine) - before)


def compiling_seconds(engine: Engine) -> float:
    """The time of compiling all programs so far; 0 with torch, which compiles as it computes."""
    programs = engine.report.get("compiles")
    return sum(float(program["seconds"]) for program in programs) if isinstance(programs, list) else 0.0
