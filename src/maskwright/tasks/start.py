"""How every rank of a run starts: its engine, its job, what rank 0 broadcasts, what is recorded of the machine."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import uuid
from dataclasses import asdict
from typing import Any

import maskwright
from maskwright.core import hardware
from maskwright.core.config import flat
from maskwright.core.console import say, warn
from maskwright.core.errors import StoreError
from maskwright.core.extras import installed
from maskwright.data.loader import validation_batches
from maskwright.engines.base import Engine
from maskwright.engines.choose import make_engine
from maskwright.model.hf.folder import read_hf_parameters
from maskwright.model.hf.names import Parameters
from maskwright.model.initial import initial_parameters
from maskwright.run.directory import RunDirectory, Status
from maskwright.tasks.preflight import Prepared, engine_config, run_flops, too_large
from maskwright.training.beats import Beats
from maskwright.training.health import LossWatch, Rollbacks
from maskwright.training.loop import Job
from maskwright.training.saver import Saver
from maskwright.training.stop import StopRequest

BEGIN, RESTORE = b"begin", b"restore"
"""What rank 0 broadcasts for all to do first."""


def for_all_ranks(ready: Prepared, request: StopRequest, before: dict[str, Any] | None) -> dict[str, Any]:
    """What rank 0 broadcasts about the run."""
    return {
        "before": before,
        "config": flat(ready.config),
        "model": asdict(ready.model),
        "store_fingerprint": ready.store.fingerprint,
        "stop_after_steps": request.stop_after_steps,
        "start": uuid.uuid4().hex,
    }


def start_engine(ready: Prepared, before: dict[str, Any] | None, threads: int | None) -> Engine:
    """Raises `ConfigError` if the engine cannot compute this run, `MaskwrightError` if the model does not fit into
    memory. `threads`: see `exact_threads`."""
    config = ready.config
    decided = engine_config(config, before, threads)
    try:
        engine = make_engine(
            ready.model, config.optimizer, decided, config.seed, run_flops=run_flops(config, ready.model)
        )
    except (RuntimeError, MemoryError) as error:
        raise too_large(ready, error) from None
    engine.local_virtual_workers(config.batch.virtual_workers)
    return engine


def make_job(
    ready: Prepared, directory: RunDirectory, engine: Engine, record: dict[str, Any], saver: Saver | None
) -> Job:
    return Job(
        config=ready.config,
        model=ready.model,
        directory=directory,
        engine=engine,
        loader=ready.loader,
        validation=_validation(ready),
        ceiling=engine.ceiling(),
        record=record,
        saver=saver,
        watch=LossWatch(ready.model.vocab_size, ready.config.schedule.warmup_steps),
        rollbacks=Rollbacks(directory),
        beats=Beats(directory),
        status=Status(of=ready.config.schedule.steps),
    )


def _validation(ready: Prepared) -> list[Any]:
    config = ready.config
    try:
        return validation_batches(
            ready.store,
            seq_len=config.data.seq_len,
            packing=config.data.packing,
            max_rows=config.evaluation.max_rows,
            micro_batch_rows=config.batch.micro_batch_rows,
        )
    except StoreError as error:
        if not ready.store.split("valid").documents:
            warn(f"{error}. This run has no validation")
            return []
        raise


def starting_parameters(ready: Prepared) -> Parameters:
    """Parameters of step 0: read from `model.init_from`, or random. Raises `ModelError`."""
    folder = ready.config.model.init_from
    if folder is None:
        return initial_parameters(ready.model, ready.config.seed)
    parameters = read_hf_parameters(folder, ready.model)
    say(f"continuing from {folder}")
    return parameters


def environment() -> dict[str, Any]:
    """Versions, hardware and code revision, for the record."""
    names = ("torch", "numpy", "tokenizers", "safetensors", "transformers", "jax", "jaxlib", "libtpu")
    packages = [name for name in names if installed(name)]
    return {
        "maskwright": maskwright.__version__,
        "revision": _revision(),
        "packages": {name: importlib.metadata.version(name) for name in packages},
        "hardware": hardware.describe(),
    }


def _revision() -> str | None:
    """Commit of the source checkout that this runs from; None if it is no checkout."""
    folder = os.path.dirname(os.path.abspath(maskwright.__file__))
    try:
        result = subprocess.run(
            ["git", "-C", folder, "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None
