"""`env smoke`: a small environment from nothing to nothing left."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from maskwright.cli.env import DryRun, EnvironmentFile, Prices, Yes, env, require_yes
from maskwright.cli.options import AsJson, print_result, stdout_for_document


@env.command("smoke")
def smoke(
    location: EnvironmentFile,
    on: Annotated[
        Literal["vm", "tpu"],
        typer.Option("--on", help="Spot machine to use: vm is one n2-standard-8, tpu is one v6e chip."),
    ] = "vm",
    container: Annotated[
        str | None,
        typer.Option(metavar="IMAGE", help="Image to run. Default: Cloud Build builds one, which takes a while."),
    ] = None,
    yes: Yes = False,
    prices: Prices = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Create, seed, use and delete a small environment beside ENV. It costs money, and we have never run it."""
    from maskwright.cloud import smoke as task
    from maskwright.cloud.environment import read_environment
    from maskwright.cloud.prices import estimate, read_prices, table
    from maskwright.core.console import say
    from maskwright.processes.child import CommandSequence

    planned = task.plan(read_environment(location), on, container, "SMOKE" if dry_run else None)
    image = container is None
    costs = estimate(planned.environment, read_prices(prices))
    usd, more = costs.hourly * task.MOST_HOURS, ", and Cloud Build for the image" if image else ""
    for line in (
        "This was written without access to Google Cloud: you are the first to run it, in your project and for money.",
        *table(costs).splitlines(),
        f"About {usd:,.2f} USD if it takes {task.MOST_HOURS:g} h, by that table{more}; then everything is deleted.",
    ):
        say(line)
    if dry_run:
        return print_result(task.describe(planned, image), task.as_json(planned, image, None), as_json)
    if not yes:
        require_yes("Spend that?", "env smoke", "nothing was created")
    steps = CommandSequence()
    try:
        with stdout_for_document(as_json):
            task.smoke(planned, image=image, run=steps.run)
    finally:
        if as_json and steps.ran:
            print_result("", task.as_json(planned, image, steps.ran), True)
