"""Code that all commands share: their table, common options, and printing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Literal, TextIO

import typer
from typer.core import TyperGroup

from maskwright.cli.manual import ManualEntry
from maskwright.core import storage
from maskwright.core.console import answer, escaped, is_option, lost_terminal_is_no_error, say
from maskwright.core.errors import InputError

PANELS = {
    "Start": ["quickstart", "doctor", "recipes", "schema", "import"],
    "Data": ["data", "tokenizer"],
    "Train": ["pretrain", "finetune", "plan"],
    "Use": ["predict", "embed", "fill", "export"],
    "Evaluate": ["evaluate", "compare"],
    "Verify": ["verify-resume"],
    "Watch": ["watch", "status", "logs", "stop", "report", "sync"],
    "Elsewhere": ["submit", "env", "image"],
}
"""The commands in the order in which users need them, as in the main help."""


class CommandGroup(TyperGroup):
    """A group that shows its help when it is typed without a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            say(ctx.get_help())
            raise typer.Exit(InputError.exit_code)
        return super().parse_args(ctx, args)


class Commands(CommandGroup):
    """A group whose help has each command's first sentence in full; typer's cuts it to fit the line."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As typer does. Raises `InputError` for an unknown command."""
        if args[0] not in self.commands and not is_option(args[0]):
            from maskwright.config.foreign_names import COMMANDS

            near = get_close_matches(args[0], self.commands, 1)
            known = f"did you mean {near[0]}?" if near else f"see `{ctx.command_path} --help`"
            name = args[0].lower().replace("-", "_")
            within = ctx.command_path.partition(" ")[2]
            advice = COMMANDS.get(f"{within} {name}".strip()) or COMMANDS.get(name) or known
            raise InputError(f"no command {args[0]}", where=ctx.command_path, fix=advice)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        visible = [name for name, command in self.commands.items() if not command.hidden]
        for title, names in (PANELS if ctx.parent is None else {"Commands": visible}).items():
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(limit=200)) for name in names])


plain: dict[str, Any] = {"rich_markup_mode": None, "no_args_is_help": True, "add_completion": False, "cls": Commands}
app = typer.Typer(
    name="maskwright",
    help="Train text encoders from raw text, and prove every export.",
    epilog="\b\nFirst steps:\n  maskwright quickstart\n  maskwright recipes\n  maskwright COMMAND --help",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},  # the commands below take them over
    **plain | {"add_completion": True},
)
tokenizer_app = typer.Typer(help="Train, extend, trim and inspect tokenizers.", **plain)
data_app = typer.Typer(help="Audit text, turn it into a token store, and inspect, check and copy stores.", **plain)
app.add_typer(tokenizer_app, name="tokenizer")
app.add_typer(data_app, name="data")

AS_JSON = ManualEntry("--json", "Print JSON on stdout.")
AsJson = Annotated[bool, AS_JSON]
To = Annotated[str, typer.Option("--to", metavar="PATH", help="Folder to write.", callback=storage.require_local)]
SourceFiles = Annotated[list[str], ManualEntry("SRC", "Files, folders, globs or URLs of text.")]
Store = Annotated[str, ManualEntry("STORE", "Token store folder.")]
Model = Annotated[str, ManualEntry("MODEL", "Run directory, Hugging Face folder, or hf://OWNER/NAME@REVISION.")]
Config = Annotated[str, ManualEntry("CONFIG", "YAML of the run, or the name of a recipe, such as small.")]
SET = ManualEntry("--set", "Override a key of CONFIG, as in --set schedule.steps=100.", "KEY=VALUE")
Set = Annotated[list[str] | None, SET]
Device = Annotated[Literal["auto", "cpu", "cuda"], ManualEntry("--device", "Device to compute on.")]
DtypeOfUse = Annotated[
    Literal["fp32", "bf16", "fp16"],
    ManualEntry("--dtype", "Precision: fp32, with the numbers of transformers; bf16 or, on a GPU, fp16 may be faster."),
]
EncodingOfFile = Annotated[
    str | None,
    ManualEntry(
        "--encoding", "Encoding of the file, such as cp1252 or shift_jis. Default: the run's, or UTF-8.", "NAME"
    ),
]
LEARN_FROM = "Bytes of text to learn from. From a larger text, documents are chosen by a hash."
MaxBytes = Annotated[int, ManualEntry("--max-bytes", LEARN_FROM, "N", min=1)]
WORKERS = (
    "Processes on this machine; any number gives the same result. Default: one for each core, as far as memory allows. "
    "To share the work, type the same command on other machines that see the folders."
)
Workers = Annotated[int | None, ManualEntry("--workers", WORKERS, "N", min=1)]
HEAD_OF_RAY = "Address of the Ray head. Default: RAY_API_SERVER_ADDRESS, else http://127.0.0.1:8265."
Address = Annotated[str | None, ManualEntry("--address", HEAD_OF_RAY, "URL")]


@dataclass(frozen=True)
class OldNames:
    """Options of the Ray guidebook's job, which no help lists. A value is used unchanged, unlike a value of --set,
    which is YAML."""

    simulated_gpus: Annotated[int | None, ManualEntry("--simulated-gpus,--simulated_gpus", "", "N", 1, hidden=True)] = (
        None
    )
    b_size: Annotated[int | None, ManualEntry("--b-size,--b_size", "", "N", 1, hidden=True)] = None
    datapath: Annotated[str | None, ManualEntry("--datapath", "", "PATH", hidden=True)] = None

    def added_to(self, overrides: Sequence[str]) -> tuple[str, ...]:
        """`--set` and these options, as `KEY=VALUE`."""
        from maskwright.config.settings import in_flow

        sizes = ("batch.virtual_workers", self.simulated_gpus), ("batch.micro_batch_rows", self.b_size)
        given = [(key, value) for key, value in (*sizes, ("data.store", self.datapath)) if value is not None]
        return *overrides, *(f"{key}={in_flow(value)}" for key, value in given)


JSON_VERSION = 1
"""Version of all answers and errors in JSON (docs/json.md): under the same number a field may be added, and none is
renamed or removed."""


def print_result(report: str | None, value: Mapping[str, Any], as_json: bool) -> None:
    """Prints a command's answer: the report for people, if there is one, or `value` and the version for programs."""
    if (text := as_document(value) if as_json else report) is not None:
        answer(text)


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
            with lost_terminal_is_no_error():  # closing writes once more, to a reader that may have gone
                documents.close()
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def as_document(value: Mapping[str, Any]) -> str:
    assert "version" not in value
    return escaped(json.dumps({"version": JSON_VERSION, **value}, ensure_ascii=False, indent=2))


def as_line(value: Mapping[str, Any]) -> str:
    return escaped(json.dumps({"version": JSON_VERSION, **value}, ensure_ascii=False))
