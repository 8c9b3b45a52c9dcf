"""`--workers` and `--on`: the processes or the cluster that compute a long work on data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from maskwright.core.errors import InputError
from maskwright.machine.hardware import usable_cores, usable_memory_bytes
from maskwright.processes.runner import Here, Runner

WORKER_BYTES = 1 << 30
"""Memory that a process may need; the default number of processes fits into memory by it."""
Workers = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Processes; any number gives the same result. Default: one for each core, as far as memory allows.",
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="ray[:ADDRESS]",
        help="Compute on a Ray cluster: at ADDRESS (ray://HOST:10001 or HOST:6379), else the one of this machine, else "
        "one that is started here. All its machines must see the files. The result is the same.",
    ),
]
WorkerMemory = Annotated[
    float | None,
    typer.Option(
        metavar="GB",
        min=0.1,
        help="Gigabytes that Ray reserves for each part, so that fewer are computed at once on a machine. Only with "
        "--on.",
    ),
]


@contextmanager
def runner_on(on: str | None, workers: int | None, worker_memory: float | None) -> Iterator[Runner]:
    """Yields a runner with processes of this machine, one for each core unless `workers` says otherwise; or a cluster.
    Raises `InputError` for an unknown place, `MaskwrightError` if the cluster does not answer."""
    if on is None:
        fitting = max(usable_memory_bytes() // WORKER_BYTES, 1)
        with Here(workers or min(usable_cores(), fitting)) as runner:
            yield runner
        return
    kind, _, address = on.partition(":")
    if kind != "ray":
        raise InputError(f"{on[:80]!r} is not a cluster", where="--on", fix="write ray or ray:ADDRESS")
    from maskwright.processes.ray.tasks import connected

    with connected(address or None, int(worker_memory * 1e9) if worker_memory else None) as runner:
        yield runner


def refuse(on: str | None, workers: int | None, worker_memory: float | None) -> None:
    """Raises `InputError` for an option that means nothing with, or without, `--on`."""
    if on is None and worker_memory is not None:
        raise InputError("goes with --on", where="--worker-memory", fix="leave it out")
    if on is not None and workers is not None:
        raise InputError("is for one machine", where="--workers", fix="leave it out: --on takes the cluster's CPUs")
