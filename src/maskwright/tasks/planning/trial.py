"""The time of a run on this machine, for `--dry-run`: fine-tuning and JAX are timed by some real steps and evaluations.

For pretraining with torch, the dry run has a projection, which is made in a moment; `maskwright plan` measures.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from maskwright.core.console import human_bytes, human_time, several
from maskwright.core.errors import ConfigError, MaskwrightError
from maskwright.core.library_errors import is_out_of_memory
from maskwright.data.batch import Batch
from maskwright.engines.base import Engine, TrainState
from maskwright.engines.processes import launch_variables
from maskwright.machine.hardware import usable_memory_bytes
from maskwright.model.initial import initial_parameters
from maskwright.tasks.planning import expected
from maskwright.tasks.planning.expected import MEASURED_ON, Load, load_of, seconds_here
from maskwright.tasks.planning.interval import Interval
from maskwright.tasks.planning.steps import Stepper, compiling_seconds, seconds_of, take_steps
from maskwright.tasks.planning.work import work_of
from maskwright.tasks.pretrain.describe import table
from maskwright.tasks.pretrain.prepare import PretrainRun, step_flops
from maskwright.tasks.start.capacity import exact_threads, state_bytes
from maskwright.tasks.start.engine import start_engine
from maskwright.tasks.start.prepared import Prepared

SECONDS = 4.0
"""Duration of the measured steps; starting, compiling, a step before them and some evaluation come on top."""
LEAST_STEPS, MOST_STEPS = 3, 200
LONG_SECONDS, LONGEST_SECONDS = 3.0, 6.0
"""Above the first, a step of several micro-batches is counted from one and from two of them. If one alone lasts longer
than the second, no step is tried."""
EVALUATED = 8
"""Batches for each device that are evaluated at most."""


@dataclass(frozen=True)
class Trial:
    step: Interval
    """Seconds of a step: the mean, with its 95 % interval."""
    evaluations: float
    """Seconds of all evaluations of the run."""
    compiling: float
    """Seconds for all programs; 0 with torch."""


def time_before(ready: Prepared) -> str | None:
    """The run's time in words, for `--dry-run`: projected for pretraining with torch, otherwise measured, or the reason
    why it is not. A table of the phases, if there are any, has their parts of that time."""
    words, whole = _time_before(ready)
    if words is None or whole is None or not (isinstance(ready, PretrainRun) and ready.config.phases):
        return words
    stages = ready.config.stages
    flops = [(stage.end - stage.begin) * step_flops(stage.config, ready.model) for stage in stages]
    seconds = [whole.mid * part / sum(flops) for part in flops]
    about = "expected seconds: the parts of that time, by what each phase computes"
    return "\n".join([words, about, *table(ready.config, ready.loader, seconds)])


def _time_before(ready: Prepared) -> tuple[str | None, Interval | None]:
    """The time in words, and in seconds where it is known."""
    if isinstance(ready, PretrainRun) and ready.config.engine.kind == "torch":
        return _projected(ready)
    if why := _not_tried(ready):
        return f"time here: not measured: {why}", None
    # Without it JAX would take three quarters of a GPU's memory, which another run may need.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        engine = start_engine(ready, None, exact_threads(ready.config, None))
        load, ceiling = load_of(ready), engine.ceiling()
        turn = _seconds_of_a_turn(load, ceiling, ready, engine) if load else None
        if load and turn is not None and turn > LONGEST_SECONDS:
            words = expected.in_words(load, ready.config.steps, ceiling, engine.device)
            whole = seconds_here(load, ceiling, engine.device, ready.config.steps)
            return f"{words} from matrix multiplication, since one step takes too long for a trial", whole
        return in_words(trial(ready, engine, load, turn), ready)
    except MaskwrightError as error:
        return f"time here: not measured: {error}", None
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return "time here: not measured: memory ran out", None


def _projected(ready: Prepared) -> tuple[str | None, Interval | None]:
    """The projected time, without an engine: the ceiling is measured in a moment."""
    from maskwright.engines.torch.prepare import choose_device
    from maskwright.engines.torch.probe import measured

    engine, load = ready.config.engine, load_of(ready)
    try:
        wanted, device = choose_device(engine.device), choose_device("auto")
    except ConfigError as error:
        return f"time here: not known: {error}", None
    if wanted != device:
        return f"time here: not projected for {wanted} on a machine with {device}; `maskwright plan` measures", None
    if device not in MEASURED_ON:
        return f"time here: not known for {device}, on which no run was measured; `maskwright plan` measures", None
    if load is None:
        return None, None
    rates = measured()
    ceiling = rates[engine.dtype if engine.dtype in rates else list(rates)[-1]]
    words = expected.in_words(load, ready.config.steps, ceiling, device)
    whole = seconds_here(load, ceiling, device, ready.config.steps)
    return f"{words} from matrix multiplication; `maskwright plan` measures", whole


def in_words(trial: Trial, ready: Prepared) -> tuple[str, Interval]:
    steps, rest = ready.config.steps, Interval(trial.evaluations, trial.evaluations, trial.evaluations)
    whole = trial.step.times(steps).plus(rest)
    what = f"{several(steps, 'step')}{' and their evaluations' if trial.evaluations else ''}"
    several_may = ready.config.engine.kind == "torch" and ready.config.batch.virtual_workers > 1
    alone = " in one process" if several_may else ""
    compiling = f"; compiling takes {human_time(trial.compiling)} more" if trial.compiling else ""
    return f"time here: about {whole.time()} for {what}, measured on a few real steps{alone}{compiling}", whole


def _seconds_of_a_turn(load: Load, ceiling: float, ready: Prepared, engine: Engine) -> float | None:
    """The time of the micro-batches that the devices compute at once, roughly; None on a device that no run was
    measured on."""
    workers = ready.config.batch.virtual_workers
    interval = seconds_here(replace(load, evaluations=0.0), ceiling, engine.device, 1)
    return interval.mid * min(engine.dp_degree, workers) / workers if interval else None


def _not_tried(ready: Prepared) -> str | None:
    """The reason why a trial in this one process would mislead, or would need too much of the machine; else None."""
    launch, engine = launch_variables(), ready.config.engine
    if launch and launch.world_size > 1:
        return f"{launch.world_size} processes train together, and a dry run is one"
    if engine.kind == "jax" and engine.device in ("auto", "tpu"):
        from maskwright.machine.hardware import tpu_chips

        if tpu_chips():
            return "a dry run leaves the TPU to the runs that hold it; `maskwright plan` compiles for it"
    if 2 * (needed := state_bytes(ready)) > (available := usable_memory_bytes()):
        return f"weights and optimizer alone take {human_bytes(needed)} of {human_bytes(available)} of memory"
    return None


def trial(ready: Prepared, engine: Engine, load: Load | None, turn_seconds: float | None) -> Trial:
    """Times a few steps with random weights, and keeps nothing. `turn_seconds`: the time of the micro-batches that the
    devices compute at once, roughly. Raises `MaskwrightError` where memory runs out."""
    engine.write(TrainState(0, initial_parameters(ready.model, ready.config.seed)))
    config, work = ready.config, load.labelled if load else None
    objective = (work.thinned if work else ready).objective()
    local = engine.local_virtual_workers(config.batch.virtual_workers)
    unit = min(engine.dp_degree, len(local))
    rounds = len(local) // unit
    long = rounds > 1 and (turn_seconds is None or turn_seconds * rounds > LONG_SECONDS)
    turns = [local[:unit], local[: 2 * unit]] if long else [local]
    typical = work if config.engine.kind == "jax" else None  # JAX would compile each shape, so one stands for all
    # A fine-tuning's own trial has its longest examples together, which may take many times as long as its steps.
    trials = (
        [objective.batches(work.alike[0], turns[-1])]
        if work
        else [batches for _, batches in objective.trials(0, turns[-1])]
    )
    for batches in trials:
        engine.dry_run(batches, objective.held_out[:unit])
    compiling = compiling_seconds(engine) * (typical.programs if typical else 1)
    stepper = Stepper(engine, objective, config, typical.alike if typical else ())
    for turn in turns:
        stepper.step(turn)
    least = max(LEAST_STEPS, 2 * len(turns))
    steps = take_steps(stepper, turns, rounds, seconds=SECONDS, least=least, most=MOST_STEPS)
    before = compiling_seconds(engine)
    if work:
        validation = work.thinned.validation
        packed = [group.batch for group in validation.packed] if validation else []
        evaluations = work.evaluated * _seconds_of_each(engine.predict, packed, engine)
        splits = 2 if work.thinned.dataset.test else 1
    else:
        evaluated = work_of(ready).evaluations * len(objective.held_out) if isinstance(ready, PretrainRun) else 0
        evaluations = evaluated * _seconds_of_each(engine.evaluate, objective.held_out, engine)
        splits = 0  # compiled before the steps
    compiling += splits * (compiling_seconds(engine) - before)
    return Trial(steps.seconds.times(typical.flops / typical.of_alike if typical else 1.0), evaluations, compiling)


def _seconds_of_each(compute: Callable[[Sequence[Batch]], object], batches: Sequence[Batch], engine: Engine) -> float:
    """The mean time of a batch, from some of the `batches` after one on each device that does not count; 0 without
    batches."""
    if not batches:
        return 0.0
    unit = min(engine.dp_degree, len(batches))
    compute(batches[:unit])
    taken, done = 0.0, 0
    for begin in range(0, min(EVALUATED * unit, len(batches)), unit):
        group = batches[begin : begin + unit]
        taken, done = taken + seconds_of(engine, partial(compute, group)), done + len(group)
        if taken > SECONDS:
            break
    return taken / done
