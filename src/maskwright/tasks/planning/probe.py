"""A few real steps of a run, here: its own engine, model and batches, and nothing of it is kept."""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from maskwright.core.console import say
from maskwright.engines.base import Engine
from maskwright.tasks.planning.interval import Interval, mean_of
from maskwright.tasks.preflight import Pretraining
from maskwright.tasks.room import exact_threads
from maskwright.tasks.start import start_engine
from maskwright.training import checkpoint
from maskwright.training.objective import Objective

SECONDS = 15.0
"""Of measured steps; starting, the first steps and a checkpoint come on top."""
WARM_STEPS, LEAST_STEPS, MOST_STEPS = 2, 4, 400
GOLDEN = 0.6180339887498949
"""Multiples of it, without their whole part, lie evenly from 0 to 1 however many they are: so do the measured steps of
a run with phases, which have their share each."""
BUSY_BELOW = 0.85
"""Of its cores that the probe had, on average: below it, others computed too."""
RAPL = Path("/sys/class/powercap")
"""Energy counters of Intel and AMD CPUs, in microjoules: docs.kernel.org/power/powercap/powercap.html. Only root may
read them on many systems."""


@dataclass(frozen=True)
class Probe:
    engine: str
    """Its description."""
    dtype: str
    """Of its products, in torch's name."""
    step_seconds: Interval
    """Of the mean, 95 %."""
    steps: int
    """That were measured."""
    micro_batches: int
    """Of an update, that were computed; the others were counted like the second of them."""
    cpu_seconds: float
    """CPU time of a step, of all threads; unlike its duration, it hardly depends on who else computes."""
    cpu_share: float | None
    """CPU time over the time of the cores that it computes with; None on an accelerator."""
    evaluation_seconds: float
    """Of one evaluation of all held-out rows."""
    starting_seconds: float
    """Until the first step: the model, the first batches, what is compiled."""
    save_seconds: float
    """For which training waits at a save."""
    write_seconds: float
    """In which a thread writes and checks it."""
    checkpoint_bytes: int
    peak_bytes: int
    """Of this process at its highest, or of the GPU."""
    there_bytes: int | None
    """Memory of the GPU; None on a CPU, and where the engine does not tell."""
    joules: float | None
    """Of the CPU packages in a step; None where the system does not tell."""

    @property
    def busy(self) -> bool:
        return self.cpu_share is not None and self.cpu_share < BUSY_BELOW


def probe(ready: Pretraining, seconds: float = SECONDS) -> Probe:
    """Raises what a start of the run would raise for its device and memory."""
    began = time.perf_counter()
    threads = exact_threads(ready.config, None)
    return _measure(start_engine(ready, None, threads), ready, seconds, began)


def _measure(engine: Engine, ready: Pretraining, seconds: float, began: float) -> Probe:
    engine.write(ready.starting_state())
    objective = ready.objective()
    local = engine.local_virtual_workers(ready.config.batch.virtual_workers)
    unit = min(engine.dp_degree, len(local))  # micro-batches that are computed at once
    for _, batches in objective.trials(0, local[:unit]):
        engine.dry_run(batches, objective.held_out[:unit])
    stepper = _Stepper(engine, objective, ready)
    first = stepper.step(local[:unit])
    starting = time.perf_counter() - began
    say(f"plan: the engine started in {starting:.0f} s; steps are measured for about {seconds:.0f} s")
    for _ in range(WARM_STEPS - 1):
        first = stepper.step(local[:unit])
    turns = [local]
    if first * len(local) / unit * LEAST_STEPS > seconds and len(local) > unit:
        turns = [local[:unit], local[: 2 * unit]]  # by turns, so that what others compute meanwhile meets both
    stepper.restart()
    joules, count = _joules(), 0
    times: list[list[float]] = [[] for _ in turns]
    until = time.perf_counter() + seconds
    while count < MOST_STEPS and (count < LEAST_STEPS or time.perf_counter() < until):
        times[count % len(turns)].append(stepper.step(turns[count % len(turns)]))
        count += 1
    cpu, wall, whole = *stepper.taken(), len(turns) == 1
    threads = getattr(engine, "threads", None) if engine.device == "cpu" else None
    used = None if joules is None or not whole else (_joules() or joules) - joules
    found = [mean_of(one) for one in times]
    step = found[0] if whole else _extrapolated(found[0], found[1], len(local) // unit)
    few = min(4 * unit, len(objective.held_out))
    began = time.perf_counter()
    if few:
        engine.evaluate(objective.held_out[:few])
    evaluation = (time.perf_counter() - began) * len(objective.held_out) / max(few, 1)
    return Probe(
        engine.description,
        engine.dtype_name,
        step,
        count,
        len(turns[-1]),
        cpu / wall * step.mid,
        cpu / wall / float(threads) if threads else None,
        evaluation,
        starting,
        *_save(engine),
        *_peak(engine),
        used / count if used is not None and used > 0 else None,
    )


def _extrapolated(one: Interval, two: Interval, micro_batches: int) -> Interval:
    """Of a step of so many, from steps of one and of two: each further one adds the difference."""
    more = micro_batches - 1
    low, high = max(two.low - one.high, 0.0), two.high - one.low
    return Interval(one.low + more * low, one.mid + more * max(two.mid - one.mid, 0.0), one.high + more * high)


class _Stepper:
    """Steps with the loop's own batches and rates: in order, or where a run has phases, spread over it. Time is that of
    the host, after the device is done."""

    def __init__(self, engine: Engine, objective: Objective, ready: Pretraining) -> None:
        self._engine, self._objective, self._ready, self._number = engine, objective, ready, 0
        self._cpu = self._wall = 0.0
        self.restart()

    def step(self, local: list[int]) -> float:
        begin, config = time.perf_counter(), self._ready.config
        number = int(config.steps * (self._number * GOLDEN % 1.0)) if config.phases else self._number
        batches = self._objective.batches(number, local)
        self._engine.step(batches, config.learning_rate_at(min(number, config.steps - 1)), lambda: False)
        self._engine.check()
        self._number += 1
        return time.perf_counter() - begin

    def restart(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def taken(self) -> tuple[float, float]:
        """CPU seconds of this process, and seconds, since `restart`."""
        return time.process_time() - self._cpu, time.perf_counter() - self._wall


def _save(engine: Engine) -> tuple[float, float, int]:
    """Seconds for which training waits, seconds of writing, bytes: of a checkpoint in a temporary place."""
    begin = time.perf_counter()
    state = engine.read()
    read = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="maskwright-plan-") as folder:
        path = checkpoint.save(folder, state, {}, keep=1)
        written = time.perf_counter()
        size = sum(entry.stat().st_size for entry in os.scandir(path))
    return read - begin, written - read, size


def _peak(engine: Engine) -> tuple[int, int | None]:
    """The most that was held, and what there is: of the GPU, or of this process and unknown."""
    memory = engine.report.get("memory_bytes")
    if engine.device != "cpu" and isinstance(memory, dict) and memory.get("peak"):
        return int(memory["peak"]), int(memory["there"])
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, None


def _joules() -> float | None:
    """Of all CPU packages since boot; None where the system does not tell."""
    try:
        packages = [path for path in RAPL.glob("*-rapl:*") if path.name.count(":") == 1]
        found = [int((path / "energy_uj").read_text()) / 1e6 for path in packages]
    except (OSError, ValueError):
        return None
    return sum(found) if found else None
