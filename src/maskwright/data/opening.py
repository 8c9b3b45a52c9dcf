"""Data of any format, opened for training."""

from __future__ import annotations

import os
from typing import Any

from maskwright.core.config import RunConfig
from maskwright.core.data_config import Data
from maskwright.core.errors import InputError
from maskwright.core.settings import nested
from maskwright.data.arrow_store import ArrowStore, Judged, open_judged
from maskwright.data.loader import Loader
from maskwright.data.mixture import Mixture
from maskwright.data.pregenerated.loader import PregeneratedLoader
from maskwright.data.pregenerated.store import PregeneratedStore
from maskwright.data.store import TokenStore

Store = Judged | Mixture | PregeneratedStore
AnyLoader = Loader | PregeneratedLoader


def open_store(data: Data, tokenizer: str | None = None) -> Store:
    """`data.store` or `data.mixture`. `tokenizer`: of the model that is continued, for examples that came without."""
    if data.mixture is not None:
        return Mixture(data.mixture, data.mixture_alpha)
    assert data.store is not None, "a configuration has one of them"
    if data.format == "pregenerated":
        return PregeneratedStore(data.store, tokenizer)
    return open_judged(data.store, data.format, data.arrow)


def make_loader(config: RunConfig, store: Store) -> AnyLoader:
    return PregeneratedLoader(config, store) if isinstance(store, PregeneratedStore) else Loader(config, store)


def open_held_out(data: Data) -> dict[str, Judged]:
    """The stores of `data.validation` by name. A folder of Arrow files is held out in full."""
    found: dict[str, Judged] = {}
    for name, location in data.held_out.items():
        own = data.format != "arrow" or os.path.isfile(os.path.join(location, "manifest.json"))
        found[name] = TokenStore(location) if own else ArrowStore(location, data.arrow, all_held_out=True)
    return found


def recorded_stores(run: dict[str, Any]) -> dict[str, Judged]:
    """What a run holds out, from its record: its store under an empty name, or those sources of its mixture that hold
    something out. Raises `InputError` if nothing is, as in pregenerated epochs."""
    values = nested(run["config"])["data"]
    data = Data.model_validate(values if values.get("mixture") else values | {"store": run["store"]})
    if data.mixture is None and data.format != "pregenerated":
        return {"": open_judged(run["store"], data.format, data.arrow)}
    found = {} if data.mixture is None else Mixture(data.mixture, data.mixture_alpha).held_out
    if not found:
        what = "holds pregenerated examples, none of which are held out"
        what = "no source of the run's mixture holds documents out" if data.mixture else what
        raise InputError(what, where=run["store"], fix="give --store, --blimp or --text")
    return found
