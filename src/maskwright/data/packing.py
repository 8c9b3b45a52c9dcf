"""Which text goes into which row: a plan of pieces, computed once from document (and sentence) ends.

`documents`       Documents are cut into chunks of at most T-2 tokens. Each is framed `<s> … </s>` and best-fit packed
                  into rows of T. A chunk is a segment: attention and positions stay inside it. Measured on books, 0.1 %
                  of the positions stay empty.
`full_sentences`  RoBERTa's original (fairseq's `complete` blocks of T-1 after one `<s>`): full sentences, each with
                  `</s>`, an extra `</s>` between documents, until the next would not fit. A row is one segment and may
                  cross documents. A sentence longer than a row is cut (fairseq would drop it).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from maskwright.core.errors import StoreError

Int64 = NDArray[np.int64]
Packing = Literal["documents", "full_sentences"]
SENTENCES_AT_ONCE = 1 << 18
"""That are planned at once, some 300 bytes each."""


@dataclass(frozen=True)
class Plan:
    """Rows as runs of pieces p, each some tokens of the split between frame tokens."""

    seq_len: int
    start: Int64
    """[p], the first token in the split."""
    length: NDArray[np.int32]
    """[p], tokens."""
    bos: NDArray[np.int8]
    """[p], how many `<s>` come before."""
    eos: NDArray[np.int8]
    """[p], how many `</s>` come after."""
    first: Int64
    """[rows + 1]: row r has pieces `first[r]` to `first[r + 1]`."""
    segments: bool
    """Whether each piece is a segment; otherwise the row is one."""

    @property
    def rows(self) -> int:
        return len(self.first) - 1

    @property
    def text_tokens(self) -> int:
        return int(self.length.sum())

    @property
    def waste(self) -> float:
        """Share of positions with neither text nor frame."""
        used = self.text_tokens + int(self.bos.sum()) + int(self.eos.sum())
        return 1.0 - used / max(self.rows * self.seq_len, 1)


def plan(
    document_ends: Int64,
    sentence_ends: Int64 | None,
    seq_len: int,
    packing: Packing,
    document_starts: Int64 | None = None,
) -> Plan:
    """Starts and ends: ascending token offsets; without starts, each document begins where the last one ends. Raises
    `StoreError` if sentences are needed and absent."""
    if packing == "documents":
        return plan_documents(document_ends, seq_len, document_starts)
    return plan_full_sentences(document_ends, required(sentence_ends), seq_len)


def required(sentence_ends: Int64 | None) -> Int64:
    if sentence_ends is None:
        raise StoreError(
            "the store has no sentence ends, which packing: full_sentences needs",
            fix="prepare it from text with a sentence a line (--layout sentences), or `--set data.packing=documents`",
        )
    return sentence_ends


def plan_spans(starts: Int64, ends: Int64, sentence_ends: Int64 | None, seq_len: int, packing: Packing) -> Plan:
    """`plan` for some documents, or parts of documents, as if there were no others."""
    if packing == "documents":
        return plan_documents(ends, seq_len, starts)
    inner = required(sentence_ends)
    low, high = np.searchsorted(inner, starts, side="right"), np.searchsorted(inner, ends, side="left")
    counts = np.maximum(high - low, 0)
    number = np.arange(counts.sum()) + np.repeat(low - (np.cumsum(counts) - counts), counts)
    own_ends = np.cumsum(ends - starts)  # as if one document followed the other
    shift = ends - own_ends
    own_sentences = np.sort(np.concatenate([inner[number] - np.repeat(shift, counts), own_ends]))
    own = plan_full_sentences(own_ends, own_sentences, seq_len)
    document = np.minimum(np.searchsorted(own_ends, own.start, side="right"), len(ends) - 1)
    return replace(own, start=own.start + shift[document])


def first_rows(layout: Plan, rows: int) -> Plan:
    """The plan of its first `rows` rows alone."""
    pieces = slice(int(layout.first[rows]))
    parts = {name: getattr(layout, name)[pieces] for name in ("start", "length", "bos", "eos")}
    return replace(layout, first=layout.first[: rows + 1], **parts)


def joined(plans: Sequence[Plan]) -> Plan:
    """The rows of all plans, one after the other."""
    if len(plans) == 1:
        return plans[0]
    pieces = [0, *np.cumsum([len(one.start) for one in plans]).tolist()]
    first = [one.first[:-1] + before for one, before in zip(plans, pieces, strict=False)]

    def all_of(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(one, name) for one in plans])

    return Plan(
        plans[0].seq_len,
        all_of("start"),
        all_of("length"),
        all_of("bos"),
        all_of("eos"),
        np.concatenate([*first, pieces[-1:]]).astype(np.int64),
        plans[0].segments,
    )


def plan_documents(document_ends: Int64, seq_len: int, document_starts: Int64 | None = None) -> Plan:
    room = seq_len - 2
    starts = document_starts
    if starts is None:
        starts = np.concatenate([[0], document_ends[:-1]]).astype(np.int64)
    sizes = document_ends - starts
    chunks = -(-sizes // room)
    of_document = np.repeat(np.arange(len(sizes)), chunks)
    number = np.arange(len(of_document)) - np.repeat(np.cumsum(chunks) - chunks, chunks)
    start = starts[of_document] + number * room
    length = np.minimum(room, document_ends[of_document] - start)
    pieces, first = best_fit(length + 2, seq_len)
    count = len(pieces)
    return Plan(
        seq_len,
        start[pieces],
        length[pieces].astype(np.int32),
        np.ones(count, np.int8),
        np.ones(count, np.int8),
        first,
        segments=True,
    )


def best_fit(sizes: Int64, capacity: int) -> tuple[Int64, Int64]:
    """Best-fit decreasing: (items in row order, first item of each row).

    Items are placed by falling size, each into the fullest row that has room. Items of one size are interchangeable,
    and so are rows with equal room. They are moved in bulk: the work grows with the number of different sizes, not of
    items.
    """
    by_size = np.argsort(-sizes, kind="stable")
    counts = np.bincount(sizes, minlength=capacity + 1)
    row_of = np.empty(len(sizes), np.int64)
    open_rows: list[list[Int64]] = [[] for _ in range(capacity + 1)]  # by free room: runs of row numbers
    rows = placed = 0
    for size in np.flatnonzero(counts)[::-1].tolist():
        left = int(counts[size])
        while left:
            room = next((free for free in range(size, capacity) if open_rows[free]), capacity)
            fit = room // size  # best fit continues with the same row while it has room
            wanted = -(-left // fit)
            if room < capacity:
                run = open_rows[room].pop()
                if len(run) > wanted:
                    open_rows[room].append(run[wanted:])
                    run = run[:wanted]
            else:
                run = np.arange(rows, rows + wanted)
                rows += wanted
            take = min(left, len(run) * fit)
            row_of[by_size[placed : placed + take]] = np.repeat(run, fit)[:take]
            placed, left = placed + take, left - take
            full, rest = divmod(take, fit)
            if full and room - fit * size:
                open_rows[room - fit * size].append(run[:full])
            if rest and room - rest * size:
                open_rows[room - rest * size].append(run[full : full + 1])
    in_order = np.argsort(row_of, kind="stable")
    first = np.concatenate([[0], np.cumsum(np.bincount(row_of, minlength=rows))])
    return in_order, first.astype(np.int64)


def plan_full_sentences(document_ends: Int64, sentence_ends: Int64, seq_len: int) -> Plan:
    """Works through `SENTENCES_AT_ONCE`, so that memory holds little beside the plan itself."""
    block = seq_len - 1
    separated = document_ends[:-1]  # a separator follows each document but the last
    units = _unit_count(sentence_ends, block) + len(separated)
    start, length = np.empty(units, np.int64), np.empty(units, np.int32)
    bos, eos = np.zeros(units, np.int8), np.empty(units, np.int8)
    first = array("q", [0])
    done = last = base = 0  # positions before the open row, and before the next unit; number of the next unit
    for begin in range(0, len(sentence_ends), SENTENCES_AT_ONCE):
        some = sentence_ends[begin : begin + SENTENCES_AT_ONCE]
        inside = slice(*np.searchsorted(separated, [sentence_ends[begin - 1] if begin else -1, some[-1]], side="right"))
        own_start, own_length, own_eos = _sentence_units(
            separated[inside], some, block, int(sentence_ends[begin - 1]) if begin else 0
        )
        at = slice(base, base + len(own_start))
        start[at], length[at], eos[at] = own_start, own_length, own_eos
        ends = (last + np.cumsum(own_length + own_eos)).tolist()
        place = bisect_right(ends, done + block)
        while place < len(ends):
            first.append(base + place)
            done = ends[place - 1] if place else last
            place = bisect_right(ends, done + block, place)
        base, last = at.stop, ends[-1]
    if units:
        first.append(units)
    row_starts = np.array(first, np.int64)
    bos[row_starts[:-1]] = 1
    return Plan(seq_len, start, length, bos, eos, row_starts, segments=False)


def _unit_count(sentence_ends: Int64, block: int) -> int:
    """Sentences, those that are too long as the pieces that they make."""
    count, before = 0, 0
    for begin in range(0, len(sentence_ends), SENTENCES_AT_ONCE):
        some = sentence_ends[begin : begin + SENTENCES_AT_ONCE]
        count += int(np.maximum(1, -(-np.diff(some, prepend=before) // (block - 1))).sum())
        before = int(some[-1])
    return count


def _sentence_units(document_ends: Int64, sentence_ends: Int64, block: int, before: int) -> tuple[Int64, Int64, Int64]:
    """(start, length, number of `</s>` after) of the sentences that follow each other from token `before` on, of the
    pieces of over-long ones, and of an empty unit with one `</s>` after each of the documents."""
    starts = np.concatenate([[before], sentence_ends[:-1]]).astype(np.int64)
    sizes = sentence_ends - starts
    room = block - 1
    pieces = np.maximum(1, -(-sizes // room))
    of_sentence = np.repeat(np.arange(len(sizes)), pieces)
    number = np.arange(len(of_sentence)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    start = starts[of_sentence] + number * room
    length = np.minimum(room, sentence_ends[of_sentence] - start)
    eos = (number == pieces[of_sentence] - 1).astype(np.int64)
    last_units = np.cumsum(pieces)[np.searchsorted(sentence_ends, document_ends)]
    return (
        np.insert(start, last_units, document_ends),
        np.insert(length, last_units, 0),
        np.insert(eos, last_units, 1),
    )
