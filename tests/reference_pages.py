"""The pages of the command line and of the Python interface, made of what `--help` says and of the docstrings.
`python tests/reference_pages.py` renews them, with tests/ on the path; a test compares."""

import ast
import inspect
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

from typer.main import get_command

import maskwright
from maskwright.cli.main import app
from maskwright.cli.options import PANELS

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = """\
# The command line

<!-- Made by `python tests/reference_pages.py`; a test compares the two. -->

*Reference, generated from `maskwright --help`.* `--help`, or `-h`, after a command prints the same. Results go to the
standard output, messages to the standard error. `--debug`, anywhere in a command, adds the traceback to an error. See
also [exit codes and JSON](json.md), and [errors by their words](troubleshooting.md).

Keys of a YAML decide the numbers: [of a run](configuration.md), [of fine-tuning](finetuning-configuration.md), [of an
environment](google-cloud-environment.md).
"""
COMMON = 4
"""Commands with the same option in the same words from which on the page lists it once."""
PYTHON = """\
# The Python interface

<!-- Made by `python tests/reference_pages.py`; a test compares the two. -->

*Reference, generated from the docstrings.* Everything that `import maskwright` offers. [From Python](python.md) shows
it at work.
"""


def commands_page() -> str:
    table = get_command(app)
    parts, hidden = list[str | list[str]](), list[str | list[str]]()
    for panel, names in PANELS.items():
        parts.append(f"## {panel}\n")
        for name in names:
            parts += _command(table.commands[name], table.context_class(table, info_name="maskwright"), name, hidden)
    parts += ["## For older systems\n", "The help does not list these commands.\n", *hidden]
    counts = Counter(row for part in parts if isinstance(part, list) for row in part)
    common = sorted(row for row, count in counts.items() if count >= COMMON and "*Required" not in row)
    parts = [COMMANDS, "## Common options\n", common, *parts]
    written = [_table(part, common[: 0 if number < 3 else None]) for number, part in enumerate(parts)]
    return "\n".join(written).rstrip("\n") + "\n"


def _table(rows: str | list[str], common: list[str]) -> str:
    """A table of the rows, and a sentence with the names of those that are in the table of common options. Text stays
    as it is."""
    if isinstance(rows, str):
        return rows
    own, others = [row for row in rows if row not in common], [row for row in rows if row in common]
    names = ", ".join(f"`{re.split('[` ]', row)[2]}`" for row in others)
    lines = ["| option | meaning |", "|---|---|", *own, ""] if own else []
    return "\n".join([*lines, *([f"Common: {names}.", ""] if others else [])])


def _command(command: Any, parent: Any, name: str, hidden: list[str | list[str]]) -> list[str | list[str]]:
    """Its heading, its help and the rows of what it takes; then each command below it. Adds those that the help does
    not show to `hidden` instead."""
    context = command.context_class(command, info_name=name, parent=parent)
    parts: list[str | list[str]] = [
        f"### maskwright {context.command_path.removeprefix('maskwright ')}\n",
        f"{_prose(command.help)}\n",
    ]
    rows = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record and "--help" not in parameter.opts:
            words, extra = _bracketed(record[1])
            name = re.sub(r" <[\w\[\]]+>$", "", record[0]) if parameter.param_type_name == "argument" else record[0]
            name = re.sub(r"<(\S+\|\S+)>", lambda one: f"{{{one[1].replace('|', ', ')}}}", name)
            extra = f" *{_cell(extra[0].upper() + extra[1:])}.*" if extra else ""
            rows.append(f"| `{_code(name)}` | {_cell(words)}{extra} |")
    if rows:
        parts.append(rows)
    if hasattr(command, "list_commands"):
        for below in command.list_commands(context):
            parts += _command(command.get_command(context, below), context, below, hidden)
    if command.hidden:
        hidden += parts
        return []
    return parts


def _bracketed(text: str) -> tuple[str, str]:
    """What `--help` says of an option, and what it adds in brackets: a default, a range, that it is required."""
    found = re.fullmatch(r"(.*?)(?:  \[(.*)\])?", text, re.DOTALL)
    assert found is not None
    more = re.sub(r"(\d+)<=x<=(\d+)", r"\1 to \2", found[2] or "")
    more = re.sub(r"(?<=default: )\.(?=;|$)", "this folder", more)
    return found[1], more.replace("x>=", "at least ").replace("x<=", "at most ")


