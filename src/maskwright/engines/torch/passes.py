"""A batch on the device, and its passes through the network there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from maskwright.data.batch import Batch
from maskwright.engines.torch.graphs import Graphs
from maskwright.engines.torch.loss_scale import LossScale
from maskwright.engines.torch.sparse_rows import Weights
from maskwright.model.config import ModelConfig
from maskwright.model.torch.attention import CuSeqlens, Segments, cu_seqlens_of, packed, takes_cu_seqlens
from maskwright.model.torch.encoder import EncoderNetwork
from maskwright.model.torch.heads import Targets

PREDICTIONS_MULTIPLE = 64
"""Of the predictions of a micro-batch in compiled layers on CUDA. Products of other sizes are slow there; torch would
pad them depending on a measurement, which no exact run may do."""


class Passes:
    """`label_smoothing`: of training. `loss_scale`: in fp16. `fills_up`: whether predictions come to a multiple of
    `PREDICTIONS_MULTIPLE`."""

    def __init__(
        self,
        network: EncoderNetwork,
        weights: Weights,
        dtype: torch.dtype,
        *,
        label_smoothing: float = 0.0,
        loss_scale: LossScale | None = None,
        fills_up: bool = False,
    ) -> None:
        self.network, self._weights, self._dtype = network, weights, dtype
        self._label_smoothing, self._loss_scale = label_smoothing, loss_scale
        self.fills_up = fills_up
        self._device = next(network.parameters()).device

    def forward(self, batch: Batch, targets: Targets | None = None) -> Tensor:
        """Logits at the predicted positions; with `targets`, their loss sum instead."""
        return cast(Tensor, self.network(*self._inputs(batch), targets))

    def backward(self, batch: Batch, graphs: Graphs | None) -> Tensor:
        """Moves the gradient into its sum of `weights.gradients`, by a graph of `graphs` unless they are None; returns
        the loss sum."""
        if self.fills_up:
            batch = batch.filled_up(PREDICTIONS_MULTIPLE)
        targets = self.targets(batch, self._label_smoothing)
        if graphs:
            return self._by_graph(graphs, batch, targets)
        return self._backward(self.forward(batch, targets))

    def _backward(self, loss: Tensor) -> Tensor:
        (loss * self._loss_scale.factor if self._loss_scale else loss).backward()
        self._weights.gradients.take()
        return loss.detach()

    def _by_graph(self, graphs: Graphs, batch: Batch, targets: Targets) -> Tensor:
        ids, positions, segments, index = self._inputs(batch)
        packs = (segments.longest, segments.causal) if isinstance(segments, CuSeqlens) else None
        offsets = segments.offsets if isinstance(segments, CuSeqlens) else segments

        def compute(tensors: Sequence[Tensor]) -> Tensor:
            ids, positions, offsets, index, labels, weights = tensors
            segments = offsets if packs is None else packed(offsets, packs[0], causal=packs[1])
            smoothed = Targets(labels, weights, targets.smoothing)
            return self._backward(self.network(ids, positions, segments, index, smoothed))

        key = (packs, targets.smoothing, self.network.config.rope_theta, self._weights.gradients.place)
        return graphs.loss(key, (ids, positions, offsets, index, *targets[:2]), compute)

    def targets(self, batch: Batch, smoothing: float = 0.0) -> Targets:
        labels, weights = put(batch.labels, self._device), put(batch.weights, self._device)
        return Targets(labels if labels.is_floating_point() else labels.long(), weights, smoothing)

    def _inputs(self, batch: Batch) -> tuple[Tensor, Tensor, Segments, Tensor]:
        """The network's inputs, on the device."""
        ids, positions, segments, index = inputs(batch, self.network.config, self._device, self._dtype)
        return self._weights.look_up(ids, training=self.network.training), positions, segments, index


def inputs(
    batch: Batch, config: ModelConfig, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Segments, Tensor]:
    """A batch's ids, position ids, segments and predicted positions on the device, for a network that multiplies in
    `dtype`."""
    width = config.hidden_size // config.num_attention_heads
    of_one_kind = batch.causal is not None or not batch.reads_causally
    segments: Segments
    if of_one_kind and not config.facts.relative and takes_cu_seqlens(device, dtype, width):
        offsets = put(cu_seqlens_of(batch.segment_ids), device)
        segments = packed(offsets, batch.segment_ids.shape[1], causal=bool(batch.causal))
    else:
        segments = put(batch.segment_ids, device)
    return put(batch.input_ids, device), put(batch.position_ids, device), segments, put(batch.predict_index, device)


def put(array: np.ndarray, device: torch.device) -> Tensor:
    tensor, on_cuda = torch.from_numpy(array), device.type == "cuda"
    # From ordinary memory, a copy to a CUDA device waits for it.
    return (tensor.pin_memory() if on_cuda else tensor).to(device, non_blocking=on_cuda)
