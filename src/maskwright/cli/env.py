"""The commands of `maskwright env`: a training environment on Google Cloud, from its YAML to its deletion."""

from __future__ import annotations

import sys
from json import dumps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maskwright.cli.options import (
    AsJson,
    AsSchema,
    app,
    plain,
    print_result,
    require_alone,
    stdout_for_document,
)
from maskwright.core.console import answer
from maskwright.core.shell import typed

if TYPE_CHECKING:
    from maskwright.cloud.environment import Environment
    from maskwright.cloud.google.rest import Google
    from maskwright.cloud.provision.commands import Confirm
    from maskwright.cloud.provision.terraform_cli import TerraformPlan
    from maskwright.cloud.record import EnvironmentRecord

env = typer.Typer(help="Create, seed, watch and delete a training environment on Google Cloud.", **plain)
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
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be run, and start nothing.")]
DeleteData = Annotated[
    bool, typer.Option("--delete-data", help="Also delete disks, NFS and buckets, with what is on them.")
]
Prices = Annotated[
    str | None,
    typer.Option(
        "--prices",
        metavar="PATH",
        help="YAML with your own prices. Default: the built-in table, which `env prices` prints.",
    ),
]
PollSeconds = Annotated[float, typer.Option(metavar="N", help="Seconds between two polls.", min=0.01)]
LockTimeoutSeconds = Annotated[
    float, typer.Option(metavar="N", help="Seconds to wait for another command's lock on the state.", min=0.0)
]


ServiceAccount = Annotated[
    str | None,
    typer.Option(
        metavar="EMAIL", help="E-mail of the service account that builds the image. Default: Cloud Build's own."
    ),
]


@env.command("schema")
def schema(
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the page of the documentation instead.")
    ] = False,
    json: AsSchema = False,
) -> None:
    """Print the JSON schema of an environment's YAML, for editors."""
    from maskwright.cli.pages import environment_page
    from maskwright.cloud.environment import Environment

    require_alone(json, {"--markdown": as_markdown})
    answer(environment_page().rstrip() if as_markdown else dumps(Environment.model_json_schema(), indent=2))


@env.command("init")
def init(location: EnvironmentFile, json: AsJson = False) -> None:
    """Prepare the project; check permissions, quota and capacity. Exit code 1 if something is missing."""
    from maskwright.cloud.environment import read_environment
    from maskwright.cloud.google.rest import Google
    from maskwright.cloud.provision import init as task

    environment = read_environment(location)
    outcome = task.init(Google(environment.project), environment)
    print_result(outcome.report(), outcome.to_json(), json)
    if not outcome.ok:
        raise typer.Exit(1)


@env.command("plan")
def plan(
    location: EnvironmentFile,
    only: Only = None,
    prices: Prices = None,
    detailed_exitcode: Annotated[
        bool,
        typer.Option(
            "--detailed-exitcode", help="Exit as Terraform does: 0 for no changes, 1 for an error, 2 for changes."
        ),
    ] = False,
    lock_timeout_seconds: LockTimeoutSeconds = 60.0,
    json: AsJson = False,
) -> None:
    """Show what `env up` would do and what it costs. Changes nothing."""
    from maskwright.cloud.prices import estimate, read_prices, table
    from maskwright.cloud.provision import commands

    known = read_prices(prices)
    session, planned = commands.plan(location, parts=parts(only), lock_timeout_seconds=lock_timeout_seconds)
    cost = estimate(session.environment, known, session.record.placement)
    changes = [
        {"address": change.address, "change": change.kind, "loses_data": change.loses_data}
        for change in planned.changes
    ]
    while_up = ["", f"While everything in {location} is up:", table(cost)]
    report = "\n".join([planned.text.rstrip(), *replaced(planned), *while_up])
    print_result(report, {"differs": planned.differs, "changes": changes, "cost": cost.as_json()}, json)
    if detailed_exitcode and planned.differs:
        raise typer.Exit(2)


