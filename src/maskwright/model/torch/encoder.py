"""The encoder of all families in torch, on one page (`facts.py` lists their differences and the papers).

The head (`heads.py`) runs on the predicted positions only. This file is architecture only: precision, device and
parallelism come from outside.

M rows, T tokens, D width, H heads, h width of a head, F inner width, K predicted positions, P rows of the table of
positions, V vocabulary (padded to a multiple of 64).
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
from maskwright.model.torch.heads import Head, Targets, shares_of_texts
from maskwright.model.torch.linear import Linear
from maskwright.model.torch.norm import norm_of
from maskwright.model.torch.relative import Biased, Relative, convolved

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines, each [M, 1, T, h / 2]."""
View = tuple[Rotation | None, Attention | Biased | Relative]
"""Rotary positions if there are any, and who sees whom."""


class Layer(nn.Module):
    norm1: nn.Module
    norm2: nn.Module

    def __init__(self, config: ModelConfig, *, first: bool) -> None:
        super().__init__()
        self.config, self.facts = config, config.facts
        self.out_dropout, self.inner_dropout, self.down_dropout = config.layer_dropouts
        D, inner, bias = config.hidden_size, config.intermediate_size, self.facts.biased
        is_normed = first and self.facts.norm_first and self.facts.norms_embeddings
        norms = {"norm1": nn.Identity() if is_normed else norm_of(config), "norm2": norm_of(config)}
        # The gradient's norm is added up in the order of the parameters, so its last bits depend on this order.
        for name, norm in norms.items() if self.facts.rotary else ():
            self.add_module(name, norm)
        self.qkv = Linear(D, D + 2 * config.key_value_width, bias=bias)
        self.out = Linear(D, D, bias=bias)
        self.up = Linear(D, 2 * inner if self.facts.gated else inner, bias=bias and not self.facts.gated)
        self.down = Linear(inner, D, bias=bias)
        for name, norm in norms.items() if not self.facts.rotary else ():
            self.add_module(name, norm)

    def forward(self, x_MTD: Tensor, view: View, only: Tensor | None = None) -> Tensor:
        """`only` [K]: the result is [K, D], and the part after attention is computed only for those positions."""
        (M, T, D), (rotation, seen), config = x_MTD.shape, view, self.config
        rate = config.hidden_dropout_prob if self.training else 0.0
        attention = seen.of_layer(self.qkv, rate) if isinstance(seen, Relative) else seen
        normed_MTD = self.norm1(x_MTD) if self.facts.norm_first else x_MTD
        qkv, heads = self.qkv(normed_MTD).view(M, T, -1, config.head_width), config.num_attention_heads
        q, k, v = qkv.transpose(1, 2).split((heads, config.key_value_heads, config.key_value_heads), 1)
        if rotation:
            q, k = rotate(q, rotation), rotate(k, rotation)
        mixed_MHTh = attention.mix(q, k, v, config.attention_probs_dropout_prob if self.training else 0.0)
        mixed_MTD = mixed_MHTh.transpose(1, 2).reshape(M, T, D)
        if only is not None:
            x_MTD, mixed_MTD = x_MTD.flatten(0, 1)[only], mixed_MTD.flatten(0, 1)[only]
        x_MTD = x_MTD + dropout(self.out(mixed_MTD), self.out_dropout, self.training)
        if self.facts.norm_first:
            return x_MTD + self.inner(self.norm2(x_MTD))
        x_MTD = self.norm1(x_MTD)
        return self.norm2(x_MTD + self.inner(x_MTD))

    def inner(self, x: Tensor) -> Tensor:
        """The part after attention without its norm, [..., D] -> [..., D]."""
        inner = self.up(x)
        if self.facts.gated:
            value, gate = inner.chunk(2, -1)
            inner = (F.silu if self.facts.activation == "silu" else gelu)(value) * gate
        else:
            inner = gelu(inner)
        down = self.down(dropout(inner, self.inner_dropout, self.training))
        return dropout(down, self.down_dropout, self.training)


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotates each pair (x_i, x_{i + h/2}) of the last dimension by its position's angle."""
    cos, sin = rotation
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class EncoderNetwork(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.recompute = False
        """Whether layers compute their activations again in the backward pass instead of keeping them."""
        self.compiled = False
        """Whether torch compiles the layers."""
        self.by_mkl = False
        """Whether MKL computes the gradients of the layers' matrices."""
        D, facts = config.hidden_size, config.facts
        self.word = unset_table(config.padded_vocab_size, D)
        if config.learned_positions:
            self.position = unset_table(config.max_position_embeddings, D)
        if config.has_token_types:
            self.token_type = unset_table(config.type_vocab_size, D)
        self.norm = norm_of(config) if facts.norms_embeddings else nn.Identity()
        if facts.relative == "terms":
            self.relative, self.relative_norm = unset_table(2 * config.relative_span, D), norm_of(config)
        if facts.relative == "bias":
            self.relative = unset_table(config.position_buckets, config.num_attention_heads)
        self.layers = nn.ModuleList(Layer(config, first=i == 0) for i in range(config.num_hidden_layers))
        if config.conv_kernel_size:
            self.conv, self.conv_norm = nn.Conv1d(D, D, config.conv_kernel_size), norm_of(config)
        self.final_norm = norm_of(config) if facts.norm_first else nn.Identity()
        self.head = Head(config)

    def use_mkl(self) -> None:
        """Leaves the gradients of the layers' bf16 matrices to MKL (`linear.py`)."""
        self.by_mkl = True
        for part in self.layers.modules():
            if isinstance(part, Linear):
                part.use_mkl()

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        segments: Segments,
        predict_index: Tensor,
        targets: Targets | None = None,
    ) -> Tensor:
        """Logits [K, V], or [K, num_labels], at `predict_index` [K] of the flattened rows; with `targets`, their summed
        loss instead."""
        table, inputs = EmbeddingTable(self.word.weight), (input_ids, position_ids, segments)
        if self.config.pools:
            x_ND = self.encode(*inputs, table=table).flatten(0, 1)
            return self.head(x_ND, table, targets, shares_of_texts(position_ids, predict_index))
        if len(predict_index) < input_ids.numel():  # the last layer computes only those positions
            return self.head(self.encode(*inputs, predict_index, table), table, targets)
        return self.head(self.encode(*inputs, table=table).flatten(0, 1)[predict_index], table, targets)

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
        config = self.config
        x_MTD = self.norm(self.embedded(input_ids, position_ids, table or EmbeddingTable(self.word.weight)))
        if stride := config.token_type_stride:
            position_ids = position_ids % stride
        if config.token_dropout:
            x_MTD = without_masks(x_MTD, input_ids, position_ids, config)
        if config.facts.norms_embeddings:
            x_MTD = dropout(x_MTD, config.hidden_dropout_prob, self.training)
        embedded_MTD, views = x_MTD, self.views(position_ids, segments, x_MTD.dtype)
        for number, (layer, view) in enumerate(zip(self.layers, views, strict=True)):
            is_last, convolves = layer is self.layers[-1], number == 0 and config.conv_kernel_size
            # The convolution is added at every place, so its layer needs all of them.
            here = only if is_last and not convolves else None
            if self.recompute and not is_last:
                x_MTD = checkpoint(layer, x_MTD, view, use_reentrant=False)
            else:
                x_MTD = layer(x_MTD, view, here)
            if convolves and isinstance(segments, Tensor):
                out_MTD = convolved(self.conv, embedded_MTD, segments)
                x_MTD = self.conv_norm(x_MTD + gelu(dropout(out_MTD, config.hidden_dropout_prob, self.training)))
                x_MTD = x_MTD.flatten(0, 1)[only] if is_last and only is not None else x_MTD
        return self.final_norm(x_MTD)

    def embedded(self, input_ids: Tensor, position_ids: Tensor, table: EmbeddingTable) -> Tensor:
        """[M, T, D]: the embeddings of tokens, and of positions and token types if the model has such tables."""
        config, x_MTD = self.config, table.look_up(input_ids)
        if config.learned_positions:
            position_PD = self.position.weight
            if config.token_type_stride:
                position_PD = (self.token_type.weight[:, None] + position_PD).flatten(0, 1)
            elif config.has_token_types:
                position_PD = position_PD + self.token_type.weight[0]
            return x_MTD + EmbeddingTable(position_PD).look_up(position_ids + config.position_offset)
        if stride := config.token_type_stride:
            return x_MTD + EmbeddingTable(self.token_type.weight).look_up(position_ids // stride)
        return x_MTD + self.token_type.weight[0] if config.has_token_types else x_MTD

    def views(self, position_ids: Tensor, segments: Segments, dtype: torch.dtype) -> list[View]:
        """One view for each layer: layers that attend to everything share one, and local layers another."""
        config = self.config
        attention: Attention | Biased | Relative
        if config.facts.relative == "bias":
            assert isinstance(segments, Tensor)
            attention = Biased.of(config, segments, self.relative.weight)
        elif config.facts.relative == "terms":
            assert isinstance(segments, Tensor)
            attention = Relative.of(
                config, segments, dtype, lambda rows: self.relative_norm(self.relative.weight[rows])
            )
        else:
            attention = full_attention(segments, dtype, by_segment=not self.compiled)
        rotation = self.rotation(position_ids, config.rope_theta, dtype) if config.facts.rotary else None
        everywhere: View = rotation, attention
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
