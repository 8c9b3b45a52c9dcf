"""`maskwright env build`, what cloudbuild.yaml runs, and `maskwright env image`, which builds what hosts run."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from maskwright.cli.env import DryRun, EnvironmentFile, PollSeconds, Yes, asking, env
from maskwright.cli.options import AsJson, print_result

ServiceAccount = Annotated[
    str | None,
    typer.Option(
        metavar="EMAIL", help="E-mail of the service account that builds the image; Cloud Build's own when not given."
    ),
]


def _flag(name: str, what: str) -> Any:
    return typer.Option(name, metavar="BOOL", help=f"true applies the action to the {what}.")


@env.command("build")
def build(
    location: EnvironmentFile,
    action: Annotated[
        str, typer.Option("--action", metavar="ACTION", help="What to do: initialize, create, update or destroy.")
    ],
    tpu: Annotated[str, _flag("--tpu", "slice")] = "default",
    mig: Annotated[str, _flag("--mig", "instance group")] = "default",
    disk: Annotated[str, _flag("--disk", "shared disk")] = "default",
    service_account: ServiceAccount = None,
    dry_run: DryRun = False,
) -> None:
    """Run the commands that a row of the older Cloud Build set-up stands for. It ends with the first that fails."""
    from maskwright.cloud.environment import read_environment
    from maskwright.cloud.old_setup import build_table
    from maskwright.core.console import warn

    row = build_table.row_of(action, tpu, mig, disk)
    environment = read_environment(location)
    parts = [part for part in build_table.PARTS if getattr(environment, part) is not None]
    listed = build_table.commands(row, location, parts, service_account)
    if row.disk is None and build_table.FLAGS[disk]:
        warn(build_table.DISK_HAS_NO_PART)
    if dry_run:
        return print("\n".join(f"maskwright env {' '.join(words)}" for words in listed))
    if code := build_table.run(listed):
        raise typer.Exit(code)


@env.command("image")
def image(
    location: EnvironmentFile,
    accelerator: Annotated[
        Literal["cpu", "gpu", "tpu"] | None,
        typer.Option(help="What the hosts compute on; the YAML says when not given."),
    ] = None,
    libtpu: Annotated[
        bool, typer.Option("--libtpu", help="Put libtpu into the image, for a private repository only (docs/tpu.md).")
    ] = False,
    if_missing: Annotated[bool, typer.Option("--if-missing", help="Build nothing if the tag exists already.")] = False,
    source: Annotated[
        str, typer.Option("--source", metavar="PATH", help="Checkout of the repository to build from.")
    ] = ".",
    service_account: ServiceAccount = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    poll_seconds: PollSeconds = 10.0,
    as_json: AsJson = False,
) -> None:
    """Build the image that hosts run, by Cloud Build, into the environment's repository."""
    from maskwright.cloud.environment import read_environment
    from maskwright.cloud.provision import image as module

    if dry_run:
        environment = read_environment(location)
        chosen = accelerator or module.accelerator_of(environment)
        request = module.build_request(
            environment, "SOURCE.tar.gz", chosen, libtpu=libtpu, service_account=service_account
        )
        return print_result("", request, True)
    built = module.build(
        location,
        folder=source,
        accelerator=accelerator,
        libtpu=libtpu,
        if_missing=if_missing,
        service_account=service_account,
        confirm=asking(yes),
        poll_seconds=poll_seconds,
    )
    report = f"{built.name} {built.digest}".rstrip()
    print_result(report, {"image": built.name, "digest": built.digest, "built": built.built}, as_json)
