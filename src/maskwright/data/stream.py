"""One source's text, divided among phases of different row lengths so that no token is read twice in an epoch.

Rows of one length have one packing, and their order is a permutation. Rows of two lengths share no packing, so here the
text itself has an order: epoch after epoch, all shards in a keyed order of that epoch. Each span of rows of one length
resumes where the last one stopped. In its last shard it takes documents in a keyed order too, and cuts the final
document; the next span takes the rest. All of this follows from the configuration and the store, so resuming is a seek.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from maskwright.data.order import Order, order, row_order, shard_order
from maskwright.data.packing import Packing, Plan, first_rows, plan_spans, required
from maskwright.data.plans import ShardPlans
from maskwright.data.rows import RowBlock, Rows, make_rows, whole_shards
from maskwright.data.store import OpenedStore, Split

Int64 = NDArray[np.int64]
SEED_OF_DOCUMENTS = 0x646F6373
SPARE_ROWS, MOST_TRIES = 200, 8
"""Inside an epoch, a span packs at most one row in 200 more than the run reads, if `MOST_TRIES` tries get there."""


class StreamPosition(NamedTuple):
    """The begin of a span in a source's text."""

    epoch: int = 0
    shards: int = 0
    """Whole shards before it, in the epoch's order."""
    token: int = 0
    """Tokens of the next shard before it, in the order of its documents."""


class EpochPart(NamedTuple):
    """Rows of a span that are shuffled together: a piece of one epoch, or whole epochs."""

    epoch: int
    epochs: int | None
    """Number of whole epochs; None for all that follow."""
    first: int
    """Index of its first row in the span's plan."""
    size: int
    """Rows in its plan."""
    used: int | None
    """Rows that the run reads, over all these epochs; None without an end."""
    share: float
    """Share of an epoch's tokens in them, for each epoch."""
    first_block: int
    """Index of its first block in the span's rows."""


@dataclass(frozen=True)
class RowSpan:
    """Rows of one length, numbered through all parts, one after the other."""

    rows: Rows
    order: PartOrder
    next: StreamPosition
    """The begin of the next span."""


class PartOrder:
    """`RowOrder` over parts."""

    end: int | None = None

    def __init__(self, parts: list[EpochPart], orders: list[Order], before: float) -> None:
        """`orders`: of the rows of each part. `before`: epochs of the source that are read before the span."""
        self.parts, self.before = parts, before
        self._orders = orders
        used = [0 if part.used is None else part.used for part in parts]
        self.starts = np.cumsum(used) - used

    def at(self, seen: Int64) -> tuple[Int64, Int64]:
        """(epochs, rows in the plan) of the span's rows with numbers `seen`."""
        epochs, rows = np.empty(len(seen), np.int64), np.empty(len(seen), np.int64)
        part_of_row = np.searchsorted(self.starts, seen, side="right") - 1
        for part_idx in np.unique(part_of_row).tolist():
            part, is_here = self.parts[part_idx], part_of_row == part_idx
            # Each epoch has a permutation of its own.
            index = seen[is_here] - self.starts[part_idx] + part.epoch * part.size
            epochs[is_here], rows_of_part = self._orders[part_idx].at(index)
            rows[is_here] = part.first + rows_of_part
        return epochs, rows

    def window_at(self, seen: int) -> tuple[Int64, int | None]:
        """See `Order.window_at`, with numbers of blocks of the span's rows in place of shards."""
        if not self.parts:
            return np.zeros(0, np.int64), None
        part_idx = int(np.searchsorted(self.starts, seen, side="right")) - 1
        part, start = self.parts[part_idx], int(self.starts[part_idx])
        before = part.epoch * part.size
        blocks, end = self._orders[part_idx].window_at(seen - start + before)
        end = None if end is None else end - before + start
        if part.used is not None and (end is None or end >= start + part.used):
            end = start + part.used if part_idx + 1 < len(self.parts) else None
        return part.first_block + blocks, end

    def epochs(self, rows: int) -> float:
        """Epochs of the source that are read before row `rows` of the span."""
        epochs = self.before
        for part, start in zip(self.parts, self.starts.tolist(), strict=True):
            read = max(rows - start, 0) if part.used is None else min(max(rows - start, 0), part.used)
            per_epoch = part.used if part.epochs == 1 and part.used else part.size
            epochs += part.share * read / max(per_epoch, 1)
        return epochs


