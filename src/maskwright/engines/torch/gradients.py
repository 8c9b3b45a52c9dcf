"""The gradient of an update in fp32: summed over this rank's micro-batches, then over all ranks, for its own share.

Sums follow the tree of `tree.py`, whatever the world size. A bucket of parameters is sent while the backward pass of
the last micro-batch still computes earlier layers, as DistributedDataParallel does (Li et al. 2020, arXiv:2006.15704).
Gradients travel in fp32: (W-1)/W of their bytes. Of these, 1/L leave a machine of L ranks. All buffers stay where they
are from the first update on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor

from maskwright.engines.torch.levels import Levels, Members
from maskwright.engines.torch.shares import Bucket, FlatOrder
from maskwright.engines.tree import Add, Node, complete_nodes, peak_partial_sums, program, rounds


class Hop:
    """A bucket's exchange at one level: each member gives each other one that one's pieces of its sums, and adds up
    what it gets.

    `held`: the nodes whose sums each member has; `sums`: this rank's sums. `made`: the nodes that they make up.
    `sizes`: numbers of each member's pieces. `spare`: memory that is no longer needed by then."""

    def __init__(
        self,
        level: Members,
        held: list[list[Node]],
        sums: list[Tensor],
        made: list[Node],
        sizes: list[int],
        spare: Tensor,
    ) -> None:
        self._group, own = level.group, sizes[level.number]
        self._works: list[dist.Work] = []
        self._parts: list[tuple[Tensor, Tensor, list[int], list[int]]] = []
        """What is received and what is sent, with their lengths by member: the first sum of each, the second …"""
        nodes, arrived = list[Node](), list[Tensor]()
        for index in range(max(map(len, held))):
            senders = [index < len(of_member) for of_member in held]
            sent = sums[index] if senders[level.number] else sums[0][:0]
            length = sum(senders) * own
            received, spare = spare[:length], spare[length:]
            if len(received) < length:
                received = torch.zeros(length, device=sent.device)
            lengths = [sender * own for sender in senders], [senders[level.number] * size for size in sizes]
            self._parts.append((received, sent, *lengths))
            nodes += [of_member[index] for of_member in held if index < len(of_member)]
            arrived += received.view(sum(senders), own).unbind()
        pairs_of_rounds, places = rounds(nodes, made)
        self._rounds = [
            ([arrived[left] for left, _ in pairs], [arrived[right] for _, right in pairs]) for pairs in pairs_of_rounds
        ]
        self.sums = [arrived[place] for place in places]
        """Of `made`, for this rank's pieces, after `finish`."""
        self.spare = self._parts[0][0][own if places == [0] else len(self._parts[0][0]) :]
        """Memory that holds none of them."""

    def begin(self) -> None:
        self._works = [
            cast(dist.Work, dist.all_to_all_single(*part, group=self._group, async_op=True)) for part in self._parts
        ]

    def finish(self) -> None:
        for work in self._works:
            work.wait()
        for sums, others in self._rounds:
            torch._foreach_add_(sums, others)


