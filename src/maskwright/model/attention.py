"""Attention behind one signature: q, k, v [M, H, T, h] and a batch's mask -> [M, H, T, h]."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

PLAIN_UP_TO_TOKENS = 1024
"""On a CPU in bf16, three plain products beat torch's fused kernel, forward and backward, once freed memory is kept
(`hardware.keep_freed_memory`): 4.4 times at 128 tokens, 2.4 at 512 (2 Zen 5 cores). Beyond, its memory (T x T for each
head) no longer pays."""


def takes_plain(device: torch.device, dtype: torch.dtype, tokens: int) -> bool:
    return device.type == "cpu" and dtype is torch.bfloat16 and tokens <= PLAIN_UP_TO_TOKENS


def segment_mask(segment_ids: Tensor, dtype: torch.dtype) -> Tensor | None:
    """[M, 1, T, T] for activations of `dtype`: which keys each query may see. None when every row is one segment.

    As a sum for the plain way (0, or -inf for keys of other segments), as bool for the fused kernel (True = seen),
    which is 5 % of a step faster there. Padding (segment 0) attends to padding, so no row of the softmax is empty and
    nothing turns to NaN. Only on the CPU are the segments looked at, so that no device is waited for.
    """
    if segment_ids.device.type == "cpu" and bool((segment_ids == segment_ids[:, :1]).all()):
        return None
    together = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]
    if takes_plain(segment_ids.device, dtype, segment_ids.shape[1]):
        return torch.zeros(together.shape, dtype=dtype).masked_fill_(~together, float("-inf"))
    return together.contiguous()


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """softmax(q k^T / sqrt(h) + mask) v (Vaswani et al. 2017), by what is fastest for the device, dtype and length."""
    if takes_plain(q.device, q.dtype, q.shape[2]):
        return plain_attention(q, k, v, mask, dropout)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)


def plain_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float = 0.0) -> Tensor:
    """The same, spelt out: the fast way for short rows on a CPU, and in fp32 the slow twin of the fused kernel."""
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype is torch.bool else scores + mask
    return F.dropout(torch.softmax(scores, dim=-1), dropout, dropout > 0.0) @ v
