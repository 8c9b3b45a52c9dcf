"""The flags of fairseq-hydra-train: a YAML of sections, and `section.name=value` words after it."""

from __future__ import annotations

import os
import re
from typing import Any

from maskwright.config.settings import read_yaml
from maskwright.core.errors import InputError
from maskwright.tasks.importing.typed import Typed

_NAMED = {
    "model": "arch",
    "task": "task",
    "criterion": "criterion",
    "optimizer": "optimizer",
    "lr_scheduler": "lr_scheduler",
}
"""Sections whose `_name` is a flag of fairseq-train; the keys below are its other flags, by their own names."""
MISSING = "???"
"""The value in a file of hydra that the user has to replace."""
_OVERRIDE = re.compile(r"[+~]{0,2}([\w.]+)=(.*)", re.DOTALL)


def read_hydra(typed: Typed) -> None:
    """Replaces hydra's flags by those of fairseq-train, and its words by the folder of data.

    Raises `InputError` where the YAML of --config-name is absent."""
    folder = _taken_out(typed, "config_dir", "cd")
    name = _taken_out(typed, "config_name", "cn")
    for switch in ("m", "multirun"):
        typed.flags.pop(switch, None)
    values = _flat(_file(folder, name)) if name else {}
    for word in [word for word in typed.words if _OVERRIDE.fullmatch(word)]:
        key, value = word.lstrip("+~").split("=", 1)
        values[key] = value
        typed.words.remove(word)
    values = {key: value for key, value in values.items() if value not in (None, MISSING)}
    if data := values.pop("task.data", None):
        typed.words.insert(0, str(data))
    for key, value in values.items():
        section, _, leaf = key.rpartition(".")
        flag = _NAMED.get(section if leaf == "_name" else key if not section else "", leaf)
        if section.partition(".")[0] != "hydra" and key != "defaults":
            typed.flags[flag] = [_as_flag(value)]
            typed.spelling[flag] = key


def _taken_out(typed: Typed, *names: str) -> str | None:
    values = [typed.flags.pop(name) for name in names if name in typed.flags]
    return typed.known(values[0][0]) if values and values[0] else None


def _file(folder: str | None, name: str) -> Any:
    path = os.path.join(folder or ".", name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    if not os.path.isfile(path):
        fix = "type the command where that folder is, or give --config-dir its path from here"
        raise InputError("no such file, and it has most of the run's values", where=path, fix=fix)
    return read_yaml(path, "name the YAML that fairseq-hydra-train reads")


def _flat(values: Any, section: str = "") -> dict[str, Any]:
    if not isinstance(values, dict):
        return {section: values}
    return {
        key: value
        for name, inner in values.items()
        for key, value in _flat(inner, f"{section}.{name}".lstrip(".")).items()
    }


def _as_flag(value: Any) -> str:
    """A value as fairseq-train reads it: lists by commas, 16 for `[16]`."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    text = str(value)
    return text[1:-1] if re.fullmatch(r"\[.*\]", text, re.DOTALL) else text
