"""Parts of a ModernBERT layer whose results, and gradients, are written where they are needed.

Spelt out for autograd, each half of a tensor is computed by itself and then copied beside the other one, forward and
backward. These compute the same numbers, bit for bit.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines, each [M, 1, T, h / 2]."""


def queries_keys_values(qkv_MT3Hh: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
    """Each [M, H, T, h]; queries and keys are turned by their positions."""
    if _by_hand(qkv_MT3Hh):
        qk, v = _QueriesKeysValues.apply(qkv_MT3Hh, *rotation)
        return qk[0], qk[1], v
    qk, v = qkv_MT3Hh.permute(2, 0, 3, 1, 4).split((2, 1))
    q, k = rotate(qk, rotation)
    return q, k, v[0]


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Turns each pair (x_i, x_{i + h/2}) of the last dimension by its position's angle."""
    cos, sin = rotation
    one, two = x.chunk(2, -1)
    return torch.cat((one * cos - two * sin, two * cos + one * sin), -1)


def gated(x: Tensor) -> Tensor:
    """[..., 2 F] -> [..., F]: GELU of the first half, times the second."""
    if _by_hand(x):
        return _Gated.apply(x)
    value, gate = x.chunk(2, -1)
    return F.gelu(value) * gate


def _by_hand(x: Tensor) -> bool:
    """A compiler sees more in operations that are spelt out, and a GPU waits for none of the copies."""
    return x.device.type == "cpu" and x.requires_grad and not torch.compiler.is_compiling()


def _rotate_into(result: Tensor, x: Tensor, cos: Tensor, sin: Tensor) -> None:
    (one, two), (first, second) = x.chunk(2, -1), result.chunk(2, -1)
    torch.mul(one, cos, out=first)
    torch.mul(two, cos, out=second)
    first.sub_(two * sin)
    second.add_(one * sin)


class _QueriesKeysValues(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, qkv_MT3Hh: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        context.save_for_backward(cos, sin)
        *qk, v = qkv_MT3Hh.permute(2, 0, 3, 1, 4)
        result = qkv_MT3Hh.new_empty(2, *v.shape)
        for turned, x in zip(result, qk, strict=True):
            _rotate_into(turned, x, cos, sin)
        return result, v

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (qk, v), (cos, sin) = gradients, context.saved_tensors
        M, H, T, h = v.shape
        result = v.new_empty(M, T, 3, H, h)
        *turned, values = result.permute(2, 0, 3, 1, 4)
        for into, gradient in zip(turned, qk, strict=True):
            _rotate_into(into, gradient, cos, -sin)
        values.copy_(v)
        return result, None, None


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        value, gate = x.chunk(2, -1)
        active = F.gelu(value)
        context.save_for_backward(x, active)
        return active * gate

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        (gradient,), (x, active) = gradients, context.saved_tensors
        value, gate = x.chunk(2, -1)
        result = torch.empty_like(x)
        into_value, into_gate = result.chunk(2, -1)
        torch.ops.aten.gelu_backward.grad_input(gradient * gate, value, grad_input=into_value)
        torch.mul(gradient, active, out=into_gate)
        return result
