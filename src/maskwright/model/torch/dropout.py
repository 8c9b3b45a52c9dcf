"""Dropout: torch's own, or on a CPU a version that draws seven times as fast."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

WORDS = {2: torch.int16, 4: torch.int32}
"""An integer as wide as an activation, by its bytes."""


def dropout(x: Tensor, rate: float, training: bool = True) -> Tensor:
    """Zeroes each number of `x` with probability `rate`, and divides the others by 1 - `rate` (Srivastava et al. 2014).

    On a CPU, torch draws a number in double precision for each element: 1.35 ms for 164k of them in bf16 (one Zen 5
    core), and an eighth of a small model's fine-tuning step in all. Here 64 random bits serve four elements in bf16, or
    two in fp32, and the mask is made of integers: 0.2 ms. `rate` is exact to 2^-17.
    """
    if not training or rate == 0.0:
        return x
    if x.device.type != "cpu" or x.element_size() not in WORDS or torch.compiler.is_compiling():
        return F.dropout(x, rate)
    return x * noise(x, rate)


@torch.no_grad()
def noise(x: Tensor, rate: float) -> Tensor:
    """0 with probability `rate`, else 1 / (1 - rate), in the shape and dtype of `x`, by torch's generator."""
    word, bits = WORDS[x.element_size()], 8 * x.element_size()
    drawn = torch.empty(-(-x.numel() * x.element_size() // 8), dtype=torch.int64).random_(-(2**63), None)
    words = drawn.view(word)[: x.numel()].view(x.shape)
    kept = torch.tensor(1.0 / (1.0 - rate), dtype=x.dtype).view(word).item()
    # Each word is a signed integer: 0 or 1, then the bit pattern of 0.0 or of 1 / (1 - rate).
    return words.ge_(round(rate * 2**bits) - 2 ** (bits - 1)).mul_(kept).view(x.dtype)
