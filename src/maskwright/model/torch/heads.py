"""What stands on an encoder in torch: the masked-LM head, or the classifiers as `transformers` has them.

K predicted positions, D width, V vocabulary (padded), C labels.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskwright.model.config import SEQUENCE_TASKS, ModelConfig, TaskKind


class Head(nn.Module):
    """Parameters before the output matrix, which is the embeddings for masked_lm and `classifier` for other tasks."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        D, roberta, masked_lm = config.hidden_size, config.architecture == "roberta", config.task == "masked_lm"
        self.dense = nn.Linear(D, D, bias=roberta)
        if masked_lm or not roberta:
            self.norm = nn.LayerNorm(D, config.layer_norm_eps, bias=roberta)
        if masked_lm:
            self.bias = nn.Parameter(torch.zeros(config.padded_vocab_size))


def add_head(network: nn.Module, config: ModelConfig) -> None:
    """RoBERTa's classifiers of tokens and of answers are one matrix alone."""
    if config.task in ("masked_lm", *SEQUENCE_TASKS) or config.architecture == "modernbert":
        network.head = Head(config)
    if config.task != "masked_lm":
        network.classifier = nn.Linear(config.hidden_size, config.num_labels)


def head_logits(network: Any, x_KD: Tensor) -> Tensor:
    """[K, D] hidden states -> [K, V] or [K, C]."""
    config = network.config
    if config.task == "masked_lm":
        return F.linear(network.head.norm(F.gelu(network.head.dense(x_KD))), network.word.weight, network.head.bias)
    rate, training = config.classifier_dropout_prob, network.training
    if config.architecture == "modernbert":
        x_KD = network.head.norm(F.gelu(network.head.dense(x_KD)))
    elif config.task in SEQUENCE_TASKS:
        x_KD = torch.tanh(network.head.dense(F.dropout(x_KD, rate, training)))
    return network.classifier(F.dropout(x_KD, rate, training))


def loss_sum(task: TaskKind, logits: Tensor, labels: Tensor, weights: Tensor, smoothing: float = 0.0) -> Tensor:
    """Weighted sum of the losses in fp32; the caller divides it once, by the global weight.

    task                          logits    labels             weights  loss
    masked_lm and classification  [K, C]    int64 [K]          [K]      cross-entropy with label smoothing
    multi_label_classification    [K, C]    fp32 [K, C]        [K]      mean of the binary cross-entropies
    regression                    [K, C]    fp32 [K, C]        [K]      mean squared error
    question_answering            [M*T, 2]  int64 [M, 2]       [M]      mean of both cross-entropies over a row
    """
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
