"""Data phases of a run: consecutive updates whose rows have one length and one mixture. Each has epochs of its own."""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from maskwright.config.data import Data
from maskwright.config.pretraining import RunConfig
from maskwright.data.mixing import MixedOrder
from maskwright.data.mixture import MixedRows, Mixture
from maskwright.data.order import RowOrder
from maskwright.data.rows import Rows, open_rows
from maskwright.data.store import TokenStore


class DataPhase(NamedTuple):
    first_row: int
    """Rows of the run before this phase."""
    length: int | None
    """Rows of this phase; None for the last one, which has no end."""
    rows: Rows | MixedRows
    order: RowOrder | MixedOrder
    read: NDArray[np.float64]
    """[sources]: epochs of each that earlier phases read."""

    def epochs(self, rows: int) -> NDArray[np.float64]:
        """[sources]: epochs of each before row `rows` of this phase, with the epochs of earlier phases."""
        return self.read + self.order.epochs(rows)


def make_data_phases(config: RunConfig, store: TokenStore | Mixture) -> list[DataPhase]:
    """The data phases. Raises `StoreError` for a source of less than one row, `ConfigError` for a wrong mixture."""
    groups: list[tuple[Data, int | None]] = [(config.data, None)]
    if config.schedule.steps is not None:  # otherwise no phase changes the rows (see require_phases)
        kinds = [list(group) for _, group in groupby(config.stages, key=lambda stage: _kind(stage.config.data))]
        groups = [(kind[0].config.data, sum(stage.rows for stage in kind)) for kind in kinds]
        groups[-1] = (groups[-1][0], None)
    sources = len(store.stores) if isinstance(store, Mixture) else 1
    phases: list[DataPhase] = []
    first_row, read, first_epochs = 0, np.zeros(sources), np.zeros(sources, np.int64)
    for data, count in groups:
        rows, order = _rows_and_order(config.seed, store, data, first_epochs)
        phases.append(DataPhase(first_row, count, rows, order, read))
        if count is not None:
            first_row, read = first_row + count, phases[-1].epochs(count)
            first_epochs = first_epochs + np.ceil(order.epochs(count)).astype(np.int64)
    return phases


def _rows_and_order(
    seed: int, store: TokenStore | Mixture, data: Data, first_epochs: NDArray[np.int64]
) -> tuple[Rows, RowOrder] | tuple[MixedRows, MixedOrder]:
    """`first_epochs` [sources]: numbers of the epochs with which this phase begins."""
    if isinstance(store, Mixture):
        mixed = store.rows(data.seq_len, data.packing)
        return mixed, store.order(seed, mixed, data.mixture or {}, first_epochs)
    rows = open_rows(store, "train", data.seq_len, data.packing)
    return rows, RowOrder(seed, rows.totals.rows, int(first_epochs[0]))


def _kind(data: Data) -> tuple[int, tuple[float | None, ...]]:
    return data.seq_len, tuple(source.weight for source in (data.mixture or {}).values())
