"""Reads the assignments and the commands of a shell script without running anything.

It understands quotes, escapes, comments, redirections, `$NAME` and one calculation by `expr`. Anything else that needs
a shell stays in its word between two marks: another command's output, `${NAME:-text}`, or a variable that is not set
above.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from maskwright.core import storage
from maskwright.core.errors import InputError

NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=", re.ASCII)
_SETTERS = ("export", "readonly", "local", "declare")
_CONTROL = ("if", "for", "while", "until", "case", "select", "function", "{", "[[")
LONGEST = 1_000_000
"""The most letters that variables may add, since variables inside variables can double them with each line."""

_IN_BRACKETS = r"\((?:[^()]|\((?:[^()]|\([^()]*+\))*+\))*+\)"
_VALUE = rf"\$(?:{_IN_BRACKETS}|\{{(?:[^{{}}]|\{{[^{{}}]*+\}})*+\}}|[A-Za-z_]\w*+|[\d@*#?!$-])|`[^`]*+`"
_SINGLE, _DOUBLE = r"'[^']*+'", rf'\$?"(?:[^"\\$`]|\\.|{_VALUE}|\$(?![({{]))*+"'
_UNQUOTED = rf"{_VALUE}|\$'(?:[^'\\]|\\.)*+'"
_PLAIN = r"[^\s;&|()<>'\"\\$`]++|\$(?![({'\"])"
_PIECE = re.compile(rf"({_SINGLE})|({_DOUBLE})|({_UNQUOTED})|\\(.?)|{_PLAIN}", re.DOTALL | re.ASCII)
_TOKEN = re.compile(
    rf"""(?P<gap>[^\S\n]++|\\\n|(?<![^\s;&|()])\#[^\n]*+)
    |(?P<redirection>(?:&|(?<!\S)\d)?[<>]{{1,3}}[&|]?)
    |(?P<end>&&|\|\||[;&|()\n])
    |(?P<word>(?:{_SINGLE}|{_DOUBLE}|{_UNQUOTED}|\\[^\n]|{_PLAIN})++)
    |(?P<open>.{{1,2}})""",
    re.DOTALL | re.ASCII | re.VERBOSE,
)
_IN_QUOTES = re.compile(rf'\\["\\$`\n]|{_VALUE}', re.DOTALL | re.ASCII)
_NAMED = re.compile(r"\$\{?([A-Za-z_]\w*+|[\d@*#?!$-])\}?", re.ASCII)
_CALCULATION = re.compile(r"expr\s+(\d{1,18})\s+\\?([-+*/])\s+(\d{1,18})\s*", re.ASCII)
_OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}
_UNKNOWN, _SPLIT, _NONE = re.compile("\0([^\0]*)\0"), "\1", "\2"
"""Marks: around an expression that needs a shell, at spaces of a value that split a word, and for an empty value."""


class Command(NamedTuple):
    """A simple command; redirections are left out."""

    words: list[str]
    line: int
    sign: str
    """The first of < > & | ( ) outside quotes that belongs to the command or ends it; empty for none."""
    assigns: bool
    """Whether it only sets variables."""


def simple_commands(text: str, where: str, variables: dict[str, str], fixed: Collection[str] = ()) -> Iterator[Command]:
    """Yields the commands in order. Each assignment is in `variables` when its command is yielded, except assignments
    to names that are `fixed`. Raises `InputError` for quotes that do not end, and for `if`, `for` and similar words."""
    text = re.sub(r"\r(?=\n|\Z)|[\0\1\2]", "", text)
    several = "\n" in text
    words: list[str] = []
    line, counted, brought, sign, is_target, is_conditional = 1, 0, 0, "", False, False
    for token in _TOKEN.finditer(f"{text}\n\n"):
        kind, found = token.lastgroup, token[0]
        if not words:
            line, counted = line + text.count("\n", counted, token.start()), token.start()
        place = f"{where}:{line}" if several else where
        if kind == "open":
            found = found if found[0] == "$" else found[0]
            raise InputError(f"lacks the end of its {found}", where=place, fix="close its quotes and brackets")
        if kind == "word":
            brought += sum(len(variables.get(name, "")) for name in _NAMED.findall(found))
            if brought > LONGEST:
                what = f"holds more than {LONGEST:,} letters with the values of its variables"
                raise InputError(what, where=place, fix="replace the variables by their values")
            words += [] if is_target else _expanded(found, variables)
            is_target = False
        elif kind == "redirection":
            sign, is_target = sign or found.lstrip("0123456789")[0], True
        elif kind == "end":
            sign = sign or found.strip(";\n")[:1]
            if words and words[0] in _CONTROL:
                fix = "give the command alone, in single quotes, and its variables with --var NAME=VALUE"
                raise InputError(f"has {words[0]!r}: only assignments and commands are read", where=place, fix=fix)
            if words:
                assigned = words[1:] if words[0] in _SETTERS else words
                assigns = bool(assigned) and all(map(_ASSIGNMENT.match, assigned))
                if assigns:
                    _assign(assigned, variables, fixed, is_known=not is_conditional and sign != "(")
                yield Command(words, line, sign, assigns)
            words, sign, is_conditional = [], "", found in ("&&", "||")


def _assign(words: list[str], variables: dict[str, str], fixed: Collection[str], *, is_known: bool) -> None:
    """Sets what the words NAME=VALUE set, or forgets names whose value needs a shell: NAME+=VALUE, and conditional
    assignments."""
    for word in words:
        name, _, value = word.partition("=")
        if name.rstrip("+") not in fixed:
            variables.pop(name.rstrip("+"), None)
            if is_known and not name.endswith("+"):
                variables[name] = value


def _expanded(word: str, variables: Mapping[str, str]) -> list[str]:
    """The words that a word becomes: values outside quotes are split at spaces, unless they are assigned."""
    is_whole = bool(_ASSIGNMENT.match(word))

    def of(piece: re.Match[str]) -> str:
        single, double, value, escaped = piece.groups()
        if single:
            return single[1:-1]
        if double:
            return _IN_QUOTES.sub(in_quotes, double.removeprefix("$")[1:-1])
        if value:
            found = _value(value, variables)
            return found if is_whole or "\0" in found else re.sub(r"\s+", _SPLIT, found) or _NONE
        return piece[0] if escaped is None else escaped.strip("\n")

    def in_quotes(piece: re.Match[str]) -> str:
        return piece[0][1:].strip("\n") if piece[0][0] == "\\" else _value(piece[0], variables)

    if word.startswith("~"):
        word = f"$HOME{word[1:]}" if word[1:2] in ("", "/") else word
    parts = _PIECE.sub(of, word).split(_SPLIT)
    return [part.replace(_NONE, "") for part in parts if part.strip(_NONE) or parts == [""]]


def _value(text: str, variables: Mapping[str, str]) -> str:
    """The value of an expression that begins with a `$` or a backtick; marked if it needs a shell."""
    if match := _NAMED.fullmatch(text):
        value = variables.get(match[1])
        # A variable with a command's output is reported by its name, which the user can set.
        is_known = value is not None and all(NAME.fullmatch(mark[1:]) for mark in _UNKNOWN.findall(value))
        return value if value is not None and is_known else f"\0${match[1]}\0"
    inner = text.strip("`") if text[0] == "`" else text[2:-1]
    if inner.startswith("expr "):
        inner = _NAMED.sub(lambda match: _value(match[0], variables), inner)
        if unknown := unknown_in(inner):
            return f"\0{unknown}\0"
        sum_ = _CALCULATION.fullmatch(inner)
        if sum_ and (sum_[2] != "/" or int(sum_[3])):
            return str(_OPERATORS[sum_[2]](int(sum_[1]), int(sum_[3])))
    return f"\0{text}\0"


# ---- a file of assignments -----------------------------------------------------------------------------------------

Variables = Mapping[str, tuple[str, int]]
"""Values by name, each with the number of its line."""


def read_variables(location: str, known: Variables | None = None) -> dict[str, tuple[str, int]]:
    """Variables of a file of assignments, with those `known` from earlier files. The last assignment counts, as in a
    shell. Raises `InputError` with the number of a line that does something else."""
    with storage.open_binary(location) as file:
        content = file.read()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = f"{location}: byte {error.start}"
        raise InputError("is not UTF-8", where=where, fix="save the file as UTF-8") from None
    return parse_variables(text, location, known)


def parse_variables(text: str, location: str, known: Variables | None = None) -> dict[str, tuple[str, int]]:
    parsed = dict(known or {})
    values = {name: value for name, (value, _) in parsed.items()}
    for command in simple_commands(text, location, values):
        where = f"{location}:{command.line}"
        if command.words[0] == "set":
            continue
        names = [word.partition("=")[0] for word in command.words if "=" in word]
        if not command.assigns or any(name.endswith("+") for name in names):
            fix = "write NAME=value, with quotes where the value has spaces"
            raise InputError("is not an assignment", where=where, fix=fix)
        unknown = next(filter(None, map(unknown_in, command.words)), None)
        if command.sign or unknown:
            what = f"has {command.sign!r} outside quotes" if command.sign else f"uses {unknown}, which is not set above"
            fix = "set the variable above, or first name the file that sets it; nothing in a file is run"
            raise InputError(what, where=where, fix=fix)
        parsed |= {name: (values[name], command.line) for name in names}
    return parsed


def unknown_in(word: str) -> str | None:
    """The first part of a word that needs a shell, as it is written: `$NAME`, or more."""
    return next(iter(all_unknown_in(word)), None)


def all_unknown_in(word: str) -> list[str]:
    return _UNKNOWN.findall(word)


def as_written(word: str) -> str:
    """The word, with the parts that need a shell as they are written."""
    return word.replace("\0", "")
