"""Data of any format, opened for training."""

from __future__ import annotations

import os
from typing import Any

from maskwright.config.data import Arrow, Data
from maskwright.config.settings import nested
from maskwright.core.errors import InputError
from maskwright.data.converted_store import is_arrow, open_arrow
from maskwright.data.mixture import Mixture, open_source
from maskwright.data.store import TokenStore

Store = TokenStore | Mixture


def open_store(data: Data, tokenizer: str | None = None) -> Store:
    """`data.store` or `data.mixture`. `tokenizer`: see `open_source`."""
    if data.mixture is not None:
        return Mixture(data.mixture, data.mixture_alpha)
    assert data.store is not None, "a configuration has one of them"
    return open_source(data.store, data.format, data.arrow, tokenizer)


def open_held_out(data: Data) -> dict[str, TokenStore]:
    """The stores of `data.validation` by name. A folder of Arrow files is held out in full."""
    arrow = data.arrow if data.format == "arrow" else None
    return {name: _held_out_store(location, arrow) for name, location in data.held_out.items()}


def open_evaluation_store(location: str, run: dict[str, Any] | None, tokenizer: str) -> TokenStore:
    """Opens a store to evaluate a model on. A folder of Arrow files is held out in full. It is read as the run of that
    record reads its own Arrow files, or with `tokenizer` if the run has none."""
    data = recorded_data(run)
    arrow = data.arrow if data is not None and data.format == "arrow" else Arrow(tokenizer=tokenizer)
    return _held_out_store(location, arrow if os.path.isdir(location) and is_arrow(location) else None)


def _held_out_store(location: str, arrow: Arrow | None) -> TokenStore:
    if arrow is None or os.path.isfile(os.path.join(location, "manifest.json")):
        return TokenStore(location)
    return open_arrow(location, arrow, all_held_out=True)


def recorded_data(run: dict[str, Any] | None) -> Data | None:
    """`data` of a pretraining run's record, with the store's place at that time; None without such a record."""
    values = nested(run["config"]).get("data") if run and run.get("store") else None
    if run is None or values is None:
        return None
    return Data.model_validate(values if values.get("mixture") else values | {"store": run["store"]})


def recorded_stores(run: dict[str, Any]) -> dict[str, TokenStore]:
    """The stores on which a run is evaluated, by its record: those of its `data.validation`; else its own store under
    an empty name, or the sources of its mixture with a validation split. Raises `InputError` if there are none."""
    data = recorded_data(run)
    fix = "`maskwright evaluate --store` takes a store of held-out text"
    if data is None:
        raise InputError("its record names no store", where="config.resolved.json", fix=fix)
    if data.held_out:
        return open_held_out(data)
    if data.mixture is not None:
        stores = Mixture(data.mixture, data.mixture_alpha).held_out
    elif data.format == "pregenerated":  # each epoch has the same text
        stores = {}
    else:
        stores = {"": open_source(run["store"], data.format, data.arrow)}
    if not stores:
        raise InputError("none of the run's text was held out", where=run["store"], fix=fix)
    return stores