class Message:
    """A bucket on its way."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket, self.missing = bucket, 0
        self.hops: list[Hop] = []
        """One for each level."""

    def go_on(self) -> None:
        """Begins the last hop, if another one comes before it."""
        for before, after in pairwise(self.hops):
            before.finish()
            after.begin()


class Gradients:
    """Empties the `.grad` of `parameters` after each backward pass. `flat` holds the sum of this rank's share once
    `finish` returns; it is not divided by anything.

    Each part of a micro-batch that is computed at once needs `before_backward`, the backward pass, `take` and
    `after_backward`."""

    def __init__(self, parameters: dict[str, torch.nn.Parameter], order: FlatOrder, levels: Levels) -> None:
        self.levels, self._parameters, self._order = levels, parameters, order
        self._share = order.shares[levels.place(levels.rank)]
        self._device = next(iter(parameters.values())).device
        self._sums: list[Tensor] = []
        """Flat buffers of all numbers: sums over micro-batches of this rank."""
        self._views: list[dict[str, Tensor]] = []
        """Their parameters."""
        alone = levels.world_size == 1
        self.flat = self._sum(0) if alone else torch.zeros(self._share.length, device=self._device)
        self._virtual_workers = 0
        self._messages = [] if alone else [Message(bucket) for bucket in order.buckets]
        self._own = [self.flat[self._share.piece(message.bucket)] for message in self._messages]
        for message in self._messages:
            for name in message.bucket.names:
                parameters[name].register_post_accumulate_grad_hook(self._hook(message))
        self._next, self._final = 0, False
        self.place = (0, True)
        """The sum that the gradient of the coming backward pass goes into, and whether it replaces what is there."""
        self._folds = 0
        """How many sums are then folded, each into the one before it."""
        self.sending = False
        """Whether part of this update has been sent: from here on it cannot be redone."""

    # ---- on this rank ----------------------------------------------------------------------------------------

    def begin(self, virtual_workers: int) -> None:
        """Begins a new update, or the same one again: forgets the gradient, and allocates all buffers."""
        if self._virtual_workers != virtual_workers:
            self._virtual_workers = 0  # memory may run out below
            each = virtual_workers // self.levels.world_size
            first = self.levels.rank * each
            self._program = program(first, each, virtual_workers)
            for index in range(peak_partial_sums(each, virtual_workers, first)):
                self._sum(index)
            self._prepare_messages(virtual_workers)
            self._virtual_workers = virtual_workers
        self._adds: Iterator[Add] = iter(self._program)
        self._next, self._final, self.sending = 0, False, False
        for parameter in self._parameters.values():
            parameter.grad = None

    def before_backward(self, *, first: bool, last: bool, final: bool) -> None:
        """Announces the first, the last or another part of a micro-batch, whose backward pass comes next, and whether
        it is this rank's `final` one: then each bucket is sent as soon as it is complete."""
        if first:
            self._add = next(self._adds)
        (into, folds), copies = self._add, first
        if first and last and folds:  # saves writing and reading a sum of its own
            into, folds, copies = into - 1, folds - 1, False
        self.place, self._folds, self._final = (into, copies), folds if last else 0, final
        self._sum(into)
        for message in self._messages:
            message.missing = len(message.bucket.names)

    def take(self) -> None:
        """Moves the gradient of a backward pass into its sum. A CUDA graph may hold this with the pass."""
        if not (self._final and self._messages):
            self._take(list(self._parameters))

    def after_backward(self) -> None:
        """Folds the sums that are complete, or sends the rest of them after the final pass."""
        if self._final and self._messages:
            self._send_ready(everything=True)
        else:
            self._fold(slice(None))

    def _take(self, names: list[str]) -> None:
        into, copies = self.place
        gradients = [cast(Tensor, self._parameters[name].grad) for name in names]
        views = [self._views[into][name] for name in names]
        (torch._foreach_copy_ if copies else torch._foreach_add_)(views, gradients)
        for name in names:
            self._parameters[name].grad = None

    def _fold(self, numbers: slice) -> None:
        """Folds these numbers of the sums that are complete."""
        into, _ = self.place
        for folded in range(into, into - self._folds, -1):
            self._sums[folded - 1][numbers].add_(self._sums[folded][numbers])

    def _sum(self, index: int) -> Tensor:
        while index >= len(self._sums):
            self._sums.append(torch.zeros(self._order.length, device=self._device))
            self._views.append(self._order.parameters(self._sums[-1]))
        return self._sums[index]

    # ---- over all ranks --------------------------------------------------------------------------------------

    def _prepare_messages(self, virtual_workers: int) -> None:
        """Allocates what is received, and makes the views of all that is sent, received and added."""
        root, each = (0, virtual_workers), virtual_workers // self.levels.world_size
        for message in self._messages:
            sizes, sums = message.bucket.sizes, [of_node[message.bucket.whole] for of_node in self._sums]
            message.hops, spare = [], self.flat[:0]
            for level in self.levels.levels:
                ranks, step = level.ranks, level.ranks.step
                held = [complete_nodes(rank * each, (rank + step) * each, root) for rank in ranks]
                made = complete_nodes(ranks[0] * each, (ranks[-1] + step) * each, root)
                count = len(sizes) // len(ranks)  # pieces for each member
                pieces = [sizes[begin : begin + count] for begin in range(0, len(sizes), count)]
                message.hops.append(Hop(level, held, sums, made, [sum(of_member) for of_member in pieces], spare))
                sizes, sums, spare = pieces[level.number], message.hops[-1].sums, message.hops[-1].spare

    def _hook(self, message: Message) -> Callable[[Tensor], None]:
        def ready(parameter: Tensor) -> None:
            message.missing -= 1
            if self._final:
                self._send_ready()

        return ready

    def _send_ready(self, everything: bool = False) -> None:
        """Sends buckets in one order, the same on all ranks."""
        while self._next < len(self._messages) and (everything or not self._messages[self._next].missing):
            message = self._messages[self._next]
            self._take(list(message.bucket.names))
            self._fold(message.bucket.whole)
            self.sending = True  # an error of the backend may come when others have theirs already
            message.hops[0].begin()
            if self._next:  # which has arrived inside of the machine since
                self._messages[self._next - 1].go_on()
            self._next += 1

    def finish(self) -> None:
        """Waits until `flat` holds the sum over all ranks."""
        for message in self._messages[-1:]:
            message.go_on()
        for message in self._messages:
            message.hops[-1].finish()
        if self._messages:
            torch._foreach_copy_(self._own, [message.hops[-1].sums[0] for message in self._messages])
        self._next, self._final, self.sending = 0, False, False
