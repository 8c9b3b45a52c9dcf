"""A run that gets more steps, and a run that begins from another's checkpoint: what is the same, bit for bit."""

import json
import math
import re
import shutil
from dataclasses import asdict, replace

import numpy as np
import pytest
from conftest import small_config
from ended_runs import metrics, require_same, require_same_ends, state

from maskwright.core import storage
from maskwright.core.errors import CheckpointError, ConfigError, InputError, StoppedEarly
from maskwright.data.loader import Loader
from maskwright.data.prepare.driver import prepare
from maskwright.data.prepare.request import PrepareOptions, Request
from maskwright.data.store import TokenStore
from maskwright.engines.base import TrainState
from maskwright.engines.choose import make_engine
from maskwright.engines.torch.engine import TorchEngine
from maskwright.engines.torch.processes import has_mkl
from maskwright.model.initial import initial_parameters
from maskwright.monitor.status import look
from maskwright.report.run import read
from maskwright.run.best import Best
from maskwright.run.directory import RunDirectory
from maskwright.run.record import ancestors
from maskwright.tasks.export.hugging_face import model_card
from maskwright.tasks.models.load import load_model
from maskwright.tasks.pretrain import run as task
from maskwright.tasks.pretrain.prepare import prepare_run
from maskwright.tasks.pretrain.run import dry_run
from maskwright.tasks.start.changes import require_before_decay
from maskwright.text.sources import Sources
from maskwright.training import checkpoint
from maskwright.training.stop import StopRequest


def stopped_after(steps, config, run):
    with pytest.raises(StoppedEarly):
        task.pretrain(config, str(run), stop_request=StopRequest(stop_after_steps=steps))


def test_a_run_that_grows_before_its_decay_is_the_longer_run(config, tmp_path):
    keys = {"schedule.kind": "wsd"}
    long, grown = config(**keys, **{"schedule.steps": 20}), tmp_path / "grown"
    stopped_after(8, config(**keys, **{"schedule.steps": 10}), grown)  # its decay begins after step 8
    record = RunDirectory(str(grown)).read_record()
    assert record.compiled is None  # that choice is one of CUDA devices
    by_mkl = has_mkl() and record.dtype == "bfloat16"
    RunDirectory(str(grown)).write_record(replace(record, compiled=True))
    task.pretrain(long, str(grown))
    task.pretrain(long, str(tmp_path / "straight"))
    require_same_ends(grown, tmp_path / "straight")
    (change,) = RunDirectory(str(grown)).read_record().changes
    assert (change.step, change.keys, change.decides) == (8, ("schedule.steps: 10 -> 20",), False)
    record = RunDirectory(str(grown)).read_record()
    assert record.compiled is True and record.by_mkl is by_mkl
    assert "changed at step 8: schedule.steps: 10 -> 20" in look(str(grown)).report()
    task.pretrain(long, str(grown))  # nothing is left to do, and nothing is forgotten
    kept = checkpoint.load(str(grown / "checkpoints/step-00000020"))[1]["changes"]
    assert kept == [asdict(change) | {"keys": [*change.keys]}]
    assert RunDirectory(str(grown)).read_record().changes == (change,)


def test_a_run_in_its_decay_names_the_checkpoint_to_branch_from(config, tmp_path):
    keys = {"schedule.kind": "wsd", "checkpoint.save_every_steps": 4, "checkpoint.keep_every_steps": 4}
    run = tmp_path / "run"
    task.pretrain(config(**keys, **{"schedule.steps": 10}), str(run))
    record = RunDirectory(str(run)).read_record()
    for start in (task.pretrain, dry_run):
        with pytest.raises(ConfigError) as refused:
            start(config(**keys, **{"schedule.steps": 20}), str(run))
        assert "the run has reached step 10, and its decay began after step 8" in str(refused.value)
        branch = f"--from {run}@8 --set schedule.steps=12 --set schedule.warmup_steps=0"
        assert branch in str(refused.value) and "\n" not in str(refused.value)
    assert RunDirectory(str(run)).read_record() == record
    old = record.keys
    for until, end in ((8, " --set 'phases=[]'"), (9, "")):
        phased = old | {"phases": [{"until_step": 4}, {"until_step": until}]}
        with pytest.raises(ConfigError) as refused:
            require_before_decay(phased, phased | {"schedule.steps": 20}, RunDirectory(str(run)), 10)
        assert str(refused.value).endswith(f"{branch}{end}")
        assert ("lists the remaining phases, each ending 8 steps earlier" in str(refused.value)) == (until == 9)
    for step in (4, 8):
        (run / f"checkpoints/step-{step:08d}/MANIFEST.json").unlink()
    with pytest.raises(ConfigError, match="no earlier checkpoint is kept"):
        task.pretrain(config(**keys, **{"schedule.steps": 20}), str(run))