class Stream:
    """One source, span by span."""

    def __init__(self, store: OpenedStore, seed: int, packing: Packing, window_shards: int | None = None) -> None:
        """Raises `StoreError` for a store without documents to train on."""
        self.store, self.seed, self.packing, self.window_shards = store, seed, packing, window_shards
        self.split: Split = store.split("train")
        self.tokens = self.split.tokens
        self._plans: dict[int, ShardPlans] = {}

    def plans(self, seq_len: int) -> ShardPlans:
        if seq_len not in self._plans:
            self._plans[seq_len] = ShardPlans(self.split, self.store.plans_key, "train", seq_len, self.packing)
        return self._plans[seq_len]

    def span(self, position: StreamPosition, seq_len: int, rows: int | None) -> RowSpan:
        """The next `rows` rows of `seq_len` tokens from `position` on; None for all that follow."""
        blocks: list[RowBlock] = []
        parts: list[EpochPart] = []
        orders: list[Order] = []
        before, rows_left = self.epochs_before(position), rows
        in_epoch = self.rows_of(seq_len)
        while rows_left is None or rows_left > 0:
            first_row = sum(block.rows for block in blocks)
            if position[1:] == (0, 0) and (rows_left is None or rows_left >= in_epoch):
                added = whole_shards(self.plans(seq_len))
                epochs = None if rows_left is None else rows_left // in_epoch
                used = None if epochs is None else epochs * in_epoch
                part = EpochPart(position.epoch, epochs, first_row, in_epoch, used, 1.0, len(blocks))
                position = StreamPosition(position.epoch + (epochs or 0))
            else:
                added, next_position = self._blocks(position, seq_len, rows_left)
                size = sum(block.rows for block in added)
                used = size if rows_left is None else min(rows_left, size)
                share = sum(block.text_tokens for block in added) / self.tokens
                part, position = EpochPart(position.epoch, 1, first_row, size, used, share, len(blocks)), next_position
            blocks += added
            parts.append(part)
            orders.append(row_order(self.seed, [block.rows for block in added], self.window_shards))
            if used is None:
                break
            rows_left = None if rows_left is None else rows_left - used
        span_rows = make_rows(self.store, self.split, self.plans(seq_len), blocks)
        return RowSpan(span_rows, PartOrder(parts, orders, before), position)

    def rows_of(self, seq_len: int) -> int:
        """Rows of a whole epoch."""
        return sum(self.plans(seq_len).row_counts.rows)

    def rows_in_epoch(self, seq_len: int) -> int:
        """A lower bound of the rows of an epoch: those that its tokens fill."""
        row_counts = self.plans(seq_len).row_counts
        return (sum(row_counts.text_tokens) + sum(row_counts.frame_tokens)) // seq_len

    def epochs_before(self, position: StreamPosition) -> float:
        """Epochs of the source that are read before `position`."""
        shards = shard_order(self.seed, position.epoch, len(self.split.shards))[: position.shards].tolist()
        tokens = sum(self.split.shards[shard_idx].tokens for shard_idx in shards) + position.token
        return position.epoch + tokens / self.tokens

    def _blocks(
        self, start: StreamPosition, seq_len: int, rows_left: int | None
    ) -> tuple[list[RowBlock], StreamPosition]:
        """(rows from `start` to the end of its epoch, or `rows_left` and perhaps a few more; the next position)"""
        blocks: list[RowBlock] = []
        epoch, shards, token = start
        in_order, rows = shard_order(self.seed, epoch, len(self.split.shards)).tolist(), 0
        whole_blocks = whole_shards(self.plans(seq_len))
        while shards < len(in_order) and (rows_left is None or rows < rows_left):
            shard_idx = in_order[shards]
            block = whole_blocks[shard_idx]
            if token or (rows_left is not None and rows + block.rows > rows_left):
                block = self._part_of(epoch, shard_idx, token, seq_len, None if rows_left is None else rows_left - rows)
            blocks.append(block)
            rows, token = rows + block.rows, token + block.text_tokens
            if token == self.split.shards[shard_idx].tokens:
                shards, token = shards + 1, 0
        return blocks, (StreamPosition(epoch, shards, token) if shards < len(in_order) else StreamPosition(epoch + 1))

    def _part_of(self, epoch: int, shard_idx: int, token: int, seq_len: int, rows: int | None) -> RowBlock:
        """Rows of a shard's documents from `token` of their order on; `rows` of them, or perhaps a few more."""
        starts, ends = self._documents(epoch, shard_idx, token)
        sentences = self.split.shards[shard_idx].sentence_ends() if self.packing == "full_sentences" else None
        cut = None if rows is None else _first_rows(starts, ends, sentences, seq_len, rows, self.packing)
        layout = cut or _plan(starts, ends, sentences, seq_len, self.packing)
        return RowBlock(shard_idx, layout.rows, *layout.totals(), layout)

    def _documents(self, epoch: int, shard_idx: int, token: int) -> tuple[Int64, Int64]:
        """(starts, ends) of a shard's documents, in the epoch's order, from `token` of that order on."""
        starts, ends = self.split.shards[shard_idx].documents_at()
        count, number = len(ends), epoch * len(self.split.shards) + shard_idx
        in_order = order(self.seed ^ SEED_OF_DOCUMENTS, number, np.arange(count, dtype=np.int64), count)
        starts, ends = starts[in_order], ends[in_order]
        total = np.cumsum(ends - starts)
        first = int(np.searchsorted(total, token, side="right"))
        starts, ends = starts[first:].copy(), ends[first:]
        if len(starts):
            starts[0] = ends[0] - (total[first] - token)
        keep = ends > starts
        return starts[keep], ends[keep]


