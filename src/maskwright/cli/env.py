"""The commands of `maskwright env`: a training environment on Google Cloud, from its YAML to its deletion."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from maskwright.cli.manual import ManualEntry, command
from maskwright.cli.options import AsJson, app, plain, print_result, stdout_for_document
from maskwright.core.console import answer

if TYPE_CHECKING:
    from maskwright.cloud.provision.commands import Confirm, EnvironmentSession
    from maskwright.cloud.provision.terraform_cli import TerraformPlan

env = typer.Typer(help="Create, seed and delete a training environment on Google Cloud.", **plain)
app.add_typer(env, name="env")

EnvironmentFile = Annotated[str, ManualEntry("ENV", "YAML of the environment.")]
Yes = Annotated[bool, ManualEntry("--yes", "Do not ask for confirmation.")]
DryRun = Annotated[bool, ManualEntry("--dry-run", "Print what would run, and start nothing.")]
DeleteData = Annotated[bool, ManualEntry("--delete-data", "Also delete disks, NFS and buckets with their contents.")]
BUILDS = "E-mail of the service account that builds the image. Default: Cloud Build's own."
ServiceAccount = Annotated[str | None, ManualEntry("--service-account", BUILDS, "EMAIL")]


@command(env, "init")
def init(location: EnvironmentFile, json: AsJson = False) -> None:
    """Prepare the project, and check that its zones offer the machines. Exits with 1 if something is missing."""
    from maskwright.cloud.environment import read_environment
    from maskwright.cloud.google.rest import Google
    from maskwright.cloud.provision import init as task

    environment = read_environment(location)
    outcome = task.init(Google(environment.project), environment)
    print_result(outcome.report(), outcome.to_json(), json)
    if not outcome.ok:
        raise typer.Exit(1)


@command(env, "up")
def up(
    location: EnvironmentFile,
    dry_run: bool = False,
    yes: Yes = False,
    delete_data: DeleteData = False,
    json: AsJson = False,
) -> None:
    """Create what the YAML describes, or change what exists to match it.

    --dry-run: Show what would change, and change nothing. In JSON, `differs` is false if nothing would change.
    """
    from maskwright.cloud.provision import commands

    if dry_run:
        _, planned = commands.plan(location)
        changes = [
            {"address": change.address, "change": change.kind, "loses_data": change.loses_data}
            for change in planned.changes
        ]
        report = "\n".join([planned.text.rstrip(), *replaced(planned)])
        return print_result(report, {"differs": planned.differs, "changes": changes}, json)
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
    """Fill the disk from its bucket, verify it and make it read-only, by a Job in the cluster. Runs `env up` first.

    --again: Fill a new disk in place of the seeded one.
    --replace: Allow a disk of another size or type to replace the existing one.
    --anyway: Copy the bucket even if it holds nothing that a run can read.
    """
    from maskwright.cloud.provision import seed as seeding

    with stdout_for_document(json):
        seeding.seed(location, again=again, replace_disk=replace, anyway=anyway, confirm=asking(yes))
    if json:
        status(location, json=True)


@command(env, "status")
def status(location: EnvironmentFile, json: AsJson = False) -> None:
    """Show the cluster, its nodes and jobs, and the disk."""
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
    """Delete what runs. Keeps and lists the data, unless you give --delete-data.

    --only: Part to delete. slice or group ends its jobs; disk and nfs need --delete-data.
    """
    from maskwright.cloud.provision import commands

    with stdout_for_document(json):
        session = commands.down(location, only=only, delete_data=delete_data, confirm=asking(yes))
    _audit(session, json=json)


@command(env, "audit")
def audit(location: EnvironmentFile, json: AsJson = False) -> None:
    """List what `env up` created and still costs money, and print the command that searches for left-overs."""
    from maskwright.cloud.provision.commands import EnvironmentSession

    _audit(EnvironmentSession(location), json=json)


# ---- shared by the commands ----------------------------------------------------------------------------------------


def _audit(session: EnvironmentSession, *, json: bool) -> None:
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
        raise InputError("cannot ask for confirmation without a terminal", where=where, fix="add --yes")
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
