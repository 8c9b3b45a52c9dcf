"""One flat order for all that an update touches, and which rank updates what, after ZeRO-1 (Rajbhandari et al. 2020,
arXiv:1910.02054).

Gradients, messages, weights in fp32 and in the precision of the multiplications, and moments all lie in this order:
buckets, each cut into a piece for each rank. So a bucket is sent from where it was summed and gathered to where it is
read. Every rank computes with all weights; it holds its pieces, one after the other, in fp32 with their moments. Ranks
are counted by their `Levels.place` in this file.

No result depends on the number of ranks: Muon's stacks and the blocks of the gradient's norm are the same at any.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from maskwright.engines.groups import is_decayed
from maskwright.engines.muon import HIDDEN_ROLES, rows_of_matrices

K = TypeVar("K")
Shapes = dict[str, torch.Size]

BUCKET_BYTES = 32 << 20
"""Parameters whose gradients are sent together: DistributedDataParallel's 25 MiB, in fp32 and rounded up."""
BLOCK_NUMBERS = 1 << 12
"""Neighbouring numbers that one rank updates, and whose squares it adds up."""
LEAST_BLOCKS = 16
"""Of a rank. From 16 rows on, CUDA's norm of rows adds up a row in one order, however many there are: a warp takes one
(`setReduceConfig` of torch's Reduce.cuh, with rows of 4,096)."""
STACK_NUMBERS = 1 << 22
"""Numbers of the matrices that Muon multiplies at once: 16 MiB keep a device busy, and base has 32 such stacks to share
out."""
ALIGNED_NUMBERS = 16
"""64 bytes of fp32. Parameters begin at multiples of it, so vector instructions take the same numbers together in any
share."""


@dataclass(frozen=True)
class Stack:
    """Hidden matrices of one shape, [matrices, rows, columns], which Muon updates together. One rank does."""

    names: tuple[str, ...]
    """Whole parameters, one after the other."""
    shape: tuple[int, int, int]
    parts: tuple[int, ...]
    """Rows of the matrices that each parameter holds, one below the other: `rows`, or query, key and value of grouped
    queries, where keys and values have fewer."""

    @property
    def numbers(self) -> int:
        matrices, rows, columns = self.shape
        return matrices * rows * columns


@dataclass(frozen=True, eq=False)
class Bucket:
    """Parameters whose gradients are sent together, in pieces of the ranks that follow each other."""

    names: tuple[str, ...]
    begin: int
    """In a flat buffer of all numbers."""
    sizes: tuple[int, ...]
    """Numbers of each rank's piece, gaps included. AdamW's pieces are equally long; a piece of Muon is some whole
    stacks, or nothing."""
    by_muon: bool

    @property
    def whole(self) -> slice:
        return slice(self.begin, self.begin + sum(self.sizes))

    def piece(self, rank: int) -> slice:
        begin = self.begin + sum(self.sizes[:rank])
        return slice(begin, begin + self.sizes[rank])


