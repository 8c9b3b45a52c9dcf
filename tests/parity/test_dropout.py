"""Dropout on a CPU, and the GELU of programs that are compiled for a GPU, beside torch's own."""

import pytest
import torch
import torch.nn.functional as F

from maskwright.data.loader import Loader
from maskwright.engines.base import TrainState
from maskwright.engines.torch.engine import TorchEngine
from maskwright.model.config import model_config
from maskwright.model.initial import initial_parameters
from maskwright.model.torch.dropout import dropout
from maskwright.model.torch.gelu import _Gelu


@pytest.mark.parametrize(("dtype", "rate"), [(torch.bfloat16, 0.1), (torch.float32, 0.1), (torch.bfloat16, 0.5)])
def test_dropout_zeroes_its_share_scales_the_rest_and_lets_no_other_gradient_through(dtype, rate):
    x = torch.randn(401, 1003, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    drawn = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        drawn.append(dropout(x, rate))
    found = drawn[0]
    assert torch.equal(found, drawn[1]) and not torch.equal(found, drawn[2])
    assert dropout(x, rate, training=False) is x and dropout(x, 0.0) is x
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


def test_dropout_is_drawn_by_seed_step_and_virtual_worker(store, config):
    """At a learning rate of 0, what differs between steps on the same batches is what was dropped."""
    run = config(**{"model.hidden_dropout": 0.5})
    shape, batches = model_config(run.model, store.vocabulary.size, 32), Loader(run, store).batches(0)

    def losses(seed, first):
        engine = TorchEngine(shape, run.optimizer, run.engine, seed=seed)
        engine.write(TrainState(first, initial_parameters(shape, 0)))
        return [float(engine.step(given, 0.0).loss_sum) for given in (batches, batches, batches[::-1])]

    drawn = losses(0, 0)
    assert losses(0, 0) == drawn and losses(0, 1)[0] == drawn[1]
    assert len({round(loss, 4) for loss in (*drawn, losses(0, 2)[0], losses(1, 0)[0])}) == 5


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-6), (torch.bfloat16, 2**-8)])
def test_the_gelu_by_polynomials_is_the_exact_one(dtype, tolerance):
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
