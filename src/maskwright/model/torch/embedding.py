"""The embedding table: looked up, and also the head's output matrix if that is the same."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def unset_table(rows: int, width: int) -> nn.Embedding:
    """[rows, width] weights, not yet assigned. torch's own initialization on the meta device would import its compiler,
    which takes 1.5 s."""
    return nn.Embedding.from_pretrained(torch.empty(rows, width), freeze=False)


class EmbeddingTable:
    """[V, D] weights in one forward pass.

    Except on CUDA, both uses put their gradients into one tensor. Autograd would fill a second tensor of the table's
    size with zeros for the look-up, and a third with the sum.

    On a CPU, torch sums a bf16 table's gradient in bf16, and fp16 in fp16: in bf16, a row that is looked up a thousand
    times, such as `<mask>`'s, loses most of its terms (27 % of the full gradient, measured). So the look-up's gradient
    is summed in fp32. On CUDA, torch does so by itself.
    """

    def __init__(self, weight_VD: Tensor) -> None:
        self._weight = weight_VD
        kind = weight_VD.device.type
        # Under autocast, products differ from the weights in precision, which only autograd's own functions handle.
        plain = kind not in ("cuda", "meta") and not torch.is_autocast_enabled(kind)
        self._own_backward = plain and weight_VD.requires_grad and torch.is_grad_enabled()
        self.gradient: Tensor | None = None
        """The product's gradient, whose backward pass comes first, until the look-up uses it."""

    def look_up(self, ids: Tensor) -> Tensor:
        """Rows of ids [...] -> [..., D]."""
        return _LookUp.apply(self._weight, ids, self) if self._own_backward else F.embedding(ids, self._weight)

    def product(self, x_KD: Tensor, bias_V: Tensor | None) -> Tensor:
        """[K, D] -> [K, V], where `x_KD` depends on the look-up. Called once in a forward pass."""
        if self._own_backward:
            return _Product.apply(x_KD, self._weight, bias_V, self)
        return F.linear(x_KD, self._weight, bias_V)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x_KD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, table: EmbeddingTable) -> Tensor:
        context.save_for_backward(x_KD, weight_VD)
        context.table = table
        return F.linear(x_KD, weight_VD, bias_V)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, Tensor | None, None]:
        (gradient_KV,), (x_KD, weight_VD) = gradients, context.saved_tensors
        assert context.table.gradient is None  # a second product's would be lost
        context.table.gradient = gradient_KV.t() @ x_KD
        of_bias = gradient_KV.sum(0) if context.needs_input_grad[2] else None
        return gradient_KV @ weight_VD, None, of_bias, None


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, weight_VD: Tensor, ids: Tensor, table: EmbeddingTable) -> Tensor:
        context.save_for_backward(ids)
        context.rows, context.table = len(weight_VD), table
        return F.embedding(ids, weight_VD)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        rows, places = torch.unique(context.saved_tensors[0], return_inverse=True)
        # torch's own kernel, in fp32, for the rows that were looked up only.
        sums = torch.ops.aten.embedding_dense_backward(gradient.float(), places, len(rows), -1, False)
        result, context.table.gradient = context.table.gradient, None
        if result is None:
            result = gradient.new_zeros(context.rows, gradient.shape[-1])
        result[rows] += sums.to(gradient.dtype)
        return result, None, None
