"""The keys that name places, for both kinds of training. The places may move, so their contents are compared."""

from __future__ import annotations

import os
from typing import Any, TypeVar

from pydantic import BaseModel

from maskwright.config.data import Source
from maskwright.core.hub import is_hub
from maskwright.core.storage import is_url

T = TypeVar("T", bound=BaseModel)
COPIES = "checkpoint.copy_to"
READ = frozenset(
    (
        *("data.store", "data.mixture", "data.arrow.tokenizer", "data.train", "data.validation", "data.test"),
        *("model.init_from", "model.tokenizer"),
    )
)
PLACES = READ | {COPIES}
"""Keys with locations, which are private."""


def absolute(config: T) -> T:
    """The configuration with absolute paths, so that it means the same in every folder."""
    for key in PLACES:
        config = _replaced(config, key.split("."))
    return config


def _replaced(section: T, names: list[str]) -> T:
    name, *rest = names
    if name not in type(section).model_fields:
        return section
    value = getattr(section, name)
    new = _replaced(value, rest) if rest else _absolute(value)
    return section if new == value else section.model_copy(update={name: new})


def _absolute(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _absolute(entry) for name, entry in value.items()}
    if isinstance(value, Source):
        return _replaced(_replaced(value, ["store"]), ["arrow", "tokenizer"])
    return value if value is None or is_url(value) or is_hub(value) else os.path.abspath(value)