@pytest.mark.parametrize(
    ("before", "now", "why"),
    [
        ({"schedule.steps": 20}, {"schedule.steps": 10}, r"schedule.steps: 20 -> 10\)"),
        ({"schedule.kind": "linear"}, {"schedule.steps": 20}, "linear cannot"),
        ({"phases": [{"until_share": 0.5}]}, {"schedule.steps": 20}, "only phases that end by until_step"),
        ({}, {"schedule.steps": 20, "seed": 5}, "seed: 0 -> 5"),
    ],
    ids=["fewer", "linear", "phases", "another seed"],
)
def test_what_cannot_grow_says_why(before, now, why, config, tmp_path):
    keys = {"schedule.kind": "wsd", "schedule.steps": 12} | before
    stopped_after(2, config(**keys), tmp_path / "run")
    with pytest.raises(ConfigError, match=why):
        dry_run(config(**keys | now), str(tmp_path / "run"))


# ---- a new run from another's checkpoint -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parent(store, tmp_path_factory):
    """12 steps in wsd, of which step 8 is the last before the decay; checkpoints at 4, 8 and 12."""
    run = tmp_path_factory.mktemp("parent") / "wsd"
    task.pretrain(small_config(store.location, **PARENT), str(run))
    return run


PARENT = {"schedule.kind": "wsd", "schedule.decay_steps": 4, "checkpoint.save_every_steps": 4}
PARENT |= {"checkpoint.keep_every_steps": 4}
CHILD = PARENT | {"schedule.steps": 4, "schedule.warmup_steps": 0, "seed": 1}


@pytest.mark.parametrize(("engine", "kind"), [("torch", "adamw"), ("torch", "muon"), ("jax", "muon")])
def test_the_optimizer_goes_on_where_it_was(engine, kind, config):
    """The moments and AdamW's bias correction: an update after three others is the same, whoever made them."""
    run = config(**{"engine.kind": engine, "optimizer.kind": kind})
    loader, shape = Loader(run, TokenStore(run.data.store)), prepare_run(run).model
    one, other = (make_engine(shape, run.optimizer, run.engine, 0) for _ in range(2))
    one.write(TrainState(0, initial_parameters(shape, 0)))
    for step in range(3):
        one.step(loader.batches(step), 1e-3, lambda: False)
    before = one.read()
    other.write(TrainState(0, before.parameters, before.moments, before.step))
    require_same(replace(before, step=0), other.read())  # with its moments, though it has taken no step
    for made in (one, other):
        made.step(loader.batches(3), 1e-3, lambda: False)
    require_same(replace(one.read(), step=1), other.read())
    assert other.read().earlier_updates == 3

    other.write(TrainState(0, before.parameters, before.moments))  # what the count of updates is for
    other.step(loader.batches(3), 1e-3, lambda: False)
    name = next(name for name in before.parameters if name.endswith("lm_head.dense.bias"))
    assert not np.array_equal(one.read().parameters[name], other.read().parameters[name])


