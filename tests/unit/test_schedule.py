"""Learning rates over a run beside those of transformers, epochs, and digests that stay what they were."""

from functools import partial

import numpy as np
import pytest
import torch
from transformers import get_scheduler

from maskwright.config.finetuning import build_finetune_config, read_finetune_config
from maskwright.config.pretraining import build_config, read_config
from maskwright.config.recipes import names as recipes
from maskwright.core.errors import ConfigError
from maskwright.tasks.pretrain.prepare import prepare_run

PEAK, STEPS, BENT = 3e-3, 300, {"power": 2.5}


def theirs(name, warmup_steps, **options):
    """transformers' rates of every step and one more. While it warms up, its first rate is 0 and ours is its second."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    made = get_scheduler(name, optimizer, warmup_steps, STEPS, scheduler_specific_kwargs=options)
    rates = []
    for _ in range(STEPS + 1):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        made.step()
    rates = np.array(rates)
    return np.concatenate([rates[1 : warmup_steps + 1], rates[warmup_steps:-1]])


@pytest.mark.parametrize("warmup_steps", [0, 1, 40])
@pytest.mark.parametrize(
    ("keys", "name", "options"),
    [
        ({"kind": "linear"}, "linear", {}),
        ({"kind": "cosine"}, "cosine", {}),
        ({"kind": "constant"}, "constant_with_warmup", {}),
        ({"kind": "inverse_sqrt"}, "inverse_sqrt", {}),
        ({"kind": "polynomial"}, "polynomial", {"lr_end": 0.0}),
        (BENT | {"kind": "polynomial", "final_lr_share": 0.1}, "polynomial", BENT | {"lr_end": 0.1 * PEAK}),
    ],
)
def test_rates_are_those_of_transformers(keys, name, options, warmup_steps):
    schedule = {"steps": STEPS, "warmup_steps": warmup_steps, **keys}
    run = build_config({"data": {"store": "s"}, "schedule": schedule, "optimizer": {"learning_rate": PEAK}}, "x")
    ours = np.array([run.learning_rate_at(step) for step in range(STEPS)])
    assert ours == pytest.approx(theirs(name, warmup_steps, **options)[:STEPS], rel=1e-12, abs=1e-15)
    given = {"data": {"train": "t"}, "model": {"init_from": "m"}, "optimizer": {"learning_rate": PEAK}}
    tuned = build_finetune_config({**given, "schedule": schedule}, "x").resolved(100)
    assert [tuned.learning_rate_at(step) for step in range(STEPS)] == ours.tolist()


def test_wsd_is_its_definition_and_its_decay_may_be_the_whole_run():
    def rates(steps=100, warmup_steps=10, **keys):
        schedule = {"steps": steps, "warmup_steps": warmup_steps, **keys}
        optimizer = {"learning_rate": 2.0}
        run = build_config({"data": {"store": "s"}, "schedule": schedule, "optimizer": optimizer}, "x")
        return [run.learning_rate_at(step) for step in range(steps)]

    decayed, fifth = rates(kind="wsd", decay_steps=40), rates(kind="wsd")
    assert set(decayed[10:60]) == {2.0} and decayed[70] == pytest.approx(2.0 * (1 - (10 / 40) ** 0.5))
    assert fifth[79] == 2.0 > fifth[81]
    assert rates(kind="linear", final_lr_share=0.1)[55] == pytest.approx(2.0 * (0.1 + 0.9 * 0.5))
    assert rates(10, 0, kind="wsd", decay_steps=10) == rates(50, 5, kind="wsd", decay_steps=10)[40:]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"schedule": {"kind": "constant", "final_lr_share": 0.1}}, "kind constant has no final_lr_share"),
        ({"schedule": {"power": 2.0}}, "kind linear has no power. Fix: set kind: polynomial"),
        ({"schedule": {"epochs": 2.0}}, "schedule has steps and epochs"),
        ({"schedule": {"epochs": 0.0, "steps": None}}, "schedule.epochs is 0.0"),
        ({"schedule": {"decay_share": 0.2}}, "kind linear has no decay_share. Fix: set kind: wsd, or leave"),
        ({"schedule": {"warmup_share": 0.1, "warmup_steps": 1}}, "schedule has warmup_steps and warmup_share"),
        ({"schedule": {"kind": "wsd", "decay_share": 0.6, "warmup_share": 0.5}}, "add up to more than 1, so the run"),
        ({"masking": {"mask_share": 0.8, "random_share": 0.3}}, "more than 1. Fix: lower one of them; RoBERTa's are"),
        ({"model": {"max_seq_len": 16}}, "is below data.seq_len 512. Fix: lower data.seq_len, or raise model.max_seq_"),
        ({"optimizer": {"layer_decay": 0.9, "kind": "muon"}}, "optimizer.layer_decay needs optimizer.kind: adamw"),
        ({"engine": {"sharding": "fsdp"}}, "sharding fsdp is for jax"),
        ({"evaluation": {"patience": 2}}, "evaluation.patience needs evaluation.every_steps"),
        ({"engine": {"kind": "jax", "dtype": "fp16"}}, "jax has no loss scaling, which fp16 needs"),
        ({"engine": {"kind": "jax", "activation_checkpointing": "on"}}, "activation_checkpointing is only for torch"),
    ],
)
def test_keys_that_do_not_go_together(values, why):
    schedule = {"steps": 9, "kind": "linear", **values.get("schedule", {})}
    with pytest.raises(ConfigError) as refused:
        build_config({"data": {"store": "s"}, **values, "schedule": schedule}, "x")
    assert why in str(refused.value)


@pytest.mark.parametrize("recipe", recipes())
def test_steps_alone_shorten_and_lengthen_a_recipe(recipe):
    """Its warm-up and its decay keep their shares, and there is a step at the peak."""
    usual = read_config(recipe, ["schedule.steps=10000"]).resolved(1)
    peak = usual.optimizer.learning_rate
    for steps in (2, 10, 333, 500, 1000, 100_000):
        run = read_config(recipe, [f"schedule.steps={steps}"]).resolved(1)
        rates = [run.learning_rate_at(step) for step in range(steps)]
        assert max(rates) == peak
        for share in (0.3, 0.5, 0.8, 0.95) if steps >= 500 else ():
            there = usual.learning_rate_at(round(share * 10_000))
            assert rates[round(share * steps)] == pytest.approx(there, rel=0.15, abs=0.01 * peak)
    assert read_config(recipe, ["schedule.epochs=2"]).schedule.steps is None


def test_what_an_option_sets_replaces_what_says_the_same(tmp_path):
    (tmp_path / "run.yaml").write_text("data: {store: s}\nschedule: {kind: wsd, epochs: 2, warmup_share: 0.1}\n")
    (tmp_path / "tuned.yaml").write_text("data: {train: t}\nmodel: {init_from: m}\nschedule: {epochs: 2}\n")
    run = partial(read_config, str(tmp_path / "run.yaml"))
    assert run(["schedule.steps=100"]).schedule.epochs is None
    assert run(["schedule.warmup_steps=0"]).schedule.warmup_share is None
    assert run(["schedule.epochs=null", "schedule.steps=9"]).steps == 9
    assert read_finetune_config(str(tmp_path / "tuned.yaml"), ["schedule.steps=9"]).steps == 9
    for both in (["schedule.steps=100", "schedule.epochs=1"], ["schedule.warmup_steps=1", "schedule.warmup_share=0.1"]):
        with pytest.raises(ConfigError, match="Fix: give one of them"):
            run(both)


def test_shares_become_steps_as_in_transformers(config):
    from transformers import TrainingArguments

    for share, steps in ((0.06, 50), (0.07, 100), (0.1, 333), (0.0, 7)):
        ours = config(schedule={"steps": steps, "warmup_share": share}).resolved(1).schedule
        theirs = TrainingArguments(warmup_steps=share, use_cpu=True, report_to=[]).get_warmup_steps(steps)
        assert (ours.warmup_steps, ours.warmup_share) == (theirs, None)


def test_epochs_become_steps(config):
    given = config(schedule={"epochs": 2.5, "warmup_steps": 3})
    ready = prepare_run(given)
    rows = ready.loader.rows.totals.rows
    assert ready.config.steps == -(-5 * rows // (2 * 8)) and ready.config.schedule.epochs is None
    assert ready.loader.epoch(ready.config.steps) == pytest.approx(2.5, abs=8 / rows)
    assert ready.config == config(schedule={"steps": ready.config.steps, "warmup_steps": 3})
    assert ready.loader.config is ready.config
    with pytest.raises(ConfigError, match=r"schedule.epochs: warm-up and decay leave no other step"):
        prepare_run(config(schedule={"epochs": 0.1, "warmup_steps": 300}))
