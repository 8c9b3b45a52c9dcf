"""Pieces of the network that write results and gradients straight into their final place, without `cat`.

As plain autograd operations, the parts would be computed apart and then concatenated, forward and backward. These
compute the same numbers, bit for bit.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskwright.model.torch.gelu import gelu

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines, each [M, 1, T, h / 2]."""


def queries_keys_values(
    qkv_MTNh: Tensor, heads: int, rotation: Rotation | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [M, H, T, h], and keys and values [M, G, T, h], of N = H + 2 G heads, the first `heads` for queries;
    queries and keys are turned by their positions if there is a `rotation`."""
    if _own_backward(qkv_MTNh):
        return _QueriesKeysValues.apply(qkv_MTNh, heads, *(rotation or (None, None)))
    q, k, v = _by_head(qkv_MTNh, heads)
    return (rotate(q, rotation), rotate(k, rotation), v) if rotation else (q, k, v)


def _by_head(qkv_MTNh: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    of_keys = (qkv_MTNh.shape[2] - heads) // 2
    q, k, v = qkv_MTNh.transpose(1, 2).split((heads, of_keys, of_keys), 1)
    return q, k, v


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotates each pair (x_i, x_{i + h/2}) of the last dimension by its position's angle."""
    cos, sin = rotation
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def gated(x: Tensor, activation: str = "gelu") -> Tensor:
    """[..., 2 F] -> [..., F]: GELU or SiLU of the first half, times the second (Shazeer 2020)."""
    if _own_backward(x):
        return _Gated.apply(x, activation)
    value, gate = x.chunk(2, -1)
    return (F.silu if activation == "silu" else gelu)(value) * gate


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


POSITIONS_AT_ONCE, OF_SEVERAL_THREADS = 8, 256
"""With one thread, 8 positions' logits (of 50,304 tokens in fp32: 1.6 MB) stay in its core's cache between loss and
gradient. Several threads wait for each other after each operation, so theirs are fewer and larger."""


def cross_entropy_sum(logits_KV: Tensor, labels_K: Tensor, weights_K: Tensor) -> Tensor:
    """The sum of the cross-entropies times their weights, in fp32. It may overwrite logits that have a gradient.

    As plain operations, the whole logits are copied into fp32, and so are their log-probabilities and the gradients of
    both: nearly a third of a step of mini on a CPU."""
    # Small gradients vanish in fp16 unless the loss is scaled first, which only autograd's own functions handle.
    if _own_backward(logits_KV) and logits_KV.dtype is not torch.float16:
        return _CrossEntropySum.apply(logits_KV, labels_K, weights_K)
    return (F.cross_entropy(logits_KV.float(), labels_K, reduction="none") * weights_K).sum()


def _own_backward(x: Tensor) -> bool:
    """Whether to use these backward passes. A compiler handles plain operations better, and a GPU does not wait for the
    copies."""
    return x.device.type == "cpu" and x.requires_grad and not torch.compiler.is_compiling()


def _rotate_into(result: Tensor, x: Tensor, cos: Tensor, sin: Tensor) -> None:
    (x1, x2), (first, second) = x.chunk(2, -1), result.chunk(2, -1)
    torch.mul(x1, cos, out=first)
    torch.mul(x2, cos, out=second)
    first.sub_(x2 * sin)
    second.add_(x1 * sin)


class _QueriesKeysValues(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, qkv_MTNh: Tensor, heads: int, cos: Tensor | None, sin: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        context.rotation = None if cos is None or sin is None else (cos, sin)
        *qk, v = _by_head(qkv_MTNh, heads)
        # Two tensors: the gradients of two parts of one would be filled up with zeros and added.
        q, k = (x.new_empty(x.shape) if context.rotation else x for x in qk)
        for turned, x in zip((q, k), qk, strict=True) if context.rotation else ():
            _rotate_into(turned, x, *context.rotation)
        return q, k, v

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        q, k, v = gradients
        M, H, T, h = q.shape
        result = v.new_empty(M, T, H + 2 * v.shape[1], h)
        *turned, values = _by_head(result, H)
        for out, gradient in zip(turned, (q, k), strict=True):
            if context.rotation:
                _rotate_into(out, gradient, context.rotation[0], -context.rotation[1])
            else:
                out.copy_(gradient)
        values.copy_(v)
        return result, None, None, None


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, activation: str) -> Tensor:
        value, gate = x.chunk(2, -1)
        active = F.silu(value) if activation == "silu" else F.gelu(value)
        context.save_for_backward(x, active)
        context.activation = activation
        return active * gate

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,), (x, active) = gradients, context.saved_tensors
        aten = torch.ops.aten
        into = aten.silu_backward.grad_input if context.activation == "silu" else aten.gelu_backward.grad_input
        value, gate = x.chunk(2, -1)
        result = torch.empty_like(x)
        into_value, into_gate = result.chunk(2, -1)
        into(gradient * gate, value, grad_input=into_value)
        torch.mul(gradient, active, out=into_gate)
        return result, None


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


class _CrossEntropySum(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, logits_KV: Tensor, labels_K: Tensor, weights_K: Tensor) -> Tensor:
        aten, losses_K = torch.ops.aten, weights_K.new_empty(len(weights_K))
        rows = POSITIONS_AT_ONCE if torch.get_num_threads() == 1 else OF_SEVERAL_THREADS
        parts = (tensor.split(rows) for tensor in (logits_KV, labels_K, weights_K, losses_K))
        for logits, labels, weights, losses in zip(*parts, strict=True):
            log_probs = aten._log_softmax(logits.float(), 1, False)
            found, total = aten.nll_loss_forward(log_probs, labels, None, 0, -100)
            losses.copy_(found)
            gradient = aten.nll_loss_backward(weights, log_probs, labels, None, 0, -100, total)
            logits.copy_(aten._log_softmax_backward_data(gradient, log_probs, 1, torch.float32))
        context.save_for_backward(logits_KV)
        return (losses_K * weights_K).sum()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (towards,), (gradient_KV,) = gradients, context.saved_tensors
        return gradient_KV if towards == 1.0 else gradient_KV * towards, None, None
