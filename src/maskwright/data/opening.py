"""Data of any format, opened for training."""

from __future__ import annotations

import os
from typing import Any

from maskwright.config.data import Arrow, Data
from maskwright.config.settings import nested
from maskwright.core.errors import InputError
from maskwright.data.arrow_store import ArrowStore, Judged, is_arrow, open_judged
from maskwright.data.mixture import Mixture
from maskwright.data.store import TokenStore

Store = Judged | Mixture


def open_store(data: Data, tokenizer: str | None = None) -> Store:
    """`data.store` or `data.mixture`. `tokenizer`: see `open_judged`."""
    if data.mixture is not None:
        return Mixture(data.mixture, data.mixture_alpha)
    assert data.store is not None, "a configuration has one of them"
    return open_judged(data.store, data.format, data.arrow, tokenizer)


def open_held_out(data: Data) -> dict[str, Judged]:
    """The stores of `data.validation` by name. A folder of Arrow files is held out in full."""
    arrow = data.arrow if data.format == "arrow" else None
    return {name: _judging(location, arrow) for name, location in data.held_out.items()}


def open_judging_store(location: str, run: dict[str, Any] | None, tokenizer: str) -> Judged:
    """A store to judge a model on. A folder of Arrow files is held out in full. It is read as the run of that record
    reads its own Arrow files, or with `tokenizer` if the run has none."""
    data = recorded_data(run)
    arrow = data.arrow if data is not None and data.format == "arrow" else Arrow(tokenizer=tokenizer)
    return _judging(location, arrow if os.path.isdir(location) and is_arrow(location) else None)


def _judging(location: str, arrow: Arrow | None) -> Judged:
    if arrow is None or os.path.isfile(os.path.join(location, "manifest.json")):
        return TokenStore(location)
    return ArrowStore(location, arrow, all_held_out=True)


def recorded_data(run: dict[str, Any] | None) -> Data | None:
    """`data` of a pretraining run's record, with the store's place at that time; None without such a record."""
    values = nested(run["config"]).get("data") if run and run.get("store") else None
    if run is None or values is None:
        return None
    return Data.model_validate(values if values.get("mixture") else values | {"store": run["store"]})


def recorded_stores(run: dict[str, Any]) -> dict[str, Judged]:
    """The stores by which a run is judged, from its record: those of its `data.validation`; else its own store under an
    empty name, or the sources of its mixture with a validation split. Raises `InputError` if there are none."""
    data = recorded_data(run)
    fix = "`maskwright evaluate --store` takes a store of held-out text"
    if data is None:
        raise InputError("its record names no store", where="config.resolved.json", fix=fix)
    if data.held_out:
        return open_held_out(data)
    if data.mixture is not None:
        found = Mixture(data.mixture, data.mixture_alpha).held_out
    elif data.format == "pregenerated":  # each epoch has the same text
        found = {}
    else:
        found = {"": open_judged(run["store"], data.format, data.arrow)}
    if not found:
        raise InputError("nothing of what the run trained on was held out", where=run["store"], fix=fix)
    return found
