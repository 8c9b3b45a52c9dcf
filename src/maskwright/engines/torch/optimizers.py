"""Optimizers in torch over the flat fp32 buffers of a rank's share: a few large operations, at any depth.

AdamW (Loshchilov and Hutter 2019) updates everything or, together with Muon, everything except hidden matrices.
Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon) moves each matrix between hidden states by the
orthogonal matrix nearest to its momentum.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from maskwright.config import pretraining as run
from maskwright.engines.groups import is_decayed, rate_scale
from maskwright.engines.muon import NEWTON_SCHULZ, ROOM, UPDATE_RMS
from maskwright.engines.torch.shares import Share


def rate_scales(names: list[str], layer_decay: float) -> dict[str, float]:
    """See `groups.rate_scale`."""
    depth = {name: int(name.split(".")[1]) for name in names if name.startswith("layers.")}
    layers = 1 + max(depth.values(), default=-1)
    return {name: rate_scale(name, depth.get(name), layers, layer_decay) for name in names}


class AdamW:
    """Updates a share but for Muon's stacks. Vectors are not decayed.

    Updates equal `torch.optim.AdamW(fused=True)`, whose function is called, since the class imports torch's compiler,
    which makes each start 1.5 s longer.
    """

    def __init__(
        self, share: Share, weights: Tensor, gradients: Tensor, options: run.Optimizer, scales: dict[str, float]
    ) -> None:
        """`weights`, `gradients`: fp32 [share.length]. `scales`: see `rate_scales`."""
        self._options = options
        self.part = slice(share.end_of_muon, share.length)
        """The numbers of a flat buffer that this optimizer updates."""
        self.moments = {kind: torch.zeros_like(weights[self.part]) for kind in ("exp_avg", "exp_avg_sq")}
        """By kind, fp32 [numbers in `part`]."""
        begin, shapes = self.part.start, share.order.shapes
        runs = share.runs(lambda name: (scales[name], options.weight_decay * is_decayed(len(shapes[name]))))
        self.updates = torch.zeros(sum(map(len, runs.values())), device=weights.device)
        """How many updates are in the moments, for each run of numbers."""
        counts = iter(self.updates.unbind())
        self._groups = [
            (
                *of_kind,
                [[buffer[run] for run in places] for buffer in (weights, gradients)],
                [[moment[run.start - begin : run.stop - begin] for run in places] for moment in self.moments.values()],
                [next(counts) for _ in places],
            )
            for of_kind, places in runs.items()
        ]

    @torch.no_grad()
    def step(self, learning_rate: float, good: Tensor | None = None) -> None:
        """Updates the weights. `good`, on the device, is 1, or 0 to change nothing."""
        found_inf = None if good is None else 1.0 - good
        for scale, decay, (weights, gradients), (first, second), counts in self._groups:
            adamw(
                weights,
                gradients,
                first,
                second,
                [],
                counts,
                fused=True,
                found_inf=found_inf,
                amsgrad=False,
                beta1=self._options.beta1,
                beta2=self._options.beta2,
                lr=learning_rate * scale,
                weight_decay=decay,
                eps=self._options.eps,
                maximize=False,
            )


class Muon:
    """Updates a share's stacks of hidden matrices, one after the other. The iteration multiplies in `dtype`."""

    def __init__(
        self, share: Share, weights: Tensor, gradients: Tensor, options: run.Optimizer, dtype: torch.dtype
    ) -> None:
        """`weights`, `gradients`: fp32 [share.length]."""
        self._options, self._dtype = options, dtype
        self.part = slice(0, share.end_of_muon)
        """The numbers of a flat buffer that this optimizer updates."""
        self.moments = {"momentum": torch.zeros_like(weights[self.part])}
        """By kind, fp32 [numbers in `part`]."""
        buffers = (weights, gradients, self.moments["momentum"])
        self._stacks = [
            (stack.parts, [buffer[place].view(stack.shape) for buffer in buffers]) for stack, place in share.stacks
        ]

    @torch.no_grad()
    def step(self, learning_rate: float, good: Tensor | None = None) -> None:
        """See `AdamW.step`."""
        beta = self._options.momentum
        rate: float | Tensor = learning_rate
        share: float | Tensor = 1.0 - beta
        if good is not None:
            rate, share = rate * good, share * good
        for parts, (weights, gradient, momentum) in self._stacks:
            if good is not None:
                gradient = torch.where(good > 0, gradient, 0.0)
            momentum.lerp_(gradient, share)
            ahead = gradient.lerp_(momentum, beta)  # Nesterov's look ahead
            for part in ahead.split(parts, 1):
                wide = part.mT if part.shape[1] > part.shape[2] else part
                scale = UPDATE_RMS * max(wide.shape[1:]) ** 0.5
                wide.copy_(orthogonalize(wide.to(self._dtype)) * scale)
            weights.mul_(1.0 - rate * self._options.weight_decay).sub_(ahead.mul_(rate))


def orthogonalize(matrices: Tensor) -> Tensor:
    """[n, r, c] -> about U V^T of each matrix's singular value decomposition U S V^T: singular values in 0.6 to 1.2.

    Newton-Schulz for the stack of matrices at once. The norm of x x^T, which the first iteration needs anyway, bounds
    the largest singular value closer than the norm of x: by 1.2 to 1.6 in training.
    """
    x = matrices / (torch.linalg.matrix_norm(matrices, keepdim=True) + 1e-7)
    gram = x @ x.mT
    square = torch.linalg.matrix_norm(gram, keepdim=True) * ROOM**2 + 1e-7
    x, gram = x / square.sqrt(), gram / square
    for step, (a, b, c) in enumerate(NEWTON_SCHULZ):
        gram = x @ x.mT if step else gram
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x
