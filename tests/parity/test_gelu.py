"""The GELU of programs that are compiled for a GPU is torch's own, forward and backward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from maskwright.model.torch.gelu import _Gelu, normal_cdf


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-6), (torch.bfloat16, 2**-8)])
def test_the_gelu_by_polynomials_is_the_exact_one(dtype: torch.dtype, tolerance: float) -> None:
    """Within the rounding of fp32 on its way, and in bf16 within one unit in the last place."""
    x = torch.cat([torch.linspace(-30, 30, 600_001), torch.randn(100_000), torch.tensor([-1e30, 0.0, 1e30])]).to(dtype)
    gradient = torch.randn(len(x)).to(dtype)
    results = []
    for compute in (_Gelu.apply, F.gelu):
        taken = x.clone().requires_grad_()
        y = compute(taken)
        y.backward(gradient)
        assert taken.grad is not None and y.dtype == taken.grad.dtype == dtype
        results.append((y.detach().double(), taken.grad.double()))
    wide = x.double().requires_grad_()
    F.gelu(wide).backward(gradient.double())
    exact = F.gelu(wide.detach()), wide.grad
    for ours, torchs, true in zip(*results, exact, strict=True):
        scale = torch.ones_like(true) if dtype is torch.float32 else true.abs() + 1e-4
        off, theirs = ((found - true).abs() / (scale * x.double().abs().clamp(1.0)) for found in (ours, torchs))
        assert off.max() <= max(tolerance, float(theirs.max())), (float(off.max()), float(theirs.max()))


def test_phi_goes_from_nothing_to_one() -> None:
    x = torch.linspace(-40, 40, 100_001)
    phi = normal_cdf(x)
    assert phi[x < -5.4].eq(0).all() and phi[x > 5.4].eq(1).all() and torch.isfinite(phi).all()
    assert (phi - torch.special.ndtr(x.double())).abs().max() < 5e-7
