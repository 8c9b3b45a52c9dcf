"""The loss of masked language modelling, which on a CPU computes its gradient with it, in the place of the logits."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

POSITIONS_AT_ONCE, OF_SEVERAL_THREADS = 8, 256
"""With one thread, 8 positions' logits (of 50,304 tokens in fp32: 1.6 MB) stay in its core's cache between loss and
gradient. Several threads wait for each other after each operation, so theirs are fewer and larger."""


def cross_entropy_sum(logits_KV: Tensor, labels_K: Tensor, weights_K: Tensor) -> Tensor:
    """The sum of the cross-entropies times their weights, in fp32. It may overwrite logits that have a gradient.

    As plain operations, the whole logits are copied into fp32, and so are their log-probabilities and the gradients of
    both: nearly a third of a step of mini on a CPU."""
    # A compiler handles plain operations better, and a GPU does not wait for the copies. Small gradients vanish in fp16
    # unless the loss is scaled first, which only autograd's own functions handle.
    plain = torch.compiler.is_compiling() or logits_KV.dtype is torch.float16
    if logits_KV.device.type == "cpu" and logits_KV.requires_grad and not plain:
        return _CrossEntropySum.apply(logits_KV, labels_K, weights_K)
    return (F.cross_entropy(logits_KV.float(), labels_K, reduction="none") * weights_K).sum()


class _CrossEntropySum(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, logits_KV: Tensor, labels_K: Tensor, weights_K: Tensor) -> Tensor:
        aten, losses_K = torch.ops.aten, weights_K.new_empty(len(weights_K))
        rows = POSITIONS_AT_ONCE if torch.get_num_threads() == 1 else OF_SEVERAL_THREADS
        parts = (tensor.split(rows) for tensor in (logits_KV, labels_K, weights_K, losses_K))
        for logits, labels, weights, losses in zip(*parts, strict=True):
            log_probs = aten._log_softmax(logits.float(), 1, False)
            found, total = aten.nll_loss_forward(log_probs, labels, None, 0, -100)
            losses.copy_(found)
            gradient = aten.nll_loss_backward(weights, log_probs, labels, None, 0, -100, total)
            logits.copy_(aten._log_softmax_backward_data(gradient, log_probs, 1, torch.float32))
        context.save_for_backward(logits_KV)
        return (losses_K * weights_K).sum()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (towards,), (gradient_KV,) = gradients, context.saved_tensors
        return gradient_KV if towards == 1.0 else gradient_KV * towards, None, None
