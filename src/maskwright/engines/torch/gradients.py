"""The gradient of an update, in one flat fp32 buffer: summed over this rank's micro-batches, then over all ranks.

`exact` sums in the tree of `tree.py`, whatever the world size; `fast` adds up locally in the order of the micro-batches
and leaves the rest to the backend's all-reduce. Either way a bucket of parameters is sent while the backward pass of
the last micro-batch still computes earlier layers, as DistributedDataParallel does (Li et al. 2020, arXiv:2006.15704).
Gradients travel in fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor

from maskwright.engines.processes import Processes
from maskwright.engines.torch.optimizers import Shapes, numel, views
from maskwright.engines.torch.processes import gather_into
from maskwright.engines.tree import Node, complete_nodes, peak_partial_sums, summed, sums_after

BUCKET_BYTES = 32 << 20
"""Parameters that are sent together: DistributedDataParallel's 25 MiB, in fp32 and rounded up."""


class Bucket:
    """Parameters that are sent together, in the order in which backward passes reach them."""

    def __init__(self, names: list[str], shapes: Shapes, world_size: int) -> None:
        self.shapes = {name: shapes[name] for name in names}
        self.length = -(-numel(self.shapes) // world_size) * world_size
        self.missing = 0
        self.work: dist.Work | None = None
        self.sent, self.received = torch.empty(0), torch.empty(0)


class Gradients:
    """Empties the `.grad` of `parameters` after each backward pass. `flat` holds the sum once `finish` returns; it is
    not divided by anything.

    Each part of a micro-batch that is computed at once needs `before_backward`, the backward pass, `after_backward`."""

    def __init__(
        self,
        parameters: dict[str, torch.nn.Parameter],
        flat: Tensor,
        used: Sequence[str],
        *,
        exact: bool,
        processes: Processes,
    ) -> None:
        """`parameters`: in their order in `flat`. `used`: their names in the order in which the network uses them."""
        self.flat, self.exact, self.processes = flat, exact, processes
        self._parameters = parameters
        self._shapes = {name: parameter.shape for name, parameter in parameters.items()}
        self._buffers = [views(flat, self._shapes)]
        self._flats = [flat]
        self._root: Node = (0, 1)
        self._nodes: list[Node] = []
        self._buckets: list[Bucket] = []
        self._next, self._final = 0, False
        self.sending = False
        """Whether other ranks may have received part of this update, so that it cannot be begun again."""
        if processes.world_size > 1:
            self._make_buckets(used)

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
        self._leaf, self._depth, self._started = 0, 0, False
        self._part = (True, True)
        self._next, self._final, self.sending = 0, False, False
        for parameter in self._parameters.values():
            parameter.grad = None

    def before_backward(self, *, first: bool, last: bool, final: bool) -> None:
        """Announces the part of its micro-batch that the next backward pass computes, and whether it is this rank's
        `final` one: then each bucket is sent as soon as it is complete."""
        self._part, self._final = (first, last), final
        for bucket in self._buckets:
            bucket.missing = len(bucket.shapes)

    def after_backward(self) -> None:
        """Adds up the gradient of a backward pass, or sends the rest of it after the final one."""
        if self._final and self._buckets:
            self._send_ready(everything=True)
        else:
            self._fold(list(self._parameters))
        first, last = self._part
        self._depth, self._started = self._after(first, last)[1], True
        self._leaf += last

    def _after(self, first: bool, last: bool) -> tuple[int, int]:
        """(buffers in use after adding this part, buffers in use after folding the sums that it completes)."""
        if not self.exact:
            return 1, 1
        depth = self._depth + 1 if first else self._depth
        leaf = self._first + self._leaf
        return depth, depth - sum(sums_after(leaf, node) for node in self._nodes) if last else depth

    def _fold(self, names: list[str]) -> None:
        """Moves the gradients of these parameters into their buffers, and folds the sums that are complete."""
        first, last = self._part
        gradients = [cast(Tensor, self._parameters[name].grad) for name in names]
        depth, left = self._after(first, last)
        fresh = first if self.exact else not self._started
        if fresh and first and last and left < depth:  # saves writing and reading a buffer
            torch._foreach_add_(self._at(depth - 2, names), gradients)
            depth -= 1
        elif fresh:
            torch._foreach_copy_(self._at(depth - 1, names), gradients)
        else:
            torch._foreach_add_(self._at(depth - 1, names), gradients)
        while depth > left:
            torch._foreach_add_(self._at(depth - 2, names), self._at(depth - 1, names))
            depth -= 1
        for name in names:
            self._parameters[name].grad = None

    def _at(self, index: int, names: Sequence[str]) -> list[Tensor]:
        while index >= len(self._buffers):
            self._flats.append(torch.empty_like(self.flat))
            self._buffers.append(views(self._flats[-1], self._shapes))
        return [self._buffers[index][name] for name in names]

    # ---- over all ranks --------------------------------------------------------------------------------------

    def _make_buckets(self, used: Sequence[str]) -> None:
        names: list[str] = []
        for name in reversed(used):
            names.append(name)
            size = 4 * sum(self._shapes[name].numel() for name in names)
            if size >= BUCKET_BYTES or name == used[0]:
                self._buckets.append(Bucket(names, self._shapes, self.processes.world_size))
                names = []
        for bucket in self._buckets:
            for name in bucket.shapes:
                self._parameters[name].register_post_accumulate_grad_hook(self._hook(bucket))

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
            self._fold(list(bucket.shapes))
            self._send(bucket)
            self._next += 1

    def _send(self, bucket: Bucket) -> None:
        count, world_size = self._after(*self._part)[1], self.processes.world_size
        parts = [self._packed(bucket, index) for index in range(count)]
        if not self.exact:
            bucket.received, self.sending = parts[0], True
            bucket.work = dist.all_reduce(bucket.received, async_op=True)
            return
        # Each rank sums one piece of the bucket. Like a ring's reduce-scatter, this moves (W-1)/W of the bytes.
        bucket.sent = torch.stack(parts).view(count, world_size, -1).transpose(0, 1).contiguous()
        nodes = [len(self._nodes_of(rank)) for rank in range(world_size)]
        piece = bucket.length // world_size
        bucket.received = bucket.sent.new_empty(sum(nodes) * piece)
        self.sending = True  # an error of the backend may come when others have theirs already
        bucket.work = dist.all_to_all_single(
            bucket.received,
            bucket.sent.view(-1),
            [n * piece for n in nodes],
            [count * piece] * world_size,
            async_op=True,
        )

    def _packed(self, bucket: Bucket, index: int) -> Tensor:
        packed, size = torch.empty(bucket.length, device=self.flat.device), numel(bucket.shapes)
        packed[size:] = 0.0
        torch._foreach_copy_(list(views(packed[:size], bucket.shapes).values()), self._at(index, list(bucket.shapes)))
        return packed

    def _nodes_of(self, rank: int) -> list[Node]:
        each = self._root[1] // self.processes.world_size
        return complete_nodes(rank * each, (rank + 1) * each, self._root)

    def finish(self) -> None:
        """Waits until `flat` holds the sum over all ranks."""
        if self.exact:
            for bucket in self._buckets:
                self._sum(bucket)
        for bucket in self._buckets:
            cast(dist.Work, bucket.work).wait()
            bucket.work = None
            named = views(bucket.received[: numel(bucket.shapes)], bucket.shapes)
            torch._foreach_copy_(self._at(0, list(bucket.shapes)), list(named.values()))
            bucket.sent = bucket.received = torch.empty(0)
        self._next, self._final, self.sending = 0, False, False

    def _sum(self, bucket: Bucket) -> None:
        cast(dist.Work, bucket.work).wait()
        nodes = [node for rank in range(self.processes.world_size) for node in self._nodes_of(rank)]
        pieces = bucket.received.view(len(nodes), -1)
        piece = summed(self._root, dict(zip(nodes, pieces, strict=True)), torch.add)
        bucket.received = torch.empty(bucket.length, device=self.flat.device)
        bucket.work = gather_into(bucket.received, piece, async_op=True)
