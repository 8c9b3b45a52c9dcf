"""`maskwright env smoke`: for users with a project of their own."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from maskwright.cli.env import EnvironmentFile, Prices, Yes, env, require_yes


@env.command("smoke")
def smoke(
    location: EnvironmentFile,
    on: Annotated[
        Literal["vm", "tpu"],
        typer.Option("--on", help="Spot machine to use: vm is one n2-standard-8, tpu is one v6e chip."),
    ] = "vm",
    container: Annotated[
        str | None,
        typer.Option(metavar="IMAGE", help="Image to run; Cloud Build builds one when not given, which takes long."),
    ] = None,
    yes: Yes = False,
    prices: Prices = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be run, and stop.")] = False,
) -> None:
    """Make, seed, use and take away a small environment beside ENV. It costs money, and we have never run it."""
    from maskwright.cloud import smoke as task
    from maskwright.cloud.environment import read_environment
    from maskwright.cloud.prices import read_prices, table
    from maskwright.core.console import say

    planned, image = task.plan(read_environment(location), on, container), container is None
    if dry_run:
        return print(task.describe(planned, image))
    known, usd = task.costs(planned, read_prices(prices))
    say(
        "This was written without access to Google Cloud: you are the first to run it, in your project, for your money."
    )
    for line in table(known).splitlines():
        say(line)
    more = ", and Cloud Build for the image" if image else ""
    say(f"About {usd:,.2f} USD if it takes {task.MOST_HOURS:g} h, by that table{more}; at the end all is taken away.")
    if not yes:
        require_yes("Spend that?", "env smoke", "nothing was made")
    task.smoke(planned, image=image)
