"""Code that all commands share: their table, common options, and printing."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import Annotated, Any, ClassVar, Literal, TextIO

import typer
from typer.core import TyperArgument, TyperGroup, TyperOption

from maskwright.core import storage
from maskwright.core.console import answer, escaped, lost_terminal_is_no_error, say, warn
from maskwright.core.errors import InputError

PANELS = {
    "Start": ["quickstart", "doctor", "recipes", "schema", "import"],
    "Data": ["text", "tokenizer", "data"],
    "Train": ["pretrain", "finetune", "plan"],
    "Use": ["predict", "embed"],
    "Judge": ["evaluate", "compare", "fill", "export", "verify-resume", "replay", "reproduce"],
    "Watch": ["watch", "status", "logs", "stop", "report", "forward"],
    "Elsewhere": ["submit", "list", "env", "image"],
}
"""The commands in the order in which users need them, as in the main help."""

TyperArgument.display_type_rich = lambda self, ctx: None  # type: ignore[method-assign] # typer prints CONFIG <str>


def _usage(argument: Any, ctx: Any) -> list[str]:
    """Usage as in shells' manuals; typer puts braces around required arguments, as if they were choices."""
    name = argument.metavar or argument.name.upper()
    return [(name if argument.required else f"[{name}]") + "..." * (argument.nargs != 1)]


TyperArgument.get_usage_pieces = _usage  # type: ignore[assignment,method-assign]
_process_value = TyperOption.process_value


def _process_number(option: Any, ctx: Any, value: Any) -> Any:
    """Parses a number like typer, but strictly: pydantic reads 2.000 as 2, and some countries as two thousand.
    Raises `InputError` unless it is a number in the option's range."""
    kind = getattr(getattr(option, "type_descriptor", None), "annotation", None)  # typer before 0.29 asked click
    try:
        processed = _process_value(option, ctx, value)
        return int(value) if kind is int and isinstance(value, str) else processed
    except (typer.BadParameter, ValueError):
        if kind not in (int, float):
            raise
        from maskwright.config.settings import no_number, takes  # pydantic, which `--help` need not wait for

        schema = {"type": "integer" if kind is int else "number", "minimum": option.min, "maximum": option.max}
        schema = {key: limit for key, limit in schema.items() if limit is not None}
        where, fix = f"{ctx.command_path} {option.opts[0]}", f"give {takes(schema)}{no_number(value, schema)}"
        raise InputError(f"is {value!r}", where=where, fix=fix) from None


TyperOption.process_value = _process_number  # type: ignore[assignment,method-assign]


class Commands(TyperGroup):
    """A group whose help has each command's first sentence in full; typer's cuts it to fit the line."""

    panels: ClassVar[dict[str, list[str]]] = {}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As typer does. Raises `InputError` for another program's name of a command."""
        from maskwright.config.foreign_names import COMMANDS

        if args[0] not in self.commands and (advice := COMMANDS.get(args[0].lower().replace("-", "_"))):
            raise InputError(f"no command {args[0]}", where=ctx.command_path, fix=advice)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, names in (self.panels or {"Commands": list(self.commands)}).items():
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(limit=200)) for name in names])


class Main(Commands):
    panels = PANELS


plain: dict[str, Any] = {"rich_markup_mode": None, "no_args_is_help": True, "add_completion": False, "cls": Commands}
app = typer.Typer(
    name="maskwright",
    help="Train text encoders from raw text, and prove every export.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},  # the commands below take them over
    **plain | {"add_completion": True, "cls": Main},
)
text_app = typer.Typer(help="Look at raw text before it is used.", **plain)
tokenizer_app = typer.Typer(help="Train a tokenizer and see how it does.", **plain)
data_app = typer.Typer(help="Turn text into a token store, and check one.", **plain)
app.add_typer(text_app, name="text")
app.add_typer(tokenizer_app, name="tokenizer")
app.add_typer(data_app, name="data")

