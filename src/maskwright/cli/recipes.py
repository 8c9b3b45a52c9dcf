"""`maskwright recipes`."""

from __future__ import annotations

from typing import Annotated

import typer

from maskwright.cli.manual import command
from maskwright.cli.options import AS_JSON, AsJson, app, plain, print_result

recipes = typer.Typer(**plain | {"no_args_is_help": False})
app.add_typer(recipes, name="recipes")


@recipes.callback(invoke_without_command=True)
def list_(context: typer.Context, as_json: Annotated[bool, AS_JSON.as_typer(bool)] = False) -> None:
    """List the configurations that come with the package; `recipes show NAME` prints one."""
    from maskwright.config import recipes as config

    if context.invoked_subcommand:
        return
    found = {kind: {name: config.purpose(name) for name in config.names(kind)} for kind in config.TAKEN_BY}
    sections = []
    for kind, purposes in found.items():
        wide = max(map(len, purposes))
        lines = [f"  {name:{wide}}  {purpose}" for name, purpose in purposes.items()]
        sections.append("\n".join([f"maskwright {kind} NAME --run RUN", *lines]))
    rows = [
        {"name": name, "command": kind, "purpose": said} for kind, all_ in found.items() for name, said in all_.items()
    ]
    print_result("\n\n".join(sections), {"recipes": rows}, as_json)


@command(recipes, "show")
def show(name: str, as_json: AsJson = False) -> None:
    """Print a recipe's YAML, to begin one of your own with.

    NAME: Name of a recipe, such as small.
    """
    from maskwright.config import recipes as config

    text = config.read(name)
    print_result(text.rstrip(), {"name": name, "yaml": text}, as_json)
