"""A few real steps of a run on this machine, with its own engine, model and batches. Nothing is kept."""

from __future__ import annotations

import math
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from maskwright.config.finetuning import FinetuneConfig
from maskwright.config.pretraining import RunConfig
from maskwright.core.console import say
from maskwright.data.batch import Batch
from maskwright.engines.base import Engine, TrainState
from maskwright.engines.choose import choose_device, products_here
from maskwright.engines.processes import launch_variables
from maskwright.machine.devices import DeviceCount, here
from maskwright.model.initial import initial_parameters
from maskwright.tasks.planning.cost import Interval
from maskwright.tasks.start.capacity import exact_threads
from maskwright.tasks.start.engine import start_engine
from maskwright.tasks.start.prepared import Prepared
from maskwright.training import checkpoint
from maskwright.training.objective import Objective
from maskwright.verdict.statistics import t_quantile

SECONDS = 15.0
"""Duration of the measured steps; starting, the first steps and a checkpoint take additional time."""
WARM_STEPS, LEAST_STEPS, MOST_STEPS = 2, 4, 400
GOLDEN = 0.6180339887498949
"""The golden ratio. The fractional parts of any number of its multiples lie evenly between 0 and 1. Measured steps are
spread in this way, so that each phase of a run has its share of them."""


@dataclass(frozen=True)
class Measured:
    engine: str
    """Description of the engine."""
    on_cpu: bool
    low_precision: bool
    """Whether products are in 16 bits."""
    step_seconds: Interval
    """Mean of a step, with its 95 % interval."""
    steps: int
    """Number of measured steps."""
    micro_batches: int
    """Micro-batches of an update that were computed; the others were counted like the second of them."""
    cpu_share: float | None
    """CPU time, divided by the time of the cores that the engine computes with. Below 1 if other processes compute too.
    None on an accelerator."""
    evaluated_seconds: float
    """Duration of evaluating one token."""
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


def measure(ready: Prepared, held_out: Sequence[Batch], seconds: float = SECONDS) -> Measured:
    """Runs steps with random weights for `seconds`, at least four. `held_out`: batches of an evaluation, some of which
    are computed.

    Where four steps would take longer, one and two of an update's micro-batches are timed in turns, and each further
    one counts like the second."""
    began = time.perf_counter()
    engine = start_engine(ready, None, exact_threads(ready.config, None))
    engine.write(TrainState(0, initial_parameters(ready.model, ready.config.seed)))
    objective = ready.objective()
    local = engine.local_virtual_workers(ready.config.batch.virtual_workers)
    unit = min(engine.dp_degree, len(local))
    for _, batches in objective.trials(0, local[:unit]):
        engine.dry_run(batches, objective.held_out[:unit])
    stepper = Stepper(engine, objective, ready.config)
    first = stepper.step(local[:unit])
    starting = time.perf_counter() - began
    say(f"plan: the engine started in {starting:.0f} s; steps are measured for about {seconds:.0f} s")
    for _ in range(WARM_STEPS - 1):
        first = stepper.step(local[:unit])
    turns, rounds = [local], len(local) // unit
    if first * rounds * LEAST_STEPS > seconds and rounds > 1:
        turns = [local[:unit], local[: 2 * unit]]  # in turns, so that other programs slow both
    step, count, cores = stepper.measure(turns, rounds, seconds)
    threads = getattr(engine, "threads", None) if engine.device == "cpu" else None
    some = [held_out[begin : begin + unit] for begin in range(0, min(4 * unit, len(held_out)), unit)]
    compute = engine.predict if isinstance(ready.config, FinetuneConfig) else engine.evaluate
    evaluation = seconds_of(engine, lambda: [compute(batches) for batches in some])
    return Measured(
        engine.description,
        engine.device == "cpu",
        engine.dtype_name != "float32",
        step,
        count,
        len(turns[-1]),
        cores / float(threads) if threads else None,
        evaluation / max(sum(batch.input_ids.size for batches in some for batch in batches), 1),
        starting,
        *_save(engine),
        *_peak(engine),
    )


