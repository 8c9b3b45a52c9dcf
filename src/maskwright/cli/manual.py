"""Makes a function a command: its signature gives the types and defaults, its docstring the manual.

    \"\"\"Write a page about a run.

    RUN: Run directories, or URLs of runs.
    --to FILE: Page to write.
    text --fill TEXT: Text with masks.
    --port 0≤N≤65535 (--web): Port to listen on.
    \"\"\"

The first paragraph is the command's help. Below it, an entry gives the option, a placeholder for the value with its
bounds, and the help; indented lines continue it. The parameter's name comes first if it differs. Parentheses name the
options on which the option depends: `(--web)`, no effect without --web; `(no --web)`, no effect with it; `(--kind bpe)`
or `(no --kind bpe|words)`, only with this value, or not with these. Any other use is an error, in every command.
A line such as `Labels:` begins a panel: the help lists the options below it under this title.

A parameter whose type is a dataclass stands for the fields of the class, whose docstring holds their entries. `Without`
leaves some out.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple, TypeVar

import typer
from typer.core import TyperCommand

from maskwright.core.errors import InputError, MaskwrightError, as_typed, of_texts
from maskwright.launch.target import Option

Function = TypeVar("Function", bound=Callable[..., Any])
READ_TEXTS = ("predict", "embed", "evaluate")
"""Commands that read labelled texts without a YAML."""
REQUIRED = inspect.Parameter.empty
HEAD = re.compile(
    r"(?:(?P<name>[a-z_]+) )?(?P<words>\S+)"
    r"(?: (?:(?P<min>[\d.]+)≤)?(?P<metavar>[^(\s≤][^\s≤]*)(?:≤(?P<max>[\d.]+))?)?"
    r"(?: \((?P<goes_with>.+)\))?"
)


class Without(NamedTuple):
    """Fields of a dataclass that are no options of a command."""

    names: frozenset[str]


class ManualEntry(NamedTuple):
    """An option or argument in a manual."""

    words: str
    """The option as typed, such as `--follow,-f`; for an argument its placeholder."""
    help: str
    metavar: str | None = None
    min: float | None = None
    max: float | None = None
    goes_with: str = ""
    hidden: bool = False
    panel: str | None = None
    """Title above it in the help; None for the usual one."""

    def as_typer(self, kind: Any) -> Any:
        """`typer.Option` or `typer.Argument`."""
        told = self.help
        if self.goes_with:
            only = "Not" if self.goes_with.startswith("no ") else "Only"
            told = f"{told.rstrip('.')}. {only} with {_alternatives(self.goes_with)}."
        more: dict[str, Any] = {"help": told, "min": self.min, "max": self.max}
        if (
            number := next((each for each in (int, float) if each in (kind, *typing.get_args(kind))), None)
        ) is not None:
            more["parser"] = partial(_number, number, self.min, self.max)
        if not self.words.startswith("-"):
            return typer.Argument(metavar=self.words, **more)
        more |= {"hidden": self.hidden, "rich_help_panel": self.panel}
        return typer.Option(*self.words.split(","), metavar=self.metavar, **more)


def _alternatives(goes_with: str) -> str:
    """`--kind a, b or c`; of an argument the value alone."""
    named, _, values = goes_with.removeprefix("no ").partition(" ")
    *others, last = values.split("|")
    listed = f"{', '.join(others)} or {last}" if others else last
    return f"{named} {listed}".strip() if named.startswith("-") or not values else listed


def manual(docstring: str | None) -> tuple[str, dict[str, ManualEntry]]:
    """The first paragraph, and the entries by their parameters' names."""
    first, _, rest = inspect.cleandoc(docstring or "").partition("\n\n")
    entries, panel = {}, None
    for text in filter(None, re.split(r"\n(?! )", rest)):
        if text.endswith(":"):
            panel = text.removesuffix(":")
            continue
        head, _, told = text.partition(": ")
        if (match := HEAD.fullmatch(head)) is None:
            raise ValueError(f"{head!r} is no entry of a manual")
        name = match["name"] or re.split("[,/]", match["words"])[0].lstrip("-").replace("-", "_").lower()
        least, most = (_limit(each) for each in match.group("min", "max"))
        about = " ".join(told.split())
        goes_with = match["goes_with"] or ""
        entries[name] = ManualEntry(match["words"], about, match["metavar"], least, most, goes_with, panel=panel)
    return first, entries


