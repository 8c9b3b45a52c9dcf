"""Micro-batches from CUDA graphs, with a stand-in on a CPU that computes again what was recorded; and batches that a
thread makes ahead. `benchmarks/gpu.py promises` compares the bits on a card."""

import threading
from collections.abc import Callable
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import Tensor

from maskwright.data.loader import Loader
from maskwright.engines.base import AtOnce, TrainState
from maskwright.engines.torch import graphs
from maskwright.engines.torch.engine import TorchEngine
from maskwright.engines.torch.gradients import Gradients
from maskwright.engines.torch.graphs import Graphs
from maskwright.model.config import model_config
from maskwright.model.initial import initial_parameters
from maskwright.training.masked_lm import MaskedLM
from maskwright.training.prefetch import BatchPrefetcher


class StandIn:
    """Of `torch.cuda.CUDAGraph`: computes from the recorded inputs into the recorded tensors."""

    again: Callable[[], Tensor]
    loss: Tensor

    def replay(self):
        self.loss.copy_(self.again())


def forget(gradients, names):
    for name in names:
        gradients._parameters[name].grad = None


@pytest.fixture
def stand_in(monkeypatch):
    """How many recordings were made; `full` makes memory run out in the next one."""
    seen = {"recorded": 0, "full": 0}

    @contextmanager
    def recording(*_, **__):
        state = torch.get_rng_state()
        with monkeypatch.context() as patch:  # what is recorded is not computed: the sums stay as they are
            patch.setattr(Gradients, "_take", forget)
            yield
        torch.set_rng_state(state)
        if seen["full"]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        seen["recorded"] += 1

    record = Graphs._record

    def remembered(self, inputs, compute):
        made = record(self, inputs, compute)
        graph = made.graph
        graph.again, graph.loss = (lambda: compute(made.inputs)), made.loss
        return made

    monkeypatch.setattr(torch.cuda, "CUDAGraph", StandIn)
    monkeypatch.setattr(torch.cuda, "graph", recording)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr(Graphs, "_record", remembered)
    yield seen


def trained(config, store, *, by_graph, steps=5):
    shape, loader = model_config(config.model, store.vocabulary.size, 32), Loader(config, store)
    engine = TorchEngine(shape, config.optimizer, config.engine, seed=0)
    if by_graph:
        engine.fit.graphs = Graphs()
    engine.write(TrainState(0, initial_parameters(shape, 0)))
    for step in range(steps):
        engine.step(loader.batches(step), 1e-3)
    return engine


def same_bits(engine, another):
    one, other = engine.read(), another.read()
    both = zip((one.parameters, *one.moments.values()), (other.parameters, *other.moments.values()), strict=True)
    return all(a[name].tobytes() == b[name].tobytes() for a, b in both for name in a)


@pytest.mark.parametrize(("architecture", "most"), [("roberta", graphs.MOST_GRAPHS), ("modernbert", 1)])
def test_a_graph_of_a_micro_batch_has_the_numbers_of_its_kernels(store, config, stand_in, architecture, most):
    """Also with several micro-batches an update, dropout, and a second phase of other shapes: a graph for each shape
    and each sum that its gradient goes into, recorded when both come for the second time."""
    run = config(
        **{
            "model.architecture": architecture,
            "model.hidden_dropout": 0.1,
            "batch.virtual_workers": 3,
            "phases": [{"until_step": 3, "seq_len": 16}],
        }
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs, "MOST_GRAPHS", most)
        assert same_bits(trained(run, store, by_graph=True), trained(run, store, by_graph=False))
    assert stand_in["recorded"] == min(most, 4)


def test_without_memory_for_graphs_a_run_goes_on_without_them(store, config, stand_in, capfd):
    """And computes as many rows at once as before: its bits stay the same. Its host is busy from then on."""
    stand_in["full"] = 1
    run = config(**{"batch.virtual_workers": 2})
    engine = trained(run, store, by_graph=True)
    assert same_bits(engine, trained(run, store, by_graph=False))
    assert not stand_in["recorded"] and not engine.leaves_host_free
    err = capfd.readouterr().err
    assert "out of memory with CUDA graphs: continuing without them" in err and "at a time from here on" not in err


def test_rows_that_do_not_fit_before_any_graph_is_there_cost_no_graph(store, config, stand_in, monkeypatch, capfd):
    loss = Graphs.loss

    def limited(self, key, inputs, compute):
        if len(inputs[0]) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return loss(self, key, inputs, compute)

    monkeypatch.setattr(Graphs, "loss", limited)
    engine = trained(config(), store, by_graph=True)
    assert engine.at_once == AtOnce(2) and engine.leaves_host_free and stand_in["recorded"]
    assert "CUDA graphs" not in capfd.readouterr().err


@pytest.mark.parametrize("threads", [False, True])
def test_batches_made_ahead_are_those_of_their_step(store, config, threads):
    """And an error comes with the step that it belongs to."""
    loader = Loader(config(), store)
    objective, makers = MaskedLM(loader, {}, store.vocabulary.size), set[str]()
    make = objective.batches

    def watched(step, virtual_workers):
        makers.add(threading.current_thread().name)
        if step == 3:
            raise RuntimeError("a damaged shard")
        return make(step, virtual_workers)

    objective.batches = watched
    ahead = BatchPrefetcher(objective, [1])
    for step in range(3):
        (batch,), work = ahead.take(step, ahead=threads)
        assert np.array_equal(batch.input_ids, loader.batch(step, 1).input_ids)
        assert work == objective.work(step)
    with pytest.raises(RuntimeError, match="a damaged shard"):
        ahead.take(3, ahead=False)
    ahead.close()
    assert any(name.startswith("batches") for name in makers) is threads
