"""The weights of step 0 of a run from scratch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from maskwright.core import storage
from maskwright.model.config import ModelConfig
from maskwright.model.hf.names import Parameters, pieces

CUT_OFF = 2.0
"""ModernBERT's `initializer_cutoff_factor`, in standard deviations."""
LAST_MATRIX = ("classifier.", "qa_outputs.")
"""Beginning of the name of the matrix whose rows are the labels."""


def initial_parameters(config: ModelConfig, seed: int) -> Parameters:
    """RoBERTa's initialisation: matrices and embeddings normal(0, 0.02), pad rows and biases 0, LayerNorm 1 and 0. In
    modernbert, the matrices that write to the residual stream are smaller by the root of twice the layers, as in
    ModernBERT. Its heads for fine-tuning are drawn with a cut-off, as in its classes of `transformers`: the dense
    matrix like the residual stream's, the last matrix with one over the root of the width.

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
            draw = _cut_off if _is_modernberts_head(config, piece.name) else _normal
            value = draw(generator, piece.shape) * np.float32(_std(config, piece.name))
        if piece.name == "word.weight" or (piece.name == "position.weight" and config.position_offset):
            value[config.pad_token_id] = 0.0
        result[piece.hf_name] = value
    return result


def with_new_head(
    config: ModelConfig, parameters: Parameters, seed: int, *, rows: Sequence[int] | None = None
) -> Parameters:
    """The encoder of `parameters` with a head for `config.task` that begins from `initial_parameters`. Tensors of the
    head in `parameters` are kept if they fit, the matrix of the labels only if its `rows` are given, in their new
    order."""
    result = initial_parameters(config, seed)
    for name, value in result.items():
        if name in parameters and parameters[name].shape == value.shape and (rows is not None or not _is_last(name)):
            result[name] = parameters[name][[*rows]] if rows and _is_last(name) else parameters[name]
    return result


def with_outputs(parameters: Parameters, factor: float, shift: float) -> Parameters:
    """The parameters of a head whose outputs are `factor` times as large, and then larger by `shift`."""
    result = dict(parameters)
    for name in filter(_is_last, parameters):
        scaled = parameters[name].astype(np.float64) * factor
        result[name] = (scaled + shift if name.endswith("bias") else scaled).astype(np.float32)
    return result


def bias_of_outputs(parameters: Parameters) -> str:
    """The name of the bias of the last layer, which gives a model's outputs."""
    return next(name for name in filter(_is_last, parameters) if name.endswith("bias"))


def _is_last(name: str) -> bool:
    return name.startswith(LAST_MATRIX) and not name.startswith("classifier.dense.")


def _std(config: ModelConfig, name: str) -> float:
    """Standard deviation before a cut-off."""
    if _is_modernberts_head(config, name) and name.startswith("head.classifier."):
        return float(config.hidden_size**-0.5)
    to_stream = name.endswith((".out.weight", ".down.weight")) or _is_modernberts_head(config, name)
    if to_stream and config.architecture == "modernbert":
        return config.initializer_range / math.sqrt(2 * config.num_hidden_layers)
    return config.initializer_range


def _is_modernberts_head(config: ModelConfig, name: str) -> bool:
    """Whether the parameter is part of ModernBERT's head for fine-tuning."""
    return config.facts.classifier_has_norm and config.task != "masked_lm" and name.startswith("head.")


def _normal(generator: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    return generator.standard_normal(shape, np.float32)


def _cut_off(generator: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Draws from normal(0, 1) within `CUT_OFF`: numbers outside are drawn again."""
    numbers = _normal(generator, shape)
    while (outside := np.abs(numbers) > CUT_OFF).any():
        numbers[outside] = _normal(generator, (int(outside.sum()),))
    return numbers
