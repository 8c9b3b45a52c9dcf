"""The commands on a run that trains, or trained, anywhere; `places.py` knows where."""

from __future__ import annotations

import time
from typing import Literal

import typer

from maskwright.cli import places
from maskwright.cli.manual import command
from maskwright.cli.options import Address, AsJson, app, as_line, print_result
from maskwright.core import console, storage
from maskwright.core.secrets import redact

WATCH_SECONDS = 5.0


@command(app, "status")
def status(
    run: str,
    as_json: AsJson = False,
    watch: bool = False,
    address: Address = None,
) -> None:
    """Show a run's progress, last checkpoint, and which rank is lost, hangs or is slow.

    RUN: Run directory (or a copy's URL), ray:ID, kubernetes:NAME or vertex:PROJECT/REGION/ID.
    --watch: Refresh every 5 seconds, until the run is over.
    """
    from maskwright.core.errors import INTERRUPTED, StoppedEarly

    target = places.run(run, address)
    try:
        while True:
            report = target.status()
            if as_json and watch:
                console.answer(as_line(report.to_json()))
            else:
                print_result(report.report(), report.to_json(), as_json)
            if not watch or report.over:
                return
            time.sleep(WATCH_SECONDS)
    except StoppedEarly:
        raise typer.Exit(INTERRUPTED) from None


@command(app, "logs")
def logs(
    run: str,
    follow: bool = False,
    lines: int | None = None,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Show a run's log. With --follow, end with the run's exit code: 0 done, 76 stopped as asked, 75 interrupted,
    else its own.

    RUN: Run directory (or a copy's URL), ray:ID, kubernetes:NAME or vertex:PROJECT/REGION/ID.
    --follow,-f: Keep printing as the log grows, until the run is over.
    --lines 0≤N: Show only the last N lines.
    """
    target = places.run(run, address, options=frozenset({"--lines"} if lines is not None else ()))

    def show(host: int | None, line: str) -> None:
        console.answer(as_line({"host": host, "line": redact(line)}) if as_json else console.log_line(host, line))

    if code := target.logs(follow=follow, lines=lines, show=show):
        raise typer.Exit(code)


@command(app, "stop")
def stop(
    run: str,
    checkpoint: bool = False,
    wait_seconds: float = 120.0,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Ask a run to save and stop, from any machine that sees it. The command that started it continues it.

    RUN: Run directory (or a copy's URL), ray:ID, kubernetes:NAME or vertex:PROJECT/REGION/ID.
    --checkpoint: Save a checkpoint and keep training instead.
    --wait-seconds 0≤N: Seconds to wait until the run has saved.
    """
    target = places.run(run, address, options=frozenset({"--checkpoint"} if checkpoint else ()))
    said = target.stop(checkpoint=checkpoint, wait_seconds=wait_seconds)
    if said or as_json:
        print_result(said, {"run": run, "said": said}, as_json)


@command(app, "list")
def list_(
    place: str = "ray",
    address: Address = None,
    context: str | None = None,
    namespace: str | None = None,
    env_file: str = "",
    as_json: AsJson = False,
) -> None:
    """List the jobs that were submitted to a cluster.

    PLACE: Where to list jobs: ray or kubernetes.
    --context NAME (PLACE kubernetes): Context of kubectl.
    --namespace NAME (PLACE kubernetes): Namespace in Kubernetes.
    --env-file PATH (PLACE kubernetes): YAML of an environment, whose cluster has the jobs.
    """
    report = places.jobs(place, address, env_file, context, namespace)
    print_result(report.report(), report.to_json(), as_json)


@command(app, "forward")
def forward(
    run: str,
    to: Literal["wandb", "mlflow"],
    follow: bool = False,
    as_json: AsJson = False,
) -> None:
    """Send a run's numbers to W&B or MLflow, also after it ended; logging.report_to does so while it trains.

    RUN: Run directory.
    --to: Service to send the run's numbers to; its own variables, such as WANDB_PROJECT, say where.
    --follow,-f: Send lines as they come, until the run is over.
    """
    from maskwright.monitor.forward.forward import forward as send

    storage.require_local(run)
    sent, taken = send(run, to, follow=follow)
    print_result(sent.report(to), sent.to_json(to), as_json)
    if not taken:
        raise typer.Exit(1)
