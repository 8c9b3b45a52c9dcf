"""`maskwright submit PLACE`, with the place's fields as options.

The job is exactly the command that a user would type there."""

from __future__ import annotations

import inspect
import sys
from contextlib import redirect_stdout
from dataclasses import MISSING, asdict, fields
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperGroup

from maskwright.cli import options as common
from maskwright.cli.options import all_overrides, app, as_document, plain
from maskwright.cli.places import PLACES, place
from maskwright.core.console import answer
from maskwright.core.errors import InputError
from maskwright.launch import target
from maskwright.launch.target import Place, Submission, Training

REQUIRED = inspect.Parameter.empty
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and start nothing.")]
Run = Annotated[str, typer.Option("--run", metavar="PATH", help="Run directory there; an existing one is continued.")]
OF_TRAINING: dict[str, tuple[Any, Any]] = {
    "config": (common.Config, REQUIRED),
    "run": (Run, REQUIRED),
    "begin_from": (common.BeginFrom, None),
    "overrides": (common.Set, None),
    "stop_after_hours": (common.StopAfterHours, None),
    "stop_after_steps": (common.StopAfterSteps, None),
    "profile_steps": (common.ProfileSteps, 0),
    "simulated_gpus": (common.SimulatedGpus, None),
    "b_size": (common.BSize, None),
    "datapath": (common.Datapath, None),
    "finetune": (common.Finetune, False),
    "dry_run": (DryRun, False),
    "as_json": (common.AsJson, False),
}


class _PlaceCommands(TyperGroup):
    """A group with one command for each place, made on demand."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(PLACES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command_app = typer.Typer(**plain)
        command_app.command(cmd_name, help=PLACES.get(cmd_name))(_function(cmd_name, place(cmd_name)))
        return typer.main.get_command(command_app)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Places"):
            formatter.write_dl(list(PLACES.items()))


def _function(name: str, kind: type[Place]) -> Any:
    """The command's function, with a signature for typer: the place's arguments, the options of all runs, and the
    place's options."""
    place_fields = _fields(kind)
    shared = {name: given for name, given in OF_TRAINING.items() if name not in kind.leaves_out}

    def submit(**given: Any) -> None:
        spellings = [given.pop(name) for name in ("overrides", "simulated_gpus", "b_size", "datapath")]
        dry_run, finetune = given.pop("dry_run", False), given.pop("finetune", False)
        as_json = given.pop("as_json")
        command = {name: given.pop(name) for name in OF_TRAINING if name in given}
        if finetune and command["begin_from"] is not None:
            raise InputError("is for pretraining", where="--from", fix="name the run as model.init_from instead")
        command |= {"overrides": tuple(all_overrides(*spellings)), "verb": "finetune" if finetune else "pretrain"}
        where, training = _made(kind, given), Training(**command)
        if not as_json:
            return target.submit(where, training, dry_run=dry_run)
        stdout = sys.stdout

        def print_submission(submission: Submission) -> None:
            answer(as_document({"place": name, **asdict(submission)}), stdout)

        with redirect_stdout(sys.stderr):  # where a job that is followed shows its lines
            target.submit(where, training, dry_run=dry_run, on_submission=print_submission)

    arguments = {
        name: _typed(name, *place_fields.pop(name))
        for name in list(place_fields)
        if get_args(place_fields[name][0])[1].argument
    }
    parameters = arguments | shared | {name: _typed(name, *given) for name, given in place_fields.items()}
    submit.__signature__ = _signature(parameters)  # type: ignore[attr-defined]
    return submit


def _fields(kind: type[Place]) -> dict[str, tuple[Any, Any]]:
    """(type hint, default) of each field of a place."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: (hints[field.name], field.default) for field in fields(kind)}  # type: ignore[arg-type]


def _made(kind: Any, given: dict[str, Any]) -> Any:
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


def _signature(parameters: dict[str, tuple[Any, Any]]) -> inspect.Signature:
    return inspect.Signature(
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
            for name, (annotation, default) in parameters.items()
        ]
    )


def _typed(name: str, annotation: Any, default: Any) -> tuple[Any, Any]:
    """`Annotated[kind, Option]` in typer's form."""
    kind, option = get_args(annotation)
    default = REQUIRED if default is MISSING else default
    if option.argument:
        return Annotated[kind, typer.Argument(metavar=option.metavar, help=option.help)], default
    if isinstance(default, tuple):
        kind, default = list[str], list(default)
    words = f"--{name.replace('_', '-')}"
    return Annotated[kind, typer.Option(words, metavar=option.metavar, help=option.help, min=option.min)], default


submit_app = typer.Typer(
    help="Train on other machines. Each place has its own options.", **plain | {"cls": _PlaceCommands}
)
app.add_typer(submit_app, name="submit")
