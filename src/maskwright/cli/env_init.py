"""`maskwright env init`: a project made ready, and everything that is missing named at once."""

from __future__ import annotations

import typer

from maskwright.cli.env import EnvironmentFile, env
from maskwright.cli.options import AsJson, print_result


@env.command("init")
def init(location: EnvironmentFile, json: AsJson = False) -> None:
    """Make the project ready; check permissions, quota and capacity. Exit code 1 when something is missing."""
    from maskwright.cloud.environment import read_environment
    from maskwright.cloud.google.rest import Google
    from maskwright.cloud.provision import init as task

    environment = read_environment(location)
    outcome = task.init(Google(environment.project), environment)
    print_result(outcome.report(), outcome.to_json(), json)
    if not outcome.ok:
        raise typer.Exit(1)
