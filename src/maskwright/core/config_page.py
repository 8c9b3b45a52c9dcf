"""The configuration page of the documentation, made from `core/config.py` so that the two cannot differ."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pydantic import BaseModel

from maskwright.core.config import RESUMABLE_KEYS, RunConfig
from maskwright.core.settings import bounds, choices, keys_of

INTRODUCTION = """\
# Configuration

<!-- Made by `maskwright schema --markdown > docs/configuration.md`; a test compares the two. -->

One YAML file describes a run. The package brings some in [recipes/](../recipes), which go by their names, as in
`maskwright pretrain small …`. `maskwright schema --recipe small` prints one, to begin your own with.
`--set section.key=value` overrides a key. Unknown keys are refused with the nearest name, and wrong types with their
path. Keys marked *resumable* may change when a run is continued; a change of any other key is refused. `maskwright
schema` prints the JSON schema, for completion in an editor. The [glossary](glossary.md) says what a row, a sequence and
a virtual worker are.

`data.store` and `schedule.steps` have no default.
"""


def markdown() -> str:
    parts = [INTRODUCTION, "| key | type | default | meaning |\n|---|---|---|---|"]
    parts[-1] += "".join(f"\n{row}" for row in rows(RunConfig, resumable=RESUMABLE_KEYS))
    return "\n".join(parts) + "\n"


def rows(section: type[BaseModel], prefix: str = "", resumable: Collection[str] = ()) -> list[str]:
    """Rows of a table: key, type, default, meaning."""
    lines: list[str] = []
    for dotted, key in keys_of(section, prefix).items():
        default = "" if key.field.is_required() else f"`{key.field.get_default(call_default_factory=True)}`"
        default = default.replace("`None`", "not set")
        meaning = " ".join((key.field.description or "").split())
        if dotted in resumable:
            meaning += " *Resumable.*"
        lines.append(f"| `{dotted}` | {_type(key.schema)} | {default} | {meaning.strip()} |")
    return lines


def _type(schema: dict[str, Any]) -> str:
    words = [f"`{word}`" for word in choices(schema)]
    return ", ".join(words) if words else " ".join([schema.get("type", "list"), *bounds(schema)])
