"""The commands of `maskwright env`: a training environment on Google Cloud, from its YAML to its deletion."""

from __future__ import annotations

import sys
from json import dumps
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from maskwright.cli.manual import ManualEntry, command
from maskwright.cli.options import (
    AsJson,
    AsSchema,
    app,
    plain,
    print_result,
    stdout_for_document,
)
from maskwright.core.console import answer

if TYPE_CHECKING:
    from maskwright.cloud.provision.commands import Confirm, EnvironmentSession
    from maskwright.cloud.provision.terraform_cli import TerraformPlan

env = typer.Typer(help="Create, seed and delete a training environment on Google Cloud.", **plain)
app.add_typer(env, name="env")

EnvironmentFile = Annotated[str, ManualEntry("ENV", "YAML of the environment.")]
Yes = Annotated[bool, ManualEntry("--yes", "Do not ask.")]
DryRun = Annotated[bool, ManualEntry("--dry-run", "Print what would run, without starting anything.")]
DeleteData = Annotated[bool, ManualEntry("--delete-data", "Also delete disks, NFS and buckets, with their contents.")]
BUILDS = "E-mail of the service account that builds the image. Default: Cloud Build's own."
ServiceAccount = Annotated[str | None, ManualEntry("--service-account", BUILDS, "EMAIL")]


@command(env, "schema")
def schema(
    as_markdown: bool = False,
    json: AsSchema = False,
) -> None:
    """Print the JSON schema of an environment's YAML, for editors.

    as_markdown --markdown (no --json): Print the page of the documentation instead.
    """
    from maskwright.cli.pages import environment_page
    from maskwright.cloud.environment import Environment

    answer(environment_page().rstrip() if as_markdown else dumps(Environment.model_json_schema(), indent=2))


@command(env, "init")
def init(
    location: EnvironmentFile,
    json: AsJson = False,
) -> None:
    """Prepare the project; check that the zones offer its machines. Exit code 1 if something is missing."""
    from maskwright.cloud.environment import read_environment
    from maskwright.cloud.google.rest import Google
    from maskwright.cloud.provision import init as task

    environment = read_environment(location)
    outcome = task.init(Google(environment.project), environment)
    print_result(outcome.report(), outcome.to_json(), json)
    if not outcome.ok:
        raise typer.Exit(1)


@command(env, "plan")
def plan(
    location: EnvironmentFile,
    detailed_exitcode: bool = False,
    json: AsJson = False,
) -> None:
    """Show what `env up` would do. Changes nothing.

    --detailed-exitcode: Exit like Terraform: 0 for no changes, 1 for an error, 2 for changes.
    """
    from maskwright.cloud.provision import commands

    _, planned = commands.plan(location)
    changes = [
        {"address": change.address, "change": change.kind, "loses_data": change.loses_data}
        for change in planned.changes
    ]
    report = "\n".join([planned.text.rstrip(), *replaced(planned)])
    print_result(report, {"differs": planned.differs, "changes": changes}, json)
    if detailed_exitcode and planned.differs:
        raise typer.Exit(2)


@command(env, "up")
def up(
    location: EnvironmentFile,
    yes: Yes = False,
    delete_data: DeleteData = False,
    json: AsJson = False,
) -> None:
    """Create what the YAML asks for, or change what exists accordingly."""
    from maskwright.cloud.provision import commands

    with stdout_for_document(json):
        commands.up(location, confirm=asking(yes), delete_data=delete_data)
    if json:
        status(location, json=True)


@command(env, "seed")
def seed(
    location: EnvironmentFile,
    again: bool = False,
    replace: bool = False,
    anyway: bool = False,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Fill the disk by a Job in the cluster, which verifies it; then the disk is read-only. Runs `env up` first.

    --again: Seed a new disk, which replaces the seeded one.
    --replace: Let a disk of another size or type replace the one that exists.
    --anyway: Copy the bucket even if no run could read it.
    """
    from maskwright.cloud.provision import seed as seeding

    with stdout_for_document(json):
        seeding.seed(
            location,
            again=again,
            replace_disk=replace,
            anyway=anyway,
            confirm=asking(yes),
        )
    if json:
        status(location, json=True)


@command(env, "status")
def status(
    location: EnvironmentFile,
    json: AsJson = False,
) -> None:
    """Show the cluster with its nodes and jobs, and the disk."""
    from maskwright.cloud.report import status as task

    report = task.read(location)
    print_result(report.report(), report.to_json(), json)


@command(env, "down")
def down(
    location: EnvironmentFile,
    only: Literal["slice", "group", "disk", "nfs"] | None = None,
    delete_data: DeleteData = False,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Delete what runs. Data is kept, and listed, unless you give --delete-data.

    --only: Part to delete: slice or group ends its jobs; disk and nfs need --delete-data.
    """
    from maskwright.cloud.provision import commands

    with stdout_for_document(json):
        session = commands.down(
            location,
            only=only,
            delete_data=delete_data,
            confirm=asking(yes),
        )
    _audit(session, json=json)


@command(env, "audit")
def audit(
    location: EnvironmentFile,
    json: AsJson = False,
) -> None:
    """List what costs money of all that `env up` created, and the command that searches for left-overs."""
    from maskwright.cloud.provision.commands import EnvironmentSession

    _audit(EnvironmentSession(location), json=json)


# ---- shared by the commands ----------------------------------------------------------------------------------------


def _audit(session: EnvironmentSession, *, json: bool) -> None:
    """Print what exists and costs money."""
    from maskwright.cloud.report import audit

    with session.terraform.ready():
        resources = session.terraform.resources()
    audited = audit.audit(session.environment, resources)
    print_result(audited.report(), audited.to_json(), json)


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
    """Ask on the terminal. Raises `InputError` without a terminal, and `EndedAsAsked` for any answer but yes."""
    from maskwright.core.errors import EndedAsAsked, InputError

    if not sys.stdin.isatty():
        raise InputError("cannot ask for confirmation without a terminal", where=where, fix="--yes skips it")
    answer(f"{question} Only 'yes' is a yes: ", sys.stderr, end="")
    if sys.stdin.readline().strip() != "yes":
        raise EndedAsAsked(otherwise)


def replaced(planned: TerraformPlan) -> list[str]:
    """Lines about parts that are deleted or replaced, for users who do not read the plan."""
    lines = []
    for kind, word in (("replace", "replaced"), ("delete", "deleted")):
        if addresses := [change.address for change in planned.changes if change.kind == kind]:
            lines.append(f"{word}: {', '.join(addresses)}")
    if lost := [change.address for change in planned.changes if change.loses_data]:  # buckets have no soft delete
        lines.append(f"with their data, which is gone at once, old versions too: {', '.join(lost)}")
    return lines
