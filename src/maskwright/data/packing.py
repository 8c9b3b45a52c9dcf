"""Rows of one shard: a plan of pieces, computed from its document (and sentence) ends.

`documents`       Documents are cut into chunks of at most T-2 tokens. Each is framed `<s> … </s>` and best-fit packed
                  into rows of T. A chunk is a segment: attention and positions stay inside it. Measured on books, 0.1 %
                  of the positions stay empty.
`full_sentences`  RoBERTa's original (fairseq's `complete` blocks of T-1 after one `<s>`): full sentences, each with
                  `</s>`, an extra `</s>` between documents, until the next would not fit. A row is one segment and may
                  cross documents. A sentence longer than a row is cut (fairseq would drop it).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from maskwright.core.errors import StoreError
from maskwright.text.arrays import Int64

Packing = Literal["documents", "full_sentences"]
LENGTH = np.uint16
END = 1 << 15
"""Bit of a piece's length: `</s>` follows. Rows have at most 8,192 tokens."""


class Pieces(NamedTuple):
    """Pieces of rows: token spans, each framed by `<s>` and `</s>` if the packing does so."""

    counts: Int64
    """[rows]: pieces of each."""
    start: Int64
    """[pieces]: index of each one's first token in the shard."""
    length: Int64
    """[pieces]: tokens, without the frame."""
    bos: Int64
    """[pieces]: 1 where `<s>` precedes."""
    eos: Int64
    """[pieces]: 1 where `</s>` follows."""


@dataclass(frozen=True)
class Plan:
    """Rows of one shard. Arrays have small dtypes, since a whole store's plans are kept."""

    seq_len: int
    segments: bool
    """Whether each piece is a segment with a frame of its own; otherwise the row is one segment."""
    first: NDArray[Any]
    """[rows + 1]: row r has the pieces `first[r]` to `first[r + 1]`."""
    start: NDArray[Any]
    """[pieces]: index of each one's first token in the shard; with `in_order` [rows], each row's."""
    length: NDArray[Any]
    """[pieces]: tokens of each, with the bit `END`."""
    in_order: bool = False
    """Whether the pieces of a row are consecutive in the shard."""

    @property
    def rows(self) -> int:
        return len(self.first) - 1

    def pieces(self, rows: Int64) -> Pieces:
        """The pieces of these rows."""
        return pieces_of([(self, rows)])

    def all_pieces(self) -> Pieces:
        return self.pieces(np.arange(self.rows, dtype=np.int64))

    def totals(self) -> tuple[int, int]:
        """(text tokens, frame tokens)"""
        ends = int(np.count_nonzero(self.length & LENGTH(END)))
        text = int(np.sum(self.length & LENGTH(END - 1), dtype=np.int64))
        return text, ends + (ends if self.segments else self.rows)


def pieces_of(chosen: Sequence[tuple[Plan, Int64]]) -> Pieces:
    """The pieces of the chosen rows of each plan, one plan after the other. All plans are of one packing."""
    # A batch has rows of as many shards as rows, so each plan is only read here, and the rest is done once for all.
    begin, end = (np.concatenate([plan.first[rows + k] for plan, rows in chosen]).astype(np.int64) for k in (0, 1))
    counts = end - begin
    row_begins = np.cumsum(counts) - counts
    piece = np.arange(counts.sum()) + np.repeat(begin - row_begins, counts)
    borders = [0, *np.append(row_begins, len(piece))[np.cumsum([len(rows) for _, rows in chosen])].tolist()]
    places = [piece[low:high] for low, high in pairwise(borders)]
    in_order, segments = chosen[0][0].in_order, chosen[0][0].segments
    packed = np.concatenate([plan.length[idxs] for (plan, _), idxs in zip(chosen, places, strict=True)])
    starts_at = [rows for _, rows in chosen] if in_order else places
    start = np.concatenate([plan.start[idxs] for (plan, _), idxs in zip(chosen, starts_at, strict=True)])
    start, packed = start.astype(np.int64), packed.astype(np.int64)
    length, eos = packed & (END - 1), packed >> (END.bit_length() - 1)
    if in_order:  # a row's pieces follow one another from its start on
        before = np.cumsum(length) - length
        start = before + np.repeat(start - before[row_begins], counts)
    if segments:
        return Pieces(counts, start, length, eos, eos)
    bos = np.zeros_like(eos)
    bos[row_begins] = 1
    return Pieces(counts, start, length, bos, eos)


