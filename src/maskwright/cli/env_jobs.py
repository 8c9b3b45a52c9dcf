"""`env watch`, which looks after the hosts of a job that was submitted to an environment."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from maskwright.cli.env import EnvironmentFile, Prices, env
from maskwright.cli.options import StopAfterHours


@env.command("watch")
def watch(
    location: EnvironmentFile,
    target: Annotated[
        Literal["slice", "group"] | None, typer.Option(help="Which hosts to watch, if ENV has a slice and a group.")
    ] = None,
    max_cost: Annotated[
        float | None,
        typer.Option(metavar="N", help="Money in USD after which the run saves and the hosts go.", min=0.0),
    ] = None,
    stop_after_hours: StopAfterHours = None,
    down_when_done: Annotated[
        bool, typer.Option("--down-when-done", help="Take the hosts away when the job is over.")
    ] = False,
    prices: Prices = None,
    stay: Annotated[bool, typer.Option("--stay", help="Watch the next jobs too, until you end it.")] = False,
    poll_seconds: Annotated[float, typer.Option(metavar="N", help="Seconds between two looks.", min=0.1)] = 10.0,
) -> None:
    """Look after the hosts of the job. They are made again when they are preempted, and taken away at a limit."""
    from maskwright.cloud.jobs import follow as following
    from maskwright.cloud.jobs import spec as jobs
    from maskwright.cloud.jobs.hosts import EnvironmentGround

    place = jobs.find(location, target)
    limits = following.make_limits(max_cost, stop_after_hours, down_when_done)
    ground = EnvironmentGround(place.location, place.kind, prices)
    following.watch(place, ground, limits, stay=stay, poll_seconds=poll_seconds)
