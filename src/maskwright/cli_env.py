"""The commands of `maskwright env`: a training environment on Google Cloud, from its YAML to nothing left."""

from __future__ import annotations

from typing import Annotated

import typer

from maskwright.cli_options import app, plain

env = typer.Typer(help="A training environment on Google Cloud: made, seeded, watched and taken away.", **plain)
app.add_typer(env, name="env")

EnvironmentFile = Annotated[str, typer.Argument(metavar="ENV", help="YAML of the environment.")]
