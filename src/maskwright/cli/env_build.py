"""The older Cloud Build set-up: `env build`, which cloudbuild.yaml runs, and `env import` of its values.env."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict

from maskwright.cli.env import DryRun, EnvironmentFile, ServiceAccount, env
from maskwright.cli.manual import command
from maskwright.cli.options import AsJson, print_result, stdout_for_document
from maskwright.machine.tpus import TpuKind


@command(env, "build", hidden=True)
def build(
    location: EnvironmentFile,
    action: str,
    tpu: str = "default",
    mig: str = "default",
    disk: str = "default",
    refill: str = "default",
    service_account: ServiceAccount = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Run the commands for an action of the older Cloud Build set-up. Stops at the first failure.

    --action ACTION: What to do: initialize, create, update or destroy.
    --tpu BOOL: true applies the action to the slice.
    --mig BOOL: true applies the action to the instance group.
    --disk BOOL: true applies the action to the shared disk.
    --refill BOOL: true fills the shared disk again from its bucket, even if it is full.
    """
    from maskwright.cloud.environment import read_environment
    from maskwright.cloud.old_setup import build_table
    from maskwright.core.console import say, typed, warn
    from maskwright.core.errors import InputError
    from maskwright.processes.child import CommandSequence, Step

    row = build_table.row_of(action, tpu, mig, disk)
    environment = read_environment(location)
    again = build_table.flag("_REFILL", refill)
    listed, notes = build_table.commands(row, location, environment.hosts, service_account, refill=again)
    if again and not any("--again" in words for words in listed):
        raise InputError("is for update with _DISK=true", where="_REFILL", fix="leave it out")
    for line in notes:
        say(line)
    if row.disk is None and build_table.FLAGS[disk]:
        warn(build_table.DISK_HAS_NO_PART)

    def print_steps(of: Sequence[Step]) -> None:
        image = environment.image or environment.built_image
        value = {"environment": location, "image": image, "steps": [asdict(step) for step in of]}
        print_result("\n".join(step.command for step in of), value, as_json)

    if dry_run:
        return print_steps([Step(typed(words)) for words in listed])
    steps = CommandSequence()
    try:
        with stdout_for_document(as_json):
            build_table.run(listed, steps)
    finally:
        if as_json:
            print_steps(steps.ran)


@command(env, "import", hidden=True)
def import_(
    values: list[str], out: str | None = None, accelerator: TpuKind | None = None, as_json: AsJson = False
) -> None:
    """Turn the older Cloud Build set-up's values.env into an environment, and report what becomes of each variable.

    VALUES: Files to import: values.env, and values.env.auto if there is one.
    out --to PATH: YAML to write. Default: it is printed.
    --accelerator: Kind of TPU, instead of the one in values.env. Default: the nearest to a v2 or v3.
    """
    from maskwright.cloud.old_setup.values_env import import_values, table
    from maskwright.core import output
    from maskwright.core.console import answer, say, typed, warn
    from maskwright.core.errors import InputError
    from maskwright.tasks.importing.shell import read_variables

    if out is not None and os.path.exists(out):
        raise InputError("exists already", where=out, fix="give --to another name, or move the file")
    if out is not None:
        output.require_place(out)
    variables: dict[str, tuple[str, int]] = {}
    for location in values:
        variables = read_variables(location, variables)
    imported = import_values(variables, values[0], accelerator=accelerator)
    if unknown := [row.variable for row in imported.rows if row.fate == "unknown"]:
        warn(f"{', '.join(unknown)}: not a variable of values.env, left out")
    for row in imported.rows:
        if row.key == "slice" and row.reason:
            warn(f"{row.variable}={row.value}: {row.reason}")
    if out is not None:
        with output.writer(out) as file:
            file.write(imported.text.encode())
    if as_json:
        print_result("", imported.as_json(), True)
    elif out is None:
        say(table(imported.rows))
        answer(imported.text.rstrip("\n"))
    else:
        answer(table(imported.rows))
        say(f"{out} is written; review it, then: {typed(['env', 'init', out])}")
