"""Dropout on a CPU, beside the obvious way with torch's own numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from maskwright.config.pretraining import RunConfig
from maskwright.data.loader import Loader
from maskwright.data.store import TokenStore
from maskwright.engines.base import TrainState
from maskwright.engines.torch.engine import TorchEngine
from maskwright.model.config import model_config
from maskwright.model.initial import initial_parameters
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


def test_dropout_is_drawn_by_seed_step_and_virtual_worker(store: TokenStore, config: Callable[..., RunConfig]) -> None:
    """At a learning rate of 0, what differs between steps on the same batches is what was dropped."""
    run = config(**{"model.hidden_dropout": 0.5})
    shape, batches = model_config(run.model, store.vocabulary.size, 32), Loader(run, store).batches(0)

    def losses(seed: int, first: int) -> list[float]:
        engine = TorchEngine(shape, run.optimizer, run.engine, seed=seed)
        engine.write(TrainState(first, initial_parameters(shape, 0)))
        return [float(engine.step(given, 0.0).loss_sum) for given in (batches, batches, batches[::-1])]

    drawn = losses(0, 0)
    assert losses(0, 0) == drawn and losses(0, 1)[0] == drawn[1]
    assert len({round(loss, 4) for loss in (*drawn, losses(0, 2)[0], losses(1, 0)[0])}) == 5