def _limit(text: str | None) -> float | None:
    return (float(text) if "." in text else int(text)) if text else None


def command(table: typer.Typer, name: str, **more: Any) -> Callable[[Function], Function]:
    """Puts a function into the table as a command."""

    def register(function: Function) -> Function:
        put(table, name, function, **more)
        return function

    return register


def put(
    table: typer.Typer, name: str, function: Callable[..., Any], without: frozenset[str] = frozenset(), **more: Any
) -> None:
    """`without`: parameters, and fields of dataclasses, that are no options."""
    summary, entries = manual(function.__doc__)
    parameters = {"_": inspect.Parameter("_", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)}
    groups: dict[str, tuple[Any, list[str]]] = {}
    wanted = inspect.signature(function, eval_str=True).parameters
    for own in (each for each in wanted.values() if each.name not in without):
        kind, *marks = typing.get_args(own.annotation) if _is_marked(own.annotation) else [own.annotation]
        if is_dataclass(kind):
            left_out = next((mark.names for mark in marks if isinstance(mark, Without)), frozenset[str]())
            of_group, below = options_of(kind, left_out | without, own.default)
            groups[own.name] = kind, [*of_group]
            entries |= below
            parameters |= of_group
        elif kind is not typer.Context:
            parameters[own.name] = parameter(own.name, own.annotation, own.default, entries)

    def run(_: typer.Context, **given: Any) -> Any:
        _require_effect(_, entries)
        for group, (kind, names) in groups.items():
            given[group] = made(kind, {each: given.pop(each) for each in names})
        given |= {each.name: _ for each in wanted.values() if each.annotation is typer.Context}
        try:
            return function(**given)
        except MaskwrightError as error:
            root: Any = _.find_root().command
            commands = () if name in READ_TEXTS else root.list_commands(_)  # `finetune` is one
            options = (each for each in _.command.params if each.param_type_name == "option")
            typed: dict[str, str | None] = {
                each.name or "": each.opts[0] for each in options if each.name not in commands
            }
            texts = of_texts(typed) if name in READ_TEXTS else {}
            typed |= {key: argument and typed[argument] for key, argument in texts.items()}
            as_typed(error, typed, list(_values(_.params.values())))
            raise

    run.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    table.command(name, cls=ManualCommand, help=summary, **more)(run)


def _values(given: Iterable[Any]) -> Iterator[Any]:
    for value in given:
        if isinstance(value, list | tuple):
            yield from value
        else:
            yield value


def made(kind: Any, given: Mapping[str, Any]) -> Any:
    """A dataclass of options."""
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


def options_of(
    kind: Any, left_out: frozenset[str], defaults: Any = REQUIRED
) -> tuple[dict[str, inspect.Parameter], dict[str, ManualEntry]]:
    """A parameter for each option of a dataclass, and the entries of its manual. `defaults`: an instance of it."""
    hints, (_, entries) = typing.get_type_hints(kind, include_extras=True), manual(kind.__doc__)
    found = {}
    for each in fields(kind):
        if each.name not in left_out and (each.name in entries or _is_marked(hints[each.name])):
            default = REQUIRED if each.default is MISSING else each.default
            default = default if defaults is REQUIRED else getattr(defaults, each.name)
            found[each.name] = parameter(each.name, hints[each.name], default, entries)
    return found, {name: entry for name, entry in entries.items() if name in found}


