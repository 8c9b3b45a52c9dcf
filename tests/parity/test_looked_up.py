"""Training only the embeddings that are looked up, beside the slow twin that trains the whole table."""

import numpy as np
import pytest
import torch
from ended_runs import require_same
from finetuned import shape

from maskwright.config.finetuning import FinetuningOptimizer
from maskwright.config.pretraining import EngineSection
from maskwright.data.batch import Batch
from maskwright.engines.base import RunFacts, TrainState
from maskwright.engines.torch import sparse_rows
from maskwright.engines.torch.engine import TorchEngine
from maskwright.model.initial import initial_parameters

SEEN = np.array([1, 3, 7, 20, 21, 22, 60, 100, 197])
TABLES = {
    "roberta": "roberta.embeddings.word_embeddings.weight",
    "modernbert": "model.embeddings.tok_embeddings.weight",
}


def batch(ids):
    M, T = ids.shape
    positions = np.tile(np.arange(T, dtype=np.int32), (M, 1))
    index, labels = np.arange(0, M * T, T, dtype=np.int32), np.arange(M, dtype=np.int32) % 3
    return Batch(ids.astype(np.int32), positions, np.ones_like(positions), index, labels, np.ones(M, np.float32))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("roberta", {"weight_decay": 0.1, "layer_decay": 0.5}),
        ("modernbert", {"weight_decay": 0.1, "max_grad_norm": None}),
        ("modernbert", {"kind": "muon", "weight_decay": 0.1}),
        ("roberta", {"weight_decay": 0.0}),
    ],
)
def test_only_the_embeddings_that_are_looked_up_need_training(kind, options, monkeypatch):
    monkeypatch.setattr(sparse_rows, "PENDING_UPDATES", 3)  # once inside of the six updates below, once with a save
    monkeypatch.setattr(sparse_rows, "CACHED_NUMBERS", 1000)
    config = shape(kind, "single_label_classification")
    optimizer, generator = FinetuningOptimizer(**options), np.random.default_rng(0)
    given = [batch(generator.choice(SEEN, (4, 12))) for _ in range(6)]
    judged = [batch(generator.integers(0, config.vocab_size, (4, 12))) for _ in range(2)]

    def made(ids, state):
        engine = TorchEngine(config, optimizer, EngineSection(device="cpu", dtype="fp32"), 0, RunFacts(looked_up=ids))
        engine.write(state)
        return engine

    start = TrainState(0, initial_parameters(config, 0), earlier_updates=7)
    whole, few = made(None, start), made(SEEN, start)
    for step, one in enumerate(given):
        if step == 3:  # a checkpoint, and a run that goes on from it
            whole, few = made(None, whole.read()), made(SEEN, few.read())
        losses = [engine.step([one], 1e-2).loss_sum for engine in (whole, few)]
        assert float(losses[0]) == pytest.approx(float(losses[1]), rel=1e-5)
        if step % 2:
            np.testing.assert_allclose(few.predict(judged), whole.predict(judged), rtol=0, atol=2e-5)
    expected, found = whole.read(), few.read()
    assert expected.parameters.keys() == found.parameters.keys() and expected.moments.keys() == found.moments.keys()
    unseen = np.setdiff1d(np.arange(config.vocab_size), SEEN)
    np.testing.assert_array_equal(
        found.parameters[TABLES[kind]][unseen], expected.parameters[TABLES[kind]][unseen], strict=True
    )
    assert (found.parameters[TABLES[kind]][unseen] == start.parameters[TABLES[kind]][unseen]).all() == (
        not optimizer.weight_decay
    )
    for name, value in expected.parameters.items():
        np.testing.assert_allclose(found.parameters[name], value, rtol=0, atol=2e-5, err_msg=name)
    for moment, named in expected.moments.items():
        assert named.keys() == found.moments[moment].keys()
        for name, value in named.items():
            np.testing.assert_allclose(found.moments[moment][name], value, rtol=1e-3, atol=1e-5, err_msg=name)


def test_in_fp16_a_skipped_update_decays_nothing_and_resumes_exactly():
    config = shape("roberta", "single_label_classification")
    optimizer, generator = FinetuningOptimizer(weight_decay=0.1), np.random.default_rng(0)
    given = [batch(generator.choice(SEEN, (4, 12))) for _ in range(6)]

    def made(state):
        options = EngineSection(device="cpu", dtype="fp16")
        facts = RunFacts(micro_batch_losses=4, label_smoothing=0.1, looked_up=SEEN)
        engine = TorchEngine(config, optimizer, options, 0, facts)
        engine.write(state)
        return engine

    engine = made(TrainState(0, initial_parameters(config, 0)))
    engine.step([given[0]], 1e-2)
    before, finish = engine.read().parameters, engine.weights.finish
    engine.weights.finish = lambda: finish() * torch.inf
    engine.step([given[1]], 1e-2)
    engine.weights.finish = finish
    skipped = engine.read()
    assert all(np.array_equal(array, skipped.parameters[name]) for name, array in before.items())
    assert skipped.loss_scale == {"loss_scale": 2.0**15, "good_updates_in_a_row": 0, "skipped_updates": 1}
    again = made(skipped)
    for one in (engine, again):
        for number in range(2, 6):
            one.step([given[number]], 1e-2)
    ends = [one.read() for one in (engine, again)]
    assert ends[0].loss_scale == ends[1].loss_scale
    require_same(*ends)
    assert all(np.isfinite(array).all() for array in ends[0].parameters.values())
    assert not np.array_equal(ends[0].parameters[TABLES["roberta"]], skipped.parameters[TABLES["roberta"]])
