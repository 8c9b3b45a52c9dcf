"""`maskwright env audit` and `env status`: what there is of an environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from maskwright.cli_env import EnvironmentFile, env
from maskwright.cli_options import AsJson, print_result

if TYPE_CHECKING:
    from maskwright.cloud.environment import Environment


@env.command("audit")
def audit(location: EnvironmentFile, json: AsJson = False) -> None:
    """List all that exists, what costs money, and why. Exit code 1 when something is left over that does."""
    from maskwright.cloud import audit as task
    from maskwright.cloud.environment import read_environment
    from maskwright.cloud.rest import Google

    environment = read_environment(location)
    found = task.audit(Google(environment.project), environment, wanted=wanted(environment))
    print_result(found.report(), found.to_json(), json)
    if not found.clean:
        raise typer.Exit(1)


def wanted(environment: Environment) -> dict[str, Any] | None:
    """What was asked for last; None before anything was."""
    from maskwright.cloud import record
    from maskwright.cloud.commands import WANTED

    return record.folder(environment).get_json(WANTED)
