"""`maskwright env import values.env` and `maskwright env prices`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from maskwright.cli.env import Prices, env
from maskwright.cli.options import AsJson, print_result
from maskwright.cloud.machines import TpuKind


@env.command("import")
def import_(
    values: Annotated[
        list[str],
        typer.Argument(metavar="VALUES…", help="Files to import: values.env, and values.env.auto if there is one."),
    ],
    out: Annotated[
        str | None, typer.Option("--out", metavar="PATH", help="YAML to write; it is printed when not given.")
    ] = None,
    accelerator: Annotated[
        TpuKind | None, typer.Option(help="Kind of TPU to take; v2 and v3 have no successor by name.")
    ] = None,
    with_group: Annotated[bool, typer.Option("--with-group", help="Keep the instance group beside the slice.")] = False,
    as_json: AsJson = False,
) -> None:
    """Turn the older Cloud Build set-up's values.env into an environment, and say what became of each variable."""
    from maskwright.cloud.old_setup.shell_file import read_variables
    from maskwright.cloud.old_setup.values_env import import_values, table
    from maskwright.core import storage
    from maskwright.core.console import say, warn
    from maskwright.core.errors import InputError

    if out is not None and os.path.exists(out):
        raise InputError("is there already", where=out, fix="give --out another name, or move the file away")
    given = {name: variable for location in values for name, variable in read_variables(location).items()}
    imported = import_values(given, values[0], accelerator=accelerator, with_group=with_group)
    if unknown := [row.variable for row in imported.rows if row.fate == "unknown"]:
        warn(f"{', '.join(unknown)}: no variable of values.env, left out")
    if imported.offers:
        warn(f"slice is null until you choose: {'; '.join(imported.offers)}")
    if out is not None:
        with storage.atomic_writer(out) as file:
            file.write(imported.text.encode())
    if as_json:
        print_result("", imported.as_json(), True)
    elif out is None:
        say(table(imported.rows))
        print(imported.text, end="")
    else:
        print(table(imported.rows))
        say(f"{out} is written; look through it, then: maskwright env init {out}")


@env.command("prices")
def prices(
    environment: Annotated[
        str | None,
        typer.Argument(metavar="[ENV]", help="YAML of the environment to price; the table is printed when not given."),
    ] = None,
    prices: Prices = None,
    as_json: AsJson = False,
) -> None:
    """Print the dated table of prices, which you may edit, or what an environment costs by it."""
    from maskwright.cloud import prices as module
    from maskwright.cloud.environment import read_environment

    known = module.read_prices(prices)
    if environment is None:
        if as_json:
            return print_result("", known.model_dump(mode="json", exclude_none=True), True)
        with open(prices or module.TABLE, encoding="utf-8") as file:
            return print(file.read(), end="")
    costs = module.estimate(read_environment(environment), known)
    print_result(module.table(costs), costs.as_json(), as_json)
