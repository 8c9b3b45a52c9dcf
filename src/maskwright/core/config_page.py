"""The configuration page of the documentation, made from `core/config.py` so that the two cannot differ."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from pydantic import BaseModel

from maskwright.core.config import RESUMABLE_KEYS, RunConfig

INTRODUCTION = """\
# Configuration

<!-- Made by `maskwright schema --markdown > docs/configuration.md`; a test compares the two. -->

One YAML file describes a run; [recipes/](../recipes) holds examples. `--set section.key=value` overrides a key. Unknown
keys are refused with the nearest name, and wrong types with their path. Keys marked *resumable* may change when a run
is continued; a change of any other key is refused. `maskwright schema` prints the JSON schema, for completion in an
editor. The [glossary](glossary.md) says what a row, a sequence and a virtual worker are.

`data.store` and `schedule.steps` have no default.
"""


def markdown() -> str:
    parts = [INTRODUCTION, "| key | type | default | meaning |\n|---|---|---|---|"]
    parts[-1] += "".join(f"\n{row}" for row in rows(RunConfig, resumable=RESUMABLE_KEYS))
    return "\n".join(parts) + "\n"


def rows(section: type[BaseModel], prefix: str = "", resumable: Collection[str] = ()) -> list[str]:
    """Rows of a table: key, type, default, meaning."""
    lines: list[str] = []
    properties = section.model_json_schema()["properties"]
    for name, field in section.model_fields.items():
        dotted = prefix + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            lines += rows(field.annotation, f"{dotted}.", resumable)
            continue
        default = "" if field.is_required() else f"`{field.get_default(call_default_factory=True)}`"
        default = default.replace("`None`", "not set")
        meaning = " ".join((field.description or "").split())
        if dotted in resumable:
            meaning += " *Resumable.*"
        lines.append(f"| `{dotted}` | {_type(properties[name])} | {default} | {meaning.strip()} |")
    return lines


def _type(schema: dict[str, Any]) -> str:
    choices = [choice for choice in schema.get("anyOf", [schema]) if choice.get("type") != "null"]
    first = choices[0]
    if "enum" in first:
        return ", ".join(f"`{value}`" for value in first["enum"])
    if "const" in first:
        return f"`{first['const']}`"
    limits = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {_number(first[key])}" for key, sign in limits.items() if key in first]
    return " ".join([first.get("type", "list"), *bounds])


def _number(value: float) -> str:
    return re.sub(r"\.0$", "", str(value)) if value < 2**40 else f"2^{int(value).bit_length() - 1}"
