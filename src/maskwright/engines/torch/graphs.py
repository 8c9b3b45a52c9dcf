"""A micro-batch's forward and backward pass as a CUDA graph, which the host starts with one call.

Without it, the host launches some 1,000 kernels one by one, and a faster device idles in between.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MOST_GRAPHS = 128
"""A run has a handful of shapes for each of its row lengths, and 2 log2 V sums that the gradients of V micro-batches
go into."""


@dataclass
class _Graph:
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    loss: Tensor


class Graphs:
    """Graphs of micro-batches that differ only in their numbers. They share one memory pool, as only one runs at a
    time, and keep nothing in it: a graph ends by moving its gradient into a sum. The same kernels without a graph
    compute the same numbers, bit for bit."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: dict[Hashable, _Graph] = {}
        self._seen: set[Hashable] = set()
        self.used = False
        """Whether any graph takes memory, or was to be recorded and found too little."""

    def loss(self, key: Hashable, inputs: Sequence[Tensor], compute: Callable[[Sequence[Tensor]], Tensor]) -> Tensor:
        """The loss that `compute` returns for `inputs`, after it has moved their gradient into a sum.

        `key`: all that a graph depends on, except the shapes of `inputs`. The first micro-batch of its kind is computed
        as usual, because compilers and libraries prepare themselves; the second is recorded."""
        key = (key, *((tensor.shape, tensor.dtype) for tensor in inputs))
        if key not in self._graphs and (key not in self._seen or len(self._graphs) == MOST_GRAPHS):
            self._seen.add(key)
            return compute(inputs)
        graph = self._graphs.get(key) or self._graphs.setdefault(key, self._record(inputs, compute))
        for static, tensor in zip(graph.inputs, inputs, strict=True):
            static.copy_(tensor, non_blocking=True)
        graph.graph.replay()
        return graph.loss.clone()

    def _record(self, inputs: Sequence[Tensor], compute: Callable[[Sequence[Tensor]], Tensor]) -> _Graph:
        self.used = True
        static = [tensor.clone() for tensor in inputs]
        graph = torch.cuda.CUDAGraph()
        try:
            # The thread that writes a checkpoint may copy from the device meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                loss = compute(static)
        except RuntimeError as error:
            # Ending a failed recording raises an error of its own.
            raise error.__context__ if isinstance(error.__context__, RuntimeError) else error from None
        return _Graph(graph, static, loss)
