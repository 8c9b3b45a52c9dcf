"""How long a run will take here, at no cost: for `--dry-run` and the first lines of a run."""

from __future__ import annotations

from maskwright.core.console import human_seconds
from maskwright.tasks.planning.interval import Interval
from maskwright.tasks.planning.projection import cpu_share
from maskwright.tasks.planning.work import Work, work_of
from maskwright.tasks.preflight import Pretraining

GPU_SHARE = 0.465
"""Of measured matrix multiplication: base on one H100 (docs/experiments.md)."""
CPU_BAND, GPU_BAND = (0.7, 1.2), (0.3, 1.2)


def seconds_here(work: Work, ceiling: float, device: str, steps: int) -> Interval | None:
    """Of so many steps, projected from the `ceiling` in FLOP/s; None for devices that no run was measured on."""
    if device not in ("cpu", "cuda") or ceiling <= 0.0:
        return None
    share, (low, high) = (cpu_share(work.model.hidden_size), CPU_BAND) if device == "cpu" else (GPU_SHARE, GPU_BAND)
    seconds = work.flops * steps / (ceiling * share)
    return Interval(seconds / high, seconds, seconds / low)


def time_here(ready: object, ceiling: float, device: str, done: int = 0) -> str | None:
    """In words; None for what is no masked-LM training, and where nothing is left to do."""
    if not isinstance(ready, Pretraining) or ready.config.engine.kind != "torch" or done >= ready.config.steps:
        return None
    left = ready.config.steps - done
    found = seconds_here(work_of(ready), ceiling, device, left)
    return f"time here: about {found.text(human_seconds)} for {left:,} steps, projected" if found else None


def time_before(ready: object) -> str | None:
    """The same before an engine is made: the ceiling is measured in a moment."""
    if not isinstance(ready, Pretraining) or ready.config.engine.kind != "torch":
        return None
    from maskwright.engines.torch.look import measured
    from maskwright.engines.torch.prepare import choose_device

    engine = ready.config.engine
    if engine.device not in ("auto", choose_device("auto")):
        return None
    rates = measured()
    wanted = engine.dtype if engine.dtype in rates else list(rates)[-1]
    told = time_here(ready, rates[wanted], choose_device("auto"))
    return f"{told} from matrix multiplication; `maskwright plan` measures" if told else None
