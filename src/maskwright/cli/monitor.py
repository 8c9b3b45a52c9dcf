"""The commands that watch a run, whoever started it: they read its folder and nothing else."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from maskwright.cli import env_jobs, vertex
from maskwright.cli.options import Address, AsJson, app, print_result

WATCH_SECONDS = 5.0
INTERRUPTED = 130
"""128 + SIGINT, as shells have it."""

Run = Annotated[
    str, typer.Argument(metavar="RUN", help="Run directory, a copy of one at any URL, ray:ID, vertex:ID or lab.yaml.")
]


@app.command("status")
def status(
    run: Run,
    as_json: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", help="Again every 5 seconds, until the run is over.")] = False,
    address: Address = None,
) -> None:
    """How a run is: progress, last checkpoint, and which rank is lost, hangs or is slow."""
    if run.startswith("ray:"):
        from maskwright.cli import ray
        from maskwright.core.errors import InputError

        if watch:
            fix = f"`maskwright logs {run} --follow`, or --watch with the run's folder"
            raise InputError("is for a run directory", where="--watch", fix=fix)
        return ray.status(run, as_json, address)
    if run.startswith("vertex:"):
        return vertex.status(run, as_json, watch)
    if env_jobs.is_environment(run):
        return env_jobs.status(run, as_json)
    from maskwright.core.errors import StoppedEarly
    from maskwright.monitor.status import look

    try:
        while True:
            found = look(run)
            print_result(found.report(), found.to_json(), as_json)
            if not watch or found.over:
                return
            time.sleep(WATCH_SECONDS)
    except StoppedEarly:
        raise typer.Exit(INTERRUPTED) from None


@app.command("logs")
def logs(
    run: Run,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run is over, as it grows.")] = False,
    lines: Annotated[
        int | None, typer.Option(help="Only so many of the last lines; all when not given.", min=0)
    ] = None,
    address: Address = None,
) -> None:
    """A run's log. With --follow, its exit code: 0 when the run is done, 75 when it stopped early, else its own."""
    if run.startswith("ray:"):
        from maskwright.cli import ray

        return ray.logs(run, follow, lines, address)
    if run.startswith("vertex:"):
        return vertex.logs(run, follow, lines)
    if env_jobs.is_environment(run):
        return env_jobs.logs(run, follow, lines)
    from maskwright.core.errors import StoppedEarly
    from maskwright.monitor import logs as task

    try:
        code = task.follow(run, lines) if follow else task.show(run, lines)
    except StoppedEarly:
        raise typer.Exit(INTERRUPTED) from None
    if code:
        raise typer.Exit(code)
