"""The gradient of an update: of this process's micro-batches, then of all processes, in one flat fp32 buffer.

`exact` sums in the tree of `tree.py`, whatever the number of processes; `fast` adds up here in the order of the
micro-batches and leaves the rest to the backend's all-reduce. Either way a group of parameters is sent while the
backward pass of the last micro-batch still computes those before it, as DistributedDataParallel does
(Li et al. 2020, arXiv:2006.15704), and gradients travel in fp32.
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
from maskwright.engines.tree import Node, summed, sums_after, whole_nodes

GROUP_BYTES = 32 << 20
"""Of parameters that are sent together: DistributedDataParallel's 25 MiB, of fp32 and rounded up."""


class Group:
    """Parameters that are sent together, in the order in which backward passes come to them."""

    def __init__(self, names: list[str], shapes: Shapes, processes: int) -> None:
        self.shapes = {name: shapes[name] for name in names}
        self.length = -(-numel(self.shapes) // processes) * processes
        self.missing = 0
        self.work: dist.Work | None = None
        self.sent, self.found = torch.empty(0), torch.empty(0)


class Gradients:
    """Of `parameters`, whose own `.grad` is emptied after each backward pass. `flat` is the sum once `finish` returns;
    it is not divided by anything.

    For each micro-batch, for each part of it that is computed at once: `expect`, the backward pass, `take`."""

    def __init__(
        self,
        parameters: dict[str, torch.nn.Parameter],
        flat: Tensor,
        used: Sequence[str],
        *,
        exact: bool,
        processes: Processes,
    ) -> None:
        """`parameters` in their order in `flat`; `used`: their names in the order in which the network uses them."""
        self.flat, self.exact, self.processes = flat, exact, processes
        self._parameters = parameters
        self._shapes = {name: parameter.shape for name, parameter in parameters.items()}
        self._buffers = [views(flat, self._shapes)]
        self._flats = [flat]
        self._root: Node = (0, 1)
        self._nodes: list[Node] = []
        self._groups: list[Group] = []
        self._next, self._final = 0, False
        if processes.count > 1:
            self._make_groups(used)

    # ---- this process's own ----------------------------------------------------------------------------------

    def begin(self, virtual_workers: int) -> None:
        """Forgets what was there: a new update, or the same once more."""
        if self._root[1] != virtual_workers or not self._nodes:
            each = virtual_workers // self.processes.count
            self._root, self._first = (0, virtual_workers), self.processes.number * each
            whole = whole_nodes(self._first, self._first + each, self._root) if self.exact else []
            self._nodes = whole or [(self._first, each)]
        self._leaf, self._depth, self._started = 0, 0, False
        self._part = (True, True)
        self._next, self._final = 0, False
        for parameter in self._parameters.values():
            parameter.grad = None

    def expect(self, *, first: bool, last: bool, final: bool) -> None:
        """Which part of its micro-batch the next backward pass computes, and whether it is the `final` one of all, so
        that what it is done with is sent at once."""
        self._part, self._final = (first, last), final
        for group in self._groups:
            group.missing = len(group.shapes)

    @property
    def sending(self) -> bool:
        """Whether other processes have been sent something of this update, so that it cannot be begun again."""
        return self._next > 0

    def take(self) -> None:
        """After a backward pass."""
        if self._final and self._groups:
            self._send_ready(everything=True)
        else:
            self._fold(list(self._parameters))
        first, last = self._part
        self._depth, self._started = self._after(first, last)[1], True
        self._leaf += last

    def _after(self, first: bool, last: bool) -> tuple[int, int]:
        """(how many buffers there are once this part is in one, how many when all that can be summed is)."""
        if not self.exact:
            return 1, 1
        depth = self._depth + 1 if first else self._depth
        leaf = self._first + self._leaf
        return depth, depth - sum(sums_after(leaf, node) for node in self._nodes) if last else depth

    def _fold(self, names: list[str]) -> None:
        """Puts the gradients of these parameters where they belong, and sums what is complete."""
        first, last = self._part
        own = [cast(Tensor, self._parameters[name].grad) for name in names]
        depth, left = self._after(first, last)
        fresh = first if self.exact else not self._started
        if fresh and first and last and left < depth:  # nothing is read again that was only just written
            torch._foreach_add_(self._at(depth - 2, names), own)
            depth -= 1
        elif fresh:
            torch._foreach_copy_(self._at(depth - 1, names), own)
        else:
            torch._foreach_add_(self._at(depth - 1, names), own)
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

    # ---- all processes' --------------------------------------------------------------------------------------

    def _make_groups(self, used: Sequence[str]) -> None:
        names: list[str] = []
        for name in reversed(used):
            names.append(name)
            size = 4 * sum(self._shapes[name].numel() for name in names)
            if size >= GROUP_BYTES or name == used[0]:
                self._groups.append(Group(names, self._shapes, self.processes.count))
                names = []
        for group in self._groups:
            for name in group.shapes:
                self._parameters[name].register_post_accumulate_grad_hook(self._hook(group))

    def _hook(self, group: Group) -> Callable[[Tensor], None]:
        def ready(parameter: Tensor) -> None:
            group.missing -= 1
            if self._final:
                self._send_ready()

        return ready

    def _send_ready(self, everything: bool = False) -> None:
        """Groups go out in one order, the same in all processes."""
        while self._next < len(self._groups) and (everything or not self._groups[self._next].missing):
            group = self._groups[self._next]
            self._fold(list(group.shapes))
            self._send(group)
            self._next += 1

    def _send(self, group: Group) -> None:
        count, processes = self._after(*self._part)[1], self.processes.count
        parts = [self._packed(group, index) for index in range(count)]
        if not self.exact:
            group.found = parts[0]
            group.work = dist.all_reduce(group.found, async_op=True)
            return
        # Each process sums one piece of the group. As a ring's reduce-scatter, this moves (W-1)/W of the bytes.
        group.sent = torch.stack(parts).view(count, processes, -1).transpose(0, 1).contiguous()
        nodes = [len(self._nodes_of(number)) for number in range(processes)]
        piece = group.length // processes
        group.found = group.sent.new_empty(sum(nodes) * piece)
        group.work = dist.all_to_all_single(
            group.found,
            group.sent.view(-1),
            [n * piece for n in nodes],
            [count * piece] * processes,
            async_op=True,
        )

    def _packed(self, group: Group, index: int) -> Tensor:
        packed, size = torch.empty(group.length, device=self.flat.device), numel(group.shapes)
        packed[size:] = 0.0
        torch._foreach_copy_(list(views(packed[:size], group.shapes).values()), self._at(index, list(group.shapes)))
        return packed

    def _nodes_of(self, number: int) -> list[Node]:
        each = self._root[1] // self.processes.count
        return whole_nodes(number * each, (number + 1) * each, self._root)

    def finish(self) -> None:
        """Waits until `flat` holds the sum of all processes."""
        if self.exact:
            for group in self._groups:
                self._sum(group)
        for group in self._groups:
            cast(dist.Work, group.work).wait()
            group.work = None
            named = views(group.found[: numel(group.shapes)], group.shapes)
            torch._foreach_copy_(self._at(0, list(group.shapes)), list(named.values()))
            group.sent = group.found = torch.empty(0)
        self._next, self._final = 0, False

    def _sum(self, group: Group) -> None:
        cast(dist.Work, group.work).wait()
        nodes = [node for number in range(self.processes.count) for node in self._nodes_of(number)]
        pieces = group.found.view(len(nodes), -1)
        piece = summed(self._root, dict(zip(nodes, pieces, strict=True)), torch.add)
        group.found = torch.empty(group.length, device=self.flat.device)
        group.work = gather_into(group.found, piece, async_op=True)
