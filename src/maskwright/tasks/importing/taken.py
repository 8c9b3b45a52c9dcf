"""What is taken over of another trainer's flags: a row for each, and the values of our configuration."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import yaml

from maskwright.core.errors import InputError
from maskwright.core.settings import nested
from maskwright.tasks.importing.typed import Typed

Fate = Literal["mapped", "default", "not needed", "left out", "unknown"]
"""default: the flag was not given, and what the script does without it is taken over. not needed: nothing is lost by
its absence."""
Verb = Literal["pretrain", "finetune"]


@dataclass(frozen=True)
class Row:
    flag: str
    value: str
    fate: Fate
    became: str
    """Keys and values, or a sentence."""


@dataclass
class Taken:
    typed: Typed
    rows: list[Row] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    """By dotted key."""
    before: list[str] = field(default_factory=list)
    """Commands that come before the training, such as `data prepare`."""
    after: list[str] = field(default_factory=list)
    verb: Verb = "pretrain"
    run: str = "runs/imported"
    unnamed: set[str] = field(default_factory=set)
    """Given flags that have no row so far."""

    def __post_init__(self) -> None:
        self.unnamed = set(self.typed.flags)

    # ---- what was given --------------------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Whether a flag was given, and not with the value False."""
        values = self.typed.flags.get(name)
        return values is not None and values[:1] not in (["False"], ["false"], ["0"], ["no"])

    def text(self, name: str) -> str | None:
        """Its value; several words are joined by a space."""
        values = self.typed.flags.get(name)
        return " ".join(values) if values else None

    def number(self, name: str, default: float) -> float:
        given = self.text(name)
        try:
            return default if given is None else float(given)
        except ValueError:
            fix = "write the number itself"
            raise InputError(f"{given} is not a number", where=f"--{name}", fix=fix) from None

    def whole(self, name: str, default: int) -> int:
        return int(self.number(name, default))

    # ---- rows ------------------------------------------------------------------------------------------------

    def row(self, name: str, fate: Fate, became: str) -> None:
        self.unnamed.discard(name)
        self.rows.append(Row(self.typed.spelling.get(name, f"--{name}"), self.text(name) or "", fate, became))

    def set(self, name: str, values: Mapping[str, Any], note: str = "") -> None:
        """Takes the flag `name` over as `values`, by dotted key."""
        self.values |= values
        said = ", ".join(f"{key}: {shown(value)}" for key, value in values.items())
        fate: Fate = "mapped" if name in self.typed.flags else "default"
        self.row(name, fate, f"{said} ({note})" if note else said)

    def note(self, name: str, became: str, fate: Fate = "left out") -> None:
        """Says what became of a flag, if it was given."""
        if name in self.typed.flags:
            self.row(name, fate, became)

    def keys(self, table: Mapping[str, tuple[str, Callable[[float], Any], float]]) -> None:
        """Flags of one number each: name -> (key, its kind, what the script takes without it)."""
        for name, (key, kind, default) in table.items():
            self.set(name, {key: kind(self.number(name, default))})

    def close(self, not_needed: Mapping[str, str]) -> None:
        """Gives every flag that is left its row. `not_needed`: names, joined by spaces -> why."""
        why = {name: said for names, said in not_needed.items() for name in names.split()}
        for name in self.typed.flags:
            if name in self.unnamed and name in why:
                self.row(name, "not needed", why[name])
            elif name in self.unnamed:
                self.row(name, "unknown", "nothing here goes by this name")

    # ---- what is written -------------------------------------------------------------------------------------

    def yaml(self, command: str) -> str:
        head = "\n".join(f"# {line}".rstrip() for line in command.strip().splitlines())
        text: str = yaml.safe_dump(nested(self.values), sort_keys=False, allow_unicode=True)
        return f"# Imported from:\n{head}\n{text}"

    def commands(self, config: str) -> list[str]:
        """What to type, in order."""
        return [
            *self.before,
            f"maskwright {self.verb} {shlex.quote(config)} --run {shlex.quote(self.run)}",
            *self.after,
        ]

    def as_json(self, config: str, text: str) -> dict[str, Any]:
        return {"yaml": text, "rows": [asdict(row) for row in self.rows], "commands": self.commands(config)}


def shown(value: Any) -> str:
    return str(yaml.safe_dump(value, default_flow_style=True)).removesuffix("\n...\n").strip()


def table(rows: list[Row]) -> str:
    """Given flags first, then what the script does without a flag."""
    ordered = [row for row in rows if row.fate != "default"] + [row for row in rows if row.fate == "default"]
    wide = max((len(f"{row.flag} {row.value}") for row in ordered), default=0)
    wide = min(wide, 44)
    return "\n".join(f"{f'{row.flag} {row.value}'.strip():{wide}}  {row.fate:10}  {row.became}" for row in ordered)
