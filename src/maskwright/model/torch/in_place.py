"""Parts of a ModernBERT layer whose results, and gradients, are written where they are needed.

Written as plain autograd operations, the halves would be computed apart and then concatenated, forward and backward.
These compute the same numbers, bit for bit.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskwright.model.torch.gelu import gelu

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines, each [M, 1, T, h / 2]."""


def queries_keys_values(qkv_MT3Hh: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, each [M, H, T, h]; queries and keys are rotated by their positions."""
    if _own_backward(qkv_MT3Hh):
        return _QueriesKeysValues.apply(qkv_MT3Hh, *rotation)
    qk, v = qkv_MT3Hh.permute(2, 0, 3, 1, 4).split((2, 1))
    q, k = rotate(qk, rotation)
    return q, k, v[0]


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotates each pair (x_i, x_{i + h/2}) of the last dimension by its position's angle."""
    cos, sin = rotation
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def gated(x: Tensor) -> Tensor:
    """[..., 2 F] -> [..., F]: GELU of the first half, times the second."""
    if _own_backward(x):
        return _Gated.apply(x)
    value, gate = x.chunk(2, -1)
    return gelu(value) * gate


def filled_up(x_MHTh: Tensor, block: int) -> Tensor:
    """Adds zeros after the last token, up to whole blocks."""
    missing = -x_MHTh.shape[2] % block
    return F.pad(x_MHTh, (0, 0, 0, missing)) if missing else x_MHTh  # F.pad would copy it


def blocks_around(x_MHTh: Tensor, block: int) -> Tensor:
    """[M, H, T, h] -> [M * blocks, H, 3 block, h]: each block between the one before and the one after it, with zeros
    beyond the ends and as the last block's filler."""
    x_MHTh = filled_up(x_MHTh, block)
    if _own_backward(x_MHTh):
        return _BlocksAround.apply(x_MHTh, block)
    own_blocks = x_MHTh.unflatten(2, (-1, block)).transpose(1, 2)
    padded = F.pad(own_blocks, (0, 0) * 3 + (1, 1))
    return torch.cat((padded[:, :-2], own_blocks, padded[:, 2:]), 3).flatten(0, 1)


def _own_backward(x: Tensor) -> bool:
    """Whether to use these backward passes: a compiler does better with plain operations, and a GPU does not wait for
    the copies."""
    return x.device.type == "cpu" and x.requires_grad and not torch.compiler.is_compiling()


def _rotate_into(result: Tensor, x: Tensor, cos: Tensor, sin: Tensor) -> None:
    (x1, x2), (first, second) = x.chunk(2, -1), result.chunk(2, -1)
    torch.mul(x1, cos, out=first)
    torch.mul(x2, cos, out=second)
    first.sub_(x2 * sin)
    second.add_(x1 * sin)


class _QueriesKeysValues(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, qkv_MT3Hh: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        context.save_for_backward(cos, sin)
        *qk, v = qkv_MT3Hh.permute(2, 0, 3, 1, 4)
        # Two tensors: the gradients of two parts of one would be filled up with zeros and added.
        q, k = (x.new_empty(x.shape) for x in qk)
        for turned, x in zip((q, k), qk, strict=True):
            _rotate_into(turned, x, cos, sin)
        return q, k, v

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (*qk, v), (cos, sin) = gradients, context.saved_tensors
        M, H, T, h = v.shape
        result = v.new_empty(M, T, 3, H, h)
        *turned, values = result.permute(2, 0, 3, 1, 4)
        for out, gradient in zip(turned, qk, strict=True):
            _rotate_into(out, gradient, cos, -sin)
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


class _BlocksAround(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x_MHTh: Tensor, block: int) -> Tensor:
        context.shape = x_MHTh.shape
        own_blocks = x_MHTh.unflatten(2, (-1, block)).transpose(1, 2)  # [M, blocks, H, block, h]
        M, blocks, H, _, h = own_blocks.shape
        result = x_MHTh.new_empty(M, blocks, H, 3, block, h)
        before, middle, after = result.unbind(3)
        middle.copy_(own_blocks)
        before[:, 0], before[:, 1:] = 0, own_blocks[:, :-1]
        after[:, :-1], after[:, -1] = own_blocks[:, 1:], 0
        return result.view(M * blocks, H, 3 * block, h)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,), (M, H, T, h) = gradients, context.shape
        block = gradient.shape[2] // 3
        before, middle, after = gradient.reshape(M, -1, H, 3, block, h).unbind(3)
        result = gradient.new_empty(M, H, T // block, block, h)
        own_blocks = result.transpose(1, 2)
        own_blocks[:, :-1], own_blocks[:, -1] = before[:, 1:], 0
        own_blocks[:, 1:] += after[:, :-1]
        own_blocks += middle
        return result.view(M, H, T, h), None
