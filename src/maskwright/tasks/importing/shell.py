"""Reads the commands and the variables of a shell script without running anything.

It understands quotes, escapes, comments, variables that the text sets, their defaults (`${NAME:-text}`) and one
calculation with two whole numbers. What needs a shell stays in the word between two marks: any other `$(…)`, a variable
from elsewhere, or one that is set where only a condition decides.
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
_SETTERS = ("export", "readonly", "local")
_FOLLOWED = ("then", "do", "else")
"""Words of the shell that a command may follow on the same line."""
_BEGIN, _END, _TESTS = ("if", "for", "while", "until", "case"), ("fi", "done", "esac"), ("[", "[[", "test")

_IN_BRACKETS = r"\((?:[^()]|\((?:[^()]|\([^()]*+\))*+\))*+\)"
_VALUE = rf"\$(?:{_IN_BRACKETS}|\{{(?:[^{{}}]|\{{[^{{}}]*+\}})*+\}}|[A-Za-z_]\w*+|[\d@*#?!$-])|`[^`]*+`"
_PIECE = re.compile(
    rf"""(?P<gap>[^\S\n]++)
    |(?P<comment>(?<![^\s;&|()])\#[^\n]*+)
    |(?P<redirection>(?<!\S)\d*+(?:[<>]{{1,3}}[&|]?)[ \t]*+|&?[<>]{{1,3}}[&|]?[ \t]*+)
    |(?P<array>(?<==)\([^()]*+\))
    |(?P<end>&&|\|\||[;&|()\n])
    |(?P<single>'[^']*+')
    |(?P<double>\$?"(?:[^"\\$`]|\\.|{_VALUE}|\$)*+")
    |(?P<value>{_VALUE}|\$'(?:[^'\\]|\\.)*+')
    |(?P<escape>\\.?)
    |(?P<open>['"`]|\$[({{])
    |(?P<home>~(?=[/\s;]|\Z))
    |(?P<plain>[^\s;&|()<>'"\\$`~]++|[~$])""",
    re.DOTALL | re.ASCII | re.VERBOSE,
)
_IN_QUOTES = re.compile(rf'\\["\\$`\n]|{_VALUE}', re.DOTALL | re.ASCII)
_BRACED = re.compile(r"(\w+|[@*#?!$-])(?:(:?)-(.*))?", re.ASCII | re.DOTALL)
_CALCULATION = re.compile(r"(?:expr\s|\()\s*(\d{1,18})\s*\\?([-+*/%])\s*(\d{1,18})\s*\)?", re.ASCII)
_OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv, "%": operator.mod}
_UNKNOWN = re.compile("\0([^\0]*)\0")
LONGEST = 1_000_000
"""The most letters that a text's references may expand to: variables in variables double them with each line."""


class Command(NamedTuple):
    """A simple command; redirections are left out."""

    words: list[str]
    line: int
    sign: str
    """The first of < > & | ( ) outside quotes that belongs to it or ends it; empty for none."""
    assigns: bool
    """Whether it only sets variables."""


def simple_commands(text: str, where: str, variables: dict[str, str], fixed: Collection[str] = ()) -> Iterator[Command]:
    """Yields the commands in order. Each assignment is in `variables` when its command is yielded, except assignments
    to names that are `fixed`. Raises `InputError` for quotes and brackets that do not end."""
    yield from _Reader(re.sub(r"\r(?=\n|\Z)", "", text.replace("\0", "")), variables, where, fixed).commands()


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
        if not command.assigns:
            fix = "write NAME=value, with quotes where the value has spaces"
            raise InputError("is not an assignment", where=where, fix=fix)
        if command.sign:
            raise _refused(f"has {command.sign!r} outside quotes", where)
        for word in command.words:
            if unknown := unknown_in(word):
                raise _only_a_shell(unknown, where)
            if match := _ASSIGNMENT.match(word):
                parsed[match[1]] = values[match[1]], command.line
    return parsed


def _only_a_shell(unknown: str, where: str) -> InputError:
    name = unknown[1:]
    if NAME.fullmatch(name):
        fix = "set it above, or name the file that sets it before this one"
        return InputError(f"uses {name}, which is not set above", where=where, fix=fix)
    runs = unknown.startswith(("`", "$(")) and not unknown.startswith("$((")
    return _refused("runs a command, which is not done here" if runs else "uses more of the shell than $NAME", where)


def _refused(what: str, where: str) -> InputError:
    return InputError(what, where=where, fix="write the value itself; nothing in the file is run")


def unknown_in(word: str) -> str | None:
    """The first part of a word that only a shell could know, as it is written: `$NAME`, or more."""
    return next(iter(all_unknown_in(word)), None)


def all_unknown_in(word: str) -> list[str]:
    return [part.replace("\1", " ") for part in _UNKNOWN.findall(word)]


def as_written(word: str) -> str:
    """The word with its parts that only a shell could know as they are written."""
    return _UNKNOWN.sub(lambda match: match[1].replace("\1", " "), word)


def _mark(text: str) -> str:
    """Marks a part that only a shell could know. Its spaces are hidden, so that the word is not split at them."""
    return "\0" + re.sub(r"\s", "\1", as_written(text)) + "\0"


class _Reader:
    def __init__(self, text: str, variables: dict[str, str], where: str, fixed: Collection[str]) -> None:
        self.text, self.variables, self.where, self.fixed = text, variables, where, fixed
        self.counted = self.brought = self.depth = 0
        self.line = self.began = 1
        """Line numbers: of the character at `counted`, and of the command's first one."""
        self.words: list[str] = []
        self.word: str | None = None
        """The word that is being read; None between words."""
        self.is_target = False
        """Whether the next word is a redirection's target."""
        self.sign = ""
        self.is_conditional = False
        """Whether the command before decides if this one is run."""

    def commands(self) -> Iterator[Command]:
        for piece in _PIECE.finditer(self.text):
            kind, text = piece.lastgroup, piece[0]
            if self.word is None and not self.words and kind not in ("gap", "end"):
                self.line += self.text.count("\n", self.counted, piece.start())
                self.counted, self.began = piece.start(), self.line
            match kind:
                case "gap":
                    self._end_word()
                case "end":
                    self.sign = self.sign or text.strip(";\n")[:1]
                    yield from self._command(text)
                case "redirection":
                    self.sign = self.sign or text.lstrip("0123456789")[0]
                    self._end_word()
                    self.is_target = True
                case "single":
                    self._add(text[1:-1])
                case "double":
                    self._add(self._expanded(text.removeprefix("$")[1:-1]))
                case "value":
                    self._add_split(self._value(text))
                case "array":
                    self.sign = self.sign or "("
                    self._add(_mark(text))
                case "escape" if text not in ("\\", "\\\n"):
                    self._add(text[1:])
                case "open":
                    fix = "close its quotes and brackets"
                    raise InputError(f"lacks the end of its {text}", where=self._place(), fix=fix)
                case "home" if _ASSIGNMENT.fullmatch(self.word or "A="):
                    self._add(self._variable("HOME"))
                case "home" | "plain":
                    self._add(text)
        yield from self._command("")

    def _command(self, end: str) -> Iterator[Command]:
        self._end_word()
        words, sign, self.words, self.sign, self.is_target = self.words, self.sign, [], "", False
        while words and words[0] in _FOLLOWED:
            words = words[1:]
        if not words:
            return
        self.depth = max(0, self.depth + (words[0] in _BEGIN) - (words[0] in _END))
        assigned = words[1:] if words[0] in _SETTERS else words
        matches = [_ASSIGNMENT.match(word) for word in assigned]
        assigns = bool(matches) and None not in matches
        for word, match in zip(assigned, matches, strict=True) if assigns else ():
            if match and match[1] not in self.fixed:
                before = self.variables.pop(match[1], None) if match[2] else ""
                self.variables.pop(match[1], None)
                if before is not None and not (self.depth or self.is_conditional):
                    self.variables[match[1]] = before + word[match.end() :]
        if words[0] == "for":
            self.variables.pop(words[1] if len(words) > 1 else "", None)
        self.is_conditional = end == "||" or (end == "&&" and words[0] in _TESTS)
        yield Command(words, self.began, sign, assigns)

    def _end_word(self) -> None:
        if self.word is not None and not self.is_target:
            self.words.append(self.word)
        self.is_target = self.is_target and self.word is None
        self.word = None

    def _add(self, text: str) -> None:
        self.word = (self.word or "") + text

    def _add_split(self, value: str) -> None:
        """Adds a value from outside quotes, which is split at spaces unless it is assigned."""
        before = self.words[1:] if self.words[:1] and self.words[0] in _SETTERS else self.words
        if _ASSIGNMENT.match(self.word or "") and all(map(_ASSIGNMENT.match, before)):
            return self._add(value)
        first, *others = re.split(r"\s+", value)
        if first or self.word:
            self._add(first)
        for other in others:
            self._end_word()
            self.word = other or None
        return None

    def _expanded(self, text: str) -> str:
        """The text with its values, as within double quotes."""

        def of(piece: re.Match[str]) -> str:
            return piece[0][1:].strip("\n") if piece[0][0] == "\\" else self._value(piece[0])

        return _IN_QUOTES.sub(of, text)

    def _value(self, text: str) -> str:
        """The value of an expression that begins with a `$` or a backtick."""
        value = self._looked_up(text)
        self.brought += len(value)
        if self.brought > LONGEST:
            what = f"holds more than {LONGEST:,} letters with the values of its variables"
            raise InputError(what, where=self._place(), fix="write the values in the variables' place")
        return value

    def _looked_up(self, text: str) -> str:
        if text.startswith(("`", "$(")):
            return self._output(text)
        if text.startswith("$'"):
            return _mark(text)
        braced = _BRACED.fullmatch(text[2:-1] if text.startswith("${") else text[1:])
        if braced is None:
            return _mark(text)
        name, colon, default = braced.groups()
        value = self.variables.get(name)
        if default is not None and (value is None or (colon and not value)):
            return self._expanded(default)
        return self._variable(name)

    def _variable(self, name: str) -> str:
        """A variable's value. If it holds a command's output, the variable itself is unknown: the user can set it."""
        value = self.variables.get(name)
        if value is None or any(not NAME.fullmatch(mark[1:]) for mark in _UNKNOWN.findall(value)):
            return _mark(f"${name}")
        return value

    def _output(self, text: str) -> str:
        """What `expr` or `$((…))` makes of two whole numbers; any other command's output is unknown."""
        inner = text.strip("`") if text[0] == "`" else text[2:-1]
        if not inner.startswith(("expr ", "(")):
            return _mark(text)
        inner = self._expanded(inner)
        calculation = _CALCULATION.fullmatch(inner.strip())
        if calculation is None or (calculation[2] in "/%" and not int(calculation[3])):
            return _mark(unknown_in(inner) or text)
        return str(_OPERATORS[calculation[2]](int(calculation[1]), int(calculation[3])))

    def _place(self) -> str:
        """The place of a mistake, with the line of its command if the text has several lines."""
        return f"{self.where}:{self.began}" if "\n" in self.text else self.where
