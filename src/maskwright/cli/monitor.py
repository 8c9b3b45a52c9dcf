"""The commands on a run that trains, or trained, anywhere, which `places.py` finds."""

from __future__ import annotations

import time
from collections import deque
from typing import Literal

import typer

from maskwright.cli import places
from maskwright.cli.manual import command
from maskwright.cli.options import Address, AsJson, app, as_line, print_result
from maskwright.core import console, storage
from maskwright.core.secrets import redact

WATCH_SECONDS = 5.0


@command(app, "status")
def status(run: str, as_json: AsJson = False, watch: bool = False, address: Address = None) -> None:
    """Show a run's progress, its last checkpoint, and which rank is lost, hangs or is slow; or list a cluster's jobs.

    RUN: Run directory (or the URL of a copy), ray:ID, kubernetes:NAME or vertex:PROJECT/REGION/ID. To list all jobs:
        ray:, kubernetes:, kubernetes:[CONTEXT/]NAMESPACE/ or kubernetes:ENV.yaml/.
    --watch: Refresh every 5 seconds until the run is over.
    """
    from maskwright.core.errors import INTERRUPTED, StoppedEarly

    read = places.jobs(run, address) or places.run(run, address).status
    try:
        while True:
            report = read()
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
    run: str, follow: bool = False, lines: int | None = None, address: Address = None, as_json: AsJson = False
) -> None:
    """Show a run's log. With --follow, exit with the run's code: 0 done, 75 interrupted, 76 stopped as asked, or the
    code of its error.

    RUN: Run directory (or the URL of a copy), ray:ID, kubernetes:NAME or vertex:PROJECT/REGION/ID.
    --follow,-f: Keep printing new lines until the run is over.
    --lines 0≤N: Show only the last N lines.
    """
    tail = deque[tuple[int | None, str]](maxlen=lines)
    target = places.run(run, address, options=frozenset({"--lines"} if lines is not None and follow else ()))

    def show(host: int | None, line: str) -> None:
        console.answer(as_line({"host": host, "line": redact(line)}) if as_json else console.log_line(host, line))

    shows = show if follow or lines is None else lambda host, line: tail.append((host, line))
    code = target.logs(follow=follow, lines=lines, show=shows)
    for host, line in tail:
        show(host, line)
    if code:
        raise typer.Exit(code)


@command(app, "stop")
def stop(
    run: str, checkpoint: bool = False, wait_seconds: float = 120.0, address: Address = None, as_json: AsJson = False
) -> None:
    """Ask a run to save and stop, from any machine that sees its folder. Continue it with the command that started it.

    RUN: Run directory (or the URL of a copy), ray:ID, kubernetes:NAME or vertex:PROJECT/REGION/ID.
    --checkpoint: Save a checkpoint and keep training.
    --wait-seconds 0≤N: Maximum time to wait for the run to save.
    """
    target = places.run(run, address, options=frozenset({"--checkpoint"} if checkpoint else ()))
    said = target.stop(checkpoint=checkpoint, wait_seconds=wait_seconds)
    if said or as_json:
        print_result(said, {"run": run, "said": said}, as_json)


@command(app, "sync")
def sync(run: str, to: Literal["wandb", "mlflow"], follow: bool = False, as_json: AsJson = False) -> None:
    """Send a run's metrics to W&B or MLflow. To send them during training, set logging.report_to instead.

    RUN: Run directory.
    --to: Service to send to. Its own variables, such as WANDB_PROJECT, choose the project.
    --follow,-f: Keep sending new lines until the run is over.
    """
    from maskwright.monitor.sync.sync import sync as send

    places.require_folders([run])
    storage.require_local(run)
    sent, taken = send(run, to, follow=follow)
    print_result(sent.report(to), sent.to_json(to), as_json)
    if not taken:
        raise typer.Exit(1)
