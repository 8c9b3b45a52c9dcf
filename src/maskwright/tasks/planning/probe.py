"""A few real steps of a run, here: its own engine, model and batches, and nothing of it is kept."""

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
"""Of measured steps; starting, the first steps and a checkpoint come on top."""
WARM_STEPS, LEAST_STEPS, MOST_STEPS = 2, 4, 400
BUSY_BELOW = 0.85
"""Of its cores that the probe had, on average: below it, others computed too."""


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

    @property
    def busy(self) -> bool:
        return self.cpu_share is not None and self.cpu_share < BUSY_BELOW


def probe(ready: PretrainRun, seconds: float = SECONDS) -> Probe:
    """Raises what a start of the run would raise for its device and memory."""
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
    few = min(4 * unit, len(objective.held_out))
    evaluation = seconds_of(engine, lambda: few and engine.evaluate(objective.held_out[:few]))
    return Probe(
        engine.description,
        engine.dtype_name,
        steps.seconds,
        steps.count,
        steps.micro_batches,
        steps.cores * steps.seconds.mid,
        steps.cores / float(threads) if threads else None,
        evaluation * len(objective.held_out) / max(few, 1),
        starting,
        *_save(engine),
        *_peak(engine),
    )


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
