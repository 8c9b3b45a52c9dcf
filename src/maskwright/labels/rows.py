"""Batches of a fine-tuning run as a function of the step: the examples, and their packing into rows.

A micro-batch has a fixed number of examples. Short ones share a row, and attention stays inside each, so predictions
equal those for single examples. Rows are as long as the longest example of the batch, rounded up to 16, and there are
as many as needed. On JAX, for few compiled programs, they are as long as the longest example of the split, rounded up
to 64, and their number is the next in a short list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.config.finetuning import TaskKind
from maskwright.data.batch import Batch
from maskwright.data.order import RowOrder
from maskwright.data.packing import best_fit
from maskwright.labels.encode import EncodedRows, SpanTargets, WordTargets

PREDICTION_TOKENS = 4096
"""Tokens in a batch for predictions, roughly."""
Ints = NDArray[np.int64]
Places = tuple[Ints, Ints, int]
"""([examples] row of each, [examples] its first position, number of rows)"""
Shape = tuple[int, int, int]
"""Rows of a batch, slots for predictions in each, tokens of each."""


def _runs(begins: Ints, lengths: Ints) -> Ints:
    """Concatenation of the ranges from `begins[i]` of `lengths[i]` numbers."""
    return np.repeat(begins - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _earlier_in_row(row: Ints) -> Ints:
    """[entries]: the number of earlier entries in the same row."""
    ranked = np.argsort(row, kind="stable")
    counts = np.bincount(row)
    earlier = np.empty(len(row), np.int64)
    earlier[ranked] = _runs(np.zeros_like(counts), counts)
    return earlier


@dataclass(frozen=True)
class Packed:
    """A batch and the places of its predictions."""

    batch: Batch
    slots: Ints
    """(slots,): indices of the weighted predictions among the batch's K."""
    rows: Ints
    """(examples,): rows of `EncodedRows`, in the order of `slots`; words in the order of their rows."""


