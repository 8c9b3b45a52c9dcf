"""Configurations that come with the package: a command accepts one by its name, as in `maskwright pretrain small`."""

from __future__ import annotations

import difflib
import importlib.resources
import itertools
import os
import re
from collections.abc import Mapping
from importlib.resources.abc import Traversable
from typing import Any, Literal

from maskwright.core.errors import ConfigError
from maskwright.core.storage import is_url

FOLDER = importlib.resources.files("maskwright") / "recipes"
Kind = Literal["pretrain", "finetune"]
"""The command that accepts a recipe. Recipes of `finetune` are in a folder of that name."""

STORES = {"store", "mixture"}
"""Keys of `data` that name the training data of a masked language model."""
TAKEN_BY: dict[Kind, str] = {
    "pretrain": "use `maskwright pretrain`",
    "finetune": "use `maskwright finetune`, with --dry-run for a check alone",
}


def names(kind: Kind = "pretrain") -> list[str]:
    folder = FOLDER if kind == "pretrain" else FOLDER / kind
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def read(name: str) -> str:
    """The YAML of a recipe of either kind. Raises `ConfigError` if none has that name."""
    kind: Kind = "finetune" if name in names("finetune") else "pretrain"
    if name not in names(kind):
        raise _unknown(name, "is not a recipe", "give", [*names(), *names("finetune")])
    return _path(name, kind).read_text(encoding="utf-8")


def purpose(name: str) -> str:
    """The first sentence of a recipe's comment."""
    comment = itertools.takewhile(lambda line: line.startswith("#"), read(name).splitlines())
    return re.split(r"(?<=[.?]) (?=[A-Z])", " ".join(line[2:] for line in comment))[0].rstrip(".")


def _path(name: str, kind: Kind) -> Traversable:
    return (FOLDER if kind == "pretrain" else FOLDER / kind) / f"{name}.yaml"


def find_config(location: str, kind: Kind = "pretrain") -> str:
    """The path of a recipe if `location` is its name and no such file exists; else `location` itself.

    Raises `ConfigError` for a bare word that is neither, and for a recipe's file name without such a file.
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
    other: Kind = "pretrain" if kind == "finetune" else "finetune"
    if location in names(other):
        raise ConfigError(f"is a recipe of `{other}`, not of `{kind}`", where=location, fix=TAKEN_BY[other])
    if os.path.isdir(location):
        raise ConfigError("is a folder", where=location, fix="give the YAML file of a run, or the name of a recipe")
    raise _unknown(location, "is neither a file nor a recipe", "give a YAML file, or", names(kind))


def is_finetuning(values: Mapping[str, Any]) -> bool:
    """Whether this is the YAML of `maskwright finetune`."""
    return "train" in (keys := _data_keys(values)) and not keys & STORES


def _data_keys(values: Mapping[str, Any]) -> set[str]:
    data = values.get("data")
    return set(data) if isinstance(data, dict) else set()


def require_kind(values: Mapping[str, Any], location: str, kind: Kind) -> None:
    """Raises `ConfigError` for the YAML of the other command, instead of one error for each key."""
    data_keys = _data_keys(values)
    if kind == "pretrain" and is_finetuning(values):
        what = "is the YAML of a fine-tuning run (data.train), not of pretraining"
        fix = f"{TAKEN_BY['finetune']}; for `pretrain`, name a token store as data.store"
        raise ConfigError(what, where=location, fix=fix)
    if kind == "finetune" and data_keys & STORES and "train" not in data_keys:
        what = f"is the YAML of pretraining (data.{min(data_keys & STORES)}), not of a fine-tuning run"
        fix = f"{TAKEN_BY['pretrain']}; for `finetune`, name labelled examples as data.train"
        raise ConfigError(what, where=location, fix=fix)


def _unknown(name: str, what: str, give: str, known: list[str]) -> ConfigError:
    near = difflib.get_close_matches(name, known, n=1)
    fix = (f"did you mean {near[0]}? Else " if near else "") + f"{give} one of the recipes {', '.join(known)}"
    return ConfigError(what, where=name, fix=fix)
