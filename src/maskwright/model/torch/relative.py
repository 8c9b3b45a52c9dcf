"""Attention with relative positions (`relative.py`) in torch: DeBERTa's, whose scores have terms for them (He et al.
2021), with the convolution that large models of v2 have next to the first layer; and MPNet's, which adds a number to
each score (Song et al. 2020).

No fused kernel of torch has such terms, or adds up the gradient of such numbers in a fixed order, so attention is plain
products. Each layer keeps M * H * T * T numbers of its softmax for the backward pass, and each term takes twice as many
for a moment.

M rows, T tokens, D width, H heads, h width of a head, R rows of the table of relative positions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskwright.model.config import ModelConfig
from maskwright.model.relative import bias_rows, distances_around, rows_of
from maskwright.model.torch.attention import Masked, attend, full_attention, plain_attention
from maskwright.model.torch.dropout import dropout


class Relative(NamedTuple):
    """The inputs of all layers from a batch, except its hidden states. Relative positions count in the row, which
    equals counting in the segment, and no token sees another segment."""

    terms: str
    """`ModelConfig.pos_att_type`."""
    scale: float
    """Of the scores."""
    mask: Tensor | None
    """See `Masked`."""
    relative_RD: Tensor
    """The table's rows that the distances of these rows of tokens need."""
    behind: Tensor
    """int64 [2 T]: which of those rows belongs to each distance T - 1, …, -T: of a query to its keys, from the last
    query's first key on."""
    ahead: Tensor
    """int64 [2 T]: the same for the distances -(T - 1), …, T."""

    @classmethod
    def of(
        cls, config: ModelConfig, segments: Tensor, dtype: torch.dtype, look_up: Callable[[slice], Tensor]
    ) -> Relative:
        """`look_up`: gives those rows of the table."""
        attention = full_attention(segments, dtype, by_segment=False)
        assert isinstance(attention, Masked)
        rows, behind, ahead = table_rows(config, segments.shape[1], segments.device)
        return cls(config.pos_att_type, config.score_scale, attention.mask, look_up(rows), behind, ahead)

    def of_layer(self, qkv: nn.Linear, rate: float) -> Disentangled:
        """The attention of the layer with this matrix. `rate`: dropout of the table."""
        D = self.relative_RD.shape[-1]
        relative_RD = dropout(self.relative_RD, rate)
        both = F.linear(relative_RD, qkv.weight[: 2 * D], qkv.bias[: 2 * D])
        return Disentangled(self, *both.chunk(2, -1))


class Disentangled(NamedTuple):
    """A kind of attention (`attention.py`)."""

    shared: Relative
    queries_RD: Tensor
    keys_RD: Tensor

    def mix(self, q: Tensor, k: Tensor, v: Tensor, rate: float = 0.0) -> Tensor:
        return attend(self.scores(q, k), v, self.shared.mask, rate)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """[M, H, T, h] each -> [M, H, T, T] for each query and key."""
        (terms, scale, _, _, behind, ahead), (_, H, _, h) = self.shared, q.shape
        q = q * scale
        scores = q @ k.transpose(-1, -2)
        if "c2p" in terms:
            keys_Hh2T = self.keys_RD.index_select(0, behind).view(-1, H, h).permute(1, 2, 0)
            scores = scores + along_the_row(q @ keys_Hh2T)
        if "p2c" in terms:
            queries_Hh2T = (self.queries_RD * scale).index_select(0, ahead).view(-1, H, h).permute(1, 2, 0)
            scores = scores + along_the_row(k @ queries_Hh2T).transpose(-1, -2)
        return scores


class Biased(NamedTuple):
    """A kind of attention (`attention.py`): MPNet's."""

    bias: Tensor
    """[M or 1, H, T, T], added to the scores; -inf where a query does not see a key."""

    @classmethod
    def of(cls, config: ModelConfig, segments: Tensor, table_RH: Tensor) -> Biased:
        T = segments.shape[1]
        rows = torch.from_numpy(bias_rows(config, distances_around(T))).to(segments.device)
        by_distance = table_RH.index_select(0, rows).t()[:, None].expand(-1, T, -1)
        bias_MHTT = along_the_row(by_distance)[None]
        attention = full_attention(segments, torch.float32, by_segment=False)
        assert isinstance(attention, Masked)
        return cls(bias_MHTT if attention.mask is None else bias_MHTT.masked_fill(~attention.mask, float("-inf")))

    def mix(self, q: Tensor, k: Tensor, v: Tensor, rate: float = 0.0) -> Tensor:
        return plain_attention(q, k, v, self.bias, rate)


def along_the_row(by_distance: Tensor) -> Tensor:
    """[..., T, 2 T] of the distances -(T - 1), …, T to the right of each token -> [..., T, T] of each place: token i
    and place j get the number of distance j - i. Nothing is copied: in memory, each row begins one number earlier."""
    T = by_distance.shape[-2]
    return by_distance.flatten(-2)[..., T - 1 : T - 1 + T * (2 * T - 1)].unflatten(-1, (T, 2 * T - 1))[..., :T]


@lru_cache(maxsize=256)
def table_rows(config: ModelConfig, tokens: int, device: torch.device) -> tuple[slice, Tensor, Tensor]:
    """(the table's rows that rows of `tokens` tokens need, `Relative.behind`, `Relative.ahead`)."""
    behind, ahead = rows_of(config, -distances_around(tokens)), rows_of(config, distances_around(tokens))
    first, last = int(min(behind.min(), ahead.min())), int(max(behind.max(), ahead.max()))
    with torch.inference_mode(False):  # for a later call that trains
        behind_there, ahead_there = (torch.from_numpy(rows - first).to(device) for rows in (behind, ahead))
    return slice(first, last + 1), behind_there, ahead_there


def convolved(conv: nn.Conv1d, x_MTD: Tensor, segments: Tensor) -> Tensor:
    """[M, T, D]: the convolution of `x_MTD`, in which no token sees another segment."""
    reach, parts, T = conv.kernel_size[0] // 2, [], segments.shape[1]
    around_MTD, around = F.pad(x_MTD, (0, 0, reach, reach)), F.pad(segments, (reach, reach), value=-(2**30))
    for begin in range(2 * reach + 1):
        same = (around[:, begin : begin + T] == segments)[..., None]
        parts.append(around_MTD[:, begin : begin + T] * same)
    return F.linear(torch.cat(parts, -1), conv.weight.transpose(1, 2).flatten(1), conv.bias)
