"""The blocks of rows whose tokens see only those nearby, the same in torch and in JAX."""

from __future__ import annotations

SMALLEST_BLOCK = 64
"""The fewest tokens in a block, so that products stay large enough with a narrower window."""
BANDED_FROM_BLOCKS = 6
"""Rows of fewer blocks are computed whole: three blocks of keys are then most of the row. With a window of 64 in bf16,
forward and backward on one Zen 5 core, blocks need 1.5 times as long as the whole at 256 tokens, 0.86 at 384, 0.55 at
512, 0.24 at 1,024 and 0.07 at 4,096."""
NOBODY = -(2**30)
"""Neither this nor the next number is a segment's."""


def block_of(tokens: int, window: int) -> int | None:
    """Tokens in a block of rows whose tokens see `window` to either side; None for rows that are computed whole."""
    block = max(window, SMALLEST_BLOCK)
    return block if BANDED_FROM_BLOCKS * block <= tokens else None
