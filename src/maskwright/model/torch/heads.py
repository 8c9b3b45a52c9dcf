"""Heads on an encoder in torch: the masked-LM head, or the classifiers as in `transformers`.

K predicted positions, D width, V vocabulary (padded), C labels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskwright.model.config import NEVER_PREDICTED, ModelConfig, TaskKind
from maskwright.model.torch.cross_entropy import cross_entropy_sum
from maskwright.model.torch.dropout import dropout
from maskwright.model.torch.embedding import EmbeddingTable, unset_table
from maskwright.model.torch.gelu import gelu
from maskwright.model.torch.norm import Norm

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "relu": torch.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


class Targets(NamedTuple):
    """Inputs of a micro-batch's loss, except logits; `loss_sum` lists the shapes."""

    labels: Tensor
    weights: Tensor
    smoothing: float = 0.0


class Head(nn.Module):
    """A head. Its output matrix is the embeddings for masked_lm, or `decoder` in EuroBERTs, and `classifier` for other
    tasks. For tokens and answers the classifier reads the hidden states directly; ModernBERT alone has its dense layer
    there too."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        D, masked_lm = config.hidden_size, config.task == "masked_lm"
        has_norm = config.facts.masked_lm_transforms if masked_lm else config.facts.classifier_has_norm
        if has_norm or config.classifier_has_dense:
            self.dense = nn.Linear(D, D, bias=config.facts.norms_biased or not has_norm)
        if has_norm:
            self.norm = Norm(D, config.layer_norm_eps, bias=config.facts.norms_biased)
        if masked_lm and config.head_hidden_size:
            self.first = nn.Linear(D, config.head_hidden_size, bias=False)
            self.second = nn.Linear(config.head_hidden_size, D, bias=False)
        if masked_lm and not config.tie_word_embeddings:
            self.decoder = unset_table(config.padded_vocab_size, D)
        if masked_lm and has_norm:
            self.bias = nn.Parameter(torch.zeros(config.padded_vocab_size))
        if not masked_lm:
            self.classifier = nn.Linear(D, config.num_labels)

    def forward(
        self, x_KD: Tensor, table: EmbeddingTable, targets: Targets | None = None, shares_KN: Tensor | None = None
    ) -> Tensor:
        """[K, D] hidden states -> logits [K, V] or [K, C]; with `targets`, their `loss_sum` instead. `shares_KN`:
        shares of all N tokens in K texts (`shares_of_texts`); the states are then [N, D].

        One compiled program reads the logits of a loss unchanged. Alone, the loss would make fp32 copies of them: 18 GB
        of traffic a step, for 10,000 predictions of 50,304 tokens."""
        late = self.config.classifier_pooling == "late"
        if shares_KN is not None and not late:
            x_KD = _means(shares_KN, x_KD)
        logits = self._logits(x_KD, table)
        if shares_KN is not None and late:
            logits = _means(shares_KN, logits)
        return logits if targets is None else loss_sum(self.config.task, logits, *targets)

    def _logits(self, x_KD: Tensor, table: EmbeddingTable) -> Tensor:
        if self.config.task == "masked_lm":
            return self._of_vocabulary(x_KD, table)
        rate = self.config.classifier_dropout_prob
        if self.config.facts.classifier_has_norm:
            x_KD = self.norm(gelu(self.dense(x_KD)))
        elif self.config.classifier_has_dense:
            x_KD = self.dense(dropout(x_KD, rate if self.config.facts.classifier_drops_twice else 0.0, self.training))
            x_KD = ACTIVATIONS[self.config.facts.classifier_activation](x_KD)
        x_KD = dropout(x_KD, rate, self.training)
        if self.config.task == "regression":  # in bf16, 150 numbers had 53 values: Spearman 0.864 for 0.836
            return F.linear(x_KD.float(), self.classifier.weight.float(), self.classifier.bias.float())
        return self.classifier(x_KD)

    def _of_vocabulary(self, x_KD: Tensor, table: EmbeddingTable) -> Tensor:
        if self.config.facts.masked_lm_transforms:
            active = ACTIVATIONS[self.config.facts.masked_lm_activation]
            return table.product(self.norm(active(self.dense(x_KD))), self.bias)
        if self.config.head_hidden_size:
            for linear in (self.first, self.second):
                x_KD = F.gelu(linear(x_KD), approximate="tanh")
        bias, V = None, self.config.vocab_size
        if (padded := self.config.padded_vocab_size) > V:
            beyond = torch.arange(padded, device=x_KD.device) >= V
            bias = x_KD.new_zeros(padded).masked_fill(beyond, NEVER_PREDICTED)
        if self.config.tie_word_embeddings:
            return table.product(x_KD, bias)
        return F.linear(x_KD, self.decoder.weight, bias)


def shares_of_texts(position_ids: Tensor, first_K: Tensor) -> Tensor:
    """[M, T] places in a text, 0 at its first token and at padding, and the flat indices [K] of first tokens -> fp32
    [K, M * T]: 1 over a text's number of tokens at each of them, 0 at all others."""
    begin_N = torch.arange(position_ids.numel(), device=position_ids.device) - position_ids.flatten()
    holds_KN = (begin_N == first_K[:, None]).float()
    return holds_KN / holds_KN.sum(1, keepdim=True)


def _means(shares_KN: Tensor, x_NC: Tensor) -> Tensor:
    return (shares_KN @ x_NC.float()).to(x_NC.dtype)


def loss_sum(task: TaskKind, logits: Tensor, labels: Tensor, weights: Tensor, smoothing: float = 0.0) -> Tensor:
    """Weighted sum of the losses in fp32; the caller divides it once, by the global weight. A masked_lm's logits are
    used up (`cross_entropy_sum`).

    task                          logits    labels             weights  loss
    masked_lm and classification  [K, C]    int64 [K]          [K]      cross-entropy with label smoothing
    multi_label_classification    [K, C]    fp32 [K, C]        [K]      mean of the binary cross-entropies
    regression                    [K, C]    fp32 [K, C]        [K]      mean squared error
    question_answering            [M*T, 2]  int64 [M, 2]       [M]      mean of both cross-entropies over a row
    """
    # Smoothing would give the vocabulary's padding a share, whose logits are NEVER_PREDICTED: -1e9, and -inf in fp16.
    assert not (smoothing and task == "masked_lm"), "no label smoothing over a padded vocabulary"
    if task == "masked_lm":
        return cross_entropy_sum(logits, labels, weights)
    logits = logits.float()
    if task == "multi_label_classification":
        losses = F.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(-1)
    elif task == "regression":
        losses = F.mse_loss(logits, labels, reduction="none").mean(-1)
    elif task == "question_answering":
        both = logits.view(len(labels), -1, 2).transpose(1, 2)
        losses = F.cross_entropy(both.flatten(0, 1), labels.flatten(), reduction="none").view(-1, 2).mean(-1)
    else:
        losses = F.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
    return (losses * weights).sum()
