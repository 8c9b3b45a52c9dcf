"""Legs of a run: consecutive updates whose rows have one length and one mixture."""

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
from maskwright.data.stream import Place, Stream


class Leg(NamedTuple):
    first_row: int
    """Rows of the run before this leg."""
    length: int | None
    """Rows of this leg; None for the last one, which has no end."""
    rows: Rows | MixedRows
    order: Order | MixedOrder
    earlier: int = 0
    """Rows in the plans of earlier legs. Masks are drawn by it plus the row's number, so no two legs share draws."""


def make_legs(config: RunConfig, store: OpenedStore | Mixture) -> list[Leg]:
    """Raises `StoreError` for a source of less than one row, `ConfigError` for an impossible mixture."""
    if config.schedule.steps is None:  # then there are no phases
        return [_only(config, store)]
    groups = [list(group) for _, group in groupby(config.stages, key=lambda stage: _kind(stage.config.data))]
    if len(groups) == 1:
        return [_only(groups[0][0].config, store)]
    legs: list[Leg] = []
    sources = store.stores if isinstance(store, Mixture) else (store,)
    streams = [Stream(source, config.seed, config.data.packing, config.data.window_shards) for source in sources]
    places = [Place()] * len(streams)
    first_row = earlier = 0
    for group in groups:
        rows = sum(stage.rows for stage in group)
        count = None if group is groups[-1] else rows
        data = group[0].config.data
        if isinstance(store, Mixture):
            made, order, places = _mixed(config.seed, store, streams, places, data, count)
            legs.append(Leg(first_row, count, made, order, earlier))
        else:
            span = streams[0].span(places[0], data.seq_len, count)
            legs.append(Leg(first_row, count, span.rows, span.order, earlier))
            places = [span.next]
        first_row, earlier = first_row + rows, earlier + legs[-1].rows.plan.rows
    return legs


class Window(NamedTuple):
    """Shards of one source from which a run reads at the same time."""

    split: Split
    now: tuple[int, ...]
    following: tuple[int, ...]
    """Those of its next window that are not among them."""


def windows_at(leg: Leg, row: int, after: Leg | None) -> list[Window]:
    """[sources]: where row `row` of a leg is read. `after`: the next leg."""
    found = []
    for source, (rows, order, seen) in enumerate(_sources_at(leg, row)):
        own, end = order.window_at(seen)
        now, following = _shards(rows, own), tuple[int, ...]()
        if end is not None:
            following = _shards(rows, order.window_at(end)[0])
        elif after is not None:
            rows, order, seen = _sources_at(after, 0)[source]
            following = _shards(rows, order.window_at(seen)[0])
        found.append(Window(rows.split, now, tuple(one for one in following if one not in now)))
    return found


def _sources_at(leg: Leg, row: int) -> list[tuple[Rows, Order, int]]:
    """[sources]: (its rows, their order, the number of the first that is read from row `row` of the leg on)"""
    if isinstance(leg.rows, MixedRows) and isinstance(leg.order, MixedOrder):
        return list(zip(leg.rows.sources, leg.order.orders, leg.order.shares.given(row).tolist(), strict=True))
    assert isinstance(leg.rows, Rows) and not isinstance(leg.order, MixedOrder)
    return [(leg.rows, leg.order, row)]


def _shards(rows: Rows, blocks: Int64) -> tuple[int, ...]:
    return tuple(rows.blocks[one].shard_idx for one in blocks.tolist())


def _kind(data: Data) -> tuple[int, tuple[float | None, ...]]:
    return data.seq_len, tuple(source.weight for source in (data.mixture or {}).values())


def _only(config: RunConfig, store: OpenedStore | Mixture) -> Leg:
    data = config.data
    if isinstance(store, Mixture):
        mixed = store.rows(data.seq_len, data.packing)
        return Leg(0, None, mixed, store.order(config.seed, mixed, data.mixture or {}, data.window_shards))
    rows = open_rows(store, "train", data.seq_len, data.packing)
    return Leg(0, None, rows, row_order(config.seed, [block.rows for block in rows.blocks], data.window_shards))


def _mixed(
    seed: int, store: Mixture, streams: list[Stream], places: list[Place], data: Data, count: int | None
) -> tuple[MixedRows, MixedOrder, list[Place]]:
    """(rows, order, places of the sources after them) of a leg of a mixture."""
    read = [place.epoch + place.token / stream.tokens for place, stream in zip(places, streams, strict=True)]
    in_epoch = [stream.rows_in_epoch(data.seq_len) for stream in streams]
    supply = [
        None if most is None else max(int((most - done) * rows), 0)
        for most, done, rows in zip(store.most_epochs, read, in_epoch, strict=True)
    ]
    weights = store.weights(data.mixture or {}, [stream.tokens for stream in streams])
    weights = [0.0 if most == 0 else weight for weight, most in zip(weights, supply, strict=True)]
    shares = Shares(seed, weights, supply)
    if shares.end is not None and (count or 1) > shares.end:
        what = "every source has given its max_epochs before the last phase ends"
        raise ConfigError(what, where="data.mixture", fix="raise or leave out one of them, or lower schedule.steps")
    each = [None] * len(streams) if count is None else shares.given(count).tolist()
    spans = [stream.span(place, data.seq_len, rows) for stream, place, rows in zip(streams, places, each, strict=True)]
    rows = MixedRows(store.names, tuple(span.rows for span in spans))
    order = MixedOrder(shares, [span.order for span in spans], [span.rows.plan.rows for span in spans])
    return rows, order, [span.next for span in spans]
