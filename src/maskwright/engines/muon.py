"""The constants of Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon), the same in every engine."""

from __future__ import annotations

from functools import cache

from maskwright.model.config import ModelConfig
from maskwright.model.hf.names import pieces

HIDDEN_ROLES = (
    "qkv.weight",
    "out.weight",
    "head.dense.weight",
    "up.weight",
    "down.weight",
    "head.first.weight",
    "head.second.weight",
)
"""Endings of the inner names of hidden matrices, with square matrices next to each other, and wide ones too."""
NEWTON_SCHULZ = (
    (8.4267878, -24.9361340, 18.4924929),
    (4.0709380, -2.9691611, 0.5470486),
    (3.6777917, -2.6964204, 0.5165879),
    (2.4789658, -1.8125135, 0.3969046),
)
"""a, b and c of each iteration's odd quintic, of least error together over singular values from 0.002 to 1 (Amsel et
al. 2025, arXiv 2505.16932, algorithm 1), with 1 % of room for rounding from the second on. The last is 0.9 times that,
so that updates are as large as by five iterations of one quintic (3.4445, -4.7750, 2.0315; Jordan et al.), which
learned no more in 5/4 of the time (records/experiments.md). Singular values from 0.002 on end in 0.6 to 1.2."""
ROOM = 1.01
"""By how much the first iteration's singular values stay below 1, for rounding."""
UPDATE_RMS = 0.2
"""A Muon update is scaled to about this root mean square, AdamW's usual one, so that both need the same learning rate
and decay (Liu et al. 2025, arXiv 2502.16982, section 2.2)."""
GROWTH = 4.1
"""Successive updates point in similar directions, so weights grow this many times as much as by independent updates.
Measured with momentum 0.95: 4.1 to 4.3 in three runs (records/experiments.md)."""
INITIAL_RMS, LARGE_RMS = 0.02, 0.08
"""Root mean square of the matrices at the start, and the value above which fine-tuning is poor
(docs/experiments.md)."""


def rows_of_matrices(role: str, rows: int, width: int, inner: int) -> list[int]:
    """Rows of each matrix that is moved by itself, of a weight of so many `rows` that ends in `role`: query, key and
    value, or both halves of a gated layer, whose width is `inner`."""
    if role == "qkv.weight":
        of_keys = (rows - width) // 2
        return [width, of_keys, of_keys]
    return [inner] * (rows // inner) if role == "up.weight" else [rows]


@cache
def products_flops(model: ModelConfig) -> float:
    """FLOPs of the products of matrices in an update, on all ranks together. In each iteration, a matrix x of r x c,
    r <= c, is multiplied with its transpose (2 r^2 c), their product with itself (2 r^3), and the sum of both with x
    (2 r^2 c)."""
    rows_of, columns_of = dict[str, int](), dict[str, int]()
    for piece in pieces(model):
        if piece.name.endswith(HIDDEN_ROLES):
            rows_of[piece.name], columns_of[piece.name] = piece.rows.stop, piece.shape[1]  # pieces come in order
    products = 0.0
    for name, rows in rows_of.items():
        role = next(role for role in HIDDEN_ROLES if name.endswith(role))
        for each in rows_of_matrices(role, rows, columns_of[name], model.intermediate_size):
            r, c = sorted((each, columns_of[name]))
            products += 2.0 * r**2 * (2 * c + r)
    return len(NEWTON_SCHULZ) * products
