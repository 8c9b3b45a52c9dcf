"""Data of either format, opened for training."""

from __future__ import annotations

from maskwright.core.config import Data, RunConfig
from maskwright.data.loader import Loader
from maskwright.data.pregenerated.loader import PregeneratedLoader
from maskwright.data.pregenerated.store import PregeneratedStore
from maskwright.data.store import TokenStore

Store = TokenStore | PregeneratedStore
AnyLoader = Loader | PregeneratedLoader


def open_store(data: Data, tokenizer: str | None = None) -> Store:
    """`data.store`. `tokenizer`: of the model that is continued, for examples that came without one."""
    if data.format == "pregenerated":
        return PregeneratedStore(data.store, tokenizer)
    return TokenStore(data.store)


def make_loader(config: RunConfig, store: Store) -> AnyLoader:
    return PregeneratedLoader(config, store) if isinstance(store, PregeneratedStore) else Loader(config, store)
