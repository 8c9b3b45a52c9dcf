"""The text of one source as phases with rows of different lengths read it: no token twice in an epoch.

Rows of one length are packed once and for all, and their order is a permutation. Rows of two lengths share no packing,
so here the text itself has an order: epoch after epoch, all documents in a keyed order of that epoch. A span of
rows of one length takes the documents from where the span before it stopped, as many as its rows hold, and cuts the
last one there. Its rows are packed from that text alone and come in a keyed order. All of this follows from the
configuration and the store, so resuming is a seek here too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from maskwright.data.order import RowOrder, order
from maskwright.data.packing import Packing, Plan, first_rows, joined, plan, plan_documents, plan_spans, required
from maskwright.data.rows import Rows, make_rows
from maskwright.data.store import OpenedStore, Split

Int64 = NDArray[np.int64]
SEED_OF_DOCUMENTS = 0x646F6373
SPARE_ROWS, MOST_TRIES = 200, 8
"""A span that does not end with its epoch packs at most one row in 200 more than the run reads of it, as far as so many
attempts get there."""


class Place(NamedTuple):
    """Where a span begins in a source's text."""

    epoch: int = 0
    token: int = 0
    """Tokens of the epoch that are read before it, in the epoch's order."""


class Part(NamedTuple):
    """Rows of a span that are packed together: a piece of one epoch, or whole epochs."""

    epoch: int
    epochs: int | None
    """How many whole epochs; None for all that follow."""
    first: int
    """Number of its first row in the span's plan."""
    size: int
    """Rows in its plan."""
    used: int | None
    """Rows that the run reads, over all its epochs; None without an end."""
    share: float
    """What these are of an epoch's tokens, for each of its epochs."""


@dataclass(frozen=True)
class Span:
    """Rows of one length. Rows are numbered through all parts, one after the other."""

    rows: Rows
    order: PartOrder
    next: Place
    """Where the span after it begins."""


class PartOrder:
    """Like `RowOrder`, over parts."""

    end: int | None = None

    def __init__(self, seed: int, parts: list[Part], before: float) -> None:
        """`before`: epochs of the source that are read before the span."""
        self.parts, self.before = parts, before
        self._orders = [RowOrder(seed, part.size) for part in parts]
        used = [0 if part.used is None else part.used for part in parts]
        self.starts = np.cumsum(used) - used

    def at(self, seen: Int64) -> tuple[Int64, Int64]:
        """(epochs, rows) of the span's rows with numbers `seen`."""
        epochs, rows = np.empty(len(seen), np.int64), np.empty(len(seen), np.int64)
        of_part = np.searchsorted(self.starts, seen, side="right") - 1
        for number in np.unique(of_part).tolist():
            part, here = self.parts[number], of_part == number
            # The permutation of an epoch is that epoch's own.
            index = seen[here] - self.starts[number] + part.epoch * part.size
            epochs[here], own = self._orders[number].at(index)
            rows[here] = part.first + own
        return epochs, rows

    def epochs(self, rows: int) -> float:
        """Epochs of the source that are read before row `rows` of the span."""
        found = self.before
        for part, start in zip(self.parts, self.starts.tolist(), strict=True):
            here = max(rows - start, 0) if part.used is None else min(max(rows - start, 0), part.used)
            each = part.used if part.epochs == 1 and part.used else part.size
            found += part.share * here / max(each, 1)
        return found


