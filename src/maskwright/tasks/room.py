"""What a run takes of its machine: memory, disk, and what of the engine is decided once for the whole run."""

from __future__ import annotations

import os
from typing import Any

from maskwright.core import config as run
from maskwright.core import hardware
from maskwright.core.config import RunConfig
from maskwright.core.console import human_bytes, human_count, note, several
from maskwright.core.errors import MaskwrightError
from maskwright.core.finetuning import FinetuneConfig
from maskwright.engines.base import is_out_of_memory
from maskwright.engines.processes import launch_variables
from maskwright.engines.tree import most_kept
from maskwright.model.hf.names import count_parameters
from maskwright.run.directory import RunDirectory
from maskwright.tasks.prepared import Prepared
from maskwright.training import checkpoint


def state_bytes(ready: Prepared) -> int:
    """Bytes in a rank that holds the full model: fp32 weights, two moments, and the gradients that its sums keep."""
    config, launch = ready.config, launch_variables()
    world_size, V = launch.world_size if launch else 1, config.batch.virtual_workers
    exact = config.engine.kind == "torch" and config.engine.reproducibility == "exact" and V % world_size == 0
    return (12 + 4 * (most_kept(V // world_size, V) if exact else 1)) * count_parameters(ready.model)


def engine_config(config: RunConfig | FinetuneConfig, before: dict[str, Any] | None, threads: int | None) -> run.Engine:
    """`dtype: auto` is decided once: a continued run keeps the precision that it started with, on any machine.
    `threads`: see `exact_threads`."""
    decided: dict[str, Any] = {} if threads is None else {"threads": threads}
    if before is not None and config.engine.dtype == "auto":
        decided["dtype"] = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}[before["dtype"]]
    return config.engine.model_copy(update=decided)


def exact_threads(config: RunConfig | FinetuneConfig, before: dict[str, Any] | None) -> int | None:
    """CPU threads of each rank of a run whose sums are exact; None if their number does not matter.

    torch sums a tensor in as many parts as there are threads: 1, 2 and 4 threads give three results (measured). A run
    keeps the number that it began with, unless engine.threads gives one.
    """
    if config.engine.kind != "torch" or config.engine.reproducibility != "exact":
        return None
    from maskwright.engines.torch.prepare import choose_device, cpu_threads

    if choose_device(config.engine.device) != "cpu":
        return None
    here = cpu_threads()
    kept = config.engine.threads or (before or {}).get("threads") or here
    if kept != here and not config.engine.threads:
        note(
            f"computing with {several(kept, 'thread')} in each process, as this run began, instead of {here}: another "
            f"number changes the last bits. Set engine.threads: {here} to take {here} all the same"
        )
    return int(kept)


def require_room(ready: Prepared, directory: RunDirectory) -> None:
    """Checks memory and disk before anything is computed: room for weights and optimizer, and for one checkpoint more
    than are kept. Raises `MaskwrightError` or `CheckpointError`."""
    needed, there = state_bytes(ready), hardware.memory_bytes()
    if ready.config.engine.device == "cpu" and needed > there:
        raise too_large(ready, MemoryError())
    kept = len(checkpoint.whole_steps(directory.checkpoints))
    most = min(ready.config.checkpoint.keep, ready.config.steps)
    more = max(most + 1 - kept, 1)
    place = directory.location
    while not os.path.exists(place):
        place = os.path.dirname(place)
    checkpoint.require_space(place, more * (12 * count_parameters(ready.model) + checkpoint.SMALL_FILES_BYTES))


def too_large(ready: Prepared, error: Exception) -> Exception:
    """The error to raise when the engine cannot be made: `error` itself unless memory ran out."""
    if not is_out_of_memory(error):
        return error
    needed, parameters = human_bytes(state_bytes(ready)), human_count(count_parameters(ready.model))
    return MaskwrightError(
        f"weights, gradient and optimizer state of {parameters} parameters take {needed}, more than there is",
        where="model.size",
        fix="take a smaller model, or a device with more memory",
    )
