"""Pooled last hidden states: one vector for each text."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from maskwright.data.batch import Batch
from maskwright.model.config import ModelConfig
from maskwright.model.hf.names import Parameters
from maskwright.model.torch.networks import build

Pool = Callable[[Batch], NDArray[np.float32]]


def pooler(config: ModelConfig, parameters: Parameters, device: str, of_first_token: bool = False) -> Pool:
    """Makes the function from a batch, whose `predict_index` names the first token of each text, to fp32 [K, D]: that
    token's state, or the mean over all tokens of its segment, special ones included. These are two poolings of
    `sentence-transformers`."""
    network = build(config, parameters, device, bare=True)

    @torch.no_grad()
    def pooled(batch: Batch) -> NDArray[np.float32]:
        ids, positions, segments, index = (
            torch.from_numpy(array).long().to(device)
            for array in (batch.input_ids, batch.position_ids, batch.segment_ids, batch.predict_index)
        )
        hidden_MTD = network.encode(ids, positions, segments)
        if of_first_token:
            return hidden_MTD.flatten(0, 1)[index].float().cpu().numpy()
        most = int(segments.max()) + 1
        key = (segments + most * torch.arange(len(segments), device=device)[:, None]).flatten()
        sums = torch.zeros(len(segments) * most, hidden_MTD.shape[-1], device=device)
        sums.index_add_(0, key, hidden_MTD.flatten(0, 1))
        counts = torch.bincount(key, minlength=len(sums))[:, None]
        segment_of_text = key[index]
        return (sums[segment_of_text] / counts[segment_of_text]).cpu().numpy()

    return pooled
