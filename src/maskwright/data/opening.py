"""Data of any format, opened for training."""

from __future__ import annotations

import os

from maskwright.config.data import Arrow, Data
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


def open_evaluation_store(location: str, data: Data | None, tokenizer: str) -> TokenStore:
    """Opens a store to evaluate a model on. A folder of Arrow files is held out in full. It is read like the Arrow
    files of the model's run, whose section this is, or with `tokenizer` if the run has none."""
    arrow = data.arrow if data is not None and data.format == "arrow" else Arrow(tokenizer=tokenizer)
    return _held_out_store(location, arrow if os.path.isdir(location) and is_arrow(location) else None)


def _held_out_store(location: str, arrow: Arrow | None) -> TokenStore:
    if arrow is None or os.path.isfile(os.path.join(location, "manifest.json")):
        return TokenStore(location)
    return open_arrow(location, arrow, all_held_out=True)
