"""Code that all architectures share in torch: making a network, its parameters in and out."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from maskwright.model.config import NEVER_PREDICTED, ModelConfig
from maskwright.model.hf.names import OF_VOCABULARY, Parameters, pieces
from maskwright.model.torch.encoder import EncoderNetwork


@torch.no_grad()
def assign(named: dict[str, Tensor], parameters: Parameters, config: ModelConfig, padding: float = 0.0) -> None:
    """Copies arrays under Hugging Face names into the tensors of `named`, which are under inner names.

    `padding` fills the padded rows of the head's bias: `NEVER_PREDICTED` for weights, 0 for optimizer moments.
    """
    for name in OF_VOCABULARY & set(named):
        named[name][config.vocab_size :] = padding if name == "head.bias" else 0.0
    for piece in pieces(config):
        if piece.name not in named:
            continue
        value = torch.from_numpy(np.ascontiguousarray(parameters[piece.hf_name]))
        named[piece.name][piece.rows].copy_(value)


def extract(named: dict[str, Tensor], config: ModelConfig) -> Parameters:
    """The reverse of `assign`: fp32 copies under Hugging Face names."""
    return {
        piece.hf_name: named[piece.name][piece.rows].detach().to("cpu", torch.float32, copy=True).numpy()
        for piece in pieces(config)
        if piece.name in named
    }


def make_network(config: ModelConfig, device: str = "cpu") -> EncoderNetwork:
    """A network whose weights are not yet assigned."""
    with torch.device("meta"):
        network = EncoderNetwork(config)
    for module in network.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            # As `to_empty` does, which imports sympy on the way: 0.6 s.
            setattr(module, name, torch.nn.Parameter(torch.empty(parameter.shape, device=device)))
    return network


@torch.no_grad()
def logits_at(config: ModelConfig, parameters: Parameters, ids: list[int], places: list[int]) -> NDArray[np.float32]:
    """fp32 logits [places, vocab_size] of one row of `ids`, on the CPU."""
    row = torch.tensor([ids])
    positions = torch.arange(len(ids))[None]
    logits = build(config, parameters)(row, positions, torch.ones_like(row), torch.tensor(places))
    return logits[:, : config.vocab_size].numpy()


def build(config: ModelConfig, parameters: Parameters, device: str = "cpu", *, bare: bool = False) -> EncoderNetwork:
    """An fp32 model in evaluation mode. `bare`: for `encode` alone, so `parameters` need no head."""
    network = make_network(config, device).eval()
    named = network.named_parameters()
    filled: dict[str, Tensor] = {name: one for name, one in named if not (bare and name.startswith("head."))}
    assign(filled, parameters, config, NEVER_PREDICTED)
    return network
