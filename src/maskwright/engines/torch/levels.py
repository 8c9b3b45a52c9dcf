"""How gradients and weights travel between ranks: inside each machine first, so that little crosses the network.

Where each of N machines has L ranks, gradients are added up inside each machine, and then between the ranks of the same
number on all machines: network cards carry 1/L of what they would if each rank sent to every other one. New weights
take the way back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import NamedTuple, cast

import torch.distributed as dist
from torch import Tensor

gather_into = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""Gathers [n] of each rank into [world_size * n]. torch 2.13 has the first name and warns of the second; 2.11 has only
the second."""


class Members(NamedTuple):
    """Ranks that exchange messages."""

    group: dist.ProcessGroup | None
    """None for all ranks of the run."""
    ranks: range
    """Member i brings the sums of `ranks.step` ranks, from the i-th of these on."""
    number: int
    """This rank's among the members."""


class Levels:
    """One level, or two where each machine has `of_machine` neighbouring ranks of several; none for a rank alone."""

    def __init__(
        self,
        rank: int = 0,
        world_size: int = 1,
        of_machine: int | None = None,
        *,
        backend: str | None = None,
        timeout: timedelta | None = None,
    ) -> None:
        """All ranks make theirs at the same point. `backend`, `timeout`: of torch's groups, by default the run's."""
        self.rank, self.world_size = rank, world_size
        self._of_machine = L = of_machine or world_size
        first = rank - rank % L
        inside, between = range(first, first + L), range(rank % L, world_size, L)
        several = len(inside) > 1 and len(between) > 1

        def group(ranks: range) -> dist.ProcessGroup | None:
            if not several:
                return None
            return dist.new_group(list(ranks), timeout, backend, use_local_synchronization=True)

        both = (Members(group(inside), inside, rank % L), Members(group(between), range(0, world_size, L), rank // L))
        self.levels = [level for level in both if len(level.ranks) > 1]
        """The members at each: inside this machine, between machines."""

    def place(self, rank: int) -> int:
        """The place of a rank's pieces in the flat order: by number on its machine, then by machine. So what a rank
        sends to another one lies together, at both levels."""
        return rank % self._of_machine * (self.world_size // self._of_machine) + rank // self._of_machine

    def gathering(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> Callable[[], None]:
        """What gathers, for each pair, the second, [n] of each rank, into the first, [world_size * n] by places. The
        second may lie at its place in the first. Pairs overlap."""
        steps, gathered = [], [own for _, own in pairs]
        for level in reversed(self.levels):
            lengths = [len(part) * len(level.ranks) for part in gathered]
            targets = []
            for (whole, own), length in zip(pairs, lengths, strict=True):
                begin = self.place(self.rank) * len(own)
                targets.append(whole[begin - begin % length :][:length])
            steps.append((level.group, list(zip(targets, gathered, strict=True))))
            gathered = targets

        def gather() -> None:
            works: list[dist.Work] = []
            for group, parts in steps:
                earlier, works = works, []
                for index, (whole, part) in enumerate(parts):
                    if earlier:
                        earlier[index].wait()
                    works.append(cast(dist.Work, gather_into(whole, part, group, async_op=True)))
            for work in works:
                work.wait()

        return gather
