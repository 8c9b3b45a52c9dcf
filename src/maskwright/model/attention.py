"""Attention behind one signature: q, k, v [M, H, T, h] and a batch's segments -> [M, H, T, h]."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def segment_mask(segment_ids: Tensor) -> Tensor | None:
    """[M, 1, T, T] bool, True where query and key share a segment; None when every row is one segment.

    Padding (segment 0) attends to padding, so no row of the softmax is empty and nothing turns to NaN.
    `segment_ids` must lie on the CPU to be looked at without waiting for the device.
    """
    if segment_ids.device.type == "cpu" and bool((segment_ids == segment_ids[:, :1]).all()):
        return None
    return (segment_ids[:, None, :, None] == segment_ids[:, None, None, :]).contiguous()


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """softmax(q k^T / sqrt(h)) v inside segments (Vaswani et al. 2017), by torch's fused kernel for the device."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)


def reference_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """The same, spelt out; the slow twin."""
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return torch.softmax(scores, dim=-1) @ v