class Stream:
    """One source, span by span."""

    def __init__(self, store: OpenedStore, seed: int, packing: Packing) -> None:
        """Raises `StoreError` for a store without documents to train on."""
        self.store, self.seed, self.packing = store, seed, packing
        self.split: Split = store.split("train")
        self.starts, self.ends = self.split.document_starts, self.split.document_ends
        self.tokens = int((self.ends - self.starts).sum())

    def span(self, place: Place, seq_len: int, rows: int | None) -> Span:
        """The next `rows` rows of `seq_len` tokens from `place` on; None for all that follow."""
        plans: list[Plan] = []
        parts: list[Part] = []
        first, (epoch, token), left = 0, place, rows

        def add(layout: Plan, epochs: int | None, used: int | None, share: float) -> None:
            nonlocal first
            plans.append(layout)
            parts.append(Part(epoch, epochs, first, layout.rows, used, share))
            first += layout.rows

        while left is None or left > 0:
            starts, ends = self._documents(epoch, token)
            if left is not None and (some := self._first_rows(starts, ends, seq_len, left)):
                add(some, 1, left, some.text_tokens / self.tokens)
                token, left = token + some.text_tokens, 0
            elif token:
                layout = self._plan(starts, ends, seq_len)
                used = layout.rows if left is None else min(left, layout.rows)
                add(layout, 1, used, 1.0 - token / self.tokens)
                left, epoch, token = None if left is None else left - used, epoch + 1, 0
            else:
                layout = self.whole(seq_len)
                if left is None:
                    add(layout, None, None, 1.0)
                    break
                epochs = max(left // layout.rows, 1)
                used = min(left, epochs * layout.rows)
                add(layout, epochs, used, 1.0)
                left, epoch = left - used, epoch + epochs
            if token == self.tokens:
                epoch, token = epoch + 1, 0
        before = place.epoch + place.token / self.tokens
        none = np.zeros(0, np.int64)
        made = make_rows(self.store, self.split, joined(plans or [plan_documents(none, seq_len, none)]))
        return Span(made, PartOrder(self.seed, parts, before), Place(epoch, token))

    def rows_in_epoch(self, seq_len: int) -> int:
        """At least so many rows are made of an epoch."""
        return int(self._sizes(self.starts, self.ends, seq_len).sum()) // seq_len

    def whole(self, seq_len: int) -> Plan:
        """The plan of an epoch that is read from its beginning to its end with rows of one length."""
        split = self.split
        sentences = split.sentence_ends_for(self.packing)
        return plan(split.document_ends, sentences, seq_len, self.packing, split.gapped_starts)

    def _documents(self, epoch: int, token: int) -> tuple[Int64, Int64]:
        """(starts, ends) in the split of the documents from `token` of the epoch's order on, in that order."""
        count = len(self.ends)
        number = order(self.seed ^ SEED_OF_DOCUMENTS, epoch, np.arange(count, dtype=np.int64), count)
        starts, ends = self.starts[number], self.ends[number]
        total = np.cumsum(ends - starts)
        first = int(np.searchsorted(total, token, side="right"))
        starts, ends = starts[first:].copy(), ends[first:]
        if len(starts):
            starts[0] = ends[0] - (total[first] - token)
        some = ends > starts
        return starts[some], ends[some]

    def _first_rows(self, starts: Int64, ends: Int64, seq_len: int, rows: int) -> Plan | None:
        """The first of these documents as `rows` rows, or a few more, the last one cut; None if they are too few."""
        total = np.cumsum(self._sizes(starts, ends, seq_len))
        if not len(total):
            return None
        if self.packing == "full_sentences":  # rows follow one another as documents do
            last = int(np.searchsorted(total, rows * (seq_len - 1) + 1, side="left")) + 1
            layout = plan_spans(starts[:last], ends[:last], self.split.sentence_ends, seq_len, self.packing)
            return first_rows(layout, rows) if layout.rows > rows else None

        def packed(positions: int) -> Plan:
            last = int(np.searchsorted(total, positions, side="left"))
            chunks, rest = divmod(positions - (int(total[last - 1]) if last else 0), seq_len)
            cut = ends[: last + 1].copy()
            inside = chunks * (seq_len - 2) + (max(rest - 2, 1) if rest else 0)
            cut[last] = min(cut[last], starts[last] + inside)
            return self._plan(starts[: last + 1], cut, seq_len)

        low, below, high = 0, 0, min(rows * seq_len, int(total[-1]))
        found = packed(high)
        if found.rows < rows or (found.rows == rows and high == int(total[-1])):
            return None
        for _ in range(MOST_TRIES):
            if found.rows - rows <= rows // SPARE_ROWS or high - low <= seq_len:
                break
            # Where a straight line between the two has half of the rows to spare.
            wanted = rows + rows // SPARE_ROWS / 2
            middle = low + math.ceil((high - low) * (wanted - below) / (found.rows - below))
            middle = min(max(middle, low + 1), high - 1)
            if (tried := packed(middle)).rows >= rows:
                high, found = middle, tried
            else:
                low, below = middle, tried.rows
        return found

    def _plan(self, starts: Int64, ends: Int64, seq_len: int) -> Plan:
        """Rows of these documents. Where it does not matter, they are packed in the order of the store."""
        if self.packing == "documents":
            by_place = np.argsort(starts)
            starts, ends = starts[by_place], ends[by_place]
        return plan_spans(starts, ends, self.split.sentence_ends_for(self.packing), seq_len, self.packing)

    def _sizes(self, starts: Int64, ends: Int64, seq_len: int) -> Int64:
        """[documents]: positions that each one takes, its frame included."""
        sizes = ends - starts
        if self.packing == "documents":
            return sizes + 2 * -(-sizes // (seq_len - 2))
        ends_of_sentences = required(self.split.sentence_ends)
        before, until = (np.searchsorted(ends_of_sentences, found, side="right") for found in (starts, ends))
        return sizes + until - before + 1
