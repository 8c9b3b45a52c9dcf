"""Weights, gradient and optimizer state of a torch run, replicated in each rank (`fsdp.py` shards them).

Weights and moments are fp32 in flat buffers; the model multiplies in bf16 or fp16 (a copy made once an update), or in
fp32. The optimizers (`optimizers.py`) are a few large operations on those buffers, whatever the depth.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from maskwright.config import pretraining as run
from maskwright.engines.base import TrainState
from maskwright.engines.processes import Processes
from maskwright.engines.torch.gradients import Gradients
from maskwright.engines.torch.optimizers import AdamW, Layout, Muon, numel, views
from maskwright.model.config import NEVER_PREDICTED, ModelConfig
from maskwright.model.hf.names import Parameters
from maskwright.model.torch.modernbert import ModernBert
from maskwright.model.torch.networks import assign, extract
from maskwright.model.torch.roberta import Roberta


class Weights(Protocol):
    """Weights and optimizer. An update calls `begin`, then `before_backward` and `after_backward` around each backward
    pass, then `finish` and `update`."""

    in_step: bool
    """Whether ranks wait for each other in every micro-batch, so that none can skip one alone."""

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


class Replicated:
    """See `Weights`."""

    in_step = False

    def __init__(
        self,
        network: Roberta | ModernBert,
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
        parameters = dict(network.named_parameters())
        self._used = list(parameters)
        self.layout = Layout.of(parameters)
        self.device = next(iter(parameters.values())).device
        self._weights = torch.zeros(numel(self.layout.all), device=self.device)
        self._multiplied = self._weights if dtype is torch.float32 else self._weights.to(dtype)
        self._parameters = {name: parameters[name] for name in self.layout.all}
        for name, view in views(self._multiplied, self.layout.all).items():
            self._parameters[name].data = view
        self._optimizers: list[AdamW | Muon] = []
        self._made: Gradients | None = None

    @property
    def _gradients(self) -> Gradients:
        """The gradients, made by the first update: evaluation needs none."""
        if self._made is None:
            flat = torch.zeros_like(self._weights)
            self._made = Gradients(self._parameters, flat, self._used, exact=self._exact, processes=self._processes)
        return self._made

    def _start_optimizers(self) -> list[AdamW | Muon]:
        """Returns the optimizers, made on first use with zero moments."""
        if not self._optimizers:
            options, flat = self.options, self._gradients.flat
            self._optimizers = [AdamW(self.layout, self._weights, flat, options)]
            if options.kind == "muon":
                self._optimizers.append(Muon(self.layout, self._weights, flat, options, self.dtype))
        return self._optimizers

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
        return torch.linalg.vector_norm(self._gradients.flat)

    def update(self, scale: Tensor, learning_rate: float, good: Tensor | None) -> None:
        self._gradients.flat.mul_(scale)
        for optimizer in self._optimizers:
            optimizer.step(learning_rate, good)
        if self._multiplied is not self._weights:
            self._multiplied.copy_(self._weights)

    def read(self, step: int) -> TrainState:
        if self._processes.rank:
            return TrainState(step, {})
        moments = {}
        for optimizer in self._optimizers if step + self._earlier_updates else []:
            for kind, named in optimizer.read().items():
                moments[kind] = extract(named, self.config)
        parameters = extract(views(self._weights, self.layout.all), self.config)
        return TrainState(step, parameters, moments, self._earlier_updates)

    def write(self, state: TrainState, *, moments: bool) -> None:
        self._earlier_updates = state.earlier_updates
        self._write(views(self._weights, self.layout.all), state.parameters, NEVER_PREDICTED)
        if self._multiplied is not self._weights:
            self._multiplied.copy_(self._weights)
        if not moments:
            self._optimizers = []  # their moments are of updates that no longer count
            return
        for optimizer in self._start_optimizers():
            for kind, named in optimizer.write(state.remembered_updates).items():
                self._write(named, state.moments.get(kind, {}), 0.0)

    def _write(self, named: dict[str, Tensor], arrays: Parameters, padding: float) -> None:
        if self._processes.rank == 0:
            assign(named, arrays, self.config, padding)
        if self._processes.world_size > 1:
            for tensor in named.values():
                dist.broadcast(tensor, 0)
