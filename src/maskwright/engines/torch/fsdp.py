"""Weights, gradient and optimizer state of a torch run, sharded over the ranks by torch's `fully_shard` (FSDP2).

A layer's weights are gathered just before it is computed, in the dtype of the multiplications, and again in the
backward pass. Its gradient is reduce-scattered at once, in fp32. This is for models that do not fit otherwise: it sends
more than `weights.py`, and its sums have the backend's order. Checkpoints are the same files.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from maskwright.config import pretraining as run
from maskwright.engines.base import TrainState
from maskwright.engines.groups import is_decayed
from maskwright.engines.processes import Processes
from maskwright.model.config import NEVER_PREDICTED, ModelConfig
from maskwright.model.hf.names import Parameters
from maskwright.model.torch.modernbert import ModernBert
from maskwright.model.torch.networks import assign, extract
from maskwright.model.torch.roberta import Roberta

KINDS = ("exp_avg", "exp_avg_sq")


class Sharded:
    """See `weights.Weights`. `network` comes without storage (device meta), and gets storage for this rank's shard on
    `device`."""

    in_step = True
    bound = "gathering the weights of each layer from one another (engine.sharding fsdp)"
    """Also in a dry run and in an evaluation. A rank that computed fewer rows at once would gather more often than the
    others, which would wait for it, or mistake its weights for another layer's."""

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
        # Weights of the loss stay fp32; all other inputs are ids.
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
        mesh = init_device_mesh(device, (processes.world_size,))
        for layer in network.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(network, mesh=mesh, mp_policy=policy)
        network.to_empty(device=device)
        for module in network.modules():
            if isinstance(module, FSDPModule):  # a sum over ranks, not a mean
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        self._named = {name: cast(DTensor, parameter) for name, parameter in network.named_parameters()}
        self._optimizer: torch.optim.AdamW | None = None
        self._earlier_updates = 0

    def _local(self) -> dict[str, Tensor]:
        """This rank's shard of each parameter; it may be empty."""
        return {name: parameter.to_local().detach() for name, parameter in self._named.items()}

    def _start_optimizer(self, step: int = 0) -> torch.optim.AdamW:
        """Returns the optimizer, made on first use with the moments of `step` finished updates, all zero."""
        if self._optimizer is None:
            options = self.options
            self._parts = self._local()
            matrices, vectors = (
                [part for name, part in self._parts.items() if is_decayed(self._named[name].ndim) is decayed]
                for decayed in (True, False)
            )
            groups = [
                {"params": matrices, "weight_decay": options.weight_decay},
                {"params": vectors, "weight_decay": 0.0},
            ]
            self._optimizer = torch.optim.AdamW(
                groups, lr=options.learning_rate, betas=(options.beta1, options.beta2), eps=options.eps, fused=True
            )
            for part in self._parts.values():
                self._optimizer.state[part] = {
                    "step": torch.tensor(float(step), device=part.device),
                    **{kind: torch.zeros_like(part) for kind in KINDS},
                }
        return self._optimizer

    # ---- one update ------------------------------------------------------------------------------------------

    def begin(self, virtual_workers: int) -> None:
        self._start_optimizer()
        for parameter in self._named.values():
            parameter.grad = None

    def before_backward(self, *, first: bool, last: bool, final: bool) -> None:
        """Does nothing: `fully_shard` reduce-scatters after each backward pass, having no room for a whole gradient."""

    def after_backward(self) -> None: ...

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
        if step + self._earlier_updates and self._optimizer:
            state = self._optimizer.state
            for kind in KINDS:
                moments[kind] = self._gather({name: state[part][kind] for name, part in self._parts.items()})
        moments = moments if self._processes.rank == 0 else {}
        return TrainState(step, self._gather(self._local()), moments, self._earlier_updates)

    def _gather(self, parts: dict[str, Tensor]) -> Parameters:
        """Gathers parameters on rank 0, one after the other, so that a device holds at most one of them unsharded."""
        gathered: dict[str, Tensor] = {}
        for name, like in self._named.items():
            full = DTensor.from_local(
                parts[name], like.device_mesh, like.placements, shape=like.shape, stride=like.stride()
            ).full_tensor()
            if self._processes.rank == 0:
                gathered[name] = full.cpu()
        return extract(gathered, self.config)

    def write(self, state: TrainState, *, moments: bool) -> None:
        self._shard(self._local(), state.parameters, NEVER_PREDICTED)
        self._optimizer, self._earlier_updates = None, state.earlier_updates
        if not moments:
            return
        optimizer = self._start_optimizer(state.remembered_updates)
        for kind in KINDS:
            parts = {name: optimizer.state[part][kind] for name, part in self._parts.items()}
            self._shard(parts, state.moments.get(kind, {}), 0.0)

    def _shard(self, parts: dict[str, Tensor], arrays: Parameters, padding: float) -> None:
        """Gives each rank its shard of rank 0's arrays."""
        full = {name: torch.empty(like.shape) for name, like in self._named.items()} if arrays else {}
        if arrays:
            assign(full, arrays, self.config, padding)
        for name, like in self._named.items():
            array = full[name] if arrays else torch.empty(like.shape)
            shard = distribute_tensor(array.to(parts[name].device), like.device_mesh, like.placements)
            parts[name].copy_(shard.to_local())
