"""A rank's engine and job, and the records of start and machine."""

from __future__ import annotations

import glob
import hashlib
import importlib.metadata
import os
import subprocess
from typing import Any

import maskwright
from maskwright.core.extras import installed
from maskwright.engines.base import Engine, RunFacts
from maskwright.engines.ceiling import Ceiling
from maskwright.engines.choose import make_engine
from maskwright.machine import hardware
from maskwright.machine.usage import Usage
from maskwright.run.directory import RunDirectory, Status
from maskwright.run.record import RunRecord
from maskwright.tasks.start.capacity import engine_config, too_large
from maskwright.tasks.start.prepared import Prepared
from maskwright.training.beats import Beats
from maskwright.training.health import LossWatch
from maskwright.training.job import Job
from maskwright.training.saver import Saver

BEGIN, RESTORE = b"begin", b"restore"
"""Whether all ranks begin the run or restore it; broadcast by rank 0."""


def start_engine(ready: Prepared, before: RunRecord | None, threads: int | None) -> Engine:
    """The engine of this rank. Raises `ConfigError` if it cannot compute this run, `MaskwrightError` if the model does
    not fit into memory. `threads`: see `exact_threads`."""
    config = ready.config
    decided = engine_config(config, before, threads)
    try:
        by_mkl = before.by_mkl if before else None
        facts = RunFacts(ready.flops, ready.micro_batch_losses, ready.label_smoothing, by_mkl, ready.looked_up)
        engine = make_engine(ready.model, config.optimizer, decided, config.seed, facts)
    except (RuntimeError, MemoryError) as error:
        raise too_large(ready, error) from None
    engine.local_virtual_workers(config.batch.virtual_workers)
    return engine


def make_job(
    ready: Prepared, directory: RunDirectory, engine: Engine, record: RunRecord | None, saver: Saver | None
) -> Job:
    objective = ready.objective()
    return Job(
        config=ready.config,
        model=ready.model,
        directory=directory,
        engine=engine,
        objective=objective,
        ceiling=Ceiling(engine.ceiling()),
        record=record,
        saver=saver,
        watch=LossWatch(objective.chance, ready.config.schedule.warmup_steps or 0),
        beats=Beats(directory),
        usage=Usage(gpus=engine.device == "cuda"),
        status=Status(of=ready.config.steps),
    )


def start_record(job: Job) -> dict[str, Any]:
    """The entry of the run's history for this start: its host, engine and processes."""
    return {
        "attempt": job.status.attempt,
        "host": job.status.host,
        "engine": job.engine.description,
        "processes": job.engine.processes.world_size,
        "maskwright": maskwright.__version__,
    }


def environment() -> dict[str, Any]:
    """Versions, hardware and code revision, for the record."""
    names = ("torch", "numpy", "tokenizers", "safetensors", "transformers", "jax", "jaxlib", "libtpu")
    packages = [name for name in names if installed(name)]
    return {
        "maskwright": maskwright.__version__,
        "revision": _revision(),
        "source_sha256": _source_sha256(),
        "packages": {name: importlib.metadata.version(name) for name in packages},
        "hardware": hardware.describe(),
    }


def _source_sha256() -> str:
    """Digest of the package's Python files: it identifies edited code where there is no commit."""
    folder, digest = os.path.dirname(os.path.realpath(maskwright.__file__)), hashlib.sha256()
    for path in sorted(glob.glob("**/*.py", root_dir=folder, recursive=True)):
        with open(os.path.join(folder, path), "rb") as file:
            digest.update(f"{path}\0".encode() + hashlib.sha256(file.read()).digest())
    return digest.hexdigest()


def _revision() -> str | None:
    """Commit of the source checkout that this runs from; None for an installed package, which may lie in a .venv inside
    the user's repository."""
    folder = os.path.dirname(os.path.realpath(maskwright.__file__))
    checkout = os.path.dirname(os.path.dirname(folder))
    if os.path.basename(os.path.dirname(folder)) != "src" or not os.path.exists(os.path.join(checkout, ".git")):
        return None
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