def _prose(text: str | None) -> str:
    return re.sub(r"[ \t]*\n(?!\n)[ \t]*", " ", inspect.cleandoc(text or "").replace("\n\n", "\0")).replace(
        "\0", "\n\n"
    )


def _code(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _cell(text: str) -> str:
    return _code(text).replace("*", "\\*").replace("<", "&lt;")


def python_page() -> str:
    parts = [PYTHON]
    for name in sorted(set(maskwright.__all__) - {"__version__"}, key=lambda name: (name[0].isupper(), name)):
        module = next(module for module, names in maskwright._MODULES.items() if name in names)
        path = ROOT / "src" / "maskwright" / f"{module.replace('.', '/')}.py"
        tree = ast.parse(path.read_text(encoding="utf-8"))
        node = next(n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == name)
        parts.append(f"## {name}\n")
        parts += _function(node) if isinstance(node, ast.FunctionDef) else _class(node)
    return "\n".join([*parts, *_words()]).rstrip("\n") + "\n"


def _words() -> list[str]:
    """What the signatures call the kinds of values that several functions take."""
    parts = ["## What the signatures say\n", "| word | is | meaning |", "|---|---|---|"]
    for path in sorted((ROOT / "src" / "maskwright" / "api").glob("*.py")):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for one, after in pairwise(body):
            if isinstance(one, ast.Assign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                meaning = _prose(str(after.value.value))
                parts.append(
                    f"| `{ast.unparse(one.targets[0])}` | `{_code(ast.unparse(one.value))}` | {_cell(meaning)} |"
                )
    return [*parts, ""]


def _function(node: ast.FunctionDef, owner: str = "") -> list[str]:
    return [f"```py\n{_signature(node, owner)}\n```\n", f"{ast.get_docstring(node) or ''}\n"]


def _class(node: ast.ClassDef) -> list[str]:
    bases = [ast.unparse(base) for base in node.bases]
    parts = [f"{ast.get_docstring(node) or ''}\n"]
    if bases:
        parts.insert(0, f"A kind of `{bases[0]}`.\n")
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and not ast.unparse(one.target).startswith("_"):
            parts.append(f"- `{ast.unparse(one.target)}: {ast.unparse(one.annotation)}`")
    parts += [""] * parts[-1].startswith("-")
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and not one.name.startswith("_"):
            decorators = {ast.unparse(decorator) for decorator in one.decorator_list}
            if decorators & {"property", "cached_property"}:
                kind = ast.unparse(one.returns) if one.returns else "Any"
                parts += [f"### {node.name}.{one.name}\n", f"`{kind}`. {ast.get_docstring(one) or ''}".strip() + "\n"]
            else:
                parts += [f"### {node.name}.{one.name}()\n", *_function(one, f"{node.name}.")]
    return parts


def _signature(node: ast.FunctionDef, owner: str) -> str:
    """A line for each parameter where one line would be too long."""
    arguments = node.args
    if owner:
        arguments.args = arguments.args[1:]  # self
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"{owner}{node.name}({ast.unparse(arguments)}){returns}"
    if len(line) <= 90:
        return line
    given = [*arguments.args]
    defaults = [None] * (len(given) - len(arguments.defaults)) + list(arguments.defaults)
    rows = [_parameter(one, default) for one, default in zip(given, defaults, strict=True)]
    rows += ["*"] * bool(arguments.kwonlyargs)
    rows += [_parameter(one, default) for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    return f"{owner}{node.name}(\n" + "".join(f"    {row},\n" for row in rows) + f"){returns}"


def _parameter(one: ast.arg, default: ast.expr | None) -> str:
    kind = f": {ast.unparse(one.annotation)}" if one.annotation else ""
    return f"{one.arg}{kind}" + (f" = {ast.unparse(default)}" if default is not None else "")


MADE = {"command-line.md": commands_page, "python-reference.md": python_page}

if __name__ == "__main__":
    for page, made in MADE.items():
        (ROOT / "docs" / page).write_text(made(), encoding="utf-8")
