"""fp16 with dynamic loss scaling: our rules beside torch's, and a run beside fp32."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import small_config
from ended_runs import arrays, require_same

from maskwright.core.errors import HealthError
from maskwright.data.loader import Loader
from maskwright.engines.base import RunFacts, TrainState
from maskwright.engines.torch import loss_scale
from maskwright.engines.torch.engine import TorchEngine
from maskwright.engines.torch.loss_scale import DOUBLED_AFTER_UPDATES, LossScale
from maskwright.model.config import model_config
from maskwright.model.initial import initial_parameters
from maskwright.monitor.status import look
from maskwright.tasks.pretrain.run import pretrain


class Run:
    """A small model on real rows. `overflow` names the steps whose gradient overflows, whatever the scale."""

    def __init__(self, store, config, dtype, overflow=()):
        config = config.model_copy(update={"engine": config.engine.model_copy(update={"dtype": dtype})})
        shape = model_config(config.model, store.vocabulary.size, 32)
        self.loader = Loader(config, store)
        losses = self.loader.micro_batch_losses
        self.engine = TorchEngine(shape, config.optimizer, config.engine, 0, RunFacts(micro_batch_losses=losses))
        self.engine.write(TrainState(0, initial_parameters(shape, 0)))
        self.overflow, self.losses, self.norms = overflow, [], []

    def step(self, step):
        batches = self.loader.batches(step)
        weights = self.engine.weights
        finish = weights.finish
        if step in self.overflow:
            weights.finish = lambda: finish() * torch.inf
        stats = self.engine.step(batches, 2e-3)
        weights.finish = finish
        self.losses.append(float(stats.loss_sum) / float(stats.weight))
        self.norms.append(float(stats.grad_norm))

    def steps(self, *numbers):
        for number in numbers:
            self.step(number)
        return self


def test_the_scale_moves_as_torchs_own():
    """GradScaler itself, over updates of which some overflow, with doublings in between."""
    generator = np.random.default_rng(0)
    bad = {*range(3), *generator.integers(3, 9000, 6).tolist(), 4000, 8999}
    ours, weight = LossScale(1.0, "cpu"), torch.nn.Parameter(torch.ones(1))
    theirs = torch.amp.GradScaler("cpu", growth_interval=DOUBLED_AFTER_UPDATES)
    sgd = torch.optim.SGD([weight], lr=0.0)
    for step in range(9000):
        theirs.scale(weight.sum())
        weight.grad = torch.full((1,), torch.inf if step in bad else 1.0)
        theirs.step(sgd)
        theirs.update()
        ours.update(torch.tensor(step not in bad), step)
        assert float(ours.factor) == theirs.get_scale(), step
    state = ours.read()
    assert state["good_updates_in_a_row"] == theirs.state_dict()["_growth_tracker"]
    assert state["skipped_updates"] == len(bad)
    largest = LossScale(1.0, "cpu")
    largest.write({"loss_scale": 2.0**127, "good_updates_in_a_row": DOUBLED_AFTER_UPDATES - 1, "skipped_updates": 0})
    largest.update(torch.tensor(True), 0)
    assert largest.read()["loss_scale"] == 2.0**127


@pytest.mark.parametrize("architecture", ["roberta", "modernbert", "bert"])
@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_fp16_follows_fp32(store, config, architecture, kind):
    # With some seeds the first loss scale overflows, and an update is left out, as it should be.
    run = config(**{"seed": 2, "model.architecture": architecture, "optimizer.kind": kind})
    exact, rounded = (Run(store, run, dtype).steps(*range(12)) for dtype in ("fp32", "fp16"))
    assert exact.losses[-1] < exact.losses[0] - 0.3
    assert np.abs(np.array(exact.losses) - np.array(rounded.losses)).max() < 0.01
    np.testing.assert_allclose(rounded.norms, exact.norms, rtol=0.01)  # of which clipping takes as much
    # The padded ids' -1e9 is -inf in fp16, and spoils neither the loss, nor its gradient, nor what they are kept as.
    assert float(rounded.engine.model.head.bias.data[-1]) == -np.inf
    held_out = [one.engine.evaluate(one.loader.batches(20)) for one in (exact, rounded)]
    assert abs(held_out[0].loss - held_out[1].loss) < 0.01
    assert all(np.isfinite(array).all() for array in rounded.engine.read().parameters.values())
    assert rounded.engine.scaling() == {"loss_scale": 2.0**16, "good_updates_in_a_row": 12, "skipped_updates": 0}


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_an_overflow_leaves_out_one_update_and_resumes_exactly(store, config, kind, capsys):
    run = config(**{"optimizer.kind": kind})
    whole = Run(store, run, "fp16", overflow=(2, 5)).steps(0, 1)
    before = whole.engine.read()
    whole.step(2)
    halfway = whole.engine.read()
    assert arrays(before) == arrays(halfway) and halfway.step == 3
    assert halfway.remembered_updates == 2
    assert halfway.loss_scale == {"loss_scale": 2.0**15, "good_updates_in_a_row": 0, "skipped_updates": 1}
    assert "step 2: the gradient overflowed fp16, so this update is skipped; the loss scale is 32,768 now" in (
        capsys.readouterr().err
    )
    again = Run(store, run, "fp16", overflow=(5,))
    again.engine.write(replace(halfway))
    for one in (whole, again):
        one.steps(*range(3, 8))
    ends = [one.engine.read() for one in (whole, again)]
    require_same(*ends)
    assert arrays(halfway) != arrays(ends[0])
    assert (
        ends[1].loss_scale
        == ends[0].loss_scale
        == {"loss_scale": 2.0**14, "good_updates_in_a_row": 2, "skipped_updates": 2}
    )


def test_a_device_that_runs_ahead_skips_the_same_updates(store, config):
    for kind in ("adamw", "muon"):
        runs = [Run(store, config(**{"optimizer.kind": kind}), "fp16", overflow=(0, 3)) for _ in range(2)]
        runs[1].engine.asynchronous = True
        states = [run.steps(*range(6)).engine.read() for run in runs]
        require_same(*states)
        assert states[0].loss_scale == states[1].loss_scale


@pytest.mark.parametrize("ahead", [False, True])
def test_a_scale_below_one_stops_the_run(store, config, *, ahead):
    run = Run(store, config(), "fp16", overflow=tuple(range(30)))
    run.engine.asynchronous = ahead
    with pytest.raises(HealthError, match=r"step 16: the gradient overflows fp16 even with a loss scale below 1"):
        run.steps(*range(18))
        run.engine.check()


def test_status_tells_how_many_updates_were_skipped(store, tmp_path, monkeypatch):
    monkeypatch.setattr(loss_scale, "FIRST_SCALE", 2.0**60)
    keys = {"engine.dtype": "fp16", "schedule.steps": 3, "schedule.warmup_steps": 1, "logging.every_steps": 1}
    pretrain(small_config(store.location, **keys), str(tmp_path / "run"))
    assert "\n  fp16: 3 updates overflowed and were skipped\n" in look(str(tmp_path / "run")).report()