def test_a_branch_needs_its_parent_only_to_begin(config, parent, tmp_path):
    """It decays where its parent's stable phase was; stopped and continued without the parent it is the same."""
    own = config(**CHILD)
    gone, straight, stopped = (tmp_path / name for name in ("gone", "straight", "stopped"))
    shutil.copytree(parent, gone)
    task.pretrain(own, str(straight), f"{gone}@8")
    with pytest.raises(StoppedEarly):
        task.pretrain(own, str(stopped), f"{gone}@8", stop_request=StopRequest(stop_after_steps=2))
    (gone / "checkpoints/step-00000008").rename(tmp_path / "aside")
    with pytest.raises(ConfigError, match=f"began from {gone}@8"):
        task.pretrain(own, str(stopped), f"{gone}@4")
    shutil.rmtree(gone)
    task.pretrain(own, str(stopped), f"{gone}@8")
    require_same_ends(straight, stopped)
    assert state(stopped).earlier_updates == 8
    lines = metrics(stopped)
    rates = [line["learning_rate"] for line in lines if "loss" in line]
    assert rates == [config(**PARENT).learning_rate_at(step) for step in range(8, 12)]
    there = next(line for line in lines if line["step"] == 0)["valid_loss"]  # of the parent's weights
    assert there < 0.95 * math.log(400)

    child = f"began from step 8 of {gone}, with its optimizer's state"
    assert child in look(str(stopped)).report()
    grown = config(**CHILD | {"seed": 2})
    task.pretrain(grown, str(tmp_path / "grandchild"), str(stopped), fresh_optimizer=True)
    (near, far), _ = ancestors(RunDirectory(str(tmp_path / "grandchild")).read_record().began_from)
    assert (near.step, near.optimizer, near.via, far.step) == (4, "fresh", "--from", 8)
    assert state(tmp_path / "grandchild").earlier_updates == 0
    report = look(str(tmp_path / "grandchild")).report()
    assert f"began from step 4 of {stopped}, with a fresh optimizer\n  which {child}" in report
    card = model_card(load_model(str(tmp_path / "grandchild")), 0.0)
    digest = storage.sha256_of_file(str(tmp_path / "aside/model.safetensors"))
    assert "- began from step 4 of `stopped`, without its optimizer's state: " in card
    assert "- began from step 8 of `gone`, with its optimizer's state: " in card and digest in card
    assert str(tmp_path) not in card.replace(json.dumps(grown.data.store), "")


@pytest.mark.parametrize(
    ("keys", "given", "where"),
    [
        ({"model.hidden_size": 48, "model.num_attention_heads": 3}, "@8", "model.hidden_size: is 48, but 32 in"),
        ({"model.architecture": "modernbert"}, "@8", "model.intermediate_size"),
        ({"model.init_from": "elsewhere"}, "@8", "model.init_from: is elsewhere, but not in"),
        (
            {"data.seq_len": 64},
            "@8",
            "data.seq_len: 64 is above the 32 positions that a RobertaForMaskedLM has learned",
        ),
        ({"optimizer.kind": "muon"}, "@8", "optimizer.kind: is muon, but "),
        ({}, "@5", "has no checkpoint of step 5. Fix: choose one of its steps: 4, 8, 12"),
        ({}, "/config.yaml", "is not there. Fix: give the folder"),
    ],
    ids=["shape", "architecture", "base", "learned positions", "optimizer", "step", "no run"],
)
def test_what_does_not_fit_the_parent_is_refused(keys, given, where, config, parent, tmp_path):
    for start in (task.pretrain, dry_run):
        with pytest.raises(InputError, match=re.escape(where)):
            start(config(**CHILD | keys), str(tmp_path / "run"), f"{parent}{given}")
    assert not (tmp_path / "run").exists()


def test_a_fresh_optimizer_needs_a_run_to_begin_from(config, tmp_path):
    with pytest.raises(InputError, match="--fresh-optimizer needs --from"):
        task.pretrain(config(), str(tmp_path / "run"), fresh_optimizer=True)


def test_a_run_with_rotary_positions_gets_longer_rows(config, tmp_path, monkeypatch):
    """And computes with the base of positions that its parent ended with, until a phase has another."""
    keys, used = CHILD | {"model.architecture": "modernbert"}, list[float]()
    use = TorchEngine.use_rope_theta
    monkeypatch.setattr(TorchEngine, "use_rope_theta", lambda self, theta: (used.append(theta), use(self, theta)))
    task.pretrain(config(**keys, phases=[{"until_share": 1.0, "rope_theta": 160000.0}]), str(tmp_path / "short"))
    used.clear()
    last = [{"until_share": 0.5}, {"until_share": 1.0, "rope_theta": 20000.0}]
    longer = config(**keys | {"data.seq_len": 64}, phases=last)
    task.pretrain(longer, str(tmp_path / "long"), str(tmp_path / "short"))
    found = load_model(str(tmp_path / "long"))
    assert (found.config.max_seq_len, found.step, found.config.rope_theta) == (64, 4, 20000.0)
    assert used[-4:] == [160000.0, 160000.0, 20000.0, 20000.0] and {*used} == {160000.0, 20000.0}
    short = load_model(str(tmp_path / "short")).config
    assert (short.max_seq_len, short.rope_theta) == (32, 160000.0)


