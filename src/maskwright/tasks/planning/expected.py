"""The projected time of a run on this machine, for its first lines and for `--dry-run`."""

from __future__ import annotations

from dataclasses import dataclass

from maskwright.core.console import several
from maskwright.machine.hardware import usable_cores
from maskwright.tasks.finetune.prepare import FinetuneRun
from maskwright.tasks.planning.interval import Interval
from maskwright.tasks.planning.labelled import LabelledWork, work_of_labelled
from maskwright.tasks.planning.projection import CPU_FLOPS_OF_A_CORE, JAX_SHARE, cpu_share, host_seconds
from maskwright.tasks.planning.work import work_of
from maskwright.tasks.pretrain.prepare import PretrainRun
from maskwright.tasks.start.prepared import Prepared

MEASURED_ON = ("cpu", "cuda")
"""Devices that runs were measured on."""
GPU_SHARE = 0.51
"""Share of measured matrix multiplication: base on one H200 (docs/experiments.md)."""
LABELLED_CPU_SHARE, JAX_CPU_SHARE = 0.7, 1.0
"""Factors of the share that pretraining with torch reaches on a CPU. Fine-tunings of nano and mini reached 0.34 (bf16)
to 1.33 (fp32, pairs of sentences), hence a wider band."""
CPU_BAND, GPU_BAND = (0.7, 1.2), (0.3, 1.2)
WIDE_CPU_BAND = (0.48, 1.9)
"""The band of fine-tuning and of JAX."""


@dataclass(frozen=True)
class Load:
    """The model FLOPs of an update, forward and backward, and what else its duration follows from."""

    flops: float
    evaluations: float
    """FLOPs of all evaluations, divided by the updates; 0 where they are left out."""
    width: int
    layers: int
    micro_batches: int
    threads: int
    """Of this process, or the cores that it may use."""
    jax: bool = False
    labelled: LabelledWork | None = None
    """The work of a fine-tuning."""


def load_of(ready: Prepared) -> Load | None:
    config, model = ready.config, ready.model
    threads, jax = config.engine.threads or usable_cores(), config.engine.kind == "jax"
    shape = model.hidden_size, model.num_hidden_layers, config.batch.virtual_workers, threads, jax
    if isinstance(ready, FinetuneRun):
        work = work_of_labelled(ready)
        return Load(work.flops, work.evaluated_flops / config.steps, *shape, work)
    return Load(work_of(ready).flops, 0.0, *shape) if isinstance(ready, PretrainRun) else None


def seconds_here(load: Load, ceiling: float, device: str, steps: int) -> Interval | None:
    """Duration of `steps` on one device, projected from the `ceiling` in FLOP/s; None for devices that no run was
    measured on."""
    if device not in MEASURED_ON or ceiling <= 0.0:
        return None
    share, (low, high) = GPU_SHARE * (JAX_SHARE if load.jax else 1.0), GPU_BAND
    if device == "cpu":
        ceiling = min(ceiling, CPU_FLOPS_OF_A_CORE * load.threads)
        share = cpu_share(load.width) * (JAX_CPU_SHARE if load.jax else 1.0)
        share *= LABELLED_CPU_SHARE if load.labelled else 1.0
        low, high = WIDE_CPU_BAND if load.jax or load.labelled else CPU_BAND
    step = (load.flops + load.evaluations) / (ceiling * share)
    if device == "cuda":
        step = max(step, host_seconds(load.layers, load.micro_batches, one_by_one=load.labelled is not None))
    return Interval(steps * step / high, steps * step, steps * step / low)


def time_here(ready: Prepared, ceiling: float, device: str, done: int = 0) -> str | None:
    """The time of the remaining steps in words; None where none are left."""
    left = ready.config.steps - done
    return in_words(load, left, ceiling, device) if left > 0 and (load := load_of(ready)) else None


def in_words(load: Load, steps: int, ceiling: float, device: str) -> str:
    interval = seconds_here(load, ceiling, device, steps)
    if interval is None:
        return f"time here: not known, since no run was measured on {device}; `maskwright status` has the time left"
    evaluations = " and their evaluations" if load.evaluations else ""
    return f"time here: about {interval.time()} for {several(steps, 'step')}{evaluations}, projected"
