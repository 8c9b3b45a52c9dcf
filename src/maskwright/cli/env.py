"""The commands of `maskwright env`: a training environment on Google Cloud, from its YAML to nothing left."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from maskwright.cli.options import AsJson, app, plain, print_result

if TYPE_CHECKING:
    from maskwright.cloud.provision.commands import Confirm, Desk
    from maskwright.cloud.provision.terraform_cli import Plan

env = typer.Typer(help="Make, seed, watch and take away a training environment on Google Cloud.", **plain)
app.add_typer(env, name="env")

EnvironmentFile = Annotated[str, typer.Argument(metavar="ENV", help="YAML of the environment.")]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="PART",
        help="Part to change: slice, group, disk or nfs. The others stay as they are. Give it again for another part.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
DeleteData = Annotated[
    bool, typer.Option("--delete-data", help="Also delete disks, NFS and buckets, with what is on them.")
]
Prices = Annotated[
    str | None,
    typer.Option(
        "--prices", metavar="PATH", help="YAML with your own prices; `env prices` prints the table that comes along."
    ),
]
LockTimeoutSeconds = Annotated[
    float, typer.Option(metavar="N", help="Seconds to wait for another command's lock on the state.", min=0.0)
]
DetailedExitcode = Annotated[
    bool,
    typer.Option(
        "--detailed-exitcode", help="Exit as Terraform does: 0 for no changes, 1 for an error, 2 for changes."
    ),
]


@env.command("schema")
def schema(
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the page of the documentation instead.")
    ] = False,
) -> None:
    """Print the JSON schema of an environment's YAML, for editors."""
    from maskwright.cloud import page

    print(page.markdown().rstrip() if as_markdown else page.json_schema())


@env.command("plan")
def plan(
    location: EnvironmentFile,
    only: Only = None,
    prices: Prices = None,
    detailed_exitcode: DetailedExitcode = False,
    lock_timeout_seconds: LockTimeoutSeconds = 60.0,
    json: AsJson = False,
) -> None:
    """Show what `env up` would do and what it costs; nothing is changed."""
    from maskwright.cloud.prices import estimate, read_prices, table
    from maskwright.cloud.provision import commands

    known = read_prices(prices)
    desk, drawn = commands.plan(location, parts=parts(only), lock_timeout_seconds=lock_timeout_seconds)
    cost = estimate(desk.environment, known, desk.record.placement)
    changes = [{"address": one.address, "change": one.kind, "loses_data": one.loses_data} for one in drawn.changes]
    while_up = ["", f"While all that {location} asks for is up:", table(cost)]
    report = "\n".join([drawn.text.rstrip(), *replaced(drawn), *while_up])
    print_result(report, {"differs": drawn.differs, "changes": changes, "cost": cost.as_json()}, json)
    if detailed_exitcode and drawn.differs:
        raise typer.Exit(2)


@env.command("up")
def up(
    location: EnvironmentFile,
    only: Only = None,
    yes: Yes = False,
    delete_data: DeleteData = False,
    lock_timeout_seconds: LockTimeoutSeconds = 60.0,
) -> None:
    """Make what the YAML asks for, or change what is there into it."""
    from maskwright.cloud.provision import commands

    commands.up(
        location,
        parts=parts(only),
        confirm=asking(yes),
        delete_data=delete_data,
        lock_timeout_seconds=lock_timeout_seconds,
    )


@env.command("seed")
def seed(
    location: EnvironmentFile,
    again: Annotated[
        bool, typer.Option("--again", help="Seed a new disk, in place of the one that is seeded.")
    ] = False,
    yes: Yes = False,
    poll_seconds: Annotated[
        float, typer.Option(metavar="N", help="Seconds between two looks for the result.", min=0.1)
    ] = 10.0,
    lock_timeout_seconds: LockTimeoutSeconds = 60.0,
) -> None:
    """Fill the disk from its bucket, on a machine that is taken away afterwards; then the disk is read-only."""
    from maskwright.cloud.provision import seed as seeding

    seeding.seed(
        location,
        again=again,
        confirm=asking(yes),
        poll_seconds=poll_seconds,
        lock_timeout_seconds=lock_timeout_seconds,
    )


@env.command("down")
def down(
    location: EnvironmentFile,
    only: Only = None,
    delete_data: DeleteData = False,
    yes: Yes = False,
    prices: Prices = None,
    lock_timeout_seconds: LockTimeoutSeconds = 60.0,
) -> None:
    """Take away what runs. Data stays, and is listed with what it costs, unless you say --delete-data."""
    from maskwright.cloud.jobs import status
    from maskwright.cloud.provision import commands

    ask, asked = asking(yes), parts(only)

    def confirm(drawn: Plan) -> None:
        ask(drawn)
        status.end_jobs(location, asked)  # before hosts go: a watcher would bring them back

    desk = commands.down(
        location,
        parts=asked,
        delete_data=delete_data,
        confirm=confirm,
        lock_timeout_seconds=lock_timeout_seconds,
    )
    if not (delete_data and not asked):
        status.end_jobs(location, asked)  # also where there was nothing to take away
    closing_audit(desk, prices)


def parts(only: list[str] | None) -> tuple[str, ...]:
    from maskwright.cloud.provision.variables import PARTS
    from maskwright.core.errors import InputError

    if wrong := [name for name in only or () if name not in PARTS]:
        raise InputError(f"{wrong[0][:40]!r} is no part", where="--only", fix=f"one of {', '.join(PARTS)}")
    return tuple(dict.fromkeys(only or ()))


def asking(yes: bool) -> Confirm:
    """Shows the plan on stderr and asks, once for each plan."""

    def confirm(drawn: Plan) -> None:
        from maskwright.core.console import say

        for line in [*drawn.text.rstrip().splitlines(), *replaced(drawn)]:
            say(line)
        if not yes:
            require_yes("Do this?", "env", "nothing was changed")

    return confirm


def require_yes(question: str, where: str, otherwise: str) -> None:
    """Raises `InputError` when nobody is there to answer, and `StoppedEarly` for every other answer."""
    from maskwright.core.errors import InputError, StoppedEarly

    if not sys.stdin.isatty():
        raise InputError("nobody is there to say yes", where=where, fix="--yes does not ask")
    print(f"{question} Only 'yes' is a yes: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != "yes":
        raise StoppedEarly(otherwise)


def replaced(drawn: Plan) -> list[str]:
    """What goes or is made anew, for those who do not read the plan."""
    lines = []
    for kind, word in (("replace", "made anew"), ("delete", "taken away")):
        if found := [change.address for change in drawn.changes if change.kind == kind]:
            lines.append(f"{word}: {', '.join(found)}")
    if lost := [change.address for change in drawn.changes if change.loses_data]:
        lines.append(f"with their data: {', '.join(lost)}")
    return lines


def closing_audit(desk: Desk, prices: str | None) -> None:
    """What is left, what it costs, and why; exit code 1 when something nobody asked for costs money."""
    from maskwright.cloud.inspect import audit
    from maskwright.cloud.prices import read_prices

    left = audit.audit(
        desk.google,
        desk.environment,
        wanted=desk.wanted,
        queued=desk.record.queued_zone is not None,
        price=read_prices(prices).find,
    )
    print(left.report())
    if not left.clean:
        raise typer.Exit(1)