@dataclass(frozen=True)
class FlatOrder:
    """The order of a flat buffer of all numbers: what Muon updates, then the rest. Gaps are 0."""

    shapes: Shapes
    """Of each parameter, in the order of the network."""
    buckets: tuple[Bucket, ...]
    """In the order in which backward passes complete them."""
    stacks: tuple[Stack, ...]
    """The same at any world size."""
    places: dict[str, int]
    """Where each parameter begins."""
    world_size: int

    @classmethod
    def of(cls, shapes: Shapes, used: Sequence[str], world_size: int, *, muon: bool) -> FlatOrder:
        """`used`: the names in the order in which the network uses them."""
        ready = {name: index for index, name in enumerate(reversed(used))}
        stacks = sorted(_stacks(shapes) if muon else [], key=lambda stack: max(ready[name] for name in stack.names))
        places: dict[str, int] = {}
        buckets, end = _place_stacks(stacks, world_size, shapes, places)
        for names in _grouped([name for name in ready if name not in places], lambda name: shapes[name].numel()):
            begin = end
            for name in sorted(names, key=lambda name: not is_decayed(len(shapes[name]))):
                places[name] = end
                end = _rounded_up(end + shapes[name].numel(), ALIGNED_NUMBERS)
            end = begin + _rounded_up(end - begin, world_size * BLOCK_NUMBERS)
            buckets.append(Bucket(tuple(names), begin, ((end - begin) // world_size,) * world_size, by_muon=False))
        buckets.sort(key=lambda bucket: max(ready[name] for name in bucket.names))
        return cls(shapes, tuple(buckets), tuple(stacks), places, world_size)

    @cached_property
    def _placed(self) -> list[Bucket]:
        return sorted(self.buckets, key=lambda bucket: bucket.begin)

    @cached_property
    def length(self) -> int:
        return self.shares[0].length if self.world_size == 1 else self._placed[-1].whole.stop

    @cached_property
    def shares(self) -> list[Share]:
        return [Share(self, rank) for rank in range(self.world_size)]

    def parameters(self, flat: Tensor, names: Sequence[str] | None = None, begin: int = 0) -> dict[str, Tensor]:
        """Views of the parameters `names`, by default all of them, in their shapes. `flat`: from `begin` on."""
        views = {}
        for name in self.shapes if names is None else names:
            place, shape = self.places[name] - begin, self.shapes[name]
            views[name] = flat[place : place + shape.numel()].view(shape)
        return views

    @cached_property
    def order_of_blocks(self) -> Tensor:
        """Where each block of numbers, in an order that is the same at any world size, stands in [world size, blocks of
        the longest share]."""
        size, most = BLOCK_NUMBERS, max(share.length for share in self.shares) // BLOCK_NUMBERS
        place = torch.zeros(self._placed[-1].whole.stop // size, dtype=torch.int64)
        for share in self.shares:
            for bucket in self._placed:
                here, own = bucket.piece(share.rank), share.piece(bucket)
                blocks = torch.arange(own.start // size, own.stop // size)
                place[here.start // size : here.stop // size] = share.rank * most + blocks
        ends = [(self.places[stack.names[0]], stack.numbers) for stack in self.stacks]
        for bucket in self._placed:
            if not bucket.by_muon:
                last = max(bucket.names, key=self.places.__getitem__)
                ends.append((bucket.begin, self.places[last] + self.shapes[last].numel() - bucket.begin))
        return torch.cat([place[begin // size : -(-(begin + numbers) // size)] for begin, numbers in ends])


class Share:
    """The pieces of one rank, one after the other in the order of the whole."""

    def __init__(self, order: FlatOrder, rank: int) -> None:
        self.order, self.rank = order, rank
        self.begins: dict[Bucket, int] = {}
        """Where the pieces begin in a flat buffer of the share."""
        end = self.end_of_muon = 0
        for bucket in sorted(order.buckets, key=lambda bucket: bucket.begin):
            self.begins[bucket] = end
            end += bucket.sizes[rank]
            if bucket.by_muon:
                self.end_of_muon = end
        self.length = max(end, LEAST_BLOCKS * BLOCK_NUMBERS)
        """Numbers of a flat buffer."""

    def piece(self, bucket: Bucket) -> slice:
        """Of a flat buffer of the share."""
        return slice(self.begins[bucket], self.begins[bucket] + bucket.sizes[self.rank])

    @property
    def stacks(self) -> list[tuple[Stack, slice]]:
        """Muon's stacks, with their places in a flat buffer of the share."""
        return [(stack, place) for stack in self.order.stacks for place in self._held(stack.names[0], stack.numbers)]

    def runs(self, kind: Callable[[str], K]) -> dict[K, list[slice]]:
        """What AdamW updates in a flat buffer of the share: by the kind of the parameters, runs of numbers. They begin
        and end at multiples of `ALIGNED_NUMBERS`."""
        runs: dict[K, list[slice]] = {}
        names = [name for bucket in self.begins if not bucket.by_muon for name in bucket.names]
        for name in sorted(names, key=self.order.places.__getitem__):
            of_kind = runs.setdefault(kind(name), [])
            for held in self._held(name, _rounded_up(self.order.shapes[name].numel(), ALIGNED_NUMBERS)):
                if of_kind and of_kind[-1].stop == held.start:
                    held = slice(of_kind.pop().start, held.stop)
                of_kind.append(held)
        return runs

    def _held(self, name: str, numbers: int) -> list[slice]:
        """Where this rank has the `numbers` from the beginning of the parameter `name` on: at one place, or nowhere."""
        begin = self.order.places[name]
        bucket = next(bucket for bucket in self.begins if bucket.whole.start <= begin < bucket.whole.stop)
        piece = bucket.piece(self.rank)
        shift = self.begins[bucket] - piece.start
        begin, end = max(begin, piece.start), min(begin + numbers, piece.stop)
        return [slice(begin + shift, end + shift)] if begin < end else []


def _place_stacks(
    stacks: Sequence[Stack], world_size: int, shapes: Shapes, places: dict[str, int]
) -> tuple[list[Bucket], int]:
    """Shares the stacks out, about as many numbers for each rank in all, and puts them in their `places`, each from a
    block of its own on; also where the last one ends. Few stacks go to ranks far from each other, by the golden ratio:
    neighbours share a network card or a machine."""
    rank_of, loads = dict[Stack, int](), dict.fromkeys(sorted(range(world_size), key=lambda rank: rank * 0.618 % 1), 0)
    for stack in sorted(stacks, key=lambda stack: -stack.numbers):
        rank_of[stack] = min(loads, key=loads.__getitem__)
        loads[rank_of[stack]] += stack.numbers
    buckets, end = [], 0
    for group in _grouped(stacks, lambda stack: stack.numbers):
        begin, sizes = end, [0] * world_size
        for stack in sorted(group, key=rank_of.__getitem__):
            place = end
            for name in stack.names:
                places[name] = place
                place += shapes[name].numel()
            end += _rounded_up(stack.numbers, BLOCK_NUMBERS)
            sizes[rank_of[stack]] += end - begin - sum(sizes)
        names = tuple(name for stack in group for name in stack.names)
        buckets.append(Bucket(names, begin, tuple(sizes), by_muon=True))
    return buckets, end


def _grouped(items: Sequence[K], numbers: Callable[[K], int]) -> list[list[K]]:
    """Neighbours in groups of at least `BUCKET_BYTES`, but for the last one."""
    groups: list[list[K]] = []
    size = BUCKET_BYTES
    for item in items:
        if size >= BUCKET_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(item)
        size += 4 * numbers(item)
    return groups


def _stacks(shapes: Shapes) -> list[Stack]:
    """The hidden matrices by shape: square (query, key and value separate), widening (both halves of a gated layer
    separate), narrowing."""
    _, F = next(shape for name, shape in shapes.items() if name.endswith("down.weight"))
    alike: dict[tuple[tuple[int, ...], int], list[tuple[str, int]]] = {}
    for role in HIDDEN_ROLES:
        for name in (name for name in shapes if name.endswith(role)):
            rows, columns = shapes[name]
            each = rows_of_matrices(role, rows, columns, F)
            parts, matrices = ((each[0],), len(each)) if len(set(each)) == 1 else (tuple(each), 1)
            alike.setdefault((parts, columns), []).append((name, matrices))
    stacks = []
    for (parts, columns), of_shape in alike.items():
        rows, groups = sum(parts), list[list[tuple[str, int]]]()
        for name, matrices in of_shape:
            together = sum(count for _, count in groups[-1]) if groups else math.inf
            if (together + matrices) * rows * columns > STACK_NUMBERS:
                groups.append([])
            groups[-1].append((name, matrices))
        for group in groups:
            names = tuple(name for name, _ in group)
            stacks.append(Stack(names, (sum(count for _, count in group), rows, columns), parts))
    return stacks


def _rounded_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
