"""Reads NAME=value files of the shell without a shell, so that nothing in them ever runs.

It takes comments, `export`, quotes of both kinds and $'…', escapes, several pieces put together, and $NAME or ${NAME}
of a variable set above. It refuses $(…), `…`, arrays, and every line that is no assignment, with the line's number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from maskwright.core import storage
from maskwright.core.errors import ConfigError

ASSIGNMENT = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=")
QUOTED = re.compile(r"""'([^']*)'|\$'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\"""")
PLAIN = re.compile(r"""(?:\\.?|\$(?!')\(?|[^ \t\r;|&<>('"\\$])+""")
"""Text up to the next blank, quote or special character."""
EXPANDED = re.compile(r"\\(.?)|`|\$\(|\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})|\$(?=[{@*#?$!\-0-9])", re.ASCII)
"""An escape, a command, a reference, or another use of $."""


@dataclass(frozen=True)
class Variable:
    name: str
    value: str
    line: int


def read_variables(location: str, known: Mapping[str, Variable] | None = None) -> dict[str, Variable]:
    """Variables by name, with those `known` from files before it. The last of several counts, as in a shell. Raises
    `ConfigError`."""
    with storage.open_binary(location) as file:
        content = file.read()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = f"{location}: byte {error.start}"
        raise ConfigError("is not UTF-8", where=where, fix="save the file as UTF-8") from None
    return parse_variables(text, location, known)


def parse_variables(text: str, location: str, known: Mapping[str, Variable] | None = None) -> dict[str, Variable]:
    found = dict(known or {})
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith(("#", "set -", "set +")):
            continue
        where, match = f"{location}:{number}", ASSIGNMENT.match(line)
        if match is None:
            fix = "write NAME=value, with quotes where the value has spaces"
            raise ConfigError("is not an assignment", where=where, fix=fix)
        value = _value(line, match.end(), {name: one.value for name, one in found.items()}, where)
        found[match[1]] = Variable(match[1], value, number)
    return found


def _value(line: str, at: int, known: Mapping[str, str], where: str) -> str:
    """The value that begins at `at`, up to where the shell would end it."""
    parts = []
    while at < len(line) and line[at] not in " \t\r;":
        if quoted := QUOTED.match(line, at):
            single, ansi, double = quoted.groups()
            parts.append(_expand(double, known, where, quoted=True) if double else single or ansi or "")
            at = quoted.end()
        elif plain := PLAIN.match(line, at):
            parts.append(_expand(plain[0], known, where, quoted=False))
            at = plain.end()
        elif line[at] in "'\"$":
            raise _refused("has a quote that does not end on its line", where)
        else:
            raise _refused(f"has {line[at]!r} outside quotes", where)
    rest = line[at:].strip().removeprefix(";").strip()
    if rest and not rest.startswith("#"):
        raise _refused(f"goes on after the value: {rest[:30]!r}", where)
    return "".join(parts)


def _expand(text: str, known: Mapping[str, str], where: str, *, quoted: bool) -> str:
    """Replaces escapes and references, inside double quotes or without any."""

    def replaced(match: re.Match[str]) -> str:
        escaped, name = match[1], match[2] or match[3]
        if escaped is not None:
            if not escaped:
                raise _refused("goes on in the next line", where)
            return escaped if not quoted or escaped in '"\\$`' else match[0]
        if match[0] in ("`", "$("):
            raise _refused("runs a command, which is not done here", where)
        if name is None:
            raise _refused("uses more of the shell than $NAME", where)
        if name not in known:
            fix = "set it above, or name the file that sets it before this one"
            raise ConfigError(f"uses {name}, which is not set above", where=where, fix=fix)
        return known[name]

    return EXPANDED.sub(replaced, text)


def _refused(what: str, where: str) -> ConfigError:
    return ConfigError(what, where=where, fix="write the value itself; nothing in the file is run")