def test_the_same_rows_again_are_worth_a_warning(config, parent):
    ready = prepare_run(config(**CHILD | {"seed": 0}), None, f"{parent}@8")
    (again,) = [line for line in ready.warnings() if "in the same order as" in line]
    assert "--set seed=1" in again
    other = prepare_run(config(**CHILD), None, f"{parent}@8")
    assert not [line for line in other.warnings() if "in the same order as" in line]


# ---- until it no longer improves, and by epochs ----------------------------------------------------------------------

WORSE = {"schedule.kind": "constant", "optimizer.learning_rate": 0.3, "schedule.steps": 60}
WORSE |= {"evaluation.every_steps": 2, "checkpoint.keep": 1, "evaluation.max_rows": 4}


def test_a_run_ends_when_its_held_out_loss_no_longer_falls(config, tmp_path):
    own, run, stopped = config(**WORSE, **{"evaluation.patience": 2}), tmp_path / "run", tmp_path / "stopped"
    task.pretrain(own, str(run))
    losses = [(line["step"], line["valid_loss"]) for line in metrics(run) if line["step"] and "valid_loss" in line]
    best, last = min(losses, key=lambda one: one[1])[0], losses[-1][0]
    assert last == best + 4 < 60, losses
    assert checkpoint.whole_steps(str(run / "checkpoints")) == [best, last]
    assert load_model(str(run)).step == best
    assert read(str(run)).score("valid_loss") == dict(losses)[best], "the page's headline is that of the weights"
    status = RunDirectory(str(run)).read_status()
    assert status and (status.phase, status.step) == ("done", last)
    assert status.message == f"no longer improving: step {best} has the best evaluation"

    stopped_after(last - 1, own, stopped)
    RunDirectory(str(stopped)).append_metrics({"step": last, "valid_loss": 0.0})  # killed before the save of its best
    assert load_model(str(stopped)).step == best
    task.pretrain(own, str(stopped))
    require_same_ends(run, stopped)
    task.pretrain(config(**WORSE, **{"evaluation.patience": 3}), str(run))  # it goes on
    assert checkpoint.whole_steps(str(run / "checkpoints"))[-1] > last
    plain = config(**WORSE | {"schedule.steps": last})
    task.pretrain(plain, str(tmp_path / "plain"))
    require_same(state(tmp_path / "plain"), state(stopped))  # patience changes no bit
    assert load_model(str(tmp_path / "plain")).step == last


def test_patience_that_comes_later_counts_what_is_still_kept(config, tmp_path):
    """The first checkpoints, the best ones, are gone by then."""
    run, kept = tmp_path / "run", tmp_path / "run/checkpoints"
    keys = WORSE | {"checkpoint.save_every_steps": 1, "checkpoint.keep": 2, "schedule.steps": 8}
    task.pretrain(config(**keys), str(run))
    losses = {line["step"]: line["valid_loss"] for line in metrics(run) if line["step"] and "valid_loss" in line}
    assert min(losses, key=lambda step: losses[step]) < 7 and checkpoint.whole_steps(str(kept)) == [7, 8]
    later = config(**keys | {"schedule.steps": 40, "evaluation.patience": 1})
    task.pretrain(later, str(run))
    assert metrics(run)[-1]["step"] > 8
    model = load_model(str(run))
    assert model.step in checkpoint.whole_steps(str(kept)) and (model.step or 0) >= 8
    shutil.rmtree(kept / f"step-{model.step:08d}")
    with pytest.raises(CheckpointError, match=f"of step {model.step}, is gone. Fix: restore it, or train again"):
        load_model(str(run))


