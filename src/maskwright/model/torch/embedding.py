"""Embedding lookup with a gradient that is summed in fp32."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def unset_table(rows: int, width: int) -> nn.Embedding:
    """[rows, width] weights that are yet to be assigned. On the meta device torch's own start of them would import its
    compiler, which takes 1.5 s."""
    return nn.Embedding.from_pretrained(torch.empty(rows, width), freeze=False)


def look_up(table_VD: Tensor, ids: Tensor) -> Tensor:
    """[V, D], [...] -> [..., D].

    On a CPU, torch sums a bf16 table's gradient in bf16, and fp16 in fp16: in bf16, a row that is looked up a thousand
    times, as `<mask>`'s is, loses most of what is added to it (27 % of the full gradient, measured). On CUDA, torch
    sums in fp32 by itself.
    """
    if table_VD.device.type != "cuda" and table_VD.dtype is not torch.float32 and torch.is_grad_enabled():
        return _LookUp.apply(table_VD, ids)
    return F.embedding(ids, table_VD)


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, table_VD: Tensor, ids: Tensor) -> Tensor:
        context.save_for_backward(ids)
        context.rows = len(table_VD)
        return F.embedding(ids, table_VD)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        found, places = torch.unique(context.saved_tensors[0], return_inverse=True)
        # torch's own kernel, in fp32, for the rows that were looked up only.
        sums = torch.ops.aten.embedding_dense_backward(gradient.float(), places, len(found), -1, False)
        result = gradient.new_zeros(context.rows, gradient.shape[-1])
        result[found] = sums.to(gradient.dtype)
        return result, None
