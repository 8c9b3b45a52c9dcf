"""The engine's updates against torch's plain AdamW and against the formulas in float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from ended_runs import arrays
from reference import oracles
from torch.utils.flop_counter import FlopCounterMode

from maskwright.core.errors import HealthError
from maskwright.data.loader import Loader
from maskwright.engines.base import TrainState
from maskwright.engines.muon import products_flops
from maskwright.engines.torch.engine import TorchEngine
from maskwright.engines.torch.optimizers import orthogonalize, rate_scales
from maskwright.model.config import model_config
from maskwright.model.initial import initial_parameters
from maskwright.model.torch.heads import loss_sum
from maskwright.model.torch.networks import build, extract

RATES = [1e-3, 3e-3, 2e-3]


def backward(plain, batches):
    """Adds the gradient of the global batch, one micro-batch after the other."""
    total = sum(batch.predicted for batch in batches)
    for batch in batches:
        tensors = [torch.from_numpy(a) for a in (batch.input_ids, batch.position_ids, batch.segment_ids)]
        logits = plain(*tensors, torch.from_numpy(batch.predict_index))
        loss = loss_sum("masked_lm", logits, torch.from_numpy(batch.labels).long(), torch.from_numpy(batch.weights))
        (loss / total).backward()


@pytest.mark.parametrize("max_grad_norm", [None, 0.05, 100.0], ids=["none", "above", "below"])
def test_three_updates_equal_torchs_adamw(store, config, max_grad_norm):
    run = config(**{"optimizer.max_grad_norm": max_grad_norm, "optimizer.weight_decay": 0.1})
    shape = model_config(run.model, store.vocabulary.size, 32)
    loader = Loader(run, store)
    engine = TorchEngine(shape, run.optimizer, run.engine, seed=0)
    engine.write(TrainState(0, initial_parameters(shape, 0)))

    plain = build(shape, initial_parameters(shape, 0)).train()
    matrices = [p for p in plain.parameters() if p.ndim >= 2]
    vectors = [p for p in plain.parameters() if p.ndim < 2]
    options = run.optimizer
    reference = torch.optim.AdamW(
        [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}],
        lr=1.0,
        betas=(options.beta1, options.beta2),
        eps=options.eps,
        weight_decay=options.weight_decay,
        foreach=False,
        fused=False,
    )
    gradients = []
    for step, rate in enumerate(RATES):
        batches = loader.batches(step)
        engine.step(batches, rate)
        reference.zero_grad()
        backward(plain, batches)
        if max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(plain.parameters(), max_grad_norm, foreach=False)
        gradients.append(extract({name: p.grad for name, p in plain.named_parameters()}, shape))
        for group in reference.param_groups:
            group["lr"] = rate
        reference.step()

    state = engine.read()
    expected = extract(dict(plain.named_parameters()), shape)
    assert state.step == 3
    for name, value in state.parameters.items():
        assert np.abs(value - expected[name]).max() < 2e-6, name
    start = initial_parameters(shape, 0)
    for name in ("roberta.encoder.layer.0.output.dense.weight", "lm_head.bias", "lm_head.layer_norm.weight"):
        decay = options.weight_decay if start[name].ndim >= 2 else 0.0
        w, m, v = oracles.adamw(start[name], [g[name] for g in gradients], RATES, options, decay)
        assert np.abs(state.parameters[name] - w).max() < 2e-6
        assert np.abs(state.moments["exp_avg"][name] - m).max() < 1e-6
        assert np.abs(state.moments["exp_avg_sq"][name] - v).max() < 1e-6


@pytest.mark.parametrize(
    ("kind", "inner"),
    [("roberta", None), ("roberta", 48), ("modernbert", None), ("eurobert", None), ("nomic_bert", None)],
)
def test_three_updates_with_muon_equal_the_formulas(store, config, kind, inner):
    """Hidden matrices by Muon, those that are several in one apart, all else by AdamW; also where the inner width is
    no multiple."""
    run = config(
        **{"optimizer.kind": "muon", "optimizer.weight_decay": 0.1, "optimizer.max_grad_norm": None}
        | {
            "model.architecture": "roberta" if kind in ("eurobert", "nomic_bert") else kind,
            "model.intermediate_size": inner,
        }
    )
    shape = model_config(run.model, store.vocabulary.size, 32)
    if kind == "eurobert":  # whose keys and values have fewer rows than columns
        grouped = {"num_key_value_heads": 1, "tie_word_embeddings": False}
        shape = replace(shape, architecture="eurobert", type_vocab_size=0, **grouped)
    if kind == "nomic_bert":
        shape = replace(shape, architecture="nomic_bert", type_vocab_size=2)
    loader, start = Loader(run, store), initial_parameters(shape, 0)
    engine = TorchEngine(shape, run.optimizer, run.engine, seed=0)
    engine.write(TrainState(0, start))
    gradients = []
    for step, rate in enumerate(RATES):
        weights = engine.read().parameters
        batches = loader.batches(step)
        plain = build(shape, weights).train()
        backward(plain, batches)
        gradients.append(extract({name: p.grad for name, p in plain.named_parameters()}, shape))
        engine.step(batches, rate)
    state = engine.read()
    counter = FlopCounterMode(display=False)
    with counter:
        engine.weights.update(torch.tensor(1.0), 0.0, None)
    assert counter.get_total_flops() == products_flops(shape)
    matrices = 0
    for name, value in state.parameters.items():
        given = [gradient[name] for gradient in gradients]
        if start[name].ndim == 2 and not any(part in name for part in ("embed", "lm_head.weight")):
            matrices += 1
            apart = 3 if "Wqkv" in name else 2 if "Wi" in name else 1
            results = [
                oracles.muon(weight, gradient, RATES, run.optimizer)
                for weight, gradient in zip(
                    np.split(start[name], apart),
                    zip(*(np.split(gradient, apart) for gradient in given), strict=True),
                    strict=True,
                )
            ]
            w, m = (np.concatenate(parts) for parts in zip(*results, strict=True))
            assert np.abs(state.moments["momentum"][name] - m).max() < 1e-6
            assert name not in state.moments["exp_avg"]
        else:
            decay = run.optimizer.weight_decay if start[name].ndim >= 2 else 0.0
            w, m, _ = oracles.adamw(start[name], given, RATES, run.optimizer, decay)
            assert np.abs(state.moments["exp_avg"][name] - m).max() < 1e-6
            assert name not in state.moments["momentum"]
        assert np.abs(value - w).max() < 2e-5, name
    assert matrices == {"roberta": 6, "modernbert": 4, "eurobert": 7, "nomic_bert": 7}[
        kind
    ] * shape.num_hidden_layers + (kind != "eurobert")


def test_rates_fall_from_layer_to_layer_as_in_electra():
    """Layer 11 of 12 has 0.8 of the rate, layer 0 has 0.8^12 and the embeddings 0.8^13 (Clark et al. 2020)."""
    names = [
        "word.weight",
        "norm.bias",
        *(f"layers.{n}.qkv.weight" for n in range(12)),
        "final_norm.weight",
        "head.dense.bias",
    ]
    expected = [0.8**13, 0.8**13, *(0.8 ** (12 - n) for n in range(12)), 1.0, 1.0]
    assert rate_scales(names, 0.8) == pytest.approx(dict(zip(names, expected, strict=True)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_orthogonalize_brings_singular_values_near_one(dtype):
    stack = torch.randn(5, 32, 96, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalize(stack.to(dtype)).float())
    assert 0.6 < float(values.min()) < float(values.max()) < 1.25
    together, alone = orthogonalize(stack), [oracles.orthogonalized(matrix.numpy()) for matrix in stack]
    assert np.abs(together.numpy() - np.stack(alone)).max() < 1e-4


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_gradient_that_is_not_finite_changes_nothing(store, config, kind, ahead):
    """Also where the host learns of it some steps later: the state stays that before the bad step."""
    run = config(**{"optimizer.kind": kind})
    shape, loader = model_config(run.model, store.vocabulary.size, 32), Loader(run, store)
    engine = TorchEngine(shape, run.optimizer, run.engine, seed=0)
    engine.asynchronous = ahead
    engine.write(TrainState(0, initial_parameters(shape, 0)))
    engine.step(loader.batches(0), 1e-3)
    before = engine.read()
    hook = engine.model.head.register_forward_hook(lambda module, inputs, output: output * float("nan"))
    if ahead:
        engine.step(loader.batches(1), 1e-3)
        hook.remove()
        engine.step(loader.batches(2), 1e-3)
        with pytest.raises(HealthError, match="step 1:"):
            engine.check()
    else:
        with pytest.raises(HealthError, match="step 1:"):
            engine.step(loader.batches(1), 1e-3)
    assert arrays(before) == arrays(engine.read())
