"""The command that checks the machine."""

from __future__ import annotations

import typer

from maskwright.cli.manual import command
from maskwright.cli.options import AsJson, app, print_result


@command(app, "doctor")
def doctor(as_json: AsJson = False) -> None:
    """Check this machine in ten seconds: what is installed, what a run would use, and what to fix. Exits with 1 if a
    check fails."""
    from maskwright.doctor.examine import examine

    report = examine()
    print_result(report.text(), report.to_json(), as_json)
    if report.state == "fail":
        raise typer.Exit(1)
