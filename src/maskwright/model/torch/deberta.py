"""DeBERTa v2 and v3 (He et al. 2021) in torch, on one page: BERT's layers with terms for relative positions in each
score (`relative.py`), v3 without absolute positions, and v2's large ones with a convolution beside the first layer.

No fused kernel of torch has such terms, so attention is plain products. Each layer keeps M * H * T * T numbers of its
softmax for the backward pass, and each term takes twice as many for a moment.

M rows, T tokens, D width, H heads, h width of a head, R rows of the table of relative positions, K predicted positions.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from maskwright.model.config import ModelConfig
from maskwright.model.relative import distances_around, rows_of
from maskwright.model.torch.attention import Masked, Segments, attend, full_attention
from maskwright.model.torch.dropout import dropout
from maskwright.model.torch.embedding import EmbeddingTable, unset_table
from maskwright.model.torch.gelu import gelu
from maskwright.model.torch.heads import Head, logits_or_loss
from maskwright.model.torch.norm import Norm


class View(NamedTuple):
    """What every layer sees of a batch besides its hidden states."""

    mask: Tensor | None
    """See `Masked`."""
    relative_RD: Tensor
    """The table's rows that the distances of these rows of tokens need."""
    behind: Tensor
    """int64 [2 T]: which of those rows belongs to each distance T - 1, …, -T: of a query to its keys, from the last
    query's first key on."""
    ahead: Tensor
    """int64 [2 T]: the same for the distances -(T - 1), …, T."""


