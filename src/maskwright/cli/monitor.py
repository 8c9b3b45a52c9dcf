"""The commands on a run that trains, or trained, anywhere; `places.py` knows where."""

from __future__ import annotations

import time
from typing import Annotated, Literal

import typer

from maskwright.cli import places
from maskwright.cli.options import Address, AsJson, app, as_line, print_result
from maskwright.core import console, storage
from maskwright.core.secrets import redact

WATCH_SECONDS = 5.0

Run = Annotated[str, typer.Argument(metavar="RUN", help=places.RUNS)]


@app.command("status")
def status(
    run: Run,
    as_json: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every 5 seconds, until the run is over.")] = False,
    address: Address = None,
) -> None:
    """Show how a run is: progress, last checkpoint, and which rank is lost, hangs or is slow."""
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


@app.command("logs")
def logs(
    run: Run,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as the log grows, until the run is over.")
    ] = False,
    lines: Annotated[
        int | None, typer.Option(metavar="N", help="Show only this many of the last lines.", min=0)
    ] = None,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Show a run's log. With --follow, end with the run's exit code: 0 done, 76 stopped as asked, 75 interrupted,
    else its own."""
    target = places.run(run, address, options=frozenset({"--lines"} if lines is not None else ()))

    def show(host: int | None, line: str) -> None:
        console.answer(as_line({"host": host, "line": redact(line)}) if as_json else console.log_line(host, line))

    if code := target.logs(follow=follow, lines=lines, show=show):
        raise typer.Exit(code)


@app.command("stop")
def stop(
    run: Run,
    checkpoint: Annotated[bool, typer.Option("--checkpoint", help="Save a checkpoint and go on instead.")] = False,
    wait_seconds: Annotated[
        float, typer.Option(metavar="N", help="Seconds to wait until the run has saved.", min=0.0)
    ] = 120.0,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Ask a run to save and stop, from any machine that sees it. The command that started it continues it."""
    target = places.run(run, address, options=frozenset({"--checkpoint"} if checkpoint else ()))
    said = target.stop(checkpoint=checkpoint, wait_seconds=wait_seconds)
    if said or as_json:
        print_result(said, {"run": run, "said": said}, as_json)


@app.command("list")
def list_(
    place: Annotated[
        str, typer.Argument(metavar="PLACE", help="A place that keeps a list of its jobs: ray or kubernetes.")
    ] = "ray",
    address: Address = None,
    context: Annotated[str | None, typer.Option(metavar="NAME", help="Context of kubectl.")] = None,
    namespace: Annotated[str | None, typer.Option(metavar="NAME", help="Namespace in Kubernetes.")] = None,
    env_file: Annotated[
        str, typer.Option(metavar="PATH", help="YAML of an environment, whose cluster has the jobs.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """List the jobs that were submitted to a cluster."""
    report = places.jobs(place, address, env_file, context, namespace)
    print_result(report.report(), report.to_json(), as_json)


@app.command("forward")
def forward(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run directory.", callback=storage.require_local)],
    to: Annotated[
        Literal["wandb", "mlflow"],
        typer.Option(help="Service that gets the run's numbers; its own variables, such as WANDB_PROJECT, say where."),
    ],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Send lines as they come, until the run is over.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Send a run's numbers to W&B or MLflow, also afterwards; logging.report_to does so while it trains."""
    from maskwright.monitor.forward.forward import forward as send

    sent, taken = send(run, to, follow=follow)
    print_result(sent.report(to), sent.to_json(to), as_json)
    if not taken:
        raise typer.Exit(1)
