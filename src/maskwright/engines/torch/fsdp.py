"""Weights, gradient and optimizer state of a torch run in parts, one for each process: torch's `fully_shard` (FSDP2).

A layer's weights are gathered just before it is computed, in the dtype that is multiplied in, and again in the backward
pass; its gradient is summed and cut apart at once, in fp32. For models that do not fit otherwise: it sends more than
`torch_weights.py`, and its sums have the backend's order. Checkpoints are the same files.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from maskwright.core import config as run
from maskwright.engines.base import TrainState
from maskwright.engines.processes import Processes
from maskwright.model.config import NEVER_PREDICTED, ModelConfig
from maskwright.model.hf.names import Parameters
from maskwright.model.torch.modernbert import ModernBert
from maskwright.model.torch.networks import assign, extract
from maskwright.model.torch.roberta import Roberta

KINDS = ("exp_avg", "exp_avg_sq")


class Sharded:
    """See `torch_weights.Weights`. `network` comes without storage (device meta), and gets that of this process's part
    on `device`."""

    in_step = True
    sending = True
    """Each layer's forward pass already asks the other processes for its weights."""

    def __init__(
        self,
        network: Roberta | ModernBert,
        config: ModelConfig,
        options: run.Optimizer,
        dtype: torch.dtype,
        device: str,
        processes: Processes,
    ) -> None:
        self.config, self.options, self._processes = config, options, processes
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        mesh = init_device_mesh(device, (processes.count,))
        for layer in network.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(network, mesh=mesh, mp_policy=policy)
        network.to_empty(device=device)
        for module in network.modules():
            if isinstance(module, FSDPModule):  # a sum, and no mean of it
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        self._named = {name: cast(DTensor, parameter) for name, parameter in network.named_parameters()}
        self._optimizer: torch.optim.AdamW | None = None

    def _local(self) -> dict[str, Tensor]:
        """This process's part of each; it may be empty."""
        return {name: parameter.to_local().detach() for name, parameter in self._named.items()}

    def _start_optimizer(self) -> torch.optim.AdamW:
        if self._optimizer is None:
            options = self.options
            self._parts = self._local()
            matrices, vectors = (
                [part for name, part in self._parts.items() if (self._named[name].ndim < 2) is flat]
                for flat in (False, True)
            )
            groups = [
                {"params": matrices, "weight_decay": options.weight_decay},
                {"params": vectors, "weight_decay": 0.0},
            ]
            self._optimizer = torch.optim.AdamW(
                groups, lr=options.learning_rate, betas=(options.beta1, options.beta2), eps=options.eps, fused=True
            )
        return self._optimizer

    # ---- one update ------------------------------------------------------------------------------------------

    def begin(self, virtual_workers: int) -> None:
        for parameter in self._named.values():
            parameter.grad = None

    def expect(self, *, first: bool, last: bool, final: bool) -> None:
        """`fully_shard` sums and cuts apart after each backward pass: a whole gradient is what there is no room for."""

    def take(self) -> None: ...

    def _gradients(self) -> dict[str, Tensor]:
        return {name: cast(DTensor, parameter.grad).to_local() for name, parameter in self._named.items()}

    def finish(self) -> Tensor:
        squares = torch.stack(torch._foreach_norm(list(self._gradients().values()))).square().sum()
        dist.all_reduce(squares)
        return squares.sqrt()

    def update(self, scale: Tensor, learning_rate: float, good: Tensor | None) -> None:
        optimizer, gradients = self._start_optimizer(), self._gradients()
        torch._foreach_mul_(list(gradients.values()), scale)
        for name, part in self._parts.items():
            part.grad = gradients[name]
        if good is not None:
            optimizer.found_inf = 1.0 - good  # type: ignore[attr-defined]  # torch's own way, that of GradScaler
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        optimizer.step()

    # ---- state -----------------------------------------------------------------------------------------------

    def read(self, step: int) -> TrainState:
        moments = {}
        if step and self._optimizer:
            state = self._optimizer.state
            for kind in KINDS:
                moments[kind] = self._whole({name: state[part][kind] for name, part in self._parts.items()})
        return TrainState(step, self._whole(self._local()), moments if self._processes.number == 0 else {})

    def _whole(self, parts: dict[str, Tensor]) -> Parameters:
        """In process 0, one parameter after the other, so that no device holds more than one whole."""
        found: Parameters = {}
        gathered: dict[str, Tensor] = {}
        for name, like in self._named.items():
            whole = DTensor.from_local(
                parts[name], like.device_mesh, like.placements, shape=like.shape, stride=like.stride()
            ).full_tensor()
            if self._processes.number == 0:
                gathered[name] = whole.cpu()
        if gathered:
            found = extract(gathered, self.config)
        return found

    def write(self, state: TrainState, *, moments: bool) -> None:
        self._cut(self._local(), state.parameters, NEVER_PREDICTED)
        self._optimizer = None
        if not moments:
            return
        optimizer = self._start_optimizer()
        for part in self._parts.values():
            optimizer.state[part] = {
                "step": torch.tensor(float(state.step), device=part.device),
                **{kind: torch.zeros_like(part) for kind in KINDS},
            }
        for kind in KINDS:
            parts = {name: optimizer.state[part][kind] for name, part in self._parts.items()}
            self._cut(parts, state.moments.get(kind, {}), 0.0)

    def _cut(self, parts: dict[str, Tensor], given: Parameters, padding: float) -> None:
        """Process 0's arrays, to each process its part."""
        whole = {name: torch.empty(like.shape) for name, like in self._named.items()} if given else {}
        if given:
            assign(whole, given, self.config, padding)
        for name, like in self._named.items():
            found = whole[name] if given else torch.empty(like.shape)
            cut = distribute_tensor(found.to(parts[name].device), like.device_mesh, like.placements)
            parts[name].copy_(cut.to_local())

    def drop(self) -> None:
        self._optimizer = None
