"""Which rank updates which numbers of the weights, after ZeRO-1 (Rajbhandari et al. 2020, arXiv:1910.02054).

Every rank computes with all weights. Each number has one rank that holds it in fp32, with its moments, and updates it.
No result depends on which: Muon's stacks and the blocks of the gradient's norm are the same at any world size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from maskwright.engines.groups import is_decayed
from maskwright.engines.muon import HIDDEN_ROLES, rows_of_matrices

Shapes = dict[str, torch.Size]

BUCKET_BYTES = 32 << 20
"""Parameters whose gradients are sent together: DistributedDataParallel's 25 MiB, in fp32 and rounded up."""
BLOCK_NUMBERS = 1 << 16
"""Neighbouring numbers of a parameter that one rank updates, and whose squares it adds up."""
STACK_NUMBERS = 1 << 22
"""Numbers of the matrices that Muon multiplies at once: 16 MiB keep a device busy, and base has 31 such stacks to share
out."""
ALIGNED_NUMBERS = 16
"""64 bytes of fp32. What AdamW updates begins at multiples of it, so vector instructions take the same numbers together
in any share."""


class Range(NamedTuple):
    """Neighbouring numbers of a flattened parameter."""

    name: str
    begin: int
    end: int

    @property
    def blocks(self) -> list[Range]:
        begins = range(self.begin, self.end, BLOCK_NUMBERS)
        return [Range(self.name, begin, min(begin + BLOCK_NUMBERS, self.end)) for begin in begins]


@dataclass(frozen=True)
class Stack:
    """Hidden matrices of one shape, [matrices, rows, columns], which Muon updates together."""

    ranges: tuple[Range, ...]
    shape: tuple[int, int, int]
    parts: tuple[int, ...]
    """Rows of the matrices that each of them holds, one below the other: `rows`, or query, key and value of grouped
    queries, of which keys and values have fewer. They stay together since a parameter's numbers follow each other."""

    @property
    def numbers(self) -> int:
        matrices, rows, columns = self.shape
        return matrices * rows * columns


@dataclass(frozen=True)
class Share:
    """The numbers of one rank, in the order of its flat buffers: Muon's stacks, then the parameters that AdamW decays,
    then the others."""

    stacks: tuple[Stack, ...]
    decayed: tuple[Range, ...]
    others: tuple[Range, ...]

    @cached_property
    def _laid_out(self) -> tuple[dict[Range, int], tuple[int, int, int]]:
        places: dict[Range, int] = {}
        ends, end = [], 0
        stacked = tuple(numbers for stack in self.stacks for numbers in stack.ranges)
        for ranges, multiple in ((stacked, 1), (self.decayed, ALIGNED_NUMBERS), (self.others, ALIGNED_NUMBERS)):
            for numbers in ranges:
                places[numbers] = end
                end = _rounded_up(end + numbers.end - numbers.begin, multiple)
            end = _rounded_up(end, ALIGNED_NUMBERS)
            ends.append(end)
        return places, (ends[0], ends[1], ends[2])

    @property
    def places(self) -> dict[Range, int]:
        """Where each range begins in a flat buffer."""
        return self._laid_out[0]

    @property
    def ends(self) -> tuple[int, int, int]:
        """Where the stacks, the decayed parameters and the others end in a flat buffer."""
        return self._laid_out[1]

    @property
    def length(self) -> int:
        """Numbers of a flat buffer, with the gaps before aligned ranges."""
        return self.ends[-1]

    def views(self, flat: Tensor, ranges: Iterable[Range] | None = None) -> list[Tensor]:
        """Views [n] of the `ranges`, by default all of them."""
        return [
            flat[self.places[numbers] : self.places[numbers] + numbers.end - numbers.begin]
            for numbers in (self.places if ranges is None else ranges)
        ]

    def stack_views(self, flat: Tensor) -> list[Tensor]:
        """Views [matrices, rows, columns] of the stacks."""
        parts = flat[: sum(stack.numbers for stack in self.stacks)].split([stack.numbers for stack in self.stacks])
        return [part.view(stack.shape) for part, stack in zip(parts, self.stacks, strict=True)]

    @cached_property
    def blocks(self) -> list[Range]:
        return [block for numbers in self.places for block in numbers.blocks]

    def block_views(self, flat: Tensor) -> list[Tensor]:
        """Views [n] of the blocks."""
        return [part for view in self.views(flat) for part in view.split(BLOCK_NUMBERS)]


