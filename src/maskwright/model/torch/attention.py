"""Attention in torch. Each kind computes itself: `mix` takes q, k, v [M, H, T, h] and gives softmax(q k^T / sqrt(h)) v
[M, H, T, h] over the keys that each query sees (Vaswani et al. 2017), with dropout of `rate` on the softmax's result.
k and v may have fewer heads, each of which serves as many neighbouring heads of q (Ainslie et al. 2023).

kind                     when                                        computed by
Masked(None)             every row is one segment                    as below
BySegment                CPU, rows of more than 512 tokens           as below, segment by segment
Masked([M, 1, T, T])     else                                        CPU, in bf16 on short rows or with dropout: three
                                                                     plain products; else torch's fused kernel (SDPA)
Banded                   local layers, on rows longer than a block   as above, block by block
CuSeqlens                CUDA in bf16 from Ampere on, rows of one    FlashAttention, by torch's varlen_attn, or by
                         kind: all or none are read causally         the operator below it, which has dropout
"""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from maskwright.model.torch.dropout import dropout

PLAIN_UP_TO_TOKENS = 1024
"""On a CPU in bf16, three plain products beat torch's fused kernel, forward and backward, once freed memory is kept
(`hardware.keep_freed_memory`): 4.4 times at 128 tokens, 2.4 at 512 (2 Zen 5 cores). Beyond, its memory (T x T for each
head) no longer pays."""


SMALLEST_BLOCK = 64
"""The fewest tokens in a block of rows whose tokens see only those nearby, so that products stay large enough with a
narrower window."""
BANDED_FROM_BLOCKS = 6
"""Rows of fewer blocks are computed whole: three blocks of keys are then most of the row. With a window of 64 in bf16,
forward and backward on one Zen 5 core, blocks need 1.5 times as long as the whole at 256 tokens, 0.86 at 384, 0.55 at
512, 0.24 at 1,024 and 0.07 at 4,096."""
NOBODY = -(2**30)
"""Neither this nor the next number is a segment's."""


def uses_math_attention(device: torch.device, dtype: torch.dtype, tokens: int) -> bool:
    return device.type == "cpu" and dtype is torch.bfloat16 and tokens <= PLAIN_UP_TO_TOKENS


class Masked(NamedTuple):
    mask: Tensor | None
    """[M, 1, T, S]: bool (True = seen), or 0 and -inf, which are added to the scores. None: every key is seen."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor, rate: float = 0.0) -> Tensor:
        k, v = (_for_each_query(x, q.shape[1]) for x in (k, v))
        # On a CPU, torch's fused kernel has no dropout: it would fall back to plain products, with slower dropout.
        if uses_math_attention(q.device, q.dtype, q.shape[2]) or (rate and q.device.type == "cpu"):
            return plain_attention(q, k, v, self.mask, rate)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask, dropout_p=rate)


class BySegment(NamedTuple):
    """Segments of each row, from left to right; padding counts as one."""

    sizes: tuple[tuple[int, ...], ...]
    """Tokens of each segment of each of M rows."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor, rate: float = 0.0) -> Tensor:
        rows, whole = [], Masked(None)
        for row, sizes in enumerate(self.sizes):
            parts = (tensor[row].split(sizes, 1) for tensor in (q, k, v))  # each [H, n, h]
            mixed = [whole.mix(a[None], b[None], c[None], rate) for a, b, c in zip(*parts, strict=True)]
            rows.append(torch.cat(mixed, 2))
        return torch.cat(rows)


class Banded(NamedTuple):
    """Local layers: the tokens of a block of B see their own block and one to either side."""

    mask: Tensor
    """[M * blocks, 1, B, 3 B], as in `Masked`."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor, rate: float = 0.0) -> Tensor:
        M, H, T, h = q.shape
        block = self.mask.shape[-2]
        by_block = _filled_up(q, block).unflatten(2, (-1, block)).transpose(1, 2).flatten(0, 1)
        mixed = Masked(self.mask).mix(by_block, _blocks_around(k, block), _blocks_around(v, block), rate)
        return mixed.transpose(1, 2).reshape(M, -1, H, h)[:, :T].transpose(1, 2)


def _filled_up(x_MHTh: Tensor, block: int) -> Tensor:
    """Adds zeros after the last token, up to whole blocks."""
    missing = -x_MHTh.shape[2] % block
    return F.pad(x_MHTh, (0, 0, 0, missing)) if missing else x_MHTh  # F.pad would copy it


def _blocks_around(x_MHTh: Tensor, block: int) -> Tensor:
    """[M, H, T, h] -> [M * blocks, H, 3 block, h]: each block between the one before and the one after it, with zeros
    beyond the ends and as the last block's filler."""
    own_blocks = _filled_up(x_MHTh, block).unflatten(2, (-1, block)).transpose(1, 2)
    padded = F.pad(own_blocks, (0, 0) * 3 + (1, 1))
    return torch.cat((padded[:, :-2], own_blocks, padded[:, 2:]), 3).flatten(0, 1)


