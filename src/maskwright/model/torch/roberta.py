"""RoBERTa (Liu et al. 2019) in torch, on one page; and XLM-RoBERTa, CamemBERT, BERT and DistilBERT, whose encoders are
the same except for the row of the first position and for token types, which DistilBERT lacks.

Learned positions, post-LayerNorm, exact GELU. Query, key and value are one matrix. The head (`heads.py`) runs on the
predicted positions only. This file is architecture only: precision, device and parallelism come from outside.

M rows, T tokens, D width, H heads, h width of a head, K predicted positions, V vocabulary (padded to a multiple of 64).
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from maskwright.model.config import ModelConfig
from maskwright.model.torch.attention import Attention, Segments, full_attention
from maskwright.model.torch.dropout import dropout
from maskwright.model.torch.embedding import EmbeddingTable, unset_table
from maskwright.model.torch.gelu import gelu
from maskwright.model.torch.heads import Head, logits_or_loss
from maskwright.model.torch.norm import Norm


class RobertaLayer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        D, eps = config.hidden_size, config.layer_norm_eps
        self.heads = config.num_attention_heads
        self.attention_dropout, self.dropout = config.attention_probs_dropout_prob, config.hidden_dropout_prob
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, config.intermediate_size), nn.Linear(config.intermediate_size, D)
        self.norm1, self.norm2 = Norm(D, eps), Norm(D, eps)

    def forward(self, x_MTD: Tensor, attention: Attention, only: Tensor | None = None) -> Tensor:
        """`only` [K]: the result is [K, D], and the part after attention is computed only for those positions."""
        M, T, D = x_MTD.shape
        q, k, v = self.qkv(x_MTD).view(M, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        mixed_MHTh = attention.mix(q, k, v, self.attention_dropout if self.training else 0.0)
        mixed_MTD = mixed_MHTh.transpose(1, 2).reshape(M, T, D)
        if only is not None:
            x_MTD, mixed_MTD = x_MTD.flatten(0, 1)[only], mixed_MTD.flatten(0, 1)[only]
        x_MTD = self.norm1(x_MTD + dropout(self.out(mixed_MTD), self.dropout, self.training))
        inner_MTD = self.down(gelu(self.up(x_MTD)))
        return self.norm2(x_MTD + dropout(inner_MTD, self.dropout, self.training))


class Roberta(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.recompute = False
        """Whether layers compute their activations again in the backward pass instead of keeping them."""
        self.compiled = False
        """Whether torch compiles the layers."""
        D = config.hidden_size
        self.word = unset_table(config.padded_vocab_size, D)
        self.position = unset_table(config.max_position_embeddings, D)
        if config.type_vocab_size:
            self.token_type = unset_table(config.type_vocab_size, D)
        self.norm = Norm(D, config.layer_norm_eps)
        self.layers = nn.ModuleList(RobertaLayer(config) for _ in range(config.num_hidden_layers))
        self.head = Head(config)

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
        position_PD, first = self.position.weight, self.config.position_offset
        if self.config.token_type_stride:
            position_PD = (self.token_type.weight[:, None] + position_PD).flatten(0, 1)
        elif self.config.type_vocab_size:
            position_PD = position_PD + self.token_type.weight[0]
        x_MTD = self.norm(table.look_up(input_ids) + EmbeddingTable(position_PD).look_up(position_ids + first))
        x_MTD = dropout(x_MTD, self.config.hidden_dropout_prob, self.training)
        view = full_attention(segments, x_MTD.dtype, by_segment=not self.compiled)
        for layer in self.layers[:-1]:
            x_MTD = checkpoint(layer, x_MTD, view, use_reentrant=False) if self.recompute else layer(x_MTD, view)
        return self.layers[-1](x_MTD, view, only)

    forward = logits_or_loss