@dataclass(frozen=True)
class FlatLayout:
    """The shares of all ranks, and a flat buffer of all numbers in the order that one rank alone has."""

    shapes: Shapes
    """Of each parameter, in the order of the network."""
    buckets: list[list[str]]
    """Names of the parameters whose gradients are sent together."""
    of_ranks: list[Share]
    whole: Share

    @classmethod
    def of(cls, shapes: Shapes, used: Sequence[str], world_size: int, *, muon: bool) -> FlatLayout:
        """`used`: the names in the order in which the network uses them."""
        groups = _buckets(shapes, used)
        of_ranks = _share_out(shapes, groups, world_size, muon=muon)
        whole = of_ranks[0] if world_size == 1 else _share_out(shapes, groups, 1, muon=muon)[0]
        return cls(shapes, groups, of_ranks, whole)

    @cached_property
    def order_of_blocks(self) -> list[int]:
        """Where each block of the whole stands in [world size, `most_blocks`], by rank."""
        stands = {
            block: rank * self.most_blocks + index
            for rank, share in enumerate(self.of_ranks)
            for index, block in enumerate(share.blocks)
        }
        return [stands[block] for block in self.whole.blocks]

    @cached_property
    def most_blocks(self) -> int:
        """Of a rank."""
        return max(len(share.blocks) for share in self.of_ranks)

    @cached_property
    def longest(self) -> int:
        """Length of the longest flat buffer of a rank."""
        return max(share.length for share in self.of_ranks)

    @cached_property
    def _begins(self) -> dict[str, int]:
        begins: dict[str, int] = {}
        for numbers, begin in self.whole.places.items():
            begins.setdefault(numbers.name, begin)  # the ranges of a parameter follow each other
        return begins

    def views(self, flat: Tensor, ranges: Iterable[Range]) -> list[Tensor]:
        """Views [n] of any `ranges` in `flat` [whole.length]."""
        return [flat[self._begins[name] + begin : self._begins[name] + end] for name, begin, end in ranges]

    def parameters(self, flat: Tensor, names: Iterable[str] | None = None) -> dict[str, Tensor]:
        """Views of the parameters `names`, by default all of them, in their shapes. `flat`: [whole.length]."""
        names = list(self.shapes if names is None else names)
        whole = self.views(flat, [Range(name, 0, self.shapes[name].numel()) for name in names])
        return {name: view.view(self.shapes[name]) for name, view in zip(names, whole, strict=True)}


def _buckets(shapes: Shapes, used: Sequence[str]) -> list[list[str]]:
    """The parameters `used` in groups of about `BUCKET_BYTES`, from the last one to the first, as backward passes reach
    them."""
    groups: list[list[str]] = [[]]
    for name in reversed(used):
        if 4 * sum(shapes[earlier].numel() for earlier in groups[-1]) >= BUCKET_BYTES:
            groups.append([])
        groups[-1].append(name)
    return groups


def _share_out(shapes: Shapes, groups: Sequence[Sequence[str]], world_size: int, *, muon: bool) -> list[Share]:
    """The share of each rank: about as much of each of `groups`, in whole blocks, so that each bucket is sent evenly,
    and about as much of Muon's stacks in all."""
    stacks = _stacks(shapes) if muon else []
    stacks_of: list[list[Stack]] = [[] for _ in range(world_size)]
    loads = [0] * world_size
    for stack in sorted(stacks, key=lambda stack: -stack.numbers):
        rank = loads.index(min(loads))
        stacks_of[rank].append(stack)
        loads[rank] += stack.numbers
    stacked = {numbers.name for stack in stacks for numbers in stack.ranges}
    ranges_of: list[list[Range]] = [[] for _ in range(world_size)]
    for names in groups:
        whole = [Range(name, 0, shapes[name].numel()) for name in names if name not in stacked]
        blocks = [block for numbers in whole for block in numbers.blocks]
        total, before = sum(block.end - block.begin for block in blocks), 0
        for block in blocks:
            size = block.end - block.begin
            _append(ranges_of[(2 * before + size) * world_size // (2 * total)], block)
            before += size
    return [
        Share(
            tuple(sorted(of_rank, key=stacks.index)),
            tuple(numbers for numbers in ranges if is_decayed(len(shapes[numbers.name]))),
            tuple(numbers for numbers in ranges if not is_decayed(len(shapes[numbers.name]))),
        )
        for of_rank, ranges in zip(stacks_of, ranges_of, strict=True)
    ]


def _append(ranges: list[Range], numbers: Range) -> None:
    """Appends `numbers`, or lengthens the last range where they follow it."""
    if ranges and (ranges[-1].name, ranges[-1].end) == (numbers.name, numbers.begin):
        numbers = ranges.pop()._replace(end=numbers.end)
    ranges.append(numbers)


def _stacks(shapes: Shapes) -> list[Stack]:
    """The hidden matrices by shape: the square ones (query, key and value apart), those that widen (both halves of a
    gated one apart), those that narrow."""
    _, F = next(shape for name, shape in shapes.items() if name.endswith("down.weight"))
    matrices: dict[tuple[tuple[int, ...], int], list[Range]] = {}
    for role in HIDDEN_ROLES:
        for name in (name for name in shapes if name.endswith(role)):
            begin, (all_rows, columns) = 0, shapes[name]
            each = rows_of_matrices(role, all_rows, columns, F)
            for parts in [(rows,) for rows in each] if len(set(each)) == 1 else [tuple(each)]:
                end = begin + sum(parts) * columns
                matrices.setdefault((parts, columns), []).append(Range(name, begin, end))
                begin = end
    stacks = []
    for (parts, columns), of_shape in matrices.items():
        rows = sum(parts)
        most = max(1, STACK_NUMBERS // (rows * columns))
        for stacked in (of_shape[first : first + most] for first in range(0, len(of_shape), most)):
            ranges: list[Range] = []
            for matrix in stacked:
                _append(ranges, matrix)
            stacks.append(Stack(tuple(ranges), (len(stacked), rows, columns), parts))
    return stacks


def copy_each(targets: list[Tensor], sources: list[Tensor] | tuple[Tensor, ...]) -> None:
    """Copies tensors in one call, or none: a rank may have nothing of a small network."""
    if targets:
        torch._foreach_copy_(targets, sources)


def _rounded_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
