"""Data of any format, opened for training."""

from __future__ import annotations

import os
from typing import Any

from maskwright.core.data_config import Data
from maskwright.data.arrow_store import ArrowStore
from maskwright.data.store import TokenStore

Store = TokenStore | ArrowStore


def open_store(data: Data) -> Store:
    """`data.store`."""
    return ArrowStore(data.store, data.arrow) if data.format == "arrow" else TokenStore(data.store)


def open_held_out(data: Data) -> dict[str, TokenStore | ArrowStore]:
    """The stores of `data.validation` by name. A folder of Arrow files is held out in full."""
    found: dict[str, TokenStore | ArrowStore] = {}
    for name, location in data.held_out.items():
        own = data.format != "arrow" or os.path.isfile(os.path.join(location, "manifest.json"))
        found[name] = TokenStore(location) if own else ArrowStore(location, data.arrow, all_held_out=True)
    return found


def recorded_store(run: dict[str, Any]) -> Store:
    """The store of a run, from its record."""
    values: dict[str, Any] = {"store": run["store"], "arrow": {}}
    for key, value in run["config"].items():
        section, _, name = key.removeprefix("data.").partition(".")
        if key.startswith("data.arrow."):
            values["arrow"][name] = value
        elif key == "data.format":
            values[section] = value
    return open_store(Data.model_validate(values))