def test_the_best_evaluation_has_a_checkpoint():
    seen = [(2, 0.5), (4, 0.7), (6, 0.9), (8, 0.7), (10, math.nan), (12, 0.8)]
    for saved, step, settled in (({2}, 2, True), ({8, 12}, 8, False), ({4, 8}, 4, True), ({12}, 12, False)):
        best = Best(3, lower=True)
        best.remember(seen, saved)
        assert (best.step, best.settled) == (step, settled), saved
    best.remember(seen, ())
    assert best.step is None and not best.settled
    best.remember(((step, 1.0 / step) for step in range(1, 100_000)), {7})  # of a long run, in no time
    assert best.step == 7 and len(best.seen) == 7
    f1 = Best(2, lower=False, seen=[(2, 0.0), (4, 0.0), (6, 0.0)])  # no entity is found yet: not the time to stop
    assert (f1.step, f1.settled) == (6, False)
    f1.seen += [(8, 0.1), (10, 0.1), (12, 0.0)]
    assert (f1.step, f1.settled) == (8, True)


def test_patience_needs_held_out_text(corpus, tokenizer, tmp_path):
    source = Sources([str(corpus)], layout="sentences")
    nothing = prepare(Request(source, tokenizer, str(tmp_path / "store"), PrepareOptions(valid_fraction=0.0))).location
    with pytest.raises(ConfigError, match="evaluation.patience: needs held-out text"):
        prepare_run(small_config(nothing, **{"evaluation.patience": 1, "evaluation.every_steps": 2}))


def test_epochs_are_recorded_as_steps_and_a_run_of_them_grows(config, tmp_path):
    keys = {"checkpoint.copy_to": f"file://{tmp_path}/copies", "evaluation.max_rows": 4}
    one = config(schedule={"epochs": 0.1, "kind": "constant"}, **keys)
    steps = prepare_run(one).config.steps
    task.pretrain(one, str(tmp_path / "run"))
    record = RunDirectory(str(tmp_path / "run")).read_record()
    assert (record.keys["schedule.steps"], record.keys["schedule.epochs"]) == (steps, None)
    shutil.rmtree(tmp_path / "run")  # another machine, which has only the copies
    two = config(schedule={"epochs": 0.2, "kind": "constant"}, **keys)
    task.pretrain(two, str(tmp_path / "run"))
    straight = config(schedule={"steps": prepare_run(two).config.steps, "kind": "constant"})
    task.pretrain(straight, str(tmp_path / "straight"))
    require_same(state(tmp_path / "run"), state(tmp_path / "straight"))
    assert RunDirectory(str(tmp_path / "run")).read_record().changes[0].step == steps


def test_a_run_that_grows_keeps_its_warmup_and_moves_its_decay_where_they_are_shares(config, tmp_path):
    shares = {"kind": "wsd", "warmup_share": 0.3, "decay_share": 0.2}  # a warm-up of 3 steps of 10, and of 6 of 20
    grown, straight = tmp_path / "grown", tmp_path / "straight"
    stopped_after(6, config(schedule=shares | {"steps": 10}), grown)
    for steps in (20, 20, 24):  # also where the record is of a run that has grown already
        stopped_after(2, config(schedule=shares | {"steps": steps}), grown)
    task.pretrain(config(schedule=shares | {"steps": 24}), str(grown))
    numbers = {"kind": "wsd", "warmup_steps": 3, "decay_steps": 5}
    task.pretrain(config(schedule=numbers | {"steps": 24}), str(straight))
    require_same_ends(grown, straight)
    keys = [change.keys for change in RunDirectory(str(grown)).read_record().changes]
    assert keys == [("schedule.steps: 10 -> 20",), ("schedule.steps: 20 -> 24",)]
    with pytest.raises(ConfigError, match=r"schedule.warmup_steps: 3 -> 5"):  # 0.2 of 24
        dry_run(config(schedule=shares | {"steps": 24, "warmup_share": 0.2}), str(grown))


def test_a_changed_length_is_put_right_by_steps_also_where_the_file_has_epochs(config, tmp_path):
    run, keys = tmp_path / "run", {"checkpoint.save_every_steps": 4, "checkpoint.keep_every_steps": 4}
    task.pretrain(config(schedule={"epochs": 0.05, "kind": "wsd"}, **keys), str(run))
    for epochs, fix in (
        (0.04, "with (--set .*=11), or"),
        (0.1, f"--from {run}@8 (.*=13) --set schedule.warmup_steps=0"),
    ):
        with pytest.raises(ConfigError) as refused:
            dry_run(config(schedule={"epochs": epochs, "kind": "wsd"}, **keys), str(run))
        found = re.search(fix, str(refused.value))
        assert found and found[1].startswith("--set schedule.steps="), refused.value
