"""Data phases of a run: consecutive updates whose rows have one length and one mixture."""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

from maskwright.config.data import Data
from maskwright.config.pretraining import RunConfig
from maskwright.core.errors import ConfigError
from maskwright.data.mixing import MixedOrder, Shares
from maskwright.data.mixture import MixedRows, Mixture
from maskwright.data.order import Order, row_order
from maskwright.data.rows import Int64, Rows, open_rows
from maskwright.data.store import OpenedStore, Split
from maskwright.data.stream import Stream, StreamPosition


class DataPhase(NamedTuple):
    first_row: int
    """Rows of the run before this phase."""
    length: int | None
    """Rows of this phase; None for the last one, which has no end."""
    rows: Rows | MixedRows
    order: Order | MixedOrder
    earlier: int = 0
    """Rows in the plans of earlier phases. Masks are drawn by it plus the row's number, so no phases share draws."""


def make_data_phases(config: RunConfig, store: OpenedStore | Mixture) -> list[DataPhase]:
    """The data phases. Raises `StoreError` for a source of less than one row, `ConfigError` for a wrong mixture."""
    if config.schedule.steps is None:  # then no phase changes the rows: see require_phases
        return [_single_phase(config, store)]
    groups = [list(group) for _, group in groupby(config.stages, key=lambda stage: _kind(stage.config.data))]
    if len(groups) == 1:
        return [_single_phase(groups[0][0].config, store)]
    phases: list[DataPhase] = []
    sources = store.stores if isinstance(store, Mixture) else (store,)
    streams = [Stream(source, config.seed, config.data.packing, config.data.window_shards) for source in sources]
    starts = [StreamPosition()] * len(streams)
    first_row = earlier = 0
    for group in groups:
        rows = sum(stage.rows for stage in group)
        count = None if group is groups[-1] else rows
        data = group[0].config.data
        if isinstance(store, Mixture):
            mixed_rows, order, starts = _mixed(config.seed, store, streams, starts, data, count)
            phases.append(DataPhase(first_row, count, mixed_rows, order, earlier))
        else:
            span = streams[0].span(starts[0], data.seq_len, count)
            phases.append(DataPhase(first_row, count, span.rows, span.order, earlier))
            starts = [span.next]
        first_row, earlier = first_row + rows, earlier + phases[-1].rows.plan.rows
    return phases


class Window(NamedTuple):
    """Shards of one source from which a run reads at the same time."""

    split: Split
    now: tuple[int, ...]
    following: tuple[int, ...]
    """Shards of its next window that are not among `now`."""


def windows_at(phase: DataPhase, row: int, next_phase: DataPhase | None) -> list[Window]:
    """[sources]: where row `row` of a leg is read. `next_phase`: the next leg."""
    windows = []
    for source, (rows, order, seen) in enumerate(_sources_at(phase, row)):
        blocks, end = order.window_at(seen)
        now, following = _shards(rows, blocks), tuple[int, ...]()
        if end is not None:
            following = _shards(rows, order.window_at(end)[0])
        elif next_phase is not None:
            rows, order, seen = _sources_at(next_phase, 0)[source]
            following = _shards(rows, order.window_at(seen)[0])
        windows.append(Window(rows.split, now, tuple(shard_idx for shard_idx in following if shard_idx not in now)))
    return windows


def _sources_at(phase: DataPhase, row: int) -> list[tuple[Rows, Order, int]]:
    """[sources]: (its rows, their order, the number of the first that is read from row `row` of the phase on)"""
    if isinstance(phase.rows, MixedRows) and isinstance(phase.order, MixedOrder):
        first_rows = phase.order.shares.source_rows(row).tolist()
        return list(zip(phase.rows.sources, phase.order.orders, first_rows, strict=True))
    assert isinstance(phase.rows, Rows) and not isinstance(phase.order, MixedOrder)
    return [(phase.rows, phase.order, row)]


def _shards(rows: Rows, blocks: Int64) -> tuple[int, ...]:
    return tuple(rows.blocks[block_idx].shard_idx for block_idx in blocks.tolist())


def _kind(data: Data) -> tuple[int, tuple[float | None, ...]]:
    return data.seq_len, tuple(source.weight for source in (data.mixture or {}).values())


def _single_phase(config: RunConfig, store: OpenedStore | Mixture) -> DataPhase:
    data = config.data
    if isinstance(store, Mixture):
        mixed = store.rows(data.seq_len, data.packing)
        return DataPhase(0, None, mixed, store.order(config.seed, mixed, data.mixture or {}, data.window_shards))
    rows = open_rows(store, "train", data.seq_len, data.packing)
    return DataPhase(0, None, rows, row_order(config.seed, [block.rows for block in rows.blocks], data.window_shards))


def _mixed(
    seed: int, store: Mixture, streams: list[Stream], starts: list[StreamPosition], data: Data, count: int | None
) -> tuple[MixedRows, MixedOrder, list[StreamPosition]]:
    """(rows, order, places of the sources after them) of a phase of a mixture."""
    read_epochs = [stream.epochs_before(start) for start, stream in zip(starts, streams, strict=True)]
    in_epoch = [stream.rows_in_epoch(data.seq_len) for stream in streams]
    supply = [
        None if limit is None else max(int((limit - done) * rows), 0)
        for limit, done, rows in zip(store.max_epochs, read_epochs, in_epoch, strict=True)
    ]
    weights = store.weights(data.mixture or {}, [stream.tokens for stream in streams])
    weights = [0.0 if limit == 0 else weight for weight, limit in zip(weights, supply, strict=True)]
    shares = Shares(seed, weights, supply)
    if shares.end is not None and (count or 1) > shares.end:
        what = "every source has given its max_epochs before the last phase ends"
        raise ConfigError(what, where="data.mixture", fix="raise or leave out one of them, or lower schedule.steps")
    counts = [None] * len(streams) if count is None else shares.source_rows(count).tolist()
    spans = [stream.span(start, data.seq_len, n) for stream, start, n in zip(streams, starts, counts, strict=True)]
    rows = MixedRows(store.names, tuple(span.rows for span in spans))
    order = MixedOrder(shares, [span.order for span in spans], [span.rows.plan.rows for span in spans])
    return rows, order, [span.next for span in spans]