class CuSeqlens(NamedTuple):
    """Segments of the flattened rows, in FlashAttention's form."""

    offsets: Tensor
    """int32 [N + 1]: the start of each of N segments, and the end of the last one."""
    longest: int
    """No segment is longer. A constant of the run, so that it never causes another compilation."""
    window: int = -1
    """Tokens to either side that a token sees; -1 for all."""
    causal: bool = False
    """Whether a token sees none to its right."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor, rate: float = 0.0) -> Tensor:
        M, _, T, _ = q.shape
        q, k, v = (tensor.transpose(1, 2).flatten(0, 1) for tensor in (q, k, v))
        mixed = self._with_dropout(q, k, v, rate) if rate else self._plain(q, k, v)
        return mixed.unflatten(0, (M, T)).transpose(1, 2)

    def _plain(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[M T, H, h] -> [M T, H, h]"""
        from torch.nn.attention.varlen import varlen_attn  # brings torch's compiler: 1.9 s that a CPU need not wait

        sizes = (self.offsets, self.offsets, self.longest, self.longest)
        grouped = k.shape[1] < q.shape[1]
        return cast(Tensor, varlen_attn(q, k, v, *sizes, window_size=self._window, enable_gqa=grouped))

    def _with_dropout(self, q: Tensor, k: Tensor, v: Tensor, rate: float) -> Tensor:
        """The same, from the operator that varlen_attn calls with a rate of 0."""
        left, right = self._window
        return cast(
            Tensor,
            torch.ops.aten._flash_attention_forward(
                *(q, k, v, self.offsets, self.offsets, self.longest, self.longest, rate),
                is_causal=self._window == (-1, 0),
                return_debug_mask=False,
                window_size_left=left,
                window_size_right=right,
            )[0],
        )

    @property
    def _window(self) -> tuple[int, int]:
        return self.window, 0 if self.causal else self.window


def _for_each_query(x_MGTh: Tensor, heads: int) -> Tensor:
    """[M, G, T, h] -> [M, heads, T, h]: keys or values, repeated for the heads of queries that they serve. On a CPU,
    torch's fused kernel takes no fewer of them."""
    G = x_MGTh.shape[1]
    return x_MGTh if heads == G else x_MGTh.repeat_interleave(heads // G, 1)


Attention = Masked | BySegment | Banded | CuSeqlens
Segments = Tensor | CuSeqlens
"""[M, T] segment ids, or what a CUDA device gets instead of them."""


def plain_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, rate: float = 0.0) -> Tensor:
    """Attention in plain operations: fast for short rows on a CPU, and in fp32 the slow twin of the fused kernel."""
    # Transposed, keys that are a view of a larger tensor would be copied for the product, number by number.
    return attend((q * q.shape[-1] ** -0.5) @ k.contiguous().transpose(-1, -2), v, mask, rate)


def attend(scores: Tensor, v: Tensor, mask: Tensor | None, rate: float = 0.0) -> Tensor:
    """[M, H, T, S] scores of queries and keys, which are overwritten, and values [M, H, S, h] -> [M, H, T, h]. `mask`:
    as in `Masked`."""
    if mask is not None:
        scores = scores.masked_fill_(~mask, float("-inf")) if mask.dtype is torch.bool else scores.add_(mask)
    return dropout(torch.softmax(scores, dim=-1), rate) @ v


# ---- who sees whom -------------------------------------------------------------------------------------------------

BY_SEGMENT_ABOVE_TOKENS = 512
"""Longer rows are computed segment by segment on a CPU: forward and backward of one layer's 12 heads of 1,024 tokens
take 73 ms as a whole, and 22 ms in six segments (bf16, 2 Zen 5 cores). Rows of up to 512 tokens, as in published
RoBERTas, keep their mask, since the two differ in the last bits and gain less there."""
SMALLEST_MEAN_SEGMENT = 16
"""Tokens. With shorter segments the calls would cost more than the products."""


def full_attention(segments: Segments, dtype: torch.dtype, *, by_segment: bool = True) -> Attention:
    """Attention within whole segments, for activations of `dtype`. `by_segment`: whether a CPU may compute long rows by
    segment; compiled layers would be compiled again for each row's lengths of segments.

    Plain products add the mask (0, or -inf for keys of other segments). The fused kernel uses bools (True = seen),
    which is 5 % of a step faster there. Padding (segment 0) attends to padding, so no row of the softmax is empty and
    nothing turns to NaN. With negative ids, a token sees no later one. The segments are examined on the CPU only, so
    that nothing waits for a device.
    """
    if isinstance(segments, CuSeqlens):
        return segments
    T = segments.shape[1]
    if segments.device.type == "cpu" and not _any_causal(segments):
        if bool((segments == segments[:, :1]).all()):
            return Masked(None)
        if by_segment and T > BY_SEGMENT_ABOVE_TOKENS and (kind := _by_segment(segments)):
            return kind
    return Masked(_as_mask(_together(segments, segments, torch.arange(T, device=segments.device)), dtype, T))


