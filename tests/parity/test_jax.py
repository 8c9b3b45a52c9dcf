"""The JAX engine is the torch engine's twin: every option, within 1e-5 in fp32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

jax = pytest.importorskip("jax", reason="needs the extra jax")

from parity.test_transformers import SHAPES, inputs, ours_forward, random_parameters  # noqa: E402
from reference import parity  # noqa: E402
from reference.parity_rows import ROWS  # noqa: E402

from maskwright.core.config import RunConfig  # noqa: E402
from maskwright.data.store import TokenStore  # noqa: E402
from maskwright.model.config import NEVER_PREDICTED  # noqa: E402
from maskwright.model.jax import networks  # noqa: E402
from maskwright.model.torch.heads import loss_sum  # noqa: E402
from maskwright.model.torch.networks import build, extract  # noqa: E402

parity.use_virtual_devices()


QUICK = ("roberta with dropout, another seed", "muon, modernbert")
"""Both architectures and optimizers; all rows are compared with --long."""


@pytest.mark.parametrize("row", [row if row in QUICK else pytest.param(row, marks=pytest.mark.long) for row in ROWS])
def test_torch_and_jax_give_the_same_numbers(store: TokenStore, config: Callable[..., RunConfig], row: str) -> None:
    found = parity.compare(store, config, ROWS[row])
    assert found.largest < parity.TOLERANCE, found


@pytest.mark.parametrize("kind", list(SHAPES))
def test_every_family_has_the_same_loss_and_gradients_in_jax(kind: str) -> None:
    """On rows as long as the model takes; torch's are held to those of transformers."""
    config, parameters = SHAPES[kind], random_parameters(SHAPES[kind])
    ids, real, labels = inputs(config.max_seq_len, pad=config.pad_token_id)
    index = (labels.reshape(-1) != -100).nonzero()[:, 0]
    truth = labels.reshape(-1)[index]
    network = build(config, parameters)
    logits_KV = ours_forward(network, ids, real, index)
    wanted = loss_sum("masked_lm", logits_KV, truth, torch.ones(len(index))) / len(index)
    wanted.backward()
    places = np.broadcast_to(np.arange(config.max_seq_len, dtype=np.int32), ids.shape)
    batch = [ids.numpy().astype(np.int32), places, real.numpy().astype(np.int32), index.numpy()]

    def loss(weights: networks.Weights) -> jax.Array:
        logits = networks.logits(weights, config, *batch, gather=lambda _, array: array, way="dense")
        return networks.losses("masked_lm", logits, truth.numpy()).mean()

    stacked = networks.stack(parameters, config, NEVER_PREDICTED)
    found, gradients = jax.jit(jax.value_and_grad(loss))({name: jax.numpy.asarray(a) for name, a in stacked.items()})
    assert float(found) == pytest.approx(float(wanted.detach()), rel=1e-6)
    ours = networks.unstack({name: np.asarray(array) for name, array in gradients.items()}, config)
    theirs = extract({name: p.grad for name, p in network.named_parameters()}, config)
    for name, gradient in theirs.items():
        assert np.abs(gradient - ours[name]).max() <= 1e-5 * max(1.0, np.abs(gradient).max()), name