SourceFiles = Annotated[list[str], typer.Argument(metavar="SRC", help="Files, folders, globs or URLs of text.")]
Layout = Annotated[
    Literal["auto", "file", "sentences", "lines"],
    typer.Option(
        help="A document of plain text is a file, the sentences between blank lines, or a line; auto decides."
    ),
]
TextColumn = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="Key or column that holds the text. For CSV without a header line, its number from 0."
    ),
]
OnBadInput = Annotated[
    Literal["error", "replace", "skip"],
    typer.Option(
        help="Bytes and files that do not decode, broken records and empty files: stop, replace bytes, or skip them."
    ),
]
Encoding = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="Encoding of the text, by a name of Python's codecs, such as cp1252, shift_jis or utf-16."
    ),
]
EncodingOfFile = Annotated[
    str | None,
    typer.Option(
        "--encoding",
        metavar="NAME",
        help="Encoding of the file, such as cp1252 or shift_jis. Default: the run's, or UTF-8.",
    ),
]
Letters = Annotated[
    Literal["upper", "keep", "plain"],
    typer.Option(
        help="Letters of FASTA and FASTQ: capitals, as they are, or capitals and cut at any that is not A, C, G or T."
    ),
]
MaxBytes = Annotated[
    int,
    typer.Option(
        metavar="N", help="Bytes of text to learn from; of a larger text, documents chosen by a hash of it.", min=1
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
AsSchema = Annotated[bool, typer.Option("--json", help="No effect: the output is JSON in any case.")]
To = Annotated[str, typer.Option("--to", metavar="PATH", help="Folder to write.", callback=storage.require_local)]
Store = Annotated[str, typer.Argument(metavar="STORE", help="Token store folder.")]
Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="Run directory, Hugging Face folder, or hf://OWNER/NAME@REVISION.")
]
Config = Annotated[
    str, typer.Argument(metavar="CONFIG", help="YAML of the run, or the name of a recipe, such as small.")
]
Finetune = Annotated[bool, typer.Option("--finetune", help="CONFIG is of `maskwright finetune`.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key of CONFIG, as in --set schedule.steps=100."),
]
BeginFrom = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="RUN[@STEP]",
        help="Begin a new run from this run's checkpoint: its newest, or that of a step.",
    ),
]
FreshOptimizer = Annotated[
    bool,
    typer.Option("--fresh-optimizer", help="Only with --from: take the weights, and not the optimizer's state."),
]
StopAfterHours = Annotated[
    float | None,
    typer.Option(metavar="N", help="Save and end after this many hours over all restarts (exit 76).", min=0.0),
]
StopAfterSteps = Annotated[
    int | None,
    typer.Option(metavar="N", help="Save and end after this many steps over all restarts (exit 76).", min=1),
]
ProfileSteps = Annotated[int, typer.Option(metavar="N", help="Trace this many early steps into RUN/profile.", min=0)]
SimulatedGpus = Annotated[int | None, typer.Option("--simulated-gpus", "--simulated_gpus", hidden=True, min=1)]
BSize = Annotated[int | None, typer.Option("--b-size", "--b_size", hidden=True, min=1)]
Datapath = Annotated[str | None, typer.Option("--datapath", hidden=True)]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Address of the Ray head. Default: RAY_API_SERVER_ADDRESS, else http://127.0.0.1:8265.",
    ),
]
Device = Annotated[Literal["auto", "cpu", "cuda", "mps"], typer.Option(help="Device to compute on.")]


def all_overrides(
    set_: list[str] | None, simulated_gpus: int | None, b_size: int | None, datapath: str | None
) -> list[str]:
    """`--set`, and options that are other spellings of it, as `KEY=VALUE`."""
    spelt = {"batch.virtual_workers": simulated_gpus, "batch.micro_batch_rows": b_size, "data.store": datapath}
    return [*(set_ or []), *(f"{key}={value}" for key, value in spelt.items() if value is not None)]


JSON_VERSION = 1
"""Version of all answers and errors in JSON (docs/json.md): under the same number a field may be added, and none is
renamed or removed."""


def print_result(report: str, value: Mapping[str, Any], as_json: bool) -> None:
    """Prints a command's answer: the report for people, or `value` and the version for programs."""
    answer(as_document(value) if as_json else report)


@contextmanager
def stdout_for_document(as_json: bool) -> Iterator[TextIO]:
    """With `as_json`, sends all output of this process and its children to stderr meanwhile. Yields stdout."""
    if not as_json:
        yield sys.stdout
        return
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        documents = os.fdopen(kept, "w", encoding=sys.stdout.encoding, errors="replace", closefd=False)
        try:
            with redirect_stdout(sys.stderr):
                yield documents
        finally:
            with lost_terminal_is_no_error():  # closing tries once more to write, to a reader that may have gone
                documents.close()
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def require_alone(as_json: bool, others: Mapping[str, object]) -> None:
    """Checks `AsSchema`. Raises `InputError` if another option was given as well."""
    for option in [name for name, value in others.items() if value and as_json]:
        raise InputError("asks for something other than JSON", where=option, fix="leave it out, or --json")


def as_document(value: Mapping[str, Any]) -> str:
    assert "version" not in value
    return in_json({"version": JSON_VERSION, **value})


def as_line(value: Mapping[str, Any]) -> str:
    return escaped(json.dumps({"version": JSON_VERSION, **value}, ensure_ascii=False))


def in_json(value: Any) -> str:
    return escaped(json.dumps(value, ensure_ascii=False, indent=2))


def open_sources(files: list[str], layout: Any, text_column: str, **reading: Any) -> Any:
    """`reading`: `encoding`, and `on_bad_input` and `letters` of commands that take them."""
    from maskwright.text.sources import Sources

    counter = itertools.count(1)

    def on_fault(fault: Any) -> None:
        if (number := next(counter)) <= 10:
            warn(f"{fault.where}: {fault.what}" + ("; more are not shown, `text audit` counts them" * (number == 10)))

    sources = Sources(files, layout=layout, text_column=text_column, on_fault=on_fault, **reading)
    for sentence in sources.notes:
        say(sentence)
    return sources