def _first_rows(
    starts: Int64, ends: Int64, sentence_ends: Int64 | None, seq_len: int, rows: int, packing: Packing
) -> Plan | None:
    """`rows` rows, or a few more, of the first documents, the last document cut; None if they fill no more rows."""
    total = np.cumsum(_sizes(starts, ends, sentence_ends, seq_len, packing))
    if not len(total):
        return None
    if packing == "full_sentences":  # rows follow one another as documents do
        last = int(np.searchsorted(total, rows * (seq_len - 1) + 1, side="left")) + 1
        candidate = plan_spans(starts[:last], ends[:last], sentence_ends, seq_len, packing)
        return first_rows(candidate, rows) if candidate.rows > rows else None

    def packed(positions: int) -> Plan:
        last = int(np.searchsorted(total, positions, side="left"))
        chunks, rest = divmod(positions - (int(total[last - 1]) if last else 0), seq_len)
        cut = ends[: last + 1].copy()
        kept_tokens = chunks * (seq_len - 2) + (max(rest - 2, 1) if rest else 0)
        cut[last] = min(cut[last], starts[last] + kept_tokens)
        return _plan(starts[: last + 1], cut, sentence_ends, seq_len, packing)

    low, below, high = 0, 0, min(rows * seq_len, int(total[-1]))
    layout = packed(high)
    if layout.rows < rows or (layout.rows == rows and high == int(total[-1])):
        return None
    for _ in range(MOST_TRIES):
        if layout.rows - rows <= rows // SPARE_ROWS or high - low <= seq_len:
            break
        # Where a straight line between the two has half of the rows to spare.
        goal = rows + rows // SPARE_ROWS / 2
        middle = low + math.ceil((high - low) * (goal - below) / (layout.rows - below))
        middle = min(max(middle, low + 1), high - 1)
        if (trial := packed(middle)).rows >= rows:
            high, layout = middle, trial
        else:
            low, below = middle, trial.rows
    return layout


def _plan(starts: Int64, ends: Int64, sentence_ends: Int64 | None, seq_len: int, packing: Packing) -> Plan:
    """Rows of these documents."""
    if packing == "documents":  # best fit sorts chunks by size: documents keep the shard's order
        by_start = np.argsort(starts)
        starts, ends = starts[by_start], ends[by_start]
    return plan_spans(starts, ends, sentence_ends, seq_len, packing)


def _sizes(starts: Int64, ends: Int64, sentence_ends: Int64 | None, seq_len: int, packing: Packing) -> Int64:
    """[documents]: positions of each, frame included."""
    sizes = ends - starts
    if packing == "documents":
        return sizes + 2 * -(-sizes // (seq_len - 2))
    inner = required(sentence_ends)
    before, until = (np.searchsorted(inner, offsets, side="right") for offsets in (starts, ends))
    return sizes + until - before + 1