@env.command("up")
def up(
    location: EnvironmentFile,
    only: Only = None,
    yes: Yes = False,
    delete_data: DeleteData = False,
    lock_timeout_seconds: LockTimeoutSeconds = 60.0,
    json: AsJson = False,
) -> None:
    """Create what the YAML asks for, or change what exists accordingly."""
    from maskwright.cloud.environment import read_environment
    from maskwright.cloud.prices import estimate, read_prices
    from maskwright.cloud.provision import commands
    from maskwright.core.console import say

    cost = estimate(read_environment(location), read_prices())
    for line in (f"about {cost.hourly:,.2f} USD an hour while all of it is up (`env prices`)", *cost.unpriced.values()):
        say(line)
    with stdout_for_document(json):
        commands.up(
            location,
            parts=parts(only),
            confirm=asking(yes),
            delete_data=delete_data,
            lock_timeout_seconds=lock_timeout_seconds,
        )
    if json:
        status(location, json=True)


@env.command("seed")
def seed(
    location: EnvironmentFile,
    again: Annotated[bool, typer.Option("--again", help="Seed a new disk, which replaces the seeded one.")] = False,
    move_hosts: Annotated[
        bool,
        typer.Option(
            "--move-hosts",
            help="Replace the disk even if hosts have it; they are recreated with the new one.",
        ),
    ] = False,
    anyway: Annotated[bool, typer.Option("--anyway", help="Copy the bucket even if no run can read it.")] = False,
    yes: Yes = False,
    poll_seconds: PollSeconds = 10.0,
    lock_timeout_seconds: LockTimeoutSeconds = 60.0,
    json: AsJson = False,
) -> None:
    """Fill the disk from its bucket, on a machine that is deleted afterwards; then the disk is read-only."""
    from maskwright.cloud.provision import commands
    from maskwright.cloud.provision import seed as seeding
    from maskwright.core.console import say

    with stdout_for_document(json):
        ask, wait = asking(yes), lock_timeout_seconds
        moving = seeding.hosts_to_move(location, again) if move_hosts else []
        if moving:
            say(f"{' and '.join(moving)}: deleted first, then recreated with the new disk")
            commands.down(location, parts=moving, confirm=ask, lock_timeout_seconds=wait)
        try:
            seeding.seed(
                location,
                again=again,
                move_hosts=move_hosts,
                anyway=anyway,
                confirm=ask,
                poll_seconds=poll_seconds,
                lock_timeout_seconds=wait,
            )
        except BaseException:
            if moving:
                up_again = f"`{typed(['env', 'up', location])}` recreates the hosts, once the disk is seeded"
                say(f"{' and '.join(moving)}: deleted; {up_again}")
            raise
        if moving:
            commands.up(location, parts=moving, confirm=ask, lock_timeout_seconds=wait)
    if json:
        status(location, json=True)


@env.command("status")
def status(location: EnvironmentFile, json: AsJson = False, prices: Prices = None) -> None:
    """Show what exists, what it costs, and the disk."""
    from maskwright.cloud.prices import read_prices
    from maskwright.cloud.report import status as task

    report = task.read(location, read_prices(prices).find)
    print_result(report.report(), report.to_json(), json)


@env.command("down")
def down(
    location: EnvironmentFile,
    only: Only = None,
    delete_data: DeleteData = False,
    yes: Yes = False,
    prices: Prices = None,
    lock_timeout_seconds: LockTimeoutSeconds = 60.0,
    json: AsJson = False,
) -> None:
    """Delete what runs. Data is kept, and listed with its cost, unless you give --delete-data."""
    from maskwright.cloud.provision import commands

    with stdout_for_document(json):
        session = commands.down(
            location,
            parts=parts(only),
            delete_data=delete_data,
            confirm=asking(yes),
            lock_timeout_seconds=lock_timeout_seconds,
        )
    _audit(session.google, session.environment, session.wanted, session.record, prices, json=json)


