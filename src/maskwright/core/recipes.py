"""Configurations that come with the package: a command takes one by its name, as in `maskwright pretrain small`."""

from __future__ import annotations

import difflib
import importlib.resources
import os

from maskwright.core.errors import ConfigError
from maskwright.core.storage import is_url

FOLDER = importlib.resources.files("maskwright") / "recipes"


def names() -> list[str]:
    return sorted(file.name.removesuffix(".yaml") for file in FOLDER.iterdir())


def read(name: str) -> str:
    """The YAML of a recipe. Raises `ConfigError` where none has that name."""
    if name not in names():
        raise _unknown(name, "is not a recipe", "give")
    return (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")


def find_config(location: str) -> str:
    """The path of a recipe where `location` is its name and no such file is here; else `location` itself.

    Raises `ConfigError` for a bare word that is neither, and for the file of a recipe where there is none.
    """
    name = os.path.basename(location).removesuffix(".yaml")
    if location.endswith(".yaml") and name in names() and not is_url(location) and not os.path.exists(location):
        raise ConfigError("no such file", where=location, fix=f"did you mean the recipe {name}? Give its name alone")
    if is_url(location) or os.path.basename(location) != location or os.path.isfile(location):
        return location
    if location in names():
        return str(FOLDER / f"{location}.yaml")
    if location.endswith((".yaml", ".yml")):
        return location
    raise _unknown(location, "is neither a file nor a recipe", "give a YAML file, or")


def _unknown(name: str, what: str, give: str) -> ConfigError:
    near = difflib.get_close_matches(name, names(), n=1)
    fix = (f"did you mean {near[0]}? Else " if near else "") + f"{give} one of the recipes {', '.join(names())}"
    return ConfigError(what, where=name, fix=fix)
