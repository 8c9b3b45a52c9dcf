"""The command that makes a page of runs."""

from __future__ import annotations

from maskwright.cli import places
from maskwright.cli.manual import command
from maskwright.cli.options import AsJson, app, print_result


@command(app, "report")
def report(
    run: list[str], to: str = "report.html", dollars_per_hour: float | None = None, as_json: AsJson = False
) -> None:
    """Write a page about a run, or several side by side: curves, what happened, data, configuration, commands.

    RUN: Run directories, or URLs of runs or of their copies. The curves of several are overlaid.
    --to FILE: Page to write (.html).
    --dollars-per-hour 0≤N: Price of the run's machines per hour, to show the run's cost.
    """
    from maskwright.core import output
    from maskwright.core.console import say, warn
    from maskwright.report.page import write
    from maskwright.report.run import read_all

    places.require_folders(run)
    output.require_ending(to, (".html",), f"--to {to}")
    output.require_place(to)
    runs = read_all(run)
    for line in (line for record in runs for line in record.damaged):
        warn(line)
    write(to, runs, dollars_per_hour)
    say(f"report: {to}")
    print_result(None, {"page": to}, as_json)
