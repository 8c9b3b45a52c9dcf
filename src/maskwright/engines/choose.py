"""The engine that a configuration names. Its framework is imported here, no earlier."""

from __future__ import annotations

import os

from maskwright.config.finetuning import FinetuneConfig
from maskwright.config.pretraining import EngineSection, Optimizer, RunConfig, require_supported, shared_out
from maskwright.core.errors import ConfigError
from maskwright.core.extras import require
from maskwright.engines.base import NO_RUN, Engine, RunFacts
from maskwright.engines.processes import Alone, Processes
from maskwright.machine.hardware import usable_cores
from maskwright.model.config import ModelConfig


def make_engine(
    model: ModelConfig, optimizer: Optimizer, engine: EngineSection, seed: int, facts: RunFacts = NO_RUN
) -> Engine:
    """Raises `ConfigError` if a device or a framework is absent, and the errors of `require_family`."""
    require_family(model, engine)
    if engine.kind == "jax":
        require("jax", "engine.kind")
        from maskwright.engines.jax.engine import JaxEngine

        return JaxEngine(model, optimizer, engine, seed, facts)
    from maskwright.engines.torch.engine import TorchEngine

    return TorchEngine(model, optimizer, engine, seed, facts)


def choose_device(engine: EngineSection) -> str:
    """The device that a run uses on this machine: cpu, cuda or tpu. Raises `ConfigError` if the requested device
    is absent."""
    if engine.kind == "jax":
        require("jax", "engine.kind")
        from maskwright.engines.jax import processes

        return processes.choose_device(engine)
    from maskwright.engines.torch import prepare

    require_supported(engine, engine.device)
    return prepare.choose_device(engine.device)


def products_here(engine: EngineSection, device: str) -> tuple[float, bool, int]:
    """(FLOP/s of plain products on one `device` of this machine, whether they are in 16 bits, CPU cores that compute
    them), as the engine would choose them."""
    if engine.kind == "jax":
        from maskwright.engines.jax.engine import plain_products
        from maskwright.engines.jax.step import choose_dtype

        dtype = choose_dtype(engine.dtype, device)
        return plain_products(dtype), dtype != "float32", usable_cores()
    from maskwright.engines.torch.prepare import plain_products_here

    return plain_products_here(engine.dtype, device)


def require_family(model: ModelConfig, engine: EngineSection) -> None:
    """Raises `ConfigError` for a family that the engine does not compute."""
    if model.facts.relative and engine.kind == "jax":
        what = "jax does not compute DeBERTa and MPNet, whose attention has relative positions"
        raise ConfigError(what, where="engine.kind", fix="set engine.kind: torch")


def require_engine(config: RunConfig | FinetuneConfig, device: str, run_flops: float) -> None:
    """Raises the `ConfigError` that making an engine on this `device` would raise, without making one."""
    engine = config.engine
    if engine.kind == "jax":
        _require_fast(engine)
        shared_out(config.batch.virtual_workers, engine.devices or 1, "devices")
        return
    from maskwright.engines.torch.prepare import choose_compile

    choose_compile(engine.compile, device, run_flops)


def find_processes(engine: EngineSection) -> Processes:
    """Connects to the other processes of this run, on all hosts. With jax, it must come before any other use of it."""
    if engine.kind == "jax":
        require("jax", "engine.kind")
        _require_fast(engine)
        from maskwright.engines.jax.processes import connect

        return connect(engine)[2]
    if "WORLD_SIZE" not in os.environ:
        return Alone()
    # torch warns of each lost connection with a C++ stack of thirty lines; the failure itself raises an error.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from maskwright.engines.torch.processes import connect as connect_torch

    return connect_torch(engine, choose_device(engine))


def _require_fast(engine: EngineSection) -> None:
    if engine.reproducibility == "exact":
        what = "jax sums gradients in the order of its devices, and has no exact sums"
        fix = "set it to fast or leave it out, or set engine.kind: torch"
        raise ConfigError(what, where="engine.reproducibility", fix=fix)
