"""Whether a run fits the memory and disk of its machine, and the settings of its engine that are decided once for all
its starts."""

from __future__ import annotations

import math
import os
from typing import Any

from maskwright.config.finetuning import FinetuneConfig
from maskwright.config.pretraining import EngineSection, RunConfig
from maskwright.core.console import human_bytes, human_count, note, several
from maskwright.core.errors import MaskwrightError
from maskwright.core.library_errors import is_out_of_memory
from maskwright.engines.base import Engine
from maskwright.engines.choose import choose_device
from maskwright.engines.muon import HIDDEN_ROLES
from maskwright.engines.processes import launch_variables
from maskwright.engines.tree import complete_nodes, peak_partial_sums
from maskwright.machine import hardware
from maskwright.model.config import ModelConfig
from maskwright.model.hf.names import count_parameters, pieces
from maskwright.run.directory import RunDirectory
from maskwright.run.record import RunRecord
from maskwright.tasks.start.prepared import Prepared
from maskwright.training import checkpoint

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""Names in a run's record for values of engine.dtype."""


def state(
    config: RunConfig | FinetuneConfig, model: ModelConfig, devices: int = 1, *, low_precision: bool = False
) -> dict[str, float]:
    """Bytes that stay on each of `devices` from update to update, by part: fp32 weights and moments, and the gradients
    that are summed and received. `low_precision` adds a copy of the weights in 16 bits. Each device has a share of the
    fp32 weights, of the sum of gradients and of the moments. Unless weights are fully sharded, torch's processes
    compute with all of them, as do JAX's devices with several micro-batches."""
    P, V, engine = count_parameters(model), config.batch.virtual_workers, config.engine
    moments = 4.0 * _moments(config, model)
    if engine.kind == "jax":
        held = 1 if engine.sharding == "data" and devices < V else devices
        copy = 2 if low_precision else 4 * (held < devices)
        weights = 4.0 * P / devices + copy * P / held
        return {"weights": weights, "gradients": 4.0 * P / held, "moments": moments / devices}
    sums, received, several = 1, 1.0, devices > 1
    if V % devices == 0:  # on the rank that holds most
        firsts, each = range(0, V, V // devices), V // devices
        sums = max(peak_partial_sums(each, V, first) for first in firsts)
        received = sum(len(complete_nodes(first, first + each, (0, V))) for first in firsts) / devices
    return {
        "weights": 4.0 * P / devices + (2 if low_precision else 4 * several) * P,
        "gradients": 4.0 * sums * P + several * 4.0 * P * (received + 1 / devices),
        "moments": moments / devices,
    }


def _moments(config: RunConfig | FinetuneConfig, model: ModelConfig) -> int:
    """Numbers that the optimizer keeps: one for each parameter that Muon updates, and two for each other."""
    muon = config.optimizer.kind == "muon"
    single = (math.prod(piece.shape) for piece in pieces(model) if muon and piece.name.endswith(HIDDEN_ROLES))
    return 2 * count_parameters(model) - sum(single)


def checkpoint_bytes(config: RunConfig | FinetuneConfig, model: ModelConfig) -> int:
    """Bytes of a checkpoint's tensors on disk."""
    return 4 * (count_parameters(model) + _moments(config, model))


def _together() -> int:
    """Processes of this start."""
    launch = launch_variables()
    return launch.world_size if launch else 1


def state_bytes(ready: Prepared, processes: int | None = None) -> int:
    """Bytes that stay in each of `processes`, by default the processes of this start. Computing, and a device's low
    precision, need more."""
    return round(sum(state(ready.config, ready.model, processes or _together()).values()))


def memory_and_disk(ready: Prepared, processes: int | None) -> str:
    """The line on memory and disk, for `--dry-run` and the beginning of each run. `processes`: see `state_bytes`."""
    saved, processes = human_bytes(checkpoint_bytes(ready.config, ready.model)), processes or _together()
    each = f" in each of {processes} processes" if processes > 1 else ""
    needed = human_bytes(state_bytes(ready, processes))
    return f"memory for weights and optimizer: {needed}{each}; each checkpoint: {saved}"


def engine_config(config: RunConfig | FinetuneConfig, before: RunRecord | None, threads: int | None) -> EngineSection:
    """The engine section of the run, with the decisions of its first start. A continued run keeps the precision that
    `dtype: auto` chose, on any machine, and on CUDA devices the choice of `compile: auto`, even if the run gets more
    steps. `threads`: see `exact_threads`."""
    decided: dict[str, Any] = {} if threads is None else {"threads": threads}
    if before is not None and config.engine.dtype == "auto":
        decided["dtype"] = next(short for short, name in DTYPES.items() if name == before.dtype)
    compiled = before.compiled if before else None
    if compiled is not None and config.engine.compile == "auto" and _compiles_by_length(config.engine):
        decided["compile"] = "on" if compiled else "off"
    return config.engine.model_copy(update=decided)


def _compiles_by_length(engine: EngineSection) -> bool:
    """Whether `compile: auto` depends on the run."""
    return engine.kind == "torch" and choose_device(engine) == "cuda"


def compiled_layers(engine: Engine, asked: EngineSection, before: RunRecord | None) -> bool | None:
    """For the run's record: whether its layers are compiled on CUDA devices; None before it has been on one."""
    return engine.compiled if _compiles_by_length(asked) else before.compiled if before else None


def exact_threads(config: RunConfig | FinetuneConfig, before: RunRecord | None) -> int | None:
    """CPU threads of each rank of a run whose sums are exact; None if their number does not matter.

    torch sums a tensor in as many parts as there are threads, so 1, 2 and 4 threads give three results (measured). A
    run keeps its first number, unless engine.threads sets one.
    """
    if config.engine.kind != "torch" or config.engine.reproducibility != "exact":
        return None
    from maskwright.engines.torch.prepare import cpu_threads

    if choose_device(config.engine) != "cpu":
        return None
    available = cpu_threads()
    kept = config.engine.threads or (before and before.threads) or available
    if kept != available and not config.engine.threads:
        note(
            f"computing with {several(kept, 'thread')} in each process, as this run began, instead of {available}: "
            f"another number changes the last bits. To use all {available}, set engine.threads: {available}"
        )
    return int(kept)


def require_room(ready: Prepared, directory: RunDirectory) -> None:
    """Checks memory and disk before anything is computed: room for weights and optimizer, and for one checkpoint more
    than are kept. Raises `MaskwrightError` or `CheckpointError`."""
    on_cpu = choose_device(ready.config.engine) == "cpu"
    if on_cpu and _beside() * state_bytes(ready) > hardware.usable_memory_bytes():
        raise too_large(ready, MemoryError())
    saved = len(checkpoint.whole_steps(directory.checkpoints))
    most = min(ready.config.checkpoint.keep, ready.config.steps)
    more = max(most + 1 - saved, 1)
    folder = directory.location
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    size = checkpoint_bytes(ready.config, ready.model) + checkpoint.SMALL_FILES_BYTES
    checkpoint.require_space(folder, more * size)


def _beside() -> int:
    """Processes of this start that share the machine."""
    launch = launch_variables()
    return launch.local_world_size if launch else 1


def too_large(ready: Prepared, error: Exception) -> Exception:
    """The error to raise when the engine cannot be made: `error` itself unless memory ran out."""
    if not is_out_of_memory(error):
        return error
    needed, parameters = human_bytes(state_bytes(ready)), human_count(count_parameters(ready.model))
    each = f" in each of {_beside()} processes" if _beside() > 1 else ""
    return MaskwrightError(
        f"weights, gradient and optimizer state of {parameters} parameters take {needed}{each}, more than there is",
        where="model.size",
        fix="choose a smaller model, or a device with more memory",
    )