class Stepper:
    """Steps with the loop's own batches and rates, spread over the run. The host's clock is read after the device is
    done; compiling does not count."""

    def __init__(self, engine: Engine, objective: Objective, config: RunConfig | FinetuneConfig) -> None:
        self._engine, self._objective, self._config, self._number = engine, objective, config, 0
        self._compiled: set[tuple[tuple[int, ...], ...]] = set()

    def step(self, local: Sequence[int]) -> float:
        number = int(self._config.steps * (self._number * GOLDEN % 1.0))
        self._number += 1
        if self._config.engine.kind == "jax":
            self._compile(self._objective.batches(number, local))

        def once() -> None:
            batches = self._objective.batches(number, local)
            self._engine.step(batches, self._config.learning_rate_at(number), lambda: False)
            self._engine.check()

        return seconds_of(self._engine, once)

    def _compile(self, batches: Sequence[Batch]) -> None:
        """Compiles in a dry run. XLA does not announce when it compiles."""
        program = tuple((*batch.input_ids.shape, len(batch.weights)) for batch in batches)
        if program not in self._compiled:
            self._engine.dry_run(batches, [])
            self._compiled.add(program)

    def measure(self, turns: Sequence[Sequence[int]], rounds: int, seconds: float) -> tuple[Interval, int, float]:
        """(seconds of an update, measured steps, CPU seconds of all threads in a second). `turns`: the micro-batches of
        a whole update, or of one and of two of its `rounds`."""
        count, times = 0, [list[float]() for _ in turns]
        began, cpu = time.perf_counter(), time.process_time()
        while count < MOST_STEPS and (count < LEAST_STEPS or time.perf_counter() < began + seconds):
            times[count % len(turns)].append(self.step(turns[count % len(turns)]))
            count += 1
        cores = (time.process_time() - cpu) / (time.perf_counter() - began)
        means = [mean_of(group) for group in times]
        return means[0] if len(turns) == 1 else extrapolated(means[0], means[1], rounds), count, cores


def mean_of(values: Sequence[float]) -> Interval:
    """The mean with its 95 % interval by Student's t, which does not begin below the lowest value. Raises `ValueError`
    for fewer than two values."""
    n = len(values)
    if n < 2:
        raise ValueError("needs two values")
    mean = sum(values) / n
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    half = t_quantile(n - 1) * deviation / math.sqrt(n)
    return Interval(max(mean - half, min(values)), mean, mean + half)


def extrapolated(first: Interval, both: Interval, rounds: int) -> Interval:
    """The time of a step of `rounds`, from the times of its `first` round and of `both` of its first two: each further
    round adds the difference."""
    more = rounds - 1
    low, high = max(both.low - first.high, 0.0), both.high - first.low
    mid = max(both.mid - first.mid, 0.0)
    return Interval(first.low + more * low, first.mid + more * mid, first.high + more * high)


def seconds_of(engine: Engine, compute: Callable[[], object]) -> float:
    """The time of `compute` without compiling, which torch does not report separately."""

    def compiling() -> float:
        programs = engine.report.get("compiles")
        return sum(float(program["seconds"]) for program in programs) if isinstance(programs, list) else 0.0

    began, before = time.perf_counter(), compiling()
    compute()
    return time.perf_counter() - began - (compiling() - before)


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


def this_machine(config: RunConfig | FinetuneConfig, processes: int | None, nodes: int = 1) -> DeviceCount | None:
    """The devices of this machine, and of `nodes` like it, for a dry run, which makes no engine. Products are measured
    in a moment. `processes`: on all machines, by default the processes of this start. None for a kind of device that no
    run was measured on. Raises `ConfigError` if the run's device is absent."""
    engine, launch = config.engine, launch_variables()
    if (device := choose_device(engine)) not in ("cpu", "cuda"):
        return None
    processes = processes or (launch.world_size if launch else 1)
    rate, low_precision, cores = products_here(engine, device)
    if device == "cuda":
        return here(device, rate * processes, low_precision=low_precision, processes=processes)
    threads = max(1, min(engine.threads or cores, cores * nodes // processes))
    total = rate * threads * processes / cores
    return here(device, total, low_precision=low_precision, processes=processes, threads=threads)
