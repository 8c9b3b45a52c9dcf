"""`--on`: a work on data computed by a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from maskwright.core.errors import InputError
from maskwright.core.runner import Runner

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
def runner_on(on: str, worker_memory: float | None) -> Iterator[Runner]:
    """Raises `InputError` for what is no place, `MaskwrightError` where nothing answers there."""
    kind, _, address = on.partition(":")
    if kind != "ray":
        raise InputError(f"{on[:80]!r} is no cluster", where="--on", fix="write ray or ray:ADDRESS")
    from maskwright.launch.ray.parts import connected

    with connected(address or None, int(worker_memory * 1e9) if worker_memory else None) as runner:
        yield runner


def refuse(on: str | None, workers: int | None, worker_memory: float | None) -> None:
    """Raises `InputError` for an option that says nothing with, or without, `--on`."""
    if on is None and worker_memory is not None:
        raise InputError("goes with --on", where="--worker-memory", fix="leave it out")
    if on is not None and workers is not None:
        raise InputError("is for one machine", where="--workers", fix="leave it out: --on takes the cluster's CPUs")
