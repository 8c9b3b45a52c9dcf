"""Pooled last hidden states: one vector for each text."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from maskwright.data.batch import Batch
from maskwright.engines.torch.passes import inputs, put
from maskwright.engines.torch.prepare import choose_dtype
from maskwright.model.config import ModelConfig
from maskwright.model.hf.names import Parameters
from maskwright.model.torch.networks import build

Pool = Callable[[Batch], NDArray[np.float32]]


def pooler(
    config: ModelConfig, parameters: Parameters, device: str, of_first_token: bool = False, precision: str = "fp32"
) -> Pool:
    """Makes the function from a batch, whose `predict_index` names the first token of each text, to fp32 [K, D]: that
    token's state, or the mean over all tokens of its segment, special ones included. These are two poolings of
    `sentence-transformers`. `precision`: of the layers, named as in `engine.dtype`."""
    dtype, place = choose_dtype(precision, device), torch.device(device)
    network = build(config, parameters, device, bare=True).to(dtype)

    @torch.no_grad()
    def pooled(batch: Batch) -> NDArray[np.float32]:
        ids, positions, packs, index = inputs(batch, config, place, dtype)
        hidden_MTD, segments = network.encode(ids, positions, packs).float(), put(batch.segment_ids, place)
        if of_first_token:
            return hidden_MTD.flatten(0, 1)[index].cpu().numpy()
        most = int(segments.max()) + 1
        key = (segments + most * torch.arange(len(segments), device=device)[:, None]).flatten()
        sums = torch.zeros(len(segments) * most, hidden_MTD.shape[-1], device=device)
        sums.index_add_(0, key, hidden_MTD.flatten(0, 1))
        counts = torch.bincount(key, minlength=len(sums))[:, None]
        segment_of_text = key[index]
        return (sums[segment_of_text] / counts[segment_of_text]).cpu().numpy()

    return pooled
