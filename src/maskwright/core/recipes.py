"""Configurations that come with the package: a command takes one by its name, as in `maskwright pretrain small`."""

from __future__ import annotations

import difflib
import importlib.resources
import os
from importlib.resources.abc import Traversable
from typing import Literal

from maskwright.core.errors import ConfigError
from maskwright.core.storage import is_url

FOLDER = importlib.resources.files("maskwright") / "recipes"
Kind = Literal["pretrain", "finetune"]
"""The command that takes a recipe. Those of `finetune` lie in a folder of that name."""


def names(kind: Kind = "pretrain") -> list[str]:
    folder = FOLDER if kind == "pretrain" else FOLDER / kind
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def read(name: str) -> str:
    """The YAML of a recipe of either kind. Raises `ConfigError` where none has that name."""
    kind: Kind = "finetune" if name in names("finetune") else "pretrain"
    if name not in names(kind):
        raise _unknown(name, "is not a recipe", "give", [*names(), *names("finetune")])
    return _path(name, kind).read_text(encoding="utf-8")


def _path(name: str, kind: Kind) -> Traversable:
    return (FOLDER if kind == "pretrain" else FOLDER / kind) / f"{name}.yaml"


def find_config(location: str, kind: Kind = "pretrain") -> str:
    """The path of a recipe where `location` is its name and no such file is here; else `location` itself.

    Raises `ConfigError` for a bare word that is neither, and for the file of a recipe where there is none.
    """
    name = os.path.basename(location).removesuffix(".yaml")
    if location.endswith(".yaml") and name in names(kind) and not is_url(location) and not os.path.exists(location):
        raise ConfigError("no such file", where=location, fix=f"did you mean the recipe {name}? Give its name alone")
    if is_url(location) or os.path.basename(location) != location or os.path.isfile(location):
        return location
    if location in names(kind):
        return str(_path(location, kind))
    if location.endswith((".yaml", ".yml")):
        return location
    raise _unknown(location, "is neither a file nor a recipe", "give a YAML file, or", names(kind))


def _unknown(name: str, what: str, give: str, known: list[str]) -> ConfigError:
    near = difflib.get_close_matches(name, known, n=1)
    fix = (f"did you mean {near[0]}? Else " if near else "") + f"{give} one of the recipes {', '.join(known)}"
    return ConfigError(what, where=name, fix=fix)
