"""The simple commands of a shell's text, read without a shell: nothing in it ever runs.

Quotes, escapes, comments and variables that the text itself sets are understood; redirections are left out. What only
a shell could know (`$(…)`, a variable from elsewhere) stays in the word between two marks, and is refused where it
matters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from maskwright.core.errors import InputError

_NAME = re.compile(r"\w+|[@*#?!$-]")
_BRACED = re.compile(r"(\w+)(?::?-(.*))?")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_TARGET = re.compile(r"[<>&]*[ \t]*[^\s;|&<>()]*")
"""What a redirection leads to."""
_UNKNOWN = re.compile("\0([^\0]*)\0")


def simple_commands(text: str, where: str) -> Iterator[list[str]]:
    """The words of each, with the values of variables that were set before it. Raises `InputError` for open quotes."""
    variables: dict[str, str] = {}
    for words in _Reader(text.replace("\r\n", "\n"), variables, where).commands():
        assigned = words[1:] if words[:1] == ["export"] else words
        if assigned and all(_ASSIGNMENT.match(word) for word in assigned):
            variables |= dict(word.partition("=")[::2] for word in assigned)
        else:
            yield words


def require_known(words: list[str], where: str) -> list[str]:
    """Raises `InputError` if a word holds what only a shell could know."""
    for word in words:
        if unknown := _UNKNOWN.search(word):
            fix = "write its value into the command in its place"
            raise InputError(f"uses {unknown[1]}, which is not known here", where=where, fix=fix)
    return words


class _Reader:
    def __init__(self, text: str, variables: dict[str, str], where: str) -> None:
        self.text, self.variables, self.where, self.at = text, variables, where, 0
        self.words: list[str] = []
        self.word: str | None = None
        """The one that is being read; None between two."""

    def commands(self) -> Iterator[list[str]]:
        while self.at < len(self.text):
            character = self.text[self.at]
            self.at += 1
            if character in ";&|()\n" and not self._redirects():
                yield from self._command()
            elif character in "<>&":
                self._skip_redirection()
            elif character in " \t":
                self._end_word()
            elif character == "#" and self.word is None:
                self.at = self._find("\n", len(self.text))
            else:
                self._read(character)
        yield from self._command()

    def _command(self) -> Iterator[list[str]]:
        self._end_word()
        words, self.words = self.words, []
        if words:
            yield words

    def _end_word(self) -> None:
        if self.word is not None:
            self.words.append(self.word)
        self.word = None

    def _read(self, character: str) -> None:
        """One piece of a word, whose first character was read."""
        if character == "'":
            end = self._find("'")
            self._add(self.text[self.at : end])
            self.at = end + 1
        elif character == '"':
            self._add("")
            while (inner := self._next()) != '"':
                if inner == "\\" and self._peek() in '"\\$`\n':
                    inner = self._next().replace("\n", "")
                self._add(self._value() if inner == "$" else inner)
        elif character == "\\":
            if (escaped := self._next()) != "\n":
                self._add(escaped)
        elif character == "$":
            first, *others = re.split(r"\s+", self._value())
            if first or self.word:
                self._add(first)
            for other in others:
                self._end_word()
                self.word = other or None
        elif character == "`":
            end = self._find("`")
            self._add(f"\0`{self.text[self.at : end]}`\0")
            self.at = end + 1
        else:
            self._add(character)

    def _value(self) -> str:
        """The value of the variable behind the `$` that was read, or what only a shell could know between marks."""
        if self._peek() == "(":
            end = self._find(")")
            command, self.at = self.text[self.at : end + 1], end + 1
            return f"\0${command}\0"
        if self._peek() == "{":
            end = self._find("}")
            inner, self.at = self.text[self.at + 1 : end], end + 1
            braced = _BRACED.fullmatch(inner)
            name, default = (braced[1], braced[2]) if braced else ("", None)
            return self.variables.get(name) or default or f"\0${{{inner}}}\0"
        name = _NAME.match(self.text, self.at)
        if name is None:
            return "$"
        self.at = name.end()
        return self.variables.get(name[0], f"\0${name[0]}\0")

    def _redirects(self) -> bool:
        """Whether the `&` that was read belongs to a redirection, `&>`."""
        return self.text[self.at - 1] == "&" and self._peek() == ">"

    def _skip_redirection(self) -> None:
        if self.word is not None and self.word.isdigit():  # the number of a stream
            self.word = None
        self._end_word()
        rest = _TARGET.match(self.text, self.at)
        self.at = rest.end() if rest else self.at

    def _add(self, text: str) -> None:
        self.word = (self.word or "") + text

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1] or " "

    def _next(self) -> str:
        if self.at >= len(self.text):
            raise InputError("has a quote without an end", where=self.where, fix="close its quotes")
        self.at += 1
        return self.text[self.at - 1]

    def _find(self, sign: str, default: int | None = None) -> int:
        found = self.text.find(sign, self.at)
        if found < 0 and default is None:
            raise InputError(f"has no {sign} that ends what was begun", where=self.where, fix="close its quotes")
        return found if found >= 0 else default or 0
