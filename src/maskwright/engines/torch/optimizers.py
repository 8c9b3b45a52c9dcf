"""Optimizers in torch over one flat fp32 buffer of all parameters: a few large operations, whatever the depth.

AdamW (Loshchilov and Hutter 2019) updates everything, or, beside Muon, everything except hidden matrices.
Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon) moves each matrix between hidden states by the
orthogonal matrix nearest to its momentum.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from maskwright.config import pretraining as run
from maskwright.engines.groups import is_decayed, rate_scale
from maskwright.engines.muon import HIDDEN_ROLES, NEWTON_SCHULZ, NEWTON_SCHULZ_STEPS, UPDATE_RMS

Shapes = dict[str, torch.Size]
Moments = dict[str, dict[str, Tensor]]


@dataclass(frozen=True)
class Layout:
    """The order of parameters in the flat buffer: hidden matrices by role, then other matrices, then vectors."""

    hidden: Shapes
    matrices: Shapes
    vectors: Shapes

    @classmethod
    def of(cls, parameters: dict[str, torch.nn.Parameter]) -> Layout:
        shapes = {name: parameter.shape for name, parameter in parameters.items()}
        hidden = [name for role in HIDDEN_ROLES for name in shapes if name.endswith(role)]
        rest = [name for name in shapes if name not in hidden]
        return cls(
            {name: shapes[name] for name in hidden},
            {name: shapes[name] for name in rest if is_decayed(len(shapes[name]))},
            {name: shapes[name] for name in rest if not is_decayed(len(shapes[name]))},
        )

    @property
    def all(self) -> Shapes:
        return self.hidden | self.matrices | self.vectors


def numel(shapes: Shapes) -> int:
    return sum(shape.numel() for shape in shapes.values())


def views(flat: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """Views of a flat buffer, by name and in their shapes."""
    parts = flat.split([shape.numel() for shape in shapes.values()])
    return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def rate_scales(names: list[str], layer_decay: float) -> dict[str, float]:
    """See `groups.rate_scale`."""
    depth = {name: int(name.split(".")[1]) for name in names if name.startswith("layers.")}
    layers = 1 + max(depth.values(), default=-1)
    return {name: rate_scale(name, depth.get(name), layers, layer_decay) for name in names}


class AdamW:
    """Updates the whole buffer, or, beside Muon, its tail behind the hidden matrices. Vectors are not decayed.

    The updates are those of `torch.optim.AdamW(fused=True)`, by its function: the class imports torch's compiler,
    which makes each start 1.5 s longer.
    """

    def __init__(self, layout: Layout, weights: Tensor, gradients: Tensor, options: run.Optimizer) -> None:
        hidden = {} if options.kind == "muon" else layout.hidden
        matrices = hidden | layout.matrices
        self.shapes = matrices | layout.vectors
        self._options, size = options, numel(self.shapes)
        self._weights, self._gradients = weights[len(weights) - size :], gradients[len(weights) - size :]
        self._ends = (numel(matrices), size)
        self._layer_decay = options.layer_decay
        self._scales = rate_scales(list(self.shapes), self._layer_decay)
        """By parameter name. If all are 1, one fused call updates all that is decayed, and one the rest."""
        self._decayed = set(matrices)
        self._flat = {kind: torch.zeros_like(self._weights) for kind in ("exp_avg", "exp_avg_sq")}
        self._steps = [torch.zeros((), device=weights.device) for _ in self._ends]

    @torch.no_grad()
    def step(self, learning_rate: float, good: Tensor | None = None) -> None:
        """Updates the weights. `good` is 1, or 0 to change nothing; only the device knows which."""
        options, begin = self._options, 0
        found_inf = None if good is None else 1.0 - good
        if self._layer_decay < 1.0:
            return self._step_by_layer(learning_rate, found_inf)
        for steps, end, decay in zip(self._steps, self._ends, (options.weight_decay, 0.0), strict=True):
            adamw(
                [self._weights[begin:end]],
                [self._gradients[begin:end]],
                [self._flat["exp_avg"][begin:end]],
                [self._flat["exp_avg_sq"][begin:end]],
                [],
                [steps],
                fused=True,
                found_inf=found_inf,
                amsgrad=False,
                beta1=options.beta1,
                beta2=options.beta2,
                lr=learning_rate,
                weight_decay=decay,
                eps=options.eps,
                maximize=False,
            )
            begin = end

    def _step_by_layer(self, learning_rate: float, found_inf: Tensor | None) -> None:
        """One fused call per (rate, decay) group; all groups share one step count."""
        options, flat = self._options, (self._weights, self._gradients, *self._flat.values())
        weights, gradients, first, second = (views(buffer, self.shapes) for buffer in flat)
        groups: dict[tuple[float, bool], list[str]] = {}
        for name, scale in self._scales.items():
            groups.setdefault((scale, name in self._decayed), []).append(name)
        before = self._steps[0].clone()
        for (scale, decayed), names in groups.items():
            steps = [before.clone() for _ in names]
            adamw(
                [weights[name] for name in names],
                [gradients[name] for name in names],
                [first[name] for name in names],
                [second[name] for name in names],
                [],
                steps,
                fused=True,
                found_inf=found_inf,
                amsgrad=False,
                beta1=options.beta1,
                beta2=options.beta2,
                lr=learning_rate * scale,
                weight_decay=options.weight_decay if decayed else 0.0,
                eps=options.eps,
                maximize=False,
            )
            for count in self._steps:
                count.copy_(steps[0])

    def read(self) -> Moments:
        return {kind: views(moment, self.shapes) for kind, moment in self._flat.items()}

    def write(self, step: int) -> Moments:
        """Resets to the moments of `step` finished updates, all zero, and returns them to be filled."""
        for tensor in self._flat.values():
            tensor.zero_()
        for tensor in self._steps:
            tensor.fill_(step)
        return self.read()


class Muon:
    """Updates the hidden matrices, at the buffer's head. The iteration multiplies in `dtype`."""

    def __init__(
        self, layout: Layout, weights: Tensor, gradients: Tensor, options: run.Optimizer, dtype: torch.dtype
    ) -> None:
        self.shapes, self.options, self.dtype = layout.hidden, options, dtype
        size = numel(self.shapes)
        self._weights, self._gradients = weights[:size], gradients[:size]
        self._momentum = torch.zeros_like(self._weights)
        self._update = torch.empty_like(self._weights)

    @torch.no_grad()
    def step(self, learning_rate: float, good: Tensor | None = None) -> None:
        beta = self.options.momentum
        rate: float | Tensor = learning_rate
        share: float | Tensor = 1.0 - beta
        if good is not None:
            self._gradients.copy_(torch.where(good > 0, self._gradients, 0.0))
            rate, share = rate * good, share * good
        self._momentum.lerp_(self._gradients, share)
        torch.lerp(self._gradients, self._momentum, beta, out=self._update)  # Nesterov's look ahead
        squares, ups, downs = self._by_shape(self._update)
        for matrices in (squares, ups.mT, downs):
            scale = UPDATE_RMS * max(matrices.shape[1:]) ** 0.5
            matrices.copy_(orthogonalize(matrices.to(self.dtype)) * scale)
        self._weights.mul_(1.0 - rate * self.options.weight_decay).sub_(self._update.mul_(rate))

    def _by_shape(self, flat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Views [n, D, D] of all square matrices (query, key and value apart), [n, F, D] ups (both halves of a gated
        one apart) and [L, D, F] downs."""
        D, F = next(shape for name, shape in self.shapes.items() if name.endswith("down.weight"))
        ups, downs = (
            numel({name: shape for name, shape in self.shapes.items() if name.endswith(role)})
            for role in ("up.weight", "down.weight")
        )
        squares, up, down = flat.split([len(flat) - ups - downs, ups, downs])
        return squares.view(-1, D, D), up.view(-1, F, D), down.view(-1, D, F)

    def read(self) -> Moments:
        return {"momentum": views(self._momentum, self.shapes)}

    def write(self, step: int) -> Moments:
        return {"momentum": views(self._momentum.zero_(), self.shapes)}


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
