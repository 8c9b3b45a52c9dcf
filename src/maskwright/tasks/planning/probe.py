"""A few real steps of a run on this machine, with its own engine, model and batches. Nothing is kept."""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from dataclasses import dataclass

from maskwright.core.console import say
from maskwright.engines.base import Engine
from maskwright.tasks.planning.interval import Interval
from maskwright.tasks.planning.steps import Stepper, seconds_of, take_steps
from maskwright.tasks.pretrain.prepare import PretrainRun
from maskwright.tasks.start.capacity import exact_threads
from maskwright.tasks.start.engine import start_engine
from maskwright.training import checkpoint

SECONDS = 15.0
"""Duration of the measured steps; starting, the first steps and a checkpoint come on top."""
WARM_STEPS, LEAST_STEPS, MOST_STEPS = 2, 4, 400
BUSY_BELOW = 0.85
"""Share of its cores that the probe had, on average: below it, other processes computed too."""


@dataclass(frozen=True)
class Probe:
    engine: str
    """Description of the engine."""
    dtype: str
    """Precision of its products, by torch's name."""
    step_seconds: Interval
    """Mean of a step, with its 95 % interval."""
    steps: int
    """Number of measured steps."""
    micro_batches: int
    """Micro-batches of an update that were computed; the others were counted like the second of them."""
    cpu_seconds: float
    """CPU time of a step, of all threads; unlike its duration, it hardly depends on other processes."""
    cpu_share: float | None
    """CPU time over the time of the cores that the engine computes with; None on an accelerator."""
    evaluation_seconds: float
    """Duration of one evaluation of all held-out rows."""
    starting_seconds: float
    """Time until the first step: the model, the first batches, compiling."""
    save_seconds: float
    """How long training waits at a save."""
    write_seconds: float
    """How long a thread then writes and checks the checkpoint."""
    checkpoint_bytes: int
    peak_bytes: int
    """The most memory of this process, or of the GPU."""
    there_bytes: int | None
    """Memory of the GPU; None on a CPU, and where the engine does not report it."""

    @property
    def busy(self) -> bool:
        return self.cpu_share is not None and self.cpu_share < BUSY_BELOW


def probe(ready: PretrainRun, seconds: float = SECONDS) -> Probe:
    """Measures the run on this machine. Raises what its start would raise for the device and the memory."""
    began = time.perf_counter()
    threads = exact_threads(ready.config, None)
    return _measure(start_engine(ready, None, threads), ready, seconds, began)


def _measure(engine: Engine, ready: PretrainRun, seconds: float, began: float) -> Probe:
    engine.write(ready.starting_state())
    objective = ready.objective()
    local = engine.local_virtual_workers(ready.config.batch.virtual_workers)
    unit = min(engine.dp_degree, len(local))  # micro-batches that are computed at once
    for _, batches in objective.trials(0, local[:unit]):
        engine.dry_run(batches, objective.held_out[:unit])
    stepper = Stepper(engine, objective, ready.config)
    first = stepper.step(local[:unit])
    starting = time.perf_counter() - began
    say(f"plan: the engine started in {starting:.0f} s; steps are measured for about {seconds:.0f} s")
    for _ in range(WARM_STEPS - 1):
        first = stepper.step(local[:unit])
    turns = [local]
    if first * len(local) / unit * LEAST_STEPS > seconds and len(local) > unit:
        turns = [local[:unit], local[: 2 * unit]]  # by turns, so that what others compute meanwhile meets both
    rounds = len(local) // unit
    steps = take_steps(stepper, turns, rounds, seconds=seconds, least=LEAST_STEPS, most=MOST_STEPS)
    threads = getattr(engine, "threads", None) if engine.device == "cpu" else None
    evaluated = min(4 * unit, len(objective.held_out))
    evaluation = seconds_of(engine, lambda: evaluated and engine.evaluate(objective.held_out[:evaluated]))
    return Probe(
        engine.description,
        engine.dtype_name,
        steps.seconds,
        steps.count,
        steps.micro_batches,
        steps.cores * steps.seconds.mid,
        steps.cores / float(threads) if threads else None,
        evaluation * len(objective.held_out) / max(evaluated, 1),
        starting,
        *_save(engine),
        *_peak(engine),
    )


def _save(engine: Engine) -> tuple[float, float, int]:
    """(seconds for which training waits, seconds of writing, bytes) of a checkpoint in a temporary folder."""
    begin = time.perf_counter()
    state = engine.read()
    read = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="maskwright-plan-") as folder:
        path = checkpoint.save(folder, state, {}, keep=1)
        written = time.perf_counter()
        size = sum(entry.stat().st_size for entry in os.scandir(path))
    return read - begin, written - read, size


def _peak(engine: Engine) -> tuple[int, int | None]:
    """(peak, memory) of the GPU in bytes; on a CPU, (peak of this process, None)."""
    memory = engine.report.get("memory_bytes")
    if engine.device != "cpu" and isinstance(memory, dict) and memory.get("peak"):
        return int(memory["peak"]), int(memory["there"])
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, None
