"""Writes a command as a user types it, and reads commands and variables in a shell script without running anything.

It understands quotes, escapes, comments, words of several pieces, variables that the text sets, their defaults
(`${NAME:-text}`) and arithmetic on integers (`$((…))`, `expr`). Parts that need a shell, such as any other `$(…)` or a
variable from elsewhere, stay in the word between two marks.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from maskwright.core import storage
from maskwright.core.errors import InputError

NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_REFERENCE = re.compile(r"[A-Za-z_]\w*|\d|[@*#?!$-]", re.ASCII)
_BRACED = re.compile(r"(\w+|[@*#?!$-])(?:\[[@*]\]|(:?)-(.*))?", re.ASCII | re.DOTALL)
_WHOLE_ARRAY = re.compile(r'\$\{\w+\[@\]\}"', re.ASCII)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=", re.ASCII)
_SETTERS = ("export", "readonly", "local")
_FOLLOWED = ("then", "do", "else")
"""Words of the shell that a command may follow on the same line."""
_BEGIN, _END, _TESTS = ("if", "for", "while", "until", "case"), ("fi", "done", "esac"), ("[", "[[", "test")
_REDIRECTION = re.compile(r"[<>&|]*[ \t]*")
"""A redirection's sign after its first character; the next word is its target."""
_PIECE = re.compile(r"\\.|'[^']*'|\"(?:[^\"\\]|\\.)*\"|[(){}]", re.DOTALL)
_PLAIN = re.compile(r"[^\s;&|()<>'\"\\$`~]*")
_ANSI = re.compile(r"((?:[^'\\]|\\.)*)'", re.DOTALL)
_UNKNOWN = re.compile("\0([^\0]*)\0")
_SUM = re.compile(r"[\d\s()+*/%-]{1,200}", re.ASCII)
DEEPEST = 8
"""The deepest nesting of substitutions that is evaluated."""
LONGEST = 1_000_000
"""The most letters that a text's references may expand to: variables in variables double them with each line."""


TRUE, FALSE = ("true", "1", "yes", "y", "t"), ("false", "0", "no", "n", "f")
"""The words with which programs switch an option on and off, in small letters."""


def typed(words: Sequence[str]) -> str:
    """The command line of `maskwright` with these words."""
    return f"maskwright {shlex.join(words)}"


def is_option(word: str) -> bool:
    """Whether a word of a command line is an option, and no negative number."""
    return word.startswith("-") and len(word) > 1 and not re.match(r"-\.?\d", word)


@dataclass(frozen=True)
class _Command:
    """A simple command; redirections are left out."""

    words: list[str]
    line: int
    sign: str
    """The first of < > & | ( ) outside quotes that belongs to it or ends it; empty for none."""
    assigns: bool
    """Whether it only sets variables."""


@dataclass(frozen=True)
class Variable:
    name: str
    value: str
    line: int


def simple_commands(
    text: str, where: str, variables: dict[str, str], fixed: Collection[str] = ()
) -> Iterator[_Command]:
    """Yields the commands in order. Each assignment is in `variables` when its command is yielded, except assignments
    to names that are `fixed`. Raises `InputError` for quotes and brackets that do not end."""
    yield from _Reader(re.sub(r"\r(?=\n|\Z)", "", text.replace("\0", "")), variables, where, fixed).commands()


def read_variables(location: str, known: Mapping[str, Variable] | None = None) -> dict[str, Variable]:
    """Variables of a file of assignments by name, with those `known` from earlier files. The last assignment counts, as
    in a shell. Raises `InputError` with the number of a line that does something else."""
    with storage.open_binary(location) as file:
        content = file.read()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = f"{location}: byte {error.start}"
        raise InputError("is not UTF-8", where=where, fix="save the file as UTF-8") from None
    return parse_variables(text, location, known)


def parse_variables(text: str, location: str, known: Mapping[str, Variable] | None = None) -> dict[str, Variable]:
    parsed = dict(known or {})
    values = {name: variable.value for name, variable in parsed.items()}
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
                parsed[match[1]] = Variable(match[1], values[match[1]], command.line)
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


