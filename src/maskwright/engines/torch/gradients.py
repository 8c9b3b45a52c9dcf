"""The gradient of an update in fp32: summed over this rank's micro-batches, then over all ranks, for its own share.

Sums follow the tree of `tree.py`, at any world size. A bucket of parameters is sent while the backward pass of the last
micro-batch still computes earlier layers, as DistributedDataParallel does (Li et al. 2020, arXiv:2006.15704). Gradients
travel in fp32: (W-1)/W of their bytes. All buffers stay where they are from the first update on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor

from maskwright.engines.processes import Processes
from maskwright.engines.torch.shares import Bucket, FlatOrder
from maskwright.engines.tree import Add, Node, complete_nodes, peak_partial_sums, program, rounds


class Message:
    """A bucket being exchanged: each rank sends every other rank the other rank's piece of its sums. `own`: the place
    for the sum of this rank's piece."""

    def __init__(self, bucket: Bucket, own: Tensor) -> None:
        self.bucket, self.own, self.missing = bucket, own, 0
        self.works: list[dist.Work] = []
        self.parts: list[tuple[Tensor, list[int], Tensor, list[int]]] = []
        """What is received and what is sent, with their lengths by rank: the first sum of each rank, the second …"""
        self.rounds: list[tuple[list[Tensor], list[Tensor]]] = []
        """See `tree.rounds`."""


class Gradients:
    """Empties the `.grad` of `parameters` after each backward pass. `flat` holds the sum of this rank's share once
    `finish` returns; it is not divided by anything.

    Each part of a micro-batch that is computed at once needs `before_backward`, the backward pass, `take` and
    `after_backward`."""

    def __init__(self, parameters: dict[str, torch.nn.Parameter], order: FlatOrder, processes: Processes) -> None:
        self.processes, self._parameters, self._order = processes, parameters, order
        self._share = order.shares[processes.rank]
        self._device = next(iter(parameters.values())).device
        self._sums: list[Tensor] = []
        """Flat buffers of all numbers: sums over micro-batches of this rank."""
        self._views: list[dict[str, Tensor]] = []
        """Their parameters."""
        alone = processes.world_size == 1
        self.flat = self._sum(0) if alone else torch.zeros(self._share.length, device=self._device)
        self._virtual_workers = 0
        buckets = [] if alone else order.buckets
        self._messages = [Message(bucket, self.flat[self._share.piece(bucket)]) for bucket in buckets]
        for message in self._messages:
            for name in message.bucket.names:
                parameters[name].register_post_accumulate_grad_hook(self._hook(message))
        self._next, self._final, self._prepared = 0, False, False
        self.place = (0, True)
        """The sum that the gradient of the coming backward pass goes into, and whether it replaces what is there."""
        self._folds = 0
        """How many sums are then folded, each into the one before it."""
        self.sending = False
        """Whether part of this update has been sent: from here on it cannot be redone."""

    # ---- on this rank ----------------------------------------------------------------------------------------

    def begin(self, virtual_workers: int) -> None:
        """Begins a new update, or the same one again: forgets the gradient, and allocates all buffers."""
        if self._virtual_workers != virtual_workers or not self._prepared:
            self._virtual_workers, self._prepared = virtual_workers, False  # memory may run out below
            each = virtual_workers // self.processes.world_size
            first = self.processes.rank * each
            self._program = program(first, each, virtual_workers)
            for index in range(peak_partial_sums(each, virtual_workers, first)):
                self._sum(index)
            self._prepare_messages()
            self._prepared = True
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

    def _prepare_messages(self) -> None:
        """Allocates what is received, and makes the views of all that is sent, received and added."""
        root: Node = (0, self._virtual_workers)
        ranks, rank = range(self.processes.world_size), self.processes.rank
        each = self._virtual_workers // self.processes.world_size
        nodes_of = [complete_nodes(other * each, (other + 1) * each, root) for other in ranks]
        for message in self._messages:
            whole, sizes = message.bucket.whole, message.bucket.sizes
            nodes, sums = list[Node](), list[Tensor]()
            message.parts, message.rounds = [], []
            for index in range(max(map(len, nodes_of))):
                senders = [int(index < len(nodes_of[other])) for other in ranks]
                sent = self._sums[index][whole] if senders[rank] else self.flat[:0]
                received = torch.zeros(sum(senders) * sizes[rank], device=self._device)
                lengths = [sender * sizes[rank] for sender in senders], [senders[rank] * size for size in sizes]
                message.parts.append((received, lengths[0], sent, lengths[1]))
                nodes += [nodes_of[other][index] for other in ranks if senders[other]]
                sums += received.view(sum(senders), sizes[rank]).unbind()
            for pairs in rounds(nodes, root):
                message.rounds.append(([sums[left] for left, _ in pairs], [sums[right] for _, right in pairs]))

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
            self.sending = True  # the backend may fail after other ranks have their part
            message.works = [
                cast(dist.Work, dist.all_to_all_single(received, sent, here, there, async_op=True))
                for received, here, sent, there in message.parts
            ]
            self._next += 1

    def finish(self) -> None:
        """Waits until `flat` holds the sum over all ranks."""
        for message in self._messages:
            for work in message.works:
                work.wait()
            *earlier, (left, right) = message.rounds
            for sums, others in earlier:
                torch._foreach_add_(sums, others)
            torch.add(left[0], right[0], out=message.own)
        self._next, self._final, self.sending = 0, False, False
