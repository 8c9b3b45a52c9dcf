"""`maskwright env audit` and `env status`: what there is of an environment."""

from __future__ import annotations

import typer

from maskwright.cli.env import EnvironmentFile, Prices, env
from maskwright.cli.options import AsJson, print_result


@env.command("audit")
def audit(location: EnvironmentFile, json: AsJson = False, prices: Prices = None) -> None:
    """List all that exists, what costs money, and why. Exit code 1 when something is left over that does."""
    from maskwright.cloud import record
    from maskwright.cloud.environment import read_environment
    from maskwright.cloud.google.rest import Google
    from maskwright.cloud.inspect import audit as task
    from maskwright.cloud.prices import read_prices

    environment = read_environment(location)
    google, price = Google(environment.project), read_prices(prices).find
    wanted, queued = record.wanted(environment), record.read(environment).queued_zone is not None
    found = task.audit(google, environment, wanted=wanted, queued=queued, price=price)
    print_result(found.report(), found.to_json(), json)
    if not found.clean:
        raise typer.Exit(1)


@env.command("status")
def status(location: EnvironmentFile, json: AsJson = False, prices: Prices = None) -> None:
    """Show what exists and costs money, how each host is, the disk, the job, and where YAML and cloud differ."""
    from maskwright.cloud.inspect import status as task
    from maskwright.cloud.prices import read_prices

    found = task.read(location, read_prices(prices).find)
    print_result(found.report(), found.to_json(), json)
