"""Groups of parameters that an optimizer treats equally, in every engine: decayed or not, and at which rate."""

from __future__ import annotations


def is_decayed(dims: int) -> bool:
    """Whether a parameter is decayed: matrices are, vectors (biases, gains of norms) are not. `dims`: of one layer."""
    return dims >= 2


def rate_scale(name: str, layer: int | None, layers: int, layer_decay: float) -> float:
    """Factor of the learning rate by inner name: 1 for the head and the last norm, `layer_decay` for the highest layer,
    its square for the next, and so on down; the embeddings have one power more than the lowest (Clark et al. 2020,
    ELECTRA, as in BEiT and others)."""
    if name.startswith(("head.", "final_norm.")):
        return 1.0
    return layer_decay ** (layers - (-1 if layer is None else layer))