class DebertaLayer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        D, eps = config.hidden_size, config.layer_norm_eps
        self.heads, self.terms = config.num_attention_heads, config.pos_att_type.split("|")
        self.scale = config.score_scale
        self.attention_dropout, self.dropout = config.attention_probs_dropout_prob, config.hidden_dropout_prob
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, config.intermediate_size), nn.Linear(config.intermediate_size, D)
        self.norm1, self.norm2 = Norm(D, eps), Norm(D, eps)

    def forward(self, x_MTD: Tensor, view: View, only: Tensor | None = None) -> Tensor:
        """`only` [K]: the result is [K, D], and the part after attention is computed only for those positions."""
        M, T, D = x_MTD.shape
        q, k, v = self.qkv(x_MTD).view(M, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        mixed_MHTh = attend(self.scores(q, k, view), v, view.mask, self.attention_dropout if self.training else 0.0)
        mixed_MTD = mixed_MHTh.transpose(1, 2).reshape(M, T, D)
        if only is not None:
            x_MTD, mixed_MTD = x_MTD.flatten(0, 1)[only], mixed_MTD.flatten(0, 1)[only]
        x_MTD = self.norm1(x_MTD + dropout(self.out(mixed_MTD), self.dropout, self.training))
        inner_MTD = self.down(gelu(self.up(x_MTD)))
        return self.norm2(x_MTD + dropout(inner_MTD, self.dropout, self.training))

    def scores(self, q: Tensor, k: Tensor, view: View) -> Tensor:
        """[M, H, T, h] each -> [M, H, T, T] for each query and key."""
        (_, H, _, h), D = q.shape, view.relative_RD.shape[-1]
        q = q * self.scale
        scores = q @ k.transpose(-1, -2)
        relative_RD = dropout(view.relative_RD, self.dropout, self.training)
        both = F.linear(relative_RD, self.qkv.weight[: 2 * D], self.qkv.bias[: 2 * D])
        queries_RD, keys_RD = both.chunk(2, -1)
        if "c2p" in self.terms:
            keys_Hh2T = keys_RD.index_select(0, view.behind).view(-1, H, h).permute(1, 2, 0)
            scores = scores + along_the_row(q @ keys_Hh2T)
        if "p2c" in self.terms:
            queries_Hh2T = (queries_RD * self.scale).index_select(0, view.ahead).view(-1, H, h).permute(1, 2, 0)
            scores = scores + along_the_row(k @ queries_Hh2T).transpose(-1, -2)
        return scores


def along_the_row(by_distance: Tensor) -> Tensor:
    """[..., T, 2 T] of the distances -(T - 1), …, T to the right of each token -> [..., T, T] of each place: the number
    of token i and place j is that of distance j - i. Nothing is copied: in memory, each row begins one number
    earlier."""
    T = by_distance.shape[-2]
    return by_distance.flatten(-2)[..., T - 1 : T - 1 + T * (2 * T - 1)].unflatten(-1, (T, 2 * T - 1))[..., :T]


class Deberta(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.recompute = False
        """Whether layers compute their activations again in the backward pass instead of keeping them."""
        self.compiled = False
        """Whether torch compiles the layers."""
        D, eps = config.hidden_size, config.layer_norm_eps
        self.word = unset_table(config.padded_vocab_size, D)
        if config.position_biased_input:
            self.position = unset_table(config.max_position_embeddings, D)
        if config.type_vocab_size:
            self.token_type = unset_table(config.type_vocab_size, D)
        self.norm = Norm(D, eps)
        self.relative, self.relative_norm = unset_table(2 * config.relative_span, D), Norm(D, eps)
        self.layers = nn.ModuleList(DebertaLayer(config) for _ in range(config.num_hidden_layers))
        if config.conv_kernel_size:
            self.conv, self.conv_norm = nn.Conv1d(D, D, config.conv_kernel_size), Norm(D, eps)
        self.head = Head(config)

    def encode(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        segments: Segments,
        only: Tensor | None = None,
        table: EmbeddingTable | None = None,
    ) -> Tensor:
        """[M, T] each -> hidden states [M, T, D]. `position_ids` start at 0; `segments` are ids.

        `only` [K]: [K, D] of those positions of the flattened rows. `table`: the embeddings, if the head has them too.

        Relative positions are those in the row: within a segment they are its own, and no token sees another one.
        """
        assert isinstance(segments, Tensor)
        table = table or EmbeddingTable(self.word.weight)
        x_MTD = self.norm(self.with_positions(table.look_up(input_ids), position_ids))
        x_MTD = embedded_MTD = dropout(x_MTD, self.config.hidden_dropout_prob, self.training)
        view = self.view(segments, x_MTD.dtype)
        for number, layer in enumerate(self.layers):
            last = number == len(self.layers) - 1
            # The convolution is added at every place, so its layer needs them all.
            here = only if last and not (number == 0 and self.config.conv_kernel_size) else None
            recompute = self.recompute and not last
            x_MTD = checkpoint(layer, x_MTD, view, use_reentrant=False) if recompute else layer(x_MTD, view, here)
            if number == 0 and self.config.conv_kernel_size:
                x_MTD = self.convolved(embedded_MTD, x_MTD, segments)
                x_MTD = x_MTD.flatten(0, 1)[only] if last and only is not None else x_MTD
        return x_MTD

    def with_positions(self, x_MTD: Tensor, position_ids: Tensor) -> Tensor:
        """Adds the embeddings of positions and of token types, where the model has tables of them."""
        positions = self.config.max_position_embeddings
        if self.config.position_biased_input:
            x_MTD = x_MTD + EmbeddingTable(self.position.weight).look_up(position_ids % positions)
        if self.config.type_vocab_size:
            x_MTD = x_MTD + EmbeddingTable(self.token_type.weight).look_up(position_ids // positions)
        return x_MTD

    def view(self, segments: Tensor, dtype: torch.dtype) -> View:
        attention = full_attention(segments, dtype, by_segment=False)
        assert isinstance(attention, Masked)
        rows, behind, ahead = table_rows(self.config, segments.shape[1], segments.device)
        return View(attention.mask, self.relative_norm(self.relative.weight[rows]), behind, ahead)

    def convolved(self, embedded_MTD: Tensor, x_MTD: Tensor, segments: Tensor) -> Tensor:
        """Adds the convolution of the embeddings, which sees no other segment, to the first layer's result."""
        reach, parts = self.config.conv_kernel_size // 2, []
        T = segments.shape[1]
        around_MTD, around = F.pad(embedded_MTD, (0, 0, reach, reach)), F.pad(segments, (reach, reach), value=-(2**30))
        for begin in range(2 * reach + 1):
            same = (around[:, begin : begin + T] == segments)[..., None]
            parts.append(around_MTD[:, begin : begin + T] * same)
        weight = self.conv.weight.transpose(1, 2).flatten(1)
        out_MTD = F.linear(torch.cat(parts, -1), weight, self.conv.bias)
        return self.conv_norm(x_MTD + gelu(dropout(out_MTD, self.config.hidden_dropout_prob, self.training)))

    forward = logits_or_loss


@lru_cache(maxsize=256)
def table_rows(config: ModelConfig, tokens: int, device: torch.device) -> tuple[slice, Tensor, Tensor]:
    """(the table's rows that rows of so many tokens need, `View.behind`, `View.ahead`)."""
    behind, ahead = rows_of(config, -distances_around(tokens)), rows_of(config, distances_around(tokens))
    first, last = int(min(behind.min(), ahead.min())), int(max(behind.max(), ahead.max()))
    with torch.inference_mode(False):  # for a later call that trains
        behind_there, ahead_there = (torch.from_numpy(rows - first).to(device) for rows in (behind, ahead))
    return slice(first, last + 1), behind_there, ahead_there
