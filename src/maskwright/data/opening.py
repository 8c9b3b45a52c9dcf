"""Data of either format, opened for training."""

from __future__ import annotations

from maskwright.core.config import RunConfig
from maskwright.core.data_section import Data
from maskwright.data.loader import Loader
from maskwright.data.mixture import Mixture
from maskwright.data.pregenerated.loader import PregeneratedLoader
from maskwright.data.pregenerated.store import PregeneratedStore
from maskwright.data.store import TokenStore

Store = TokenStore | Mixture | PregeneratedStore
AnyLoader = Loader | PregeneratedLoader


def open_store(data: Data, tokenizer: str | None = None) -> Store:
    """`data.store` or `data.mixture`. `tokenizer`: of the model that is continued, for examples that came without."""
    if data.mixture is not None:
        return Mixture(data.mixture, data.mixture_alpha)
    assert data.store is not None, "a configuration has one of them"
    return PregeneratedStore(data.store, tokenizer) if data.format == "pregenerated" else TokenStore(data.store)


def make_loader(config: RunConfig, store: Store) -> AnyLoader:
    return PregeneratedLoader(config, store) if isinstance(store, PregeneratedStore) else Loader(config, store)
