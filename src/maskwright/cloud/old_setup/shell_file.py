"""Reads NAME=value files of the shell without a shell: nothing in them is ever run.

Taken: comments, `export`, quotes of both kinds and $'…', escapes, several pieces put together, and $NAME or ${NAME} of
a variable set above. Refused with the line's number: $(…), `…`, arrays, and all that is no assignment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from maskwright.core import storage
from maskwright.core.errors import ConfigError

ASSIGNMENT = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=")
REFERENCE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})")
ENDS = " \t\r;"
SPECIAL = "|&<>("
FIX = "write NAME=value, with quotes where the value has spaces"


@dataclass(frozen=True)
class Variable:
    name: str
    value: str
    line: int


def read_variables(location: str) -> dict[str, Variable]:
    """By name; the last of several counts, as in a shell. Raises `ConfigError`."""
    with storage.open_binary(location) as file:
        content = file.read()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = f"{location}: byte {error.start}"
        raise ConfigError("is not UTF-8", where=where, fix="save the file as UTF-8") from None
    return parse_variables(text, location)


def parse_variables(text: str, where: str) -> dict[str, Variable]:
    found: dict[str, Variable] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith(("#", "set -", "set +")):
            continue
        match = ASSIGNMENT.match(line)
        if match is None:
            raise ConfigError("is no assignment", where=f"{where}:{number}", fix=FIX)
        value = _Value(line, match.end(), {name: v.value for name, v in found.items()}, f"{where}:{number}").read()
        found[match.group(1)] = Variable(match.group(1), value, number)
    return found


class _Value:
    """One value, from its first character to where the shell would end it."""

    def __init__(self, line: str, start: int, known: dict[str, str], where: str) -> None:
        self.line, self.at, self.known, self.where = line, start, known, where
        self.parts: list[str] = []

    def read(self) -> str:
        while self.at < len(self.line) and self.line[self.at] not in ENDS:
            character = self.line[self.at]
            if character in SPECIAL:
                raise self._refused(f"has {character!r} outside quotes")
            if character == "'":
                self._single()
            elif character == '"':
                self._double()
            elif self.line.startswith("$'", self.at):
                self._ansi()
            else:
                self._plain(quoted=False)
        rest = self.line[self.at :].strip().removeprefix(";").strip()
        if rest and not rest.startswith("#"):
            raise self._refused(f"goes on after the value: {rest[:30]!r}")
        return "".join(self.parts)

    def _single(self) -> None:
        end = self.line.find("'", self.at + 1)
        if end < 0:
            raise self._refused("has a quote that does not end on its line")
        self.parts.append(self.line[self.at + 1 : end])
        self.at = end + 1

    def _double(self) -> None:
        self.at += 1
        while self.at < len(self.line) and self.line[self.at] != '"':
            self._plain(quoted=True)
        if self.at >= len(self.line):
            raise self._refused("has a quote that does not end on its line")
        self.at += 1

    def _ansi(self) -> None:
        end = re.compile(r"(?:[^'\\]|\\.)*'").match(self.line, self.at + 2)
        if end is None:
            raise self._refused("has a quote that does not end on its line")
        self.parts.append(self.line[self.at + 2 : end.end() - 1])
        self.at = end.end()

    def _plain(self, *, quoted: bool) -> None:
        """One character, escape or reference, inside double quotes or without any."""
        character, following = self.line[self.at], self.line[self.at + 1 : self.at + 2]
        if character == "\\":
            if not following:
                raise self._refused("goes on in the next line")
            kept = following if not quoted or following in '"\\$`' else character + following
            self.parts.append(kept)
            self.at += 2
        elif character == "`" or self.line.startswith("$(", self.at):
            raise self._refused("runs a command, which is not done here")
        elif character == "$" and (match := REFERENCE.match(self.line, self.at)):
            name = match.group(1) or match.group(2)
            if name not in self.known:
                raise self._refused(f"uses {name}, which is not set above")
            self.parts.append(self.known[name])
            self.at = match.end()
        elif character == "$" and following and following in "{@*#?$!-0123456789":
            raise self._refused("uses more of the shell than $NAME")
        else:
            self.parts.append(character)
            self.at += 1

    def _refused(self, what: str) -> ConfigError:
        return ConfigError(what, where=self.where, fix="write the value itself; nothing in the file is run")
