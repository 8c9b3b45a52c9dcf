"""`maskwright submit PLACE`, with the place's fields as options.

The job is exactly the command that a user would type there."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from typing import Any

import typer

from maskwright.cli.manual import put
from maskwright.cli.options import AsJson, CommandGroup, OldNames, app, as_document, plain
from maskwright.cli.places import PLACES, place
from maskwright.core.console import answer
from maskwright.launch import target
from maskwright.launch.target import Place, Submission, Training

HIDDEN = frozenset({"slice"})
"""Places that only scripts of older set-ups name."""


class _PlaceCommands(CommandGroup):
    """A group with one command for each place, made on demand."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(PLACES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command_app = typer.Typer(**plain)
        kind, hidden = place(cmd_name), cmd_name in HIDDEN
        put(command_app, cmd_name, _function(cmd_name, kind), kind.leaves_out, hidden=hidden)
        return typer.main.get_command(command_app)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Places"):
            formatter.write_dl([(name, help_) for name, help_ in PLACES.items() if name not in HIDDEN])


def _function(name: str, kind: type[Place]) -> Any:
    """The command's function, with the arguments and options of the place's class."""

    def submit(
        where: Any, training: Training, old_names: OldNames = OldNames(), dry_run: bool = False, as_json: AsJson = False
    ) -> None:
        training = replace(training, overrides=old_names.added_to(training.overrides))
        if not as_json:
            return target.submit(where, training, dry_run=dry_run)
        stdout = sys.stdout

        def print_submission(submission: Submission) -> None:
            answer(as_document({"place": name, **asdict(submission)}), stdout)

        with redirect_stdout(sys.stderr):  # since a followed job shows its lines
            target.submit(where, training, dry_run=dry_run, on_submission=print_submission)

    submit.__doc__ = f"""{PLACES[name]}

--dry-run: Print what would be submitted, and start nothing."""
    submit.__annotations__["where"] = kind
    return submit


submit_app = typer.Typer(
    help="Train on other machines. Each place has its own options.", **plain | {"cls": _PlaceCommands}
)
app.add_typer(submit_app, name="submit")
