"""The JAX engine is the torch engine's twin: every option, within 1e-5 in fp32."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

jax = pytest.importorskip("jax", reason="needs the extra jax")

from parity.test_transformers import SHAPES, inputs, ours_forward, random_parameters  # noqa: E402
from reference import parity  # noqa: E402
from reference.parity_rows import ROWS  # noqa: E402

from maskwright.config.pretraining import Optimizer  # noqa: E402
from maskwright.engines.jax import optimizers as optimizers_jax  # noqa: E402
from maskwright.engines.jax.engine import JaxEngine  # noqa: E402
from maskwright.engines.torch import optimizers as optimizers_torch  # noqa: E402
from maskwright.engines.torch.shares import FlatOrder  # noqa: E402
from maskwright.model.config import NEVER_PREDICTED  # noqa: E402
from maskwright.model.jax import networks  # noqa: E402
from maskwright.model.torch.heads import loss_sum  # noqa: E402
from maskwright.model.torch.networks import build, extract  # noqa: E402

parity.use_virtual_devices()


QUICK = ("roberta with dropout, another seed", "muon, modernbert")
"""Both architectures and optimizers; all rows are compared with --long."""


@pytest.mark.parametrize("row", [row if row in QUICK else pytest.param(row, marks=pytest.mark.long) for row in ROWS])
def test_torch_and_jax_give_the_same_numbers(store, config, row):
    own = row == "roberta" or any(key.startswith(("optimizer.", "engine.")) for key in ROWS[row])
    found = parity.compare(store, config, ROWS[row], updates=own)  # others have the updates of the first row
    assert found.largest < parity.TOLERANCE, found


@pytest.mark.long
@pytest.mark.parametrize("kind", ["ultrabert", "nomic_bert"])
def test_an_update_by_muon_of_grouped_queries_and_of_a_head_is_that_of_torch(config, kind):
    """Keys and values have fewer rows than queries; each is moved by itself. NomicBERT has token types beside them."""
    run = config(**{"optimizer.kind": "muon", "engine.kind": "jax", "engine.dtype": "fp32"})
    engine = JaxEngine(SHAPES[kind], run.optimizer, run.engine, seed=0)
    assert parity.updates_apart(run, SHAPES[kind], engine.program) < parity.TOLERANCE


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_orthogonal_updates_are_those_of_torch(dtype):
    """In bf16, whose coefficients would be off by 0.4 %, the least singular value would be 0.40 instead of 0.58."""
    matrices = np.random.default_rng(0).normal(size=(1, 128, 256)).astype(np.float32)
    found = optimizers_jax.orthogonalize(jax.numpy.asarray(matrices, dtype)).astype("float32")
    expected = optimizers_torch.orthogonalize(torch.from_numpy(matrices).to(getattr(torch, dtype))).float()
    least, greatest = (torch.linalg.svdvals(torch.from_numpy(np.array(found)))[0, place] for place in (-1, 0))
    assert 0.55 < least < greatest < 1.21
    assert np.abs(np.array(found) - expected.numpy()).max() < {"float32": 1e-4, "bfloat16": 2e-2}[dtype]


def test_an_update_of_a_new_familys_parameters_is_that_of_torch():
    """What is decayed is decided by dimensions, not by names, and each layer's rate by one rule."""
    options = Optimizer(kind="adamw", learning_rate=0.1, weight_decay=0.5, layer_decay=0.7)
    shapes = {"word.weight": (5, 4), "layers.down.weight": (3, 4, 4), "layers.gain": (3, 4), "head.scale": (4,)}
    stacked = {name: jax.numpy.ones(shape) for name, shape in shapes.items()}
    zeros = {name: jax.numpy.zeros(shape) for name, shape in shapes.items()}
    rates = jax.numpy.asarray(optimizers_jax.rates_of(options, 0.1, 1))
    moments = {"exp_avg": zeros, "exp_avg_sq": zeros}
    found, _ = optimizers_jax.apply(options, rates, stacked, zeros, moments, SimpleNamespace(shapes=shapes))
    parameters = {
        name.replace("layers.", f"layers.{layer}."): torch.nn.Parameter(torch.ones(shape[name.startswith("layers.") :]))
        for name, shape in shapes.items()
        for layer in range(3)
    }
    order = FlatOrder.of(
        {name: parameter.shape for name, parameter in parameters.items()}, list(parameters), 1, muon=False
    )
    weights, gradients = torch.ones(order.length), torch.zeros(order.length)
    scales = optimizers_torch.rate_scales(list(parameters), 0.7)
    optimizers_torch.AdamW(order.shares[0], weights, gradients, options, scales).step(0.1)
    ours = order.parameters(weights)
    for name, array in found.items():
        own = [one.numpy() for key, one in ours.items() if re.sub(r"\.\d+\.", ".", key) == name]
        np.testing.assert_allclose(array, np.stack(own) if name.startswith("layers.") else own[0], rtol=1e-7)
    gone = {name: float(1.0 - array.ravel()[0]) for name, array in found.items()}
    assert gone["layers.gain"] == gone["head.scale"] == 0.0 and gone["word.weight"] == pytest.approx(
        0.05 * 0.7**4, rel=1e-5
    )


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.long if kind == "eurobert, tied" or kind.startswith("gte") else ())
        for kind, config in SHAPES.items()
        if not config.facts.relative
    ],
)
def test_every_family_in_jax_has_the_same_loss_and_gradients_as_in_torch(kind):
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

    def loss(weights):
        logits = networks.logits(weights, config, *batch, gather=lambda _, array: array, way="dense")
        return networks.losses("masked_lm", logits, truth.numpy()).mean()

    stacked = networks.stack(parameters, config, NEVER_PREDICTED)
    found, gradients = jax.jit(jax.value_and_grad(loss))({name: jax.numpy.asarray(a) for name, a in stacked.items()})
    assert float(found) == pytest.approx(float(wanted.detach()), rel=1e-6)
    ours = networks.unstack({name: np.asarray(array) for name, array in gradients.items()}, config)
    theirs = extract({name: p.grad for name, p in network.named_parameters()}, config)
    for name, gradient in theirs.items():
        assert np.abs(gradient - ours[name]).max() <= 1e-5 * max(1.0, np.abs(gradient).max()), name
