"""Weights, gradient and optimizer state of a torch run.

Each rank computes with all weights, in bf16, fp16 or fp32, and holds its share of the fp32 weights and moments
(`shares.py`) in flat buffers, which the optimizers update in a few large operations. After an update the ranks gather
the new weights in the precision of the multiplications: half the bytes of fp32, and the same bits on all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from maskwright.config import pretraining as run
from maskwright.engines.base import TrainState
from maskwright.engines.processes import Processes
from maskwright.engines.torch.gradients import Gradients
from maskwright.engines.torch.optimizers import AdamW, Muon, rate_scales
from maskwright.engines.torch.processes import gather_into
from maskwright.engines.torch.shares import FlatLayout, copy_each
from maskwright.model.config import NEVER_PREDICTED, ModelConfig
from maskwright.model.hf.names import Parameters
from maskwright.model.torch.encoder import EncoderNetwork
from maskwright.model.torch.networks import assign, extract


class Weights(Protocol):
    """Weights and optimizer. An update calls `begin`, then `before_backward` and `after_backward` around each backward
    pass, then `finish` and `update`."""

    def look_up(self, ids: Tensor, *, training: bool) -> Tensor:
        """Rows [M, T] of the network's table of embeddings for token `ids`."""
        ...

    def begin(self, virtual_workers: int) -> None:
        """Forgets any gradient, and allocates the moments and buffers of the update."""
        ...

    def before_backward(self, *, first: bool, last: bool, final: bool) -> None:
        """Announces a backward pass: the first or last of its micro-batch, and the final one of this rank."""
        ...

    def after_backward(self) -> None:
        """Adds up the gradient of the backward pass."""
        ...

    @property
    def bound(self) -> str | None:
        """The joint work of the ranks that keeps one from repeating its micro-batch alone; None if it can."""
        ...

    def finish(self) -> Tensor:
        """Waits for the gradient of all ranks, and returns its norm, not divided by anything."""
        ...

    def update(self, scale: Tensor, learning_rate: float, good: Tensor | None) -> None:
        """One step of the optimizer by the gradient times `scale`. `good`: see `optimizers.AdamW.step`."""
        ...

    def read(self, step: int) -> TrainState: ...

    def write(self, state: TrainState, *, moments: bool) -> None:
        """Broadcasts rank 0's state. `moments`: whether it has any."""
        ...


