"""The gradient of an update in fp32: summed over this rank's micro-batches, then over all ranks, for its own share.

`exact` sums in the tree of `tree.py`, whatever the world size; `fast` adds up locally in the order of the micro-batches
and leaves the rest to the backend's all-reduce. Either way a bucket of parameters is sent while the backward pass of
the last micro-batch still computes earlier layers, as DistributedDataParallel does (Li et al. 2020, arXiv:2006.15704).
Gradients travel in fp32: (W-1)/W of the bytes with `exact`, twice as many with `fast`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor

from maskwright.engines.processes import Processes
from maskwright.engines.torch.shares import FlatLayout, Share, copy_each
from maskwright.engines.tree import Add, Node, complete_nodes, peak_partial_sums, program, rounds


class Bucket:
    """Parameters whose gradients are sent together."""

    def __init__(self, names: list[str], shares: Sequence[Share]) -> None:
        self.names = names
        self.ranges = [[numbers for numbers in share.places if numbers.name in names] for share in shares]
        """Of each rank."""
        self.sizes = [sum(numbers.end - numbers.begin for numbers in ranges) for ranges in self.ranges]
        self.missing = 0
        self.work: dist.Work | None = None
        self.sent, self.received = torch.empty(0), torch.empty(0)


class Gradients:
    """Empties the `.grad` of `parameters` after each backward pass. `flat` [share.length] holds the sum of this rank's
    share once `finish` returns; it is not divided by anything.

    Each part of a micro-batch that is computed at once needs `before_backward`, the backward pass, `after_backward`."""

    def __init__(
        self, parameters: dict[str, torch.nn.Parameter], layout: FlatLayout, *, exact: bool, processes: Processes
    ) -> None:
        self.exact, self.processes, self._parameters, self._layout = exact, processes, parameters, layout
        self._share = layout.of_ranks[processes.rank]
        self._device = next(iter(parameters.values())).device
        self._flats: list[Tensor] = []
        self._buffers: list[dict[str, Tensor]] = []
        """Sums of all parameters over micro-batches of this rank."""
        self._at(0, [])
        alone = processes.world_size == 1
        self.flat = self._flats[0] if alone else torch.zeros(self._share.length, device=self._device)
        self._root: Node = (0, 1)
        self._nodes: list[Node] = []
        self._buckets = [] if alone else [Bucket(names, layout.of_ranks) for names in layout.buckets]
        for bucket in self._buckets:
            for name in bucket.names:
                parameters[name].register_post_accumulate_grad_hook(self._hook(bucket))
        self._next, self._final = 0, False
        self.sending = False
        """Whether other ranks may have received part of this update, so that it cannot be begun again."""

    # ---- on this rank ----------------------------------------------------------------------------------------

    def begin(self, virtual_workers: int) -> None:
        """Begins a new update, or the same one again: forgets the gradient, and allocates the buffers of its sums."""
        if self._root[1] != virtual_workers or not self._nodes:
            each = virtual_workers // self.processes.world_size
            self._root, self._first = (0, virtual_workers), self.processes.rank * each
            self._nodes = [(self._first, each)]
            if self.exact:
                self._nodes = self._nodes_of(self.processes.rank)
                self._at(peak_partial_sums(each, virtual_workers, self._first) - 1, [])
            self._program = program(self._first, each, virtual_workers) if self.exact else [Add(0, 0)] * each
        self._adds, self._started = iter(self._program), False
        self._add, self._part = self._program[0], (True, True)
        self._next, self._final, self.sending = 0, False, False
        for parameter in self._parameters.values():
            parameter.grad = None

    def before_backward(self, *, first: bool, last: bool, final: bool) -> None:
        """Announces the part of its micro-batch that the next backward pass computes, and whether it is this rank's
        `final` one: then each bucket is sent as soon as it is complete."""
        if first:
            self._add = next(self._adds)
        self._part, self._final = (first, last), final
        for bucket in self._buckets:
            bucket.missing = len(bucket.names)

    def after_backward(self) -> None:
        """Adds up the gradient of a backward pass, or sends the rest of it after the final one."""
        if self._final and self._buckets:
            self._send_ready(everything=True)
        else:
            self._fold(list(self._parameters))
        self._started = True

    def _fold(self, names: list[str]) -> None:
        """Moves the gradients of these parameters into their sum, and folds the sums that are complete."""
        (into, folds), (first, last) = self._add, self._part
        gradients = [cast(Tensor, self._parameters[name].grad) for name in names]
        fresh = first if self.exact else not self._started
        if first and last and folds:  # saves writing and reading a sum of its own
            into, folds, fresh = into - 1, folds - 1, False
        (torch._foreach_copy_ if fresh else torch._foreach_add_)(self._at(into, names), gradients)
        for last_sum in range(into, into - folds if last else into, -1):
            torch._foreach_add_(self._at(last_sum - 1, names), self._at(last_sum, names))
        for name in names:
            self._parameters[name].grad = None

    def _at(self, index: int, names: Sequence[str]) -> list[Tensor]:
        while index >= len(self._buffers):
            self._flats.append(torch.zeros(self._layout.whole.length, device=self._device))
            self._buffers.append(self._layout.parameters(self._flats[-1]))
        return [self._buffers[index][name] for name in names]

    # ---- over all ranks --------------------------------------------------------------------------------------

    def _hook(self, bucket: Bucket) -> Callable[[Tensor], None]:
        def ready(parameter: Tensor) -> None:
            bucket.missing -= 1
            if self._final:
                self._send_ready()

        return ready

    def _send_ready(self, everything: bool = False) -> None:
        """Sends buckets in one order, the same on all ranks."""
        while self._next < len(self._buckets) and (everything or not self._buckets[self._next].missing):
            bucket = self._buckets[self._next]
            self._fold(bucket.names)
            self._send(bucket)
            self._next += 1

    def _send(self, bucket: Bucket) -> None:
        """Sends each rank its numbers of each sum of this rank."""
        count = len(self._nodes)
        bucket.sent = torch.empty(count * sum(bucket.sizes), device=self._device)
        sums = [{name: self._buffers[index][name].view(-1) for name in bucket.names} for index in range(count)]
        lengths, parts = [], []
        for ranges in bucket.ranges:
            for named in sums:
                lengths += [numbers.end - numbers.begin for numbers in ranges]
                parts += [named[numbers.name][numbers.begin : numbers.end] for numbers in ranges]
        torch._foreach_copy_(bucket.sent.split(lengths), parts)
        self.sending = True  # an error of the backend may come when others have theirs already
        if not self.exact:
            bucket.work = dist.all_reduce(bucket.sent, async_op=True)
            return
        mine = bucket.sizes[self.processes.rank]
        of_ranks = [len(self._nodes_of(rank)) * mine for rank in range(self.processes.world_size)]
        bucket.received = bucket.sent.new_empty(sum(of_ranks))
        bucket.work = dist.all_to_all_single(
            bucket.received, bucket.sent, of_ranks, [count * size for size in bucket.sizes], async_op=True
        )

    def _nodes_of(self, rank: int) -> list[Node]:
        each = self._root[1] // self.processes.world_size
        return complete_nodes(rank * each, (rank + 1) * each, self._root)

    def finish(self) -> None:
        """Waits until `flat` holds the sum over all ranks."""
        for bucket in self._buckets:
            cast(dist.Work, bucket.work).wait()
            mine = bucket.ranges[self.processes.rank]
            parts = self._summed(bucket).split([numbers.end - numbers.begin for numbers in mine])
            copy_each(self._share.views(self.flat, mine), parts)
            bucket.work, bucket.sent, bucket.received = None, torch.empty(0), torch.empty(0)
        self._next, self._final, self.sending = 0, False, False

    def _summed(self, bucket: Bucket) -> Tensor:
        """This rank's numbers of a bucket, summed over all ranks."""
        if not self.exact:
            return bucket.sent.split(bucket.sizes)[self.processes.rank]
        nodes = [node for rank in range(self.processes.world_size) for node in self._nodes_of(rank)]
        sums = bucket.received.view(len(nodes), -1).unbind()
        for pairs in rounds(nodes, self._root):
            torch._foreach_add_([sums[i] for i, _ in pairs], [sums[j] for _, j in pairs])
        return sums[0]
