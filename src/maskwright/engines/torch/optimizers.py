"""Optimizers in torch over the flat fp32 buffers of a rank's share: a few large operations, whatever the depth.

AdamW (Loshchilov and Hutter 2019) updates everything, or, beside Muon, everything except hidden matrices.
Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon) moves each matrix between hidden states by the
orthogonal matrix nearest to its momentum.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from maskwright.config import pretraining as run
from maskwright.engines.groups import rate_scale
from maskwright.engines.muon import NEWTON_SCHULZ, NEWTON_SCHULZ_STEPS, UPDATE_RMS
from maskwright.engines.torch.shares import Range, Share


def rate_scales(names: list[str], layer_decay: float) -> dict[str, float]:
    """See `groups.rate_scale`."""
    depth = {name: int(name.split(".")[1]) for name in names if name.startswith("layers.")}
    layers = 1 + max(depth.values(), default=-1)
    return {name: rate_scale(name, depth.get(name), layers, layer_decay) for name in names}


class AdamW:
    """Updates a share but for Muon's stacks. Vectors are not decayed.

    The updates are those of `torch.optim.AdamW(fused=True)`, by its function: the class imports torch's compiler,
    which makes each start 1.5 s longer.
    """

    def __init__(
        self, share: Share, weights: Tensor, gradients: Tensor, options: run.Optimizer, scales: dict[str, float]
    ) -> None:
        """`weights`, `gradients`: fp32 [share.length]. `scales`: see `rate_scales`."""
        self._share, self._options, self._scales = share, options, scales
        begin, end_of_decayed, end = share.ends
        self.part = slice(begin, end)
        """The numbers of a flat buffer that this optimizer updates."""
        self._weights, self._gradients = weights[self.part], gradients[self.part]
        self.moments = {kind: torch.zeros_like(self._weights) for kind in ("exp_avg", "exp_avg_sq")}
        """By kind, fp32 [numbers in `part`]."""
        self._groups = (slice(0, end_of_decayed - begin), slice(end_of_decayed - begin, end - begin))
        self._steps = [torch.zeros((), device=weights.device) for _ in self._groups]

    def begin_after(self, updates: int) -> None:
        """Says how many updates are in the moments."""
        for steps in self._steps:
            steps.fill_(updates)

    @torch.no_grad()
    def step(self, learning_rate: float, good: Tensor | None = None) -> None:
        """Updates the weights. `good` is 1, or 0 to change nothing; only the device knows which."""
        found_inf = None if good is None else 1.0 - good
        if self._options.layer_decay < 1.0:
            return self._step_by_layer(learning_rate, found_inf)
        for steps, group, decay in zip(self._steps, self._groups, (self._options.weight_decay, 0.0), strict=True):
            self._update([[buffer[group]] for buffer in self._buffers], [steps], learning_rate, decay, found_inf)

    @property
    def _buffers(self) -> tuple[Tensor, ...]:
        return self._weights, self._gradients, *self.moments.values()

    def _step_by_layer(self, learning_rate: float, found_inf: Tensor | None) -> None:
        """One fused call per (rate, decay) group; all groups share one step count. There are no stacks of Muon."""
        groups: dict[tuple[float, float], list[Range]] = {}
        for ranges, decay in ((self._share.decayed, self._options.weight_decay), (self._share.others, 0.0)):
            for numbers in ranges:
                groups.setdefault((self._scales[numbers.name], decay), []).append(numbers)
        before = self._steps[0].clone()
        for (scale, decay), of_group in groups.items():
            steps = [before.clone() for _ in of_group]
            views = [self._share.views(buffer, of_group) for buffer in self._buffers]
            self._update(views, steps, learning_rate * scale, decay, found_inf)
            for count in self._steps:
                count.copy_(steps[0])

    def _update(
        self, buffers: list[list[Tensor]], steps: list[Tensor], rate: float, decay: float, found_inf: Tensor | None
    ) -> None:
        """`buffers`: weights, gradients, first and second moments, each as a list of as many tensors as `steps`."""
        weights, gradients, first, second = buffers
        adamw(
            weights,
            gradients,
            first,
            second,
            [],
            steps,
            fused=True,
            found_inf=found_inf,
            amsgrad=False,
            beta1=self._options.beta1,
            beta2=self._options.beta2,
            lr=rate,
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
        self.part = slice(0, share.ends[0])
        """The numbers of a flat buffer that this optimizer updates."""
        self.moments = {"momentum": torch.zeros_like(weights[self.part])}
        """By kind, fp32 [numbers in `part`]."""
        views = map(share.stack_views, (weights, gradients, self.moments["momentum"]))
        self._stacks = list(zip([stack.parts for stack in share.stacks], *views, strict=True))

    def begin_after(self, updates: int) -> None:
        """Does nothing: Muon does not count."""

    @torch.no_grad()
    def step(self, learning_rate: float, good: Tensor | None = None) -> None:
        """See `AdamW.step`."""
        beta = self._options.momentum
        rate: float | Tensor = learning_rate
        share: float | Tensor = 1.0 - beta
        if good is not None:
            rate, share = rate * good, share * good
        for parts, weights, gradient, momentum in self._stacks:
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
    """[n, r, c] -> about U V^T of each matrix's singular value decomposition U S V^T: singular values in 0.7 to 1.2.

    Newton-Schulz with the quintic of Jordan et al. 2024, for the stack of matrices at once.
    """
    a, b, c = NEWTON_SCHULZ
    x = matrices / (torch.linalg.matrix_norm(matrices, keepdim=True) + 1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x
