"""ModernBERT (Warner et al. 2024) in torch, on one page.

Rotary positions (Su et al. 2021), LayerNorm before each sub-layer, a gated inner layer (GeGLU, Shazeer 2020), no biases
except the head's (`heads.py`), which runs on the predicted positions only. Every n-th layer attends to the full
segment, the others to tokens nearby (`ModelConfig.local_attention`), with rotary positions of another base.

M rows, T tokens, D width, H heads, h width of a head, F inner width, K predicted positions, V vocabulary (padded).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from maskwright.model.config import ModelConfig
from maskwright.model.torch.attention import Attention, Segments, full_attention, local_attention
from maskwright.model.torch.dropout import dropout
from maskwright.model.torch.embedding import EmbeddingTable, unset_table
from maskwright.model.torch.heads import Head, logits_or_loss
from maskwright.model.torch.in_place import Rotation, gated, queries_keys_values
from maskwright.model.torch.norm import Norm

View = tuple[Rotation, Attention]
"""Rotary positions, and who sees whom."""


class ModernBertLayer(nn.Module):
    def __init__(self, config: ModelConfig, *, first: bool) -> None:
        super().__init__()
        D, inner, eps = config.hidden_size, config.intermediate_size, config.layer_norm_eps
        self.heads = config.num_attention_heads
        self.attention_dropout, self.dropout = config.attention_probs_dropout_prob, config.hidden_dropout_prob
        # The embeddings are normalised already.
        self.norm1 = nn.Identity() if first else Norm(D, eps, bias=False)
        self.norm2 = Norm(D, eps, bias=False)
        self.qkv, self.out = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.up, self.down = nn.Linear(D, 2 * inner, bias=False), nn.Linear(inner, D, bias=False)

    def forward(self, x_MTD: Tensor, view: View, only: Tensor | None = None) -> Tensor:
        """`only` [K]: the result is [K, D], and the part after attention is computed only for those positions."""
        (M, T, D), (rotation, attention) = x_MTD.shape, view
        p = self.attention_dropout if self.training else 0.0
        qkv = self.qkv(self.norm1(x_MTD)).view(M, T, 3, self.heads, D // self.heads)
        mixed_MHTh = attention.mix(*queries_keys_values(qkv, rotation), p)
        mixed_MTD = mixed_MHTh.transpose(1, 2).reshape(M, T, D)
        if only is not None:
            x_MTD, mixed_MTD = x_MTD.flatten(0, 1)[only], mixed_MTD.flatten(0, 1)[only]
        x_MTD = x_MTD + dropout(self.out(mixed_MTD), p)
        return x_MTD + self.down(dropout(gated(self.up(self.norm2(x_MTD))), self.dropout, self.training))


class ModernBert(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.recompute = False
        """Whether layers compute their activations again in the backward pass instead of keeping them."""
        self.compiled = False
        """Whether torch compiles the layers."""
        D, eps = config.hidden_size, config.layer_norm_eps
        self.word = unset_table(config.padded_vocab_size, D)
        self.norm = Norm(D, eps, bias=False)
        self.layers = nn.ModuleList(ModernBertLayer(config, first=i == 0) for i in range(config.num_hidden_layers))
        self.final_norm = Norm(D, eps, bias=False)
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
        h = self.config.hidden_size // self.config.num_attention_heads
        # In fp32, for each position once: bf16 cannot count beyond 256.
        speeds = theta ** (-torch.arange(0, h, 2, device=position_ids.device) / h)
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
        x_MTD = dropout(self.norm(table.look_up(input_ids)), self.config.hidden_dropout_prob, self.training)
        *views, last = self.views(position_ids, segments, x_MTD.dtype)
        for layer, view in zip(self.layers[:-1], views, strict=True):
            x_MTD = checkpoint(layer, x_MTD, view, use_reentrant=False) if self.recompute else layer(x_MTD, view)
        return self.final_norm(self.layers[-1](x_MTD, last, only))

    forward = logits_or_loss