def largest_shape(packed: Sequence[Packed]) -> Shape:
    """The smallest shape that holds all batches."""
    batches = [packed_batch.batch for packed_batch in packed]
    rows, tokens = np.max([batch.input_ids.shape for batch in batches], 0).tolist()
    return rows, max(len(batch.weights) // len(batch.input_ids) for batch in batches), tokens


@dataclass(frozen=True)
class Packer:
    """Makes batches of some rows of `encoded`."""

    encoded: EncodedRows
    kind: TaskKind
    pad: int
    T: int
    """Length that holds every row of `encoded`."""
    few_shapes: bool
    class_weights: NDArray[np.float32] | None = None
    """[C]; None gives all classes the same weight."""

    @classmethod
    def of(
        cls,
        encoded: EncodedRows,
        kind: TaskKind,
        pad: int,
        *,
        few_shapes: bool = False,
        class_weights: NDArray[np.float32] | None = None,
    ) -> Packer:
        longest = int(np.diff(encoded.offsets).max(initial=1))
        return cls(encoded, kind, pad, _round_up(longest, 64 if few_shapes else 16), few_shapes, class_weights)

    def pack(self, rows: Ints, *, at_least: Shape = (1, 1, 1), places: Places | None = None) -> Packed:
        """`rows`: of `encoded`. `at_least`: the batch's least shape. `places`: of `rows`; None to choose them here."""
        lengths = np.diff(self.encoded.offsets)[rows]
        T = self.T if self.few_shapes else max(_round_up(int(lengths.max(initial=1)), 16), at_least[2])
        row, start, M = places or self._places(lengths, T)
        M = self._rounded(max(M, at_least[0]))
        ids = np.full((M, T), self.pad, np.int32)
        positions, segments = np.zeros((2, M, T), np.int32)
        flat_idx = _runs(row * T + start, lengths)
        ids.flat[flat_idx] = self.encoded.ids[_runs(self.encoded.offsets[rows], lengths)]
        positions.flat[flat_idx] = _runs(np.zeros_like(lengths), lengths)
        if self.encoded.shift is not None:
            positions.flat[flat_idx] += self.encoded.shift[_runs(self.encoded.offsets[rows], lengths)]
        segments.flat[flat_idx] = np.repeat(_earlier_in_row(row) + 1, lengths)
        if self.kind == "question_answering":
            return self._spans(rows, ids, positions, segments, row)
        owners, positions_in_batch, labels = self._predicted(rows, row * T + start)
        row_of = row[owners]
        slot_in_row = _earlier_in_row(row_of)
        S = self._rounded(max(int(slot_in_row.max(initial=0)) + 1, at_least[1]))
        slots = row_of * S + slot_in_row
        index, weights = np.zeros(M * S, np.int32), np.zeros(M * S, np.float32)
        index[slots] = positions_in_batch
        weights[slots] = 1.0 if self.class_weights is None else self.class_weights[labels]
        targets = np.zeros((M * S, *labels.shape[1:]), labels.dtype)
        targets[slots] = labels
        return Packed(Batch(ids, positions, segments, index, targets, weights), slots, rows)

    def _places(self, lengths: Ints, T: int) -> Places:
        """First fit, the longest first."""
        # Not `best_fit`, which takes three times as long for the few examples of a micro-batch.
        row, start = np.zeros(len(lengths), np.int64), np.zeros(len(lengths), np.int64)
        if self.kind == "question_answering":  # the loss is over a whole row
            return np.arange(len(lengths)), start, len(lengths)
        used: list[int] = []
        for example in np.argsort(-lengths, kind="stable").tolist():
            size = int(lengths[example])
            row_idx = next((row_idx for row_idx, full in enumerate(used) if full + size <= T), len(used))
            if row_idx == len(used):
                used.append(0)
            row[example], start[example] = row_idx, used[row_idx]
            used[row_idx] += size
        return row, start, len(used)

    def _rounded(self, count: int) -> int:
        """1, 2, 3, 4, 6, 8, 12, 16, 24, …: at most a third more."""
        if not self.few_shapes:
            return count
        power = 1 << (count - 1).bit_length()
        return power * 3 // 4 if power >= 4 and count <= power * 3 // 4 else power

    def _predicted(self, rows: Ints, first: Ints) -> tuple[Ints, Ints, NDArray[Any]]:
        """[predictions]: (index into `rows`, index in M x T, label for the loss). `first` [rows]: index of the first
        token."""
        targets = self.encoded.targets
        if isinstance(targets, WordTargets):
            counts = np.diff(targets.offsets)[rows]
            owner = np.repeat(np.arange(len(rows)), counts)
            word_idx = _runs(targets.offsets[rows], counts)
            return owner, first[owner] + targets.position[word_idx], np.maximum(targets.tag[word_idx], 0)
        owner = np.arange(len(rows))
        if targets is None:
            return owner, first, np.zeros(len(rows), np.int32)
        assert isinstance(targets, np.ndarray)
        labels = targets[rows]
        if self.kind in ("multi_label_classification", "regression"):
            labels = labels.astype(np.float32)
        return owner, first, labels[:, None] if self.kind == "regression" else labels

    def _spans(
        self, rows: Ints, ids: NDArray[Any], positions: NDArray[Any], segments: NDArray[Any], row: Ints
    ) -> Packed:
        targets = self.encoded.targets
        assert isinstance(targets, SpanTargets)
        M, T = ids.shape
        labels, weights = np.zeros((M, 2), np.int32), np.zeros(M, np.float32)
        labels[row] = np.stack([targets.start[rows], targets.end[rows]], 1)
        weights[row] = 1.0
        index = np.arange(M * T, dtype=np.int32)
        slots = _runs(row * T, np.diff(self.encoded.offsets)[rows])
        return Packed(Batch(ids, positions, segments, index, labels, weights), slots, rows)


@dataclass(frozen=True)
class ExampleStream:
    """The training stream: a permutation of the rows for each epoch, one epoch after the other, `per_step` a step."""

    packer: Packer
    seed: int
    per_step: int
    virtual_workers: int

    def rows_at(self, step: int, virtual_worker: int | None = None) -> Ints:
        """Rows of `encoded` for an update, or for one virtual worker in it."""
        per_worker = self.per_step // self.virtual_workers
        first, count = step * self.per_step, self.per_step
        if virtual_worker is not None:
            first, count = first + virtual_worker * per_worker, per_worker
        return self._order.at(first + np.arange(count, dtype=np.int64))[1]

    @cached_property
    def _order(self) -> RowOrder:
        return RowOrder(self.seed, len(self.packer.encoded))

    def batches(self, step: int, virtual_workers: Sequence[int]) -> list[Batch]:
        """Batches of an update. On JAX all have the shape of the largest one."""
        if self.virtual_workers == 1 or not self.packer.few_shapes:
            return [self.packer.pack(self.rows_at(step, worker)).batch for worker in virtual_workers]
        packed = [self.packer.pack(self.rows_at(step, worker)) for worker in range(self.virtual_workers)]
        largest = largest_shape(packed)
        return [self.packer.pack(packed[worker].rows, at_least=largest).batch for worker in virtual_workers]

    def work(self, step: int) -> tuple[int, float]:
        """(tokens, (query, key) pairs) of an update of all ranks."""
        lengths = np.diff(self.packer.encoded.offsets)[self.rows_at(step)].astype(np.float64)
        return int(lengths.sum()), float(np.square(lengths).sum())


def prediction_batches(packer: Packer, tokens: int = PREDICTION_TOKENS) -> list[Packed]:
    """Batches of all rows of `packer.encoded`, of some `tokens` each, sorted by length, padded to one shape."""
    lengths, rows_at_once = np.diff(packer.encoded.offsets), max(1, tokens // packer.T)
    if packer.kind == "question_answering":  # the loss is over a whole row
        ranked, first = np.argsort(-lengths, kind="stable"), np.arange(len(lengths) + 1)
    else:
        ranked, first = best_fit(lengths, packer.T)
    row = np.repeat(np.arange(len(first) - 1), np.diff(first))
    before = np.cumsum(lengths[ranked]) - lengths[ranked]
    start = before - before[first[row]]
    groups = []
    for begin in range(0, len(first) - 1, rows_at_once):
        end = min(begin + rows_at_once, len(first) - 1)
        of_batch = slice(first[begin], first[end])
        groups.append((ranked[of_batch], (row[of_batch] - begin, start[of_batch], end - begin)))
    largest = largest_shape([packer.pack(rows, at_least=(1, 1, packer.T), places=places) for rows, places in groups])
    return [packer.pack(rows, at_least=largest, places=places) for rows, places in groups]


def in_order(packer: Packer, packed: Sequence[Packed], logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Logits of `Engine.predict` for these batches, in the order of `encoded`: [rows, C], [words, C] or [ids, 2]."""
    encoded, parts = packer.encoded, np.split(logits, len(packed))
    targets = encoded.targets
    if isinstance(targets, WordTargets):
        offsets = targets.offsets
    elif packer.kind == "question_answering":
        offsets = encoded.offsets
    else:
        offsets = np.arange(len(encoded) + 1, dtype=np.int64)
    ordered = np.zeros((int(offsets[-1]), logits.shape[-1]), np.float32)
    counts = np.diff(offsets)
    for batch, batch_logits in zip(packed, parts, strict=True):
        ordered[_runs(offsets[batch.rows], counts[batch.rows])] = batch_logits[batch.slots]
    return ordered