def plan(document_ends: Int64, sentence_ends: Int64 | None, seq_len: int, packing: Packing) -> Plan:
    """Plans the rows of a shard. Ends [documents or sentences] are ascending token offsets. Raises `StoreError` if
    sentence ends are needed and absent."""
    if packing == "documents":
        return plan_documents(document_ends, seq_len)
    if sentence_ends is None:
        raise StoreError(
            "the store has no sentence ends, which packing: full_sentences needs",
            fix="prepare text with a sentence on each line (--layout sentences), or `--set data.packing=documents`",
        )
    return plan_full_sentences(document_ends, sentence_ends, seq_len)


def plan_documents(document_ends: Int64, seq_len: int) -> Plan:
    room = seq_len - 2
    starts = np.concatenate([[0], document_ends[:-1]]).astype(np.int64)
    sizes = document_ends - starts
    chunks = -(-sizes // room)
    of_document = np.repeat(np.arange(len(sizes)), chunks)
    number = np.arange(len(of_document)) - np.repeat(np.cumsum(chunks) - chunks, chunks)
    start = starts[of_document] + number * room
    length = np.minimum(room, document_ends[of_document] - start)
    pieces, first = best_fit(length + 2, seq_len)
    return Plan(seq_len, True, first, start[pieces], (length[pieces] | END).astype(LENGTH))


def best_fit(sizes: Int64, capacity: int) -> tuple[Int64, Int64]:
    """Best-fit decreasing: (items in row order, first item of each row). Items are placed by falling size, each into
    the fullest row that has room."""
    # Items of one size are interchangeable, and so are rows with equal room. They are moved in bulk, so the work grows
    # with the number of different sizes, not of items.
    by_size = np.argsort(-sizes, kind="stable")
    counts = np.bincount(sizes, minlength=capacity + 1)
    row_of = np.empty(len(sizes), np.int64)
    open_rows: list[list[Int64]] = [[] for _ in range(capacity + 1)]  # by free room: runs of row numbers
    rows = placed = 0
    for size in np.flatnonzero(counts)[::-1].tolist():
        unplaced = int(counts[size])
        while unplaced:
            room = next((free for free in range(size, capacity) if open_rows[free]), capacity)
            fit = room // size  # best fit continues with the same row while it has room
            rows_needed = -(-unplaced // fit)
            if room < capacity:
                run = open_rows[room].pop()
                if len(run) > rows_needed:
                    open_rows[room].append(run[rows_needed:])
                    run = run[:rows_needed]
            else:
                run = np.arange(rows, rows + rows_needed)
                rows += rows_needed
            take = min(unplaced, len(run) * fit)
            row_of[by_size[placed : placed + take]] = np.repeat(run, fit)[:take]
            placed, unplaced = placed + take, unplaced - take
            full, rest = divmod(take, fit)
            if full and room - fit * size:
                open_rows[room - fit * size].append(run[:full])
            if rest and room - rest * size:
                open_rows[room - rest * size].append(run[full : full + 1])
    in_order = np.argsort(row_of, kind="stable")
    first = np.concatenate([[0], np.cumsum(np.bincount(row_of, minlength=rows))])
    return in_order, first.astype(np.int64)


def plan_full_sentences(document_ends: Int64, sentence_ends: Int64, seq_len: int) -> Plan:
    start, length, eos = _sentence_units(document_ends, sentence_ends, seq_len - 1)
    ends = np.cumsum(length + eos)
    # The unit that begins the next row, if a row begins with this unit.
    after = np.searchsorted(ends, ends - length - eos + seq_len - 1, side="right").tolist()
    first, unit = [], 0
    while unit < len(after):
        first.append(unit)
        unit = after[unit]
    begins = np.array([*first, len(after)], np.int64)
    packed = (length + END * eos).astype(LENGTH)
    return Plan(seq_len, False, begins, start[begins[:-1]], packed, in_order=True)


def _sentence_units(document_ends: Int64, sentence_ends: Int64, block: int) -> tuple[Int64, Int64, Int64]:
    """(start, length, 1 if `</s>` follows) of each unit: a sentence, a piece of an over-long one, or an empty unit with
    `</s>` after each document but the last."""
    starts = np.concatenate([[0], sentence_ends[:-1]]).astype(np.int64)[: len(sentence_ends)]
    sizes = sentence_ends - starts
    room = block - 1
    pieces = np.maximum(1, -(-sizes // room))
    of_sentence = np.repeat(np.arange(len(sizes)), pieces)
    number = np.arange(len(of_sentence)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    start = starts[of_sentence] + number * room
    length = np.minimum(room, sentence_ends[of_sentence] - start)
    eos = (number == pieces[of_sentence] - 1).astype(np.int64)
    separated = document_ends[:-1]
    last_units = np.cumsum(pieces)[np.searchsorted(sentence_ends, separated)]
    return (np.insert(start, last_units, separated), np.insert(length, last_units, 0), np.insert(eos, last_units, 1))
