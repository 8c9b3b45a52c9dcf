"""Encoders with rotary positions (Su et al. 2021) in torch, on one page: ModernBERT (Warner et al. 2024), ESM-2 (Lin et
al. 2023), EuroBERT (Boizard et al. 2025), UltraBERT, NomicBERT (Nussbaum et al. 2024) and GTE (Zhang et al. 2024).

The first four have a norm before each sub-layer and after the last. The head (`heads.py`) runs on the predicted
positions only. ModernBERT has a gated inner layer (GeGLU, Shazeer 2020), LayerNorm after the embeddings, and no biases
except the head's. Every n-th of its layers attends to the full segment, the others to tokens nearby
(`ModelConfig.local_attention`), with rotary positions of another base. ESM-2 has biases, a plain inner layer,
and no norm of its embeddings, which are scaled for masks instead (`without_masks`). EuroBERT has RMSNorm, but none of
its embeddings, a gated inner layer with SiLU, no biases, and may have fewer heads of keys and values than of queries.
UltraBERT has EuroBERT's layers, and ModernBERT's local ones among them. NomicBERT and GTE have BERT's norms, after the
embeddings and after each sub-layer, its token types, and a gated inner layer. NomicBERT gates with SiLU, and its layers
have no biases except those of norms. GTE gates with GELU, and the gated matrix alone has none.

M rows, T tokens, D width, H heads, h width of a head, F inner width, K predicted positions, V vocabulary (padded).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from maskwright.model.config import TRAINED_MASK_SHARE, ModelConfig
from maskwright.model.torch.attention import Attention, Segments, full_attention, local_attention
from maskwright.model.torch.dropout import dropout
from maskwright.model.torch.embedding import EmbeddingTable, unset_table
from maskwright.model.torch.gelu import gelu
from maskwright.model.torch.heads import Head, logits_or_loss
from maskwright.model.torch.in_place import Rotation, gated, queries_keys_values
from maskwright.model.torch.norm import norm_of

View = tuple[Rotation, Attention]
"""Rotary positions, and who sees whom."""


class ModernBertLayer(nn.Module):
    def __init__(self, config: ModelConfig, *, first: bool) -> None:
        super().__init__()
        D, inner, bias = config.hidden_size, config.intermediate_size, config.biased
        self.heads, self.gated, self.activation = config.num_attention_heads, config.gated, config.activation
        self.attention_dropout, self.dropout = config.attention_probs_dropout_prob, config.hidden_dropout_prob
        self.out_dropout, self.inner_dropout = config.out_dropout_prob, config.inner_dropout_prob
        self.down_dropout, self.norm_first = config.down_dropout_prob, config.norm_first
        self.norm1 = nn.Identity() if first and config.norm_first and config.norms_embeddings else norm_of(config)
        self.norm2 = norm_of(config)
        self.qkv = nn.Linear(D, D + 2 * config.key_value_width, bias=bias)
        self.out = nn.Linear(D, D, bias=bias)
        self.up = nn.Linear(D, 2 * inner if config.gated else inner, bias=config.up_biased)
        self.down = nn.Linear(inner, D, bias=bias)

    def forward(self, x_MTD: Tensor, view: View, only: Tensor | None = None) -> Tensor:
        """`only` [K]: the result is [K, D], and the part after attention is computed only for those positions."""
        (M, T, D), (rotation, attention) = x_MTD.shape, view
        p = self.attention_dropout if self.training else 0.0
        normed_MTD = self.norm1(x_MTD) if self.norm_first else x_MTD
        qkv = self.qkv(normed_MTD).view(M, T, -1, D // self.heads)
        mixed_MHTh = attention.mix(*queries_keys_values(qkv, self.heads, rotation), p)
        mixed_MTD = mixed_MHTh.transpose(1, 2).reshape(M, T, D)
        if only is not None:
            x_MTD, mixed_MTD = x_MTD.flatten(0, 1)[only], mixed_MTD.flatten(0, 1)[only]
        x_MTD = x_MTD + dropout(self.out(mixed_MTD), self.out_dropout, self.training)
        if self.norm_first:
            return x_MTD + self.inner(self.norm2(x_MTD))
        x_MTD = self.norm1(x_MTD)
        return self.norm2(x_MTD + self.inner(x_MTD))

    def inner(self, x: Tensor) -> Tensor:
        """The part after attention without its norm, [..., D] -> [..., D]."""
        up = self.up(x)
        if not self.gated:
            return dropout(self.down(gelu(up)), self.dropout, self.training)
        down = self.down(dropout(gated(up, self.activation), self.inner_dropout, self.training))
        return dropout(down, self.down_dropout, self.training)


class ModernBert(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.recompute = False
        """Whether layers compute their activations again in the backward pass instead of keeping them."""
        self.compiled = False
        """Whether torch compiles the layers."""
        self.word = unset_table(config.padded_vocab_size, config.hidden_size)
        if config.has_token_types:
            self.token_type = unset_table(config.type_vocab_size, config.hidden_size)
        self.norm = norm_of(config) if config.norms_embeddings else nn.Identity()
        self.layers = nn.ModuleList(ModernBertLayer(config, first=i == 0) for i in range(config.num_hidden_layers))
        self.final_norm = norm_of(config) if config.norm_first else nn.Identity()
        self.head = Head(config)

    def views(self, position_ids: Tensor, segments: Segments, dtype: torch.dtype) -> list[View]:
        """One view for each layer: layers that attend to everything share one, and local layers another."""
        config = self.config
        everywhere: View = (
            self.rotation(position_ids, config.rope_theta, dtype),
            full_attention(segments, dtype, by_segment=not self.compiled),
        )
        if not config.local_layers:
            return [everywhere] * config.num_hidden_layers
        rotation = self.rotation(position_ids, config.local_rope_theta, dtype)
        nearby: View = rotation, local_attention(segments, dtype, config.window)
        return [nearby if config.is_local(number) else everywhere for number in range(config.num_hidden_layers)]

    def rotation(self, position_ids: Tensor, theta: float, dtype: torch.dtype) -> Rotation:
        h = self.config.head_width
        # In fp32, for each position once: bf16 cannot count beyond 256.
        speeds = theta ** (-torch.arange(0, h, 2, device=position_ids.device) / h)
        for rounding in self.config.rope_rounding.split():
            speeds = speeds.to(getattr(torch, rounding)).float()
        angles = torch.arange(position_ids.shape[1], device=position_ids.device)[:, None] * speeds
        cos, sin = (F.embedding(position_ids, table.to(dtype))[:, None] for table in (angles.cos(), angles.sin()))
        return cos, sin

    def encode(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        segments: Segments,
        only: Tensor | None = None,
        table: EmbeddingTable | None = None,
    ) -> Tensor:
        """[M, T] each -> hidden states [M, T, D]. `position_ids` start at 0; `segments` are ids, or their `CuSeqlens`.

        `only` [K]: [K, D] of those positions of the flattened rows. `table`: the embeddings, if the head has them too.
        """
        table = table or EmbeddingTable(self.word.weight)
        x_MTD = table.look_up(input_ids)
        if stride := self.config.token_type_stride:
            x_MTD = x_MTD + EmbeddingTable(self.token_type.weight).look_up(position_ids // stride)
            position_ids = position_ids % stride
        elif self.config.has_token_types:
            x_MTD = x_MTD + self.token_type.weight[0]
        x_MTD = self.norm(x_MTD)
        if self.config.token_dropout:
            x_MTD = without_masks(x_MTD, input_ids, position_ids, self.config)
        if self.config.norms_embeddings:
            x_MTD = dropout(x_MTD, self.config.hidden_dropout_prob, self.training)
        *views, last = self.views(position_ids, segments, x_MTD.dtype)
        for layer, view in zip(self.layers[:-1], views, strict=True):
            x_MTD = checkpoint(layer, x_MTD, view, use_reentrant=False) if self.recompute else layer(x_MTD, view)
        return self.final_norm(self.layers[-1](x_MTD, last, only))

    forward = logits_or_loss


def without_masks(x_MTD: Tensor, input_ids: Tensor, position_ids: Tensor, config: ModelConfig) -> Tensor:
    """Token dropout of embeddings (`TRAINED_MASK_SHARE`), for each segment of packed rows: position ids say where each
    begins."""
    is_mask = input_ids == config.mask_token_id
    place = torch.arange(input_ids.numel(), device=input_ids.device).view(input_ids.shape)
    begin = (place - position_ids).flatten()
    # Whole numbers, whose sums are the same in any order.
    counts = torch.stack((input_ids != config.pad_token_id, is_mask), -1).flatten(0, 1).int()
    real, masks = torch.zeros_like(counts).index_add_(0, begin, counts)[begin].unbind(-1)
    scale = (1.0 - TRAINED_MASK_SHARE) * real / (real - masks).clamp(min=1)
    scale = scale.view(input_ids.shape).masked_fill(is_mask, 0.0)
    return (x_MTD * scale[..., None]).to(x_MTD.dtype)