def _computed(text: str) -> str | None:
    """The value of arithmetic on integers, in 64 bits and towards zero as a shell divides; None for anything else."""
    if not _SUM.fullmatch(text):
        return None
    try:
        value = _value_of(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None
    return str(value) if -(2**63) <= value < 2**63 else None


def _value_of(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        return -_value_of(node.operand) if isinstance(node.op, ast.USub) else _value_of(node.operand)
    if not isinstance(node, ast.BinOp):
        raise ValueError
    left, right = _value_of(node.left), _value_of(node.right)
    quotient = abs(left) // abs(right) * (-1 if (left < 0) != (right < 0) else 1) if right else 0
    match node.op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div() if right:
            return quotient
        case ast.Mod() if right:
            return left - quotient * right
    raise ValueError


class _Reader:
    def __init__(
        self, text: str, variables: dict[str, str], where: str, fixed: Collection[str] = (), depth: int = 0
    ) -> None:
        self.text, self.variables, self.where, self.fixed, self.depth = text, variables, where, fixed, depth
        self.at = self.counted = self.brought = 0
        self.line = 1
        """Line number of the character at `counted`."""
        self.words: list[str] = []
        self.word: str | None = None
        """The word that is being read; None between words."""
        self.leads_on = False
        """Whether the next word is a redirection's target."""
        self.sign = ""
        self.began = 1
        self.branches: list[set[str]] = []
        """Variables set inside each open `if`, loop or `case`, which may or may not run."""
        self.tested = False
        """Whether the last command was a test followed by && or ||."""

    def commands(self) -> Iterator[_Command]:
        while self.at < len(self.text):
            character = self.text[self.at]
            self.at += 1
            if character == "(" and not self.words and _ASSIGNMENT.fullmatch(self.word or ""):
                self._read_array()
            elif character in ";&|()\n" and not self._redirects():
                self.sign = self.sign or character.strip(";\n")
                yield from self._command()
            elif character in "<>&":
                self.sign = self.sign or character
                self._skip_redirection()
            elif character in " \t":
                self._end_word()
            elif character == "#" and self.word is None:
                end = self.text.find("\n", self.at)
                self.at = end if end >= 0 else len(self.text)
            else:
                if self.word is None and not self.words:
                    self.began = self._line()
                self._read(character)
        yield from self._command()

    def _command(self) -> Iterator[_Command]:
        self._end_word()
        words, sign, self.words, self.sign, self.leads_on = self.words, self.sign, [], "", False
        if words:
            self._branch(words[0])
            assigned = words[1:] if words[0] in (*_SETTERS, *_FOLLOWED) else words
            matches = [_ASSIGNMENT.match(word) for word in assigned]
            assigns = bool(matches) and None not in matches
            for word, match in zip(assigned, matches, strict=True) if assigns else ():
                if match and match[1] not in self.fixed:
                    before = self.variables.get(match[1], "") if match[2] else ""
                    self.variables[match[1]] = before + word[match.end() :]
                    if self.branches:
                        self.branches[-1].add(match[1])
                    elif self.tested:
                        del self.variables[match[1]]
            self.tested = words[0] in _TESTS and sign in ("&", "|")
            yield _Command(words, self.began, sign, assigns)

    def _branch(self, word: str) -> None:
        """Forgets a branch's variables at its end."""
        if word in _BEGIN:
            self.branches.append(set())
        elif self.branches and word in ("else", "elif", *_END):
            for name in self.branches[-1]:
                self.variables.pop(name, None)
            if word in _END:
                inner = self.branches.pop()
                if self.branches:
                    self.branches[-1] |= inner

    def _end_word(self) -> None:
        if self.word is not None and not self.leads_on:
            self.words.append(self.word)
        self.leads_on = self.leads_on and self.word is None
        self.word = None

    def _read(self, character: str) -> None:
        """Reads one piece of a word, after its first character."""
        if character == "'":
            end = self._find("'")
            self._add(self.text[self.at : end])
            self.at = end + 1
        elif character == '"' and (whole := _WHOLE_ARRAY.match(self.text, self.at)):  # a word for each entry
            self.at += 1
            self._add_split(self._value("$"))
            self.at = whole.end()
        elif character == '"':
            self._add(self._quoted('"'))
        elif character == "\\":
            if self.at < len(self.text) and (escaped := self._next()) != "\n":
                self._add(escaped)
        elif character == "$" and self._peek() == "'" and (ansi := _ANSI.match(self.text, self.at + 1)):
            self._add(ansi[1])  # as it is written: colours and line ends are of no use here
            self.at = ansi.end()
        elif character == "$" and self._peek() == '"':  # of a text that may be translated
            self._add("")
        elif character in "$`":
            self._add_split(self._value(character))
        elif character == "~" and self._peek() in "/ \t\n;" and _ASSIGNMENT.fullmatch(self.word or "A="):
            self._add(self._variable("HOME"))
        else:
            rest = self._match(_PLAIN)
            self._add(character + rest)

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

    def _read_array(self) -> None:
        """Reads the entries of an array, joined by spaces, after its opening bracket."""
        self.at -= 1
        begin, self.at, self.sign = self.at + 1, self._closing(), "("
        inner = self.text[begin : self.at - 1]
        commands = self._below(inner).commands() if self.depth < DEEPEST else ()
        entries = [word for command in commands for word in command.words]
        is_plain = self.depth < DEEPEST and not any(re.search(r"\s", word) for word in entries)
        self._add(" ".join(entries) if is_plain else _mark(f"({inner})"))

    def _quoted(self, end: str) -> str:
        """The text up to `end` (empty: to the end of the text), as within double quotes."""
        pieces = []
        while end or self.at < len(self.text):
            inner = self._next()
            if inner == end:
                break
            if inner == "\\" and self._peek() in '"\\$`\n':
                inner = self._next().replace("\n", "")
            elif inner in "$`":
                inner = self._value(inner)
            pieces.append(inner)
        return "".join(pieces)

    def _value(self, sign: str) -> str:
        """The value of the expression that begins with the `$` or backtick that was read."""
        value = self._looked_up(sign)
        self.brought += len(value)
        if self.brought > LONGEST:
            what = f"holds more than {LONGEST:,} letters with the values of its variables"
            raise InputError(what, where=self._place(), fix="write the values in the variables' place")
        return value

    def _looked_up(self, sign: str) -> str:
        begin = self.at
        if sign == "`":
            end = self._find("`")
            self.at = end + 1
            return self._output(self.text[begin:end], f"`{self.text[begin:end]}`")
        if self._peek() in "({":
            self.at = self._closing()
            inner, written = self.text[begin + 1 : self.at - 1], f"${self.text[begin : self.at]}"
            if self.text[begin] == "{":
                return self._braced(inner, written)
            if inner.startswith("(") and inner.endswith(")"):
                return self._arithmetic(inner[1:-1], written)
            return self._output(inner, written)
        name = _REFERENCE.match(self.text, self.at)
        if name is None:
            return "$"
        self.at = name.end()
        return self._variable(name[0])

    def _variable(self, name: str) -> str:
        """A variable's value. If it holds a command's output, the variable itself is unknown: the user can set it."""
        value = self.variables.get(name)
        if value is None or any(not NAME.fullmatch(mark[1:]) for mark in _UNKNOWN.findall(value)):
            return _mark(f"${name}")
        return value

    def _braced(self, inner: str, written: str) -> str:
        braced = _BRACED.fullmatch(inner)
        if braced is None:
            return _mark(written)
        name, colon, default = braced[1], braced[2], braced[3]
        value = self.variables.get(name)
        if default is not None and (value is None or (colon and not value)):
            return self._below(default)._quoted("") if self.depth < DEEPEST else _mark(written)
        return self._variable(name)

    def _arithmetic(self, inner: str, written: str) -> str:
        if self.depth >= DEEPEST:
            return _mark(written)
        expression = self._below(inner)._quoted("")
        if not (unknown := unknown_in(expression)):
            expression = NAME.sub(lambda name: self._variable(name[0]), expression)
            unknown = unknown_in(expression) or written
        return _computed(expression) or _mark(unknown)

    def _output(self, inner: str, written: str) -> str:
        """The output of `expr` on integers; unknown for any other command."""
        if inner.split()[:1] != ["expr"] or self.depth >= DEEPEST:
            return _mark(written)
        commands = list(self._below(inner).commands())
        words = commands[0].words[1:]
        if len(commands) > 1 or commands[0].sign or not all(re.fullmatch(r"-?\d+|[()+*/%-]", word) for word in words):
            return _mark(next(filter(None, map(unknown_in, words)), written))
        return _computed(" ".join(words)) or _mark(written)

    def _below(self, text: str) -> _Reader:
        return _Reader(text, self.variables, self._place(), self.fixed, self.depth + 1)

    def _closing(self) -> int:
        """The place after the closing bracket for the one at the current place."""
        opening = self.text[self.at]
        closing = ")" if opening == "(" else "}"
        depth = 0
        for piece in _PIECE.finditer(self.text, self.at):
            depth += (piece[0] == opening) - (piece[0] == closing)
            if not depth:
                return piece.end()
        raise InputError(f"lacks a closing {closing}", where=self._place(), fix="close its brackets")

    def _redirects(self) -> bool:
        """Whether the last `&` belongs to a redirection, `&>`."""
        return self.text[self.at - 1] == "&" and self._peek() == ">"

    def _skip_redirection(self) -> None:
        written = self.text[max(0, self.at - 1 - len(self.word or "")) : self.at - 1]
        if self.word is not None and self.word.isdigit() and written == self.word:  # the number of a stream
            self.word = None
        self._end_word()
        self._match(_REDIRECTION)
        self.leads_on = True

    def _match(self, pattern: re.Pattern[str]) -> str:
        """Reads and returns the text that matches a pattern here; empty if none does."""
        match = pattern.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return match[0] if match else ""

    def _add(self, text: str) -> None:
        self.word = (self.word or "") + text

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1] or " "

    def _next(self) -> str:
        if self.at >= len(self.text):
            raise InputError("has a quote without an end", where=self._place(), fix="close its quotes")
        self.at += 1
        return self.text[self.at - 1]

    def _find(self, sign: str) -> int:
        index = self.text.find(sign, self.at)
        if index < 0:
            raise InputError(f"lacks a closing {sign}", where=self._place(), fix="close its quotes")
        return index

    def _line(self) -> int:
        self.line += self.text.count("\n", self.counted, self.at)
        self.counted = max(self.counted, self.at)
        return self.line

    def _place(self) -> str:
        """The place of a mistake, with the line of its command if the text has several lines."""
        return f"{self.where}:{self.began}" if "\n" in self.text else self.where