@env.command("audit")
def audit(location: EnvironmentFile, json: AsJson = False, prices: Prices = None) -> None:
    """List all that exists, what costs money, and why. Exit code 1 if a leftover costs money."""
    from maskwright.cloud import record
    from maskwright.cloud.environment import read_environment
    from maskwright.cloud.google.rest import Google

    environment = read_environment(location)
    wanted, known = record.wanted(environment), record.read(environment)
    _audit(Google(environment.project), environment, wanted, known, prices, json=json)


@env.command("prices")
def prices(
    environment: Annotated[
        str | None,
        typer.Argument(metavar="[ENV]", help="YAML of the environment to price. Without it, the table is printed."),
    ] = None,
    prices: Prices = None,
    as_json: AsJson = False,
) -> None:
    """Print the dated price table, which you may edit, or what an environment costs by it."""
    from maskwright.cloud import prices as module
    from maskwright.cloud.environment import read_environment

    known = module.read_prices(prices)
    if environment is None:
        if as_json:
            return print_result("", known.model_dump(mode="json", exclude_none=True), True)
        with open(prices or module.TABLE, encoding="utf-8") as file:
            return answer(file.read().rstrip("\n"))
    costs = module.estimate(read_environment(environment), known)
    print_result(module.table(costs), costs.as_json(), as_json)


# ---- shared by the commands ----------------------------------------------------------------------------------------


def _audit(
    google: Google, environment: Environment, wanted: Any, known: EnvironmentRecord, prices: str | None, json: bool
) -> None:
    """Print what exists, what it costs, and why. Exit code 1 if something unwanted costs money."""
    from maskwright.cloud.prices import read_prices
    from maskwright.cloud.report import audit

    queued, price = known.queued_zone is not None, read_prices(prices).find
    audited = audit.audit(google, environment, wanted=wanted, queued=queued, price=price)
    print_result(audited.report(), audited.to_json(), json)
    if not audited.clean:
        raise typer.Exit(1)


def parts(only: list[str] | None) -> tuple[str, ...]:
    from maskwright.cloud.provision.variables import PARTS
    from maskwright.core.errors import InputError

    if wrong := [name for name in only or () if name not in PARTS]:
        raise InputError(f"{wrong[0][:40]!r} is not a part", where="--only", fix=f"one of {', '.join(PARTS)}")
    return tuple(dict.fromkeys(only or ()))


def asking(yes: bool) -> Confirm:
    """A function that shows a plan on stderr and asks for confirmation, once for each plan."""

    def confirm(planned: TerraformPlan) -> None:
        from maskwright.core.console import say

        for line in [*planned.text.rstrip().splitlines(), *replaced(planned)]:
            say(line)
        if not yes:
            require_yes("Do this?", "env", "nothing was changed")

    return confirm


def require_yes(question: str, where: str, otherwise: str) -> None:
    """Ask on the terminal. Raises `InputError` without a terminal, and `StoppedEarly` for any answer but yes."""
    from maskwright.core.errors import InputError, StoppedEarly

    if not sys.stdin.isatty():
        raise InputError("cannot ask for confirmation without a terminal", where=where, fix="--yes skips it")
    answer(f"{question} Only 'yes' is a yes: ", sys.stderr, end="")
    if sys.stdin.readline().strip() != "yes":
        raise StoppedEarly(otherwise)


def replaced(planned: TerraformPlan) -> list[str]:
    """Lines about parts that are deleted or replaced, for users who do not read the plan."""
    lines = []
    for kind, word in (("replace", "replaced"), ("delete", "deleted")):
        if addresses := [change.address for change in planned.changes if change.kind == kind]:
            lines.append(f"{word}: {', '.join(addresses)}")
    lost = [change for change in planned.changes if change.loses_data]
    for days in sorted({change.restorable_days for change in lost}):
        fate = (
            f"which Google keeps for {days:g} days (soft delete)" if days else "which is gone at once, old versions too"
        )
        addresses = [change.address for change in lost if change.restorable_days == days]
        lines.append(f"with their data, {fate}: {', '.join(addresses)}")
    return lines
