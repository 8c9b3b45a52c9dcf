"""Dropout on a CPU, beside the obvious way with torch's own numbers."""

from __future__ import annotations

import pytest
import torch

from maskwright.model.torch.dropout import dropout


@pytest.mark.parametrize(("dtype", "rate"), [(torch.bfloat16, 0.1), (torch.float32, 0.1), (torch.bfloat16, 0.5)])
def test_dropout_zeroes_its_share_scales_the_rest_and_lets_no_other_gradient_through(
    dtype: torch.dtype, rate: float
) -> None:
    x = torch.randn(401, 1003, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    torch.manual_seed(3)
    found = dropout(x, rate)
    kept = found != 0
    share = kept.double().mean().item()
    spread = (rate * (1 - rate) / x.numel()) ** 0.5
    assert abs(share - (1 - rate)) < 4 * spread
    for axis in (0, 1):  # no row and no column, nor its neighbours, fall together
        shares = kept.double().mean(axis)
        assert (shares - (1 - rate)).abs().max() < 6 * (rate * (1 - rate) / x.shape[axis]) ** 0.5
        pairs = (kept.double() - share) * (kept.roll(1, axis).double() - share)
        assert pairs.mean().abs() < 5 * rate * (1 - rate) / x.numel() ** 0.5
    scale = torch.tensor(1 / (1 - rate)).to(dtype)
    assert torch.equal(found[kept], (x * scale)[kept])
    found.float().sum().backward()
    assert torch.equal(x.grad, kept.to(dtype) * scale)


def test_dropout_depends_on_the_seed_and_stops_where_it_should() -> None:
    x = torch.ones(64, 65)
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        drawn.append(dropout(x, 0.3))
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert dropout(x, 0.3, training=False) is x and dropout(x, 0.0) is x
