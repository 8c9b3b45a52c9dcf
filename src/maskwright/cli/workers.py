"""`--workers`: the processes that compute a long work on data here."""

from __future__ import annotations

from typing import Annotated

import typer

from maskwright.machine.hardware import usable_cores, usable_memory_bytes
from maskwright.processes.runner import Runner

WORKER_BYTES = 1 << 30
"""Memory that a process may need; the default number of processes fits into memory by it."""
Workers = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Processes here; any number gives the same result. Default: one for each core, as far as memory allows. "
        "The same command on other machines that see the folders shares the work.",
    ),
]


def runner_of(workers: int | None) -> Runner:
    """A runner with that many processes of this machine, by default one for each core."""
    fitting = max(usable_memory_bytes() // WORKER_BYTES, 1)
    return Runner(workers or min(usable_cores(), fitting))
