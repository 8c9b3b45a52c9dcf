"""A command line of another trainer, as it was typed or as it stands in a shell script."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from maskwright.core import storage
from maskwright.core.errors import InputError
from maskwright.core.secrets import HIDDEN, redact

_ASSIGNED = re.compile(r"\s*(?:export\s+)?([A-Za-z_]\w*)=(.*)")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_NUMBER = re.compile(r"-\.?\d.*")
_SECRET = re.compile(r"(^|_)(token|key|secret|password|credentials?)$", re.IGNORECASE)  # not --max-tokens
_PROCESSES = ("nproc_per_node", "num_processes", "num_gpus")
_MACHINES = ("nnodes", "num_nodes", "num_machines")
OPERATORS = ("|", ">", ">>", "2>&1", "&>", "&", "&&", "||", ";")
TOTAL = "num_processes"
"""accelerate's count is that of all machines, the others' is that of one."""


@dataclass
class Typed:
    script: str
    """The word that names it, such as run_mlm.py."""
    flags: dict[str, list[str]] = field(default_factory=dict)
    """Values by name, without dashes at its beginning and with `_` for those inside; none for a bare flag."""
    words: list[str] = field(default_factory=list)
    """What stands before the first flag."""
    spelling: dict[str, str] = field(default_factory=dict)
    """Each flag as it was typed."""
    original: str = ""
    """The command as it was given, for the YAML's head."""
    world_size: int = 1
    """Processes on all machines that torchrun, accelerate or deepspeed was told to start."""


def read_command(given: str, scripts: Sequence[str]) -> Typed:
    """`given`: a command, or the file of a shell script that has one. `scripts`: names that it may have.

    Raises `InputError` where none of them is in it, and for a variable whose value is not known."""
    variables: dict[str, str] = {}
    lines, where = [given], "the command"
    if os.path.isfile(given):
        with storage.open_binary(given) as file:
            lines, where = file.read().decode(errors="replace").replace("\\\n", " ").splitlines(), given
    for line in lines:
        assigned = _ASSIGNED.fullmatch(line)
        if assigned and not any(script in line for script in scripts):
            value = _words(_filled(assigned[2], variables, where, strict=False), where)
            variables[assigned[1]] = value[0] if value else ""
            continue
        if line.lstrip().startswith("#"):
            continue
        words = _words(line.replace("\\\n", " "), where)
        places = [number for number, word in enumerate(words) if os.path.basename(word) in scripts]
        if places:
            filled = [_filled(word, variables, where) for word in words]
            end = next((number for number, word in enumerate(filled) if word in OPERATORS), len(filled))
            shown = _without_secrets(filled[:end])
            typed = _sorted(shown[: places[0]], shown[places[0] :])
            typed.original = shlex.join(shown)
            return typed
    fix = "give the whole command in single quotes, or the file of a shell script that has it"
    raise InputError(f"has no {' or '.join(scripts)}", where=where, fix=fix)


def _without_secrets(words: list[str]) -> list[str]:
    """The words with `***` for each value of a flag or a variable such as --hub_token: they go into the YAML's head."""
    found, secret = [], False
    for word in words:
        name, equals, value = word.partition("=")
        named = bool(_SECRET.search(_name(word)))
        if equals and value and named:
            found.append(f"{name}={HIDDEN}")
        else:
            found.append(HIDDEN if secret and not _is_flag(word) else redact(word))
        secret = named and not equals and _is_flag(word)
    return found


def _words(line: str, where: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise InputError(f"cannot be read: {error}", where=where, fix="close its quotes") from None


def _filled(text: str, variables: dict[str, str], where: str, *, strict: bool = True) -> str:
    """With the values of the variables that were set above."""

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name not in variables and strict:
            fix = f"write its value into the command in place of ${name}"
            raise InputError(f"uses ${name}, which is not set above", where=where, fix=fix)
        return variables.get(name, found[0])

    return _VARIABLE.sub(value, text)


def _sorted(before: list[str], words: list[str]) -> Typed:
    typed = Typed(words[0])
    launcher, _ = _flags(before)
    typed.flags, typed.words = _flags(words[1:])
    typed.spelling = {_name(word): word.partition("=")[0] for word in words[1:] if _is_flag(word)}
    counts = {name: _count(launcher[name]) for name in (*_PROCESSES, *_MACHINES) if name in launcher}
    processes = next((counts[name] for name in _PROCESSES if name in counts), 1)
    machines = next((counts[name] for name in _MACHINES if name in counts), 1)
    typed.world_size = processes if TOTAL in counts else processes * machines
    return typed


def _name(word: str) -> str:
    return word.lstrip("-").partition("=")[0].replace("-", "_")


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not _NUMBER.fullmatch(word)


def _flags(words: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    flags: dict[str, list[str]] = {}
    others: list[str] = []
    values = others
    for word in words:
        if _is_flag(word):
            _, equals, value = word.partition("=")
            values = flags[_name(word)] = [value] if equals else []
        else:
            values.append(word)
    return flags, others


def _count(values: list[str]) -> int:
    """1 for a word such as `gpu`: only the machine knows what it stands for."""
    return int(values[0]) if values and values[0].isdigit() else 1
