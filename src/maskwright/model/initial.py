"""The weights of step 0 of a run from scratch."""

from __future__ import annotations

import math

import numpy as np

from maskwright.core import storage
from maskwright.model.config import ModelConfig
from maskwright.model.hf.names import Parameters, pieces


def initial_parameters(config: ModelConfig, seed: int) -> Parameters:
    """RoBERTa's initialisation: matrices and embeddings normal(0, 0.02), pad rows and biases 0, LayerNorm 1 and 0. In
    modernbert, the matrices that write to the residual stream are smaller by the root of twice the layers, as in
    ModernBERT.

    Each parameter comes from its own key in numpy (Philox of the seed and the name), so that every engine and every
    order gets the same numbers.
    """
    result: Parameters = {}
    for piece in pieces(config):
        if piece.hf_name.endswith("bias"):
            value = np.zeros(piece.shape, np.float32)
        elif "norm" in piece.hf_name.lower():
            value = np.ones(piece.shape, np.float32)
        else:
            name_key = int.from_bytes(bytes.fromhex(storage.sha256_of(piece.hf_name)[:16]), "little")
            generator = np.random.Generator(np.random.Philox(key=np.array([seed, name_key], np.uint64)))
            std = config.initializer_range
            if not config.post_norm and piece.name.endswith((".out.weight", ".down.weight")):
                std /= math.sqrt(2 * config.num_hidden_layers)
            value = generator.standard_normal(piece.shape, np.float32) * np.float32(std)
        if piece.name in ("word.weight", "position.weight"):
            value[config.pad_token_id] = 0.0
        result[piece.hf_name] = value
    return result