def _together(queries: Tensor, keys: Tensor, place: Tensor, first: int = 0) -> Tensor:
    """[M, T] and [M, S] segment ids -> bool [M, 1, T, S]: the keys of each query's segment, and in causal rows, whose
    ids are negative, those up to its own. `place` [S] of the keys; the queries are at T of them from `first` on."""
    same = queries[:, None, :, None] == keys[:, None, None, :]
    if queries.device.type == "cpu" and not _any_causal(queries):
        return same
    own_place = place[first : first + queries.shape[1], None]
    return same.logical_and_((queries >= 0)[:, None, :, None] | (own_place >= place))


def _any_causal(segments: Tensor) -> bool:
    return bool(((segments < 0) & (segments > NOBODY + 1)).any())


def _by_segment(segments: Tensor) -> BySegment | None:
    """The segments of each row; None if they are too short to be computed one by one."""
    T = segments.shape[1]
    sizes = []
    for row in segments.numpy():
        ends = np.append(np.flatnonzero(row[1:] != row[:-1]) + 1, T)
        sizes.append(tuple(np.diff(ends, prepend=0).tolist()))
    return BySegment(tuple(sizes)) if sum(map(len, sizes)) * SMALLEST_MEAN_SEGMENT <= segments.numel() else None


def _as_mask(together: Tensor, dtype: torch.dtype, tokens: int) -> Tensor:
    if uses_math_attention(together.device, dtype, tokens):
        return torch.zeros(together.shape, dtype=dtype).masked_fill_(~together, float("-inf"))
    return together.contiguous()


def local_attention(segments: Segments, dtype: torch.dtype, window: int) -> Attention:
    """Like `full_attention`, for layers whose tokens see `window` tokens to either side. Segments are contiguous, so
    that distances in the row equal distances in the segment."""
    if isinstance(segments, CuSeqlens):
        return segments._replace(window=window)
    M, T = segments.shape
    block = max(window, SMALLEST_BLOCK)
    if BANDED_FROM_BLOCKS * block > T:
        place = torch.arange(T, device=segments.device)
        near = (place[:, None] - place).abs() <= window
        return Masked(_as_mask(_together(segments, segments, place) & near, dtype, T))
    blocks = -(-T // block)
    # No segment has these numbers. The filler of the last block sees itself, so that no softmax is empty.
    own_ids = F.pad(segments, (0, blocks * block - T), value=NOBODY + 1).view(M, blocks, block)
    padded = F.pad(own_ids, (0, 0, 1, 1), value=NOBODY)
    around = torch.cat((padded[:, :-2], own_ids, padded[:, 2:]), 2)
    place = torch.arange(3 * block, device=segments.device)
    near = (place[block : 2 * block, None] - place).abs() <= window
    together = _together(own_ids.flatten(0, 1), around.flatten(0, 1), place, block) & near
    return Banded(_as_mask(together, dtype, block))


CU_SEQLENS_MULTIPLE, CU_SEQLENS_SHARE = 64, 8
"""The number of offsets is a multiple of 64, and of about an eighth of itself. A micro-batch of 3,000 segments then has
one of two or three shapes, each with a CUDA graph of its own. Segments without tokens cost next to nothing."""


def takes_cu_seqlens(device: torch.device, dtype: torch.dtype, head_width: int) -> bool:
    """Whether FlashAttention applies: not in fp32, heads of 8, 16, … 256, compute capability 8.0."""
    if device.type != "cuda" or dtype is not torch.bfloat16 or head_width % 8 or head_width > 256:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def packed(offsets: Tensor, longest: int, *, causal: bool = False) -> CuSeqlens:
    """The segments of `offsets`, the result of `cu_seqlens_of` on the device.

    They are marked for torch.compile as varying in number. Otherwise it makes a program for each number: 67 instead of
    15 in a run of three row lengths, which was over its limit for a ModernBERT. Only `varlen_attn` sees the number, and
    torch does not compile that, so bits do not depend on it."""
    torch._dynamo.mark_dynamic(offsets, 0)
    return CuSeqlens(offsets, longest, causal=causal)


def cu_seqlens_of(segment_ids: NDArray[np.int32]) -> NDArray[np.int32]:
    """`CuSeqlens.offsets` of [M, T] segment ids, computed on the host so that nothing waits for the device.

    Padding counts as a segment. The last offset is repeated, as segments of no tokens, so that shapes seldom change.
    """
    M, T = segment_ids.shape
    begins = np.ones((M, T), bool)
    np.not_equal(segment_ids[:, 1:], segment_ids[:, :-1], out=begins[:, 1:])
    begin_index = np.flatnonzero(begins)
    unit = max(CU_SEQLENS_MULTIPLE, 2 ** (len(begin_index).bit_length() - 1) // CU_SEQLENS_SHARE)
    size = -(-(len(begin_index) + 1) // unit) * unit
    return np.concatenate([begin_index, np.full(size - len(begin_index), M * T)]).astype(np.int32)
