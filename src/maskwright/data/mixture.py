"""A mixture of token stores with one tokenizer, read by one run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.config.data import Arrow, Source
from maskwright.core import storage
from maskwright.core.errors import StoreError
from maskwright.data.converted_store import open_arrow, open_epochs
from maskwright.data.mixing import MixedOrder, weights_by_size
from maskwright.data.order import RowOrder
from maskwright.data.packing import Packing
from maskwright.data.rows import Arrays, Rows, RowTotals, open_rows
from maskwright.data.store import SplitName, TokenStore
from maskwright.text.arrays import Int64
from maskwright.text.vocabulary import Vocabulary


def open_source(location: str, format_: str, arrow: Arrow, tokenizer: str | None = None) -> TokenStore:
    """Opens a store of one format. `tokenizer`: the continued model's, for pregenerated epochs without one."""
    if format_ == "arrow":
        return open_arrow(location, arrow)
    return open_epochs(location, tokenizer) if format_ == "pregenerated" else TokenStore(location)


class Mixture:
    passes = 1

    def __init__(self, sources: dict[str, Source], alpha: float | None) -> None:
        """Raises `StoreError` for a store that cannot be opened, and for different tokenizers."""
        self.names = tuple(sources)
        self.stores = tuple(open_source(source.store, source.format, source.arrow) for source in sources.values())
        self._weights = [source.weight for source in sources.values()]
        self._alpha = 1.0 if alpha is None else alpha
        first = self.stores[0]
        for store in self.stores[1:]:
            store.require_tokenizer(first.vocabulary, first.location)
        self.location = first.location
        totals = {
            split: {"documents": sum(store.manifest["splits"][split]["documents"] for store in self.stores)}
            for split in ("train", "valid")
        }
        self.manifest: dict[str, Any] = {"splits": totals}

    @property
    def held_out(self) -> dict[str, TokenStore]:
        """The sources with a validation split, by name."""
        stores = zip(self.names, self.stores, strict=True)
        return {name: store for name, store in stores if store.manifest["splits"]["valid"]["documents"]}

    @property
    def fingerprint(self) -> str:
        """Digest of all that decides a run's rows: the stores and their weights."""
        stores = [store.fingerprint for store in self.stores]
        return storage.sha256_of([stores, self._weights, self._alpha])

    @property
    def vocabulary(self) -> Vocabulary:
        return self.stores[0].vocabulary

    @property
    def tokenizer_folder(self) -> str:
        return self.stores[0].tokenizer_folder

    def require_tokenizer(self, vocabulary: Vocabulary, where: str) -> None:
        for store in self.stores:
            store.require_tokenizer(vocabulary, where)

    def verify_at_start(self) -> None:
        for store in self.stores:
            store.verify_at_start()

    def origin(self, split: SplitName, document: int) -> str:
        """See `TokenStore.origin`. Documents are numbered through all stores."""
        for store in self.stores:
            count = int(store.manifest["splits"][split]["documents"])
            if document < count:
                return store.origin(split, document)
            document -= count
        raise IndexError(document)

    def rows(self, seq_len: int, packing: Packing) -> MixedRows:
        """Raises `StoreError` for a source of less than one row."""
        sources = tuple(open_rows(store, "train", seq_len, packing) for store in self.stores)
        for store, rows in zip(self.stores, sources, strict=True):
            if rows.totals.text_tokens < seq_len - 2:
                what = f"has {rows.totals.text_tokens:,} tokens to train on, but one row needs {seq_len - 2:,}"
                fix = "leave it out of data.mixture, add its text to another source, or lower data.seq_len"
                raise StoreError(what, where=store.location, fix=fix)
        return MixedRows(self.names, sources)

    def order(
        self, seed: int, rows: MixedRows, sources: Mapping[str, Source], first_epochs: NDArray[np.int64]
    ) -> MixedOrder:
        """`sources`: with the weights, which may be a phase's own; by the sources' sizes if none are given.
        `first_epochs` [sources]: numbers of the epochs to begin with. Raises `ConfigError` for a weight that is too
        small."""
        weights = [source.weight for source in sources.values() if source.weight is not None]
        weights = weights or weights_by_size([source.totals.text_tokens for source in rows.sources], self._alpha)
        firsts = zip(rows.sources, first_epochs.tolist(), strict=True)
        orders = [RowOrder(seed, source.totals.rows, first) for source, first in firsts]
        return MixedOrder(seed, weights, orders)


class MixedRows:
    """See `Rows`. Rows and documents are numbered through all sources, one after the other."""

    def __init__(self, names: tuple[str, ...], sources: tuple[Rows, ...]) -> None:
        self.names, self.sources = names, sources
        totals = [source.totals for source in sources]
        sizes = [total.rows for total in totals]
        self.first = np.cumsum(sizes) - sizes
        """[sources]: number of each one's first row."""
        waste = sum(total.waste * total.rows for total in totals) / sum(sizes)
        self.totals = RowTotals(totals[0].seq_len, sum(sizes), sum(total.text_tokens for total in totals), waste)

    def materialize(self, rows: Int64) -> Arrays:
        parts = [(idxs, self.sources[source].materialize(numbers)) for source, idxs, numbers in self._by_source(rows)]
        ids, positions, segments = (np.empty((len(rows), self.totals.seq_len), np.int32) for _ in range(3))
        for idxs, part in parts:
            ids[idxs], positions[idxs], segments[idxs] = part
        return ids, positions, segments

    def work(self, rows: Int64) -> tuple[int, float]:
        totals = [self.sources[source].work(row_numbers) for source, _, row_numbers in self._by_source(rows)]
        return sum(tokens for tokens, _ in totals), sum(pairs for _, pairs in totals)

    def documents(self, row: int) -> list[int]:
        source = int(np.searchsorted(self.first, row, side="right")) - 1
        documents_before = sum(rows.split.documents for rows in self.sources[:source])
        return [documents_before + number for number in self.sources[source].documents(row - int(self.first[source]))]

    def _by_source(self, rows: Int64) -> Iterator[tuple[int, Int64, Int64]]:
        """(source, indices into `rows` of its rows, their numbers in the source)"""
        sources = np.searchsorted(self.first, rows, side="right") - 1
        for source in np.unique(sources).tolist():
            idxs = np.flatnonzero(sources == source)
            yield source, idxs, rows[idxs] - self.first[source]