def parameter(name: str, kind: Any, default: Any, entries: Mapping[str, ManualEntry]) -> inspect.Parameter:
    """A parameter as typer reads it. The type may have its `ManualEntry` with it, or an option of typer's."""
    kind, mark = typing.get_args(kind)[:2] if _is_marked(kind) else (kind, entries[name])
    if isinstance(mark, Option):  # of a place to train
        words = mark.metavar or name if mark.argument else f"--{name.replace('_', '-')}"
        mark = ManualEntry(words, mark.help, mark.metavar, mark.min)
    many = typing.get_origin(kind) is tuple
    kind = Annotated[list[str] if many else kind, mark.as_typer(kind) if isinstance(mark, ManualEntry) else mark]
    default = list(default) if many and default is not REQUIRED else default
    if default == "default" and isinstance(mark, ManualEntry):
        typing.get_args(kind)[1].show_default = False
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)


def _is_marked(annotation: Any) -> bool:
    return typing.get_origin(annotation) is Annotated


def _number(kind: type, least: float | None, most: float | None, value: Any) -> Any:
    """Parses a number strictly: pydantic reads 2.000 as 2, and some countries as two thousand. Raises `Refused` unless
    it is a number within the bounds."""
    if not isinstance(value, str):
        return value
    with suppress(ValueError):
        number = kind(value)
        if (least is None or number >= least) and (most is None or number <= most):
            return number
    from maskwright.config.settings import Refused, no_number, takes  # pydantic, for which `--help` need not wait

    schema = {"type": "integer" if kind is int else "number", "minimum": least, "maximum": most}
    schema = {key: limit for key, limit in schema.items() if limit is not None}
    raise Refused(f"is {value!r}", fix=f"give {takes(schema)}{no_number(value, schema)}")


def _require_effect(context: typer.Context, entries: Mapping[str, ManualEntry]) -> None:
    """Raises `InputError` for an option that has no effect, by the options on which it depends."""
    sources = ((each, context.get_parameter_source(each.name or "")) for each in context.command.params)
    typed = {name: each for each, by in sources if by and by.name == "COMMANDLINE" for name in each.opts}
    for option, given in typed.items():
        if given.name not in entries or not (goes_with := entries[given.name].goes_with):
            continue
        is_refused, (other, _, values) = goes_with.startswith("no "), goes_with.removeprefix("no ").partition(" ")
        found, now = other in typed, other
        if values:
            named = next(each for each in context.command.params if other in (*each.opts, each.metavar))
            value = context.params[named.name or ""]
            found, now = str(value) in values.split("|"), f"{other} {value}"
        if found and is_refused:
            raise InputError(f"has no effect with {now}", where=option, fix="leave it out")
        if not found and not is_refused:
            needed = _alternatives(goes_with)
            verb = "take" if values else "add"
            raise InputError(f"has no effect without {needed}", where=option, fix=f"{verb} {needed}, or leave it out")


class ManualCommand(TyperCommand):
    """A command whose help names arguments as shells' manuals do; typer puts braces around required ones, as if they
    were choices, and their types behind them."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[OPTIONS]", *(_usage(each) for each in self.params if each.param_type_name == "argument")]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        titles: dict[str, list[Any]] = {"Arguments": [], "Options": []}
        for each in self.get_params(ctx):
            usual = "Arguments" if each.param_type_name == "argument" else "Options"
            titles.setdefault(getattr(each, "rich_help_panel", None) or usual, []).append(each)
        titles["Options"] = titles.pop("Options")  # the last panel
        for title, shown in titles.items():
            if records := list(_records(shown, ctx)):
                with formatter.section(title):
                    formatter.write_dl(records)


def _usage(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return (name if argument.required else f"[{name}]") + "..." * (argument.nargs != 1)


def _records(shown: list[Any], ctx: Any) -> Iterator[tuple[str, str]]:
    for each in shown:
        if record := each.get_help_record(ctx):
            name, told = record
            yield (each.metavar or name.partition(" ")[0]) if each.param_type_name == "argument" else name, told