class FlatWeights:
    """See `Weights`."""

    def __init__(
        self,
        network: EncoderNetwork,
        config: ModelConfig,
        options: run.Optimizer,
        dtype: torch.dtype,
        *,
        exact: bool,
        processes: Processes,
    ) -> None:
        self.config, self.options, self.dtype = config, options, dtype
        self._exact, self._processes = exact, processes
        self._earlier_updates = 0
        self._parameters = dict(network.named_parameters())
        shapes = {name: parameter.shape for name, parameter in self._parameters.items()}
        self._layout = FlatLayout.of(shapes, list(shapes), processes.world_size, muon=options.kind == "muon")
        self._share = self._layout.of_ranks[processes.rank]
        self._device = next(iter(self._parameters.values())).device
        self._order = torch.tensor(self._layout.order_of_blocks, device=self._device)
        self._weights = torch.zeros(self._share.length, device=self._device)
        self._multiplied = self._weights
        if processes.world_size > 1 or dtype is not torch.float32:
            self._multiplied = torch.zeros(self._layout.whole.length, dtype=dtype, device=self._device)
        for name, view in self._layout.parameters(self._multiplied).items():
            self._parameters[name].data = view
        self._optimizers: list[AdamW | Muon] = []
        self._made: Gradients | None = None

    @property
    def _gradients(self) -> Gradients:
        """The gradients, made by the first update: evaluation needs none."""
        if self._made is None:
            self._made = Gradients(self._parameters, self._layout, exact=self._exact, processes=self._processes)
            self._blocks = self._share.block_views(self._made.flat)
        return self._made

    def _start_optimizers(self) -> list[AdamW | Muon]:
        """Returns the optimizers, made on first use with zero moments."""
        if not self._optimizers:
            options, buffers = self.options, (self._share, self._weights, self._gradients.flat)
            scales = rate_scales(list(self._parameters), options.layer_decay)
            self._optimizers = [AdamW(*buffers, options, scales)]
            if options.kind == "muon":
                self._optimizers.append(Muon(*buffers, options, self.dtype))
        return self._optimizers

    def look_up(self, ids: Tensor, *, training: bool) -> Tensor:
        return ids

    def begin(self, virtual_workers: int) -> None:
        self._start_optimizers()
        self._gradients.begin(virtual_workers)

    def before_backward(self, *, first: bool, last: bool, final: bool) -> None:
        self._gradients.before_backward(first=first, last=last, final=final)

    def after_backward(self) -> None:
        self._gradients.after_backward()

    @property
    def bound(self) -> str | None:
        return "summing their gradients" if self._gradients.sending else None

    def finish(self) -> Tensor:
        self._gradients.finish()
        norms = torch.zeros(self._layout.most_blocks, device=self._device)
        if self._blocks:
            norms[: len(self._blocks)] = torch.stack(torch._foreach_norm(self._blocks))
        if self._processes.world_size > 1:
            norms = self._gathered(norms)[self._order]
        return torch.linalg.vector_norm(norms)

    def _gathered(self, numbers: Tensor) -> Tensor:
        """Gathers [n] of each rank into [world_size * n]."""
        gathered = numbers.new_empty(self._processes.world_size * len(numbers))
        gather_into(gathered, numbers)
        return gathered

    def update(self, scale: Tensor, learning_rate: float, good: Tensor | None) -> None:
        self._gradients.flat.mul_(scale)
        for optimizer in self._optimizers:
            optimizer.step(learning_rate, good)
        self._spread()

    def _spread(self) -> None:
        """Gives each rank the new weights of all, in the precision of the multiplications."""
        if self._processes.world_size > 1:
            updated = self._multiplied.new_zeros(self._layout.longest)
            updated[: self._share.length].copy_(self._weights)
            self._put_together(self._multiplied, self._gathered(updated).chunk(self._processes.world_size))
        elif self._multiplied is not self._weights:
            self._multiplied.copy_(self._weights)

    def _put_together(self, whole: Tensor, of_ranks: Sequence[Tensor]) -> None:
        """Copies the shares [longest] of all ranks to their places in `whole`."""
        for share, flat in zip(self._layout.of_ranks, of_ranks, strict=True):
            copy_each(self._layout.views(whole, share.places), share.views(flat))

    # ---- state -----------------------------------------------------------------------------------------------

    def read(self, step: int) -> TrainState:
        parameters = self._gathered_by_name(self._weights, slice(0, self._share.length), list(self._parameters))
        moments = {}
        for optimizer in self._optimizers if step + self._earlier_updates else []:
            for kind, moment in optimizer.moments.items():
                moments[kind] = self._gathered_by_name(moment, optimizer.part, self._names(optimizer))
        if self._processes.rank:
            return TrainState(step, {})
        return TrainState(step, parameters, moments, self._earlier_updates)

    def _names(self, optimizer: AdamW | Muon) -> list[str]:
        """The parameters that `optimizer` updates, on all ranks together."""
        stacked = {numbers.name for stack in self._layout.whole.stacks for numbers in stack.ranges}
        return [name for name in self._parameters if (name in stacked) is isinstance(optimizer, Muon)]

    def _gathered_by_name(self, numbers: Tensor, part: slice, names: list[str]) -> Parameters:
        """On rank 0, copies of the parameters `names`, of which each rank has its `numbers` in `part` of its share."""
        flat = numbers
        if self._processes.world_size > 1 or len(numbers) < self._share.length:
            flat = numbers.new_zeros(self._layout.longest)
            flat[part] = numbers
        if self._processes.world_size > 1:
            of_ranks = [torch.empty_like(flat) for _ in self._layout.of_ranks] if self._processes.rank == 0 else None
            dist.gather(flat, of_ranks)
            if of_ranks is None:
                return {}
            flat = numbers.new_zeros(self._layout.whole.length)
            self._put_together(flat, of_ranks)
        return extract(self._layout.parameters(flat, names), self.config)

    def write(self, state: TrainState, *, moments: bool) -> None:
        self._earlier_updates = state.earlier_updates
        whole = self._broadcast(state.parameters, list(self._parameters), NEVER_PREDICTED)
        self._weights.copy_(self._cut(whole))
        if self._multiplied is not self._weights:
            self._multiplied.copy_(whole)
        if not moments:
            self._optimizers = []  # their moments are of updates that no longer count
            return
        for optimizer in self._start_optimizers():
            optimizer.begin_after(state.remembered_updates)
            for kind, moment in optimizer.moments.items():
                whole = self._broadcast(state.moments.get(kind, {}), self._names(optimizer), 0.0)
                moment.copy_(self._cut(whole)[optimizer.part])

    def _broadcast(self, arrays: Parameters, names: list[str], padding: float) -> Tensor:
        """fp32 [whole.length] with the parameters `names` from rank 0's `arrays`."""
        whole = torch.zeros(self._layout.whole.length, device=self._device)
        if self._processes.rank == 0:
            assign(self._layout.parameters(whole, names), arrays, self.config, padding)
        if self._processes.world_size > 1:
            dist.broadcast(whole, 0)
        return whole

    def _cut(self, whole: Tensor) -> Tensor:
        """This rank's share [share.length] of `whole`."""
        if self._processes.world_size == 1:
            return whole
        flat = torch.zeros(self._share.length, device=self._device)
        copy_each(self._share.views(flat), self._layout.views(whole, self._share.places))
        return flat
