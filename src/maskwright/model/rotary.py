"""The speeds of rotary positions (Su et al. 2021) in numpy, for files, and where a compiler would round differently."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from maskwright.model.config import ModelConfig

ROUNDINGS = ("", "float16", "bfloat16", "float16 bfloat16")
"""Values of `ModelConfig.rope_rounding`. Folders of ESM-2 hold the speeds in the precision of training and saving,
which is fp16 in the published ones."""


def speeds(config: ModelConfig, theta: float) -> NDArray[np.float32]:
    """[h / 2] radians a position, for heads of width h."""
    width = config.head_width
    result = (theta ** (-np.arange(0, width, 2, dtype=np.float32) / width)).astype(np.float32)
    for dtype in config.rope_rounding.split():
        result = result.astype(np.float16).astype(np.float32) if dtype == "float16" else _in_bf16(result)
    return result


def _in_bf16(x: NDArray[np.float32]) -> NDArray[np.float32]:
    bits = x.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))  # to the nearest, ties to even
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32)
