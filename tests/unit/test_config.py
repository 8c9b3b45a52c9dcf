import re
from contextlib import nullcontext
from pathlib import Path
from random import Random
from unittest.mock import Mock

import pytest
from conftest import prepared

from maskwright.api import verdicts
from maskwright.config import pretraining as c
from maskwright.config import recipes
from maskwright.config.changes import refuse_changes
from maskwright.config.finetuning import FinetuneConfig
from maskwright.config.retrieval import RetrievalConfig, read_any_config, read_task_config
from maskwright.config.settings import flat, in_flow
from maskwright.core.errors import ConfigError
from maskwright.data.prepare.request import PrepareOptions
from maskwright.tasks.compare.arms import ArmStart
from maskwright.tasks.pretrain import warnings
from maskwright.tasks.pretrain.prepare import prepare_run
from maskwright.tasks.pretrain.warnings import muon_rms, unusual_data, unusual_settings
from maskwright.text.sources import Sources
from maskwright.text.tokenizer import train_tokenizer

LEAST = {"data": {"store": "s"}, "schedule": {"steps": 100}}


@pytest.mark.parametrize("place", ["\U0001f98a den/run", "a: b", "c # d", "1e3", "on,", "é\u2028"])
def test_a_place_with_any_character_is_handed_on_by_set(place, tmp_path, monkeypatch):
    given = Mock(return_value=(None, None))
    monkeypatch.setattr(verdicts, "make", given)
    verdicts.compare([place], "task.yaml", "to", overrides={"data.store": place, "masking.rate": 1e-7})
    store, rate = given.call_args.kwargs["overrides"]
    weights, _ = ArmStart("arm", (place,)).keys(0)
    (tmp_path / "run.yaml").write_text("schedule: {steps: 100}\n")
    run = c.read_config(str(tmp_path / "run.yaml"), [store, rate, weights])
    assert (run.data.store, run.model.init_from, run.masking.rate) == (place, place, 1e-7)


@pytest.mark.parametrize("override", ["steps", "=3", "schedule.steps.more=1"])
def test_malformed_overrides_are_refused(override, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("data: {store: s}\nschedule: {steps: 100}\n")
    with pytest.raises(ConfigError, match="--set"):
        c.read_config(str(path), [override])


def test_only_resumable_keys_may_change():
    old = c.build_config(LEAST, "x")
    moved = c.build_config({**LEAST, "data": {"store": "elsewhere"}, "checkpoint": {"keep": 5}}, "x")
    assert refuse_changes(flat(old), flat(moved), "run") == {
        "data.store": "data.store: s -> elsewhere",
        "checkpoint.keep": "checkpoint.keep: 2 -> 5",
    }
    assert old.digest() == moved.digest()
    other = c.build_config({**LEAST, "seed": 1}, "x")
    assert old.digest() != other.digest()
    with pytest.raises(ConfigError, match="seed: 0 -> 1"):
        refuse_changes(flat(old), flat(other), "run")


@pytest.mark.parametrize(
    ("old", "new", "goes_on"),
    [("gone", "here", True), ("here", "there", False), ("hf://a/b", "hf://a/c", False), ("gone", "hf://a/b", False)],
)
def test_a_base_may_move_but_not_change(old, new, goes_on, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    before, now = (flat(c.build_config(LEAST, "x")) | {"model.init_from": base} for base in (old, new))
    with nullcontext() if goes_on else pytest.raises(ConfigError, match=f"model.init_from: {old} -> {new}"):
        assert [*refuse_changes(before, now, "run")] == ["model.init_from"]


@pytest.mark.parametrize(
    ("change", "fix"),
    [
        ({"optimizer": {"learning_rate": 0.1}}, "--from run`; or"),
        ({"batch": {"micro_batch_rows": 3}}, "--from run`; or"),
        ({"masking": {"rate": 0.4}, "model": {"hidden_dropout": 0.0}}, "--from run`; or"),
        ({"optimizer": {"kind": "muon"}}, "--from run --fresh-optimizer`; or"),
        ({"model": {"size": "nano"}}, "restore the old values, or give --run a new folder"),
    ],
)
def test_what_another_run_can_take_along_is_said(change, fix):
    old, other = (flat(c.build_config({**LEAST, **more}, "x")) for more in ({"model": {"hidden_dropout": 0.1}}, change))
    with pytest.raises(ConfigError) as caught:
        refuse_changes(old, other, "run")
    assert caught.value.fix is not None and fix in caught.value.fix


def test_steps_that_grow_with_another_key_are_told_why_not():
    def wsd(**more):
        schedule = {"kind": "wsd", "steps": 100, "decay_steps": 10} | more
        return flat(c.build_config({**LEAST, "schedule": schedule}, "x"))

    assert [*refuse_changes(wsd(), wsd(steps=200), "run")] == ["schedule.steps"]
    with pytest.raises(ConfigError, match="Fix: restore the old value with --set schedule.steps=200, or continue"):
        refuse_changes(wsd(steps=200), wsd(), "run")
    why = "the length of the decay is fixed when a run is started. Fix: restore schedule.decay_steps to 10 and raise"
    with pytest.raises(ConfigError, match=why):
        refuse_changes(wsd(), wsd(steps=200, decay_steps=40), "run")
    with pytest.raises(ConfigError, match="may grow, but not together with seed. Fix: restore seed to 0 and raise"):
        refuse_changes(wsd(), wsd(steps=200) | {"seed": 1}, "run")
    linear = {"kind": "linear", "decay_steps": None}
    with pytest.raises(ConfigError, match="schedule.decay_steps: null -> 10\\)"):
        refuse_changes(wsd(decay_steps=None), wsd(steps=200), "run")
    with pytest.raises(ConfigError, match="can have more steps, linear cannot"):
        refuse_changes(wsd(**linear), wsd(**linear, steps=200), "run")


@pytest.mark.parametrize(
    ("key", "value"), [("masking.rate", 0.9), ("optimizer.learning_rate", 1.0), ("masking.mask_share", 0.0)]
)
def test_values_that_are_most_often_slips_are_doubted(key, value):
    section, name = key.split(".")
    assert unusual_settings(c.build_config(LEAST, "x")) == []
    (found,) = unusual_settings(c.build_config(LEAST | {section: {name: value}}, "x"))
    assert f"{value:g}" in found


@pytest.mark.parametrize(
    ("weight_decay", "rms"),  # as mini ModernBERTs ended
    [(0.01, 0.231), (0.3, 0.0725), (1.0, 0.0277)],
)
def test_weights_that_muon_leaves_too_large_are_foreseen(weight_decay, rms):
    def run(decay):
        optimizer = {"kind": "muon", "learning_rate": 8e-3, "weight_decay": decay}
        schedule = {"kind": "wsd", "steps": 2000, "warmup_steps": 120, "decay_steps": 800}
        return c.build_config({**LEAST, "schedule": schedule, "optimizer": optimizer}, "x")

    assert muon_rms(run(weight_decay), weight_decay) == pytest.approx(rms, rel=0.1)
    found = unusual_settings(run(weight_decay))
    assert len(found) == (rms > 0.08)
    if found:
        decay = re.search(r"--set optimizer.weight_decay=([\d.]+)", found[0])
        assert decay and unusual_settings(run(float(decay[1]))) == []


def test_no_recipe_has_what_is_most_often_a_slip():
    """With 0.01, the modern recipe's weights would end ten times as large as they begin."""
    assert {name: found for name in recipes.names() if (found := unusual_settings(c.read_config(name)))} == {}
    assert unusual_settings(c.read_config("modern", ["optimizer.weight_decay=0.01"]))


def test_too_much_of_too_little_text_is_doubted(config, monkeypatch):
    """The store holds some 30 documents out of 300."""
    once, often = (config(**{"schedule.steps": steps}) for steps in (100, 100_000))
    ready = prepare_run(once)
    (held_out,) = ready.warnings()
    assert re.match(r"only \d\d documents are held out, .*: add more text$", held_out)
    epochs, same = prepare_run(often).warnings()
    assert re.match(r"the run reads its text \d{3,} times", epochs.replace(",", "")) and same == held_out
    monkeypatch.setattr(warnings, "LEAST_HELD_OUT_DOCUMENTS", 80)
    assert prepare_run(once).warnings()[0].endswith("into another folder with --valid-fraction 0.27")
    ready.store.manifest["options"]["layout"] = "file"  # a store of few files, each with a paragraph a line
    monkeypatch.setattr(warnings, "LEAST_HELD_OUT_DOCUMENTS", 100)
    assert ready.warnings()[0].endswith("--layout lines or sentences if a file has several")
    ready.store.manifest["options"]["valid_files"] = 1  # a chromosome
    assert ready.warnings()[0].endswith("too few to compare runs by: name more files as --valid-files")
    monkeypatch.setattr(warnings, "SEQUENCE_ENDINGS", ("", ".txt"))  # as FASTA: its rows count
    assert unusual_data({}, ready.held_out, seq_len=512) and unusual_data({}, ready.held_out, seq_len=8) == []


def test_short_documents_and_words_that_masks_do_not_see_are_told(config, tmp_path):
    """Positions beyond the longest document stay random, and `whole_word` hid the single characters of Chinese."""

    def told(folder, **keys):
        found = prepare_run(config(**{"data.store": str(folder)} | keys)).warnings()
        return [line for line in found if line.startswith(("data.seq_len", "masking.kind"))]

    first = prepare_run(config()).store.location
    (line,) = told(first, **{"data.seq_len": 4_096})
    assert "in documents of at most 2048 tokens" in line
    assert told(first, **{"data.seq_len": int(line.rpartition("=")[2])}) == []
    text = tmp_path / "zh.txt"
    text.write_text(
        "\n".join("".join(Random(n).choices("的一是不了人我在有他这中大来上国个到说们", k=30)) for n in range(300))
    )
    for kind, masking, words in (
        ("wordpiece", "whole_word", ["nearly every token"]),
        ("wordpiece", "span", []),
        ("wordpiece", "token", []),
        ("bpe", "whole_word", ["hidden in runs of 8: --set masking.kind=token"]),
        ("bpe", "span", ["hidden in runs of 16"]),
    ):
        if not (folder := tmp_path / kind).exists():
            train_tokenizer(Sources([str(text)]), f"{folder}-words", kind=kind, vocab_size=500)
            prepared(text, f"{folder}-words", folder, PrepareOptions(valid_fraction=0.1))
        found = told(folder, **{"masking.kind": masking})
        assert len(found) == len(words) and all(map(str.__contains__, found, words)), (kind, masking)


def test_a_recipe_goes_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert c.read_config("small", ["schedule.steps=700"]).model.size == "small"
    assert recipes.read("small") == Path(recipes.find_config("small")).read_text()
    with pytest.raises(ConfigError, match="smal: is neither a file nor a recipe.*did you mean small"):
        c.read_config("smal")
    (tmp_path / "corpus").mkdir()
    with pytest.raises(ConfigError, match="corpus: is a folder. Fix: give the YAML file of a run"):
        c.read_config("corpus")
    with pytest.raises(ConfigError, match="x: is not a recipe. Fix: give one of the recipes continue, continue-esm2"):
        recipes.read("x")
    for typed in ("runs/small", "other.yaml", "gs://bucket/small.yaml"):
        assert recipes.find_config(typed) == typed  # for whoever opens it
    (tmp_path / "small").write_text("data: {store: s}\nschedule: {steps: 100}\n")
    assert c.read_config("small").model.size == "base"  # the file that is here


@pytest.mark.parametrize(
    ("text", "overrides", "kind"),
    [
        ("data: {train: a.csv}", [], FinetuneConfig),
        ("batch: {examples: 8}", ["data.train=a.csv"], FinetuneConfig),
        ("seed: 1", ["data.train=a.csv", "task.kind=retrieval", "data.corpus=c", "data.queries=q"], RetrievalConfig),
        ("data: {seq_len: 64}", ["data.store=s", "schedule.steps=5"], c.RunConfig),
    ],
)
def test_the_kind_of_a_yaml_is_that_of_its_keys_and_overrides(tmp_path, text, overrides, kind):
    file = tmp_path / "a.yaml"
    file.write_text(text)
    model = [] if kind is c.RunConfig else ["model.init_from=m"]
    assert type(read_any_config(str(file), overrides + model)) is kind


def test_words_are_words_and_numbers_numbers(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "data: {store: s}\nschedule: {steps: 100}\nengine: {compile: on}\nlogging: {report_to: []}\n"
        "optimizer: {learning_rate: 1e-3}\n"
    )
    config = c.read_config(str(path), ["engine.compile=off", "logging.report_to=[wandb]"])
    assert (config.engine.compile, config.logging.report_to, config.optimizer.learning_rate) == ("off", ["wandb"], 1e-3)
    assert c.read_config(str(path)).engine.compile == "on"


def test_a_model_that_is_named_takes_the_place_of_one_of_random_weights(tmp_path):
    """As the arms of a comparison do with a task that trains from scratch."""
    task = tmp_path / "task.yaml"
    task.write_text("data: {train: a.csv}\nmodel: {tokenizer: t, size: nano, hidden_dropout: 0.2}\n")
    model = read_task_config(str(task), ArmStart("arm", ("folder",)).keys(0)).model.model_dump(exclude_defaults=True)
    assert model == {"init_from": "folder", "hidden_dropout": 0.2}
    with pytest.raises(ConfigError, match="model.tokenizer is not used"):
        read_task_config(str(task), ["model.init_from=folder", "model.tokenizer=t"])


@pytest.mark.parametrize("text", ["/data/my #1 store", "/data/it's  #1", 'a"b #c'])
def test_no_value_is_cut_where_yaml_has_a_comment(text):
    assert c.read_config("nano", [f"data.store={in_flow(text)}"]).data.store == text
    with pytest.raises(
        ConfigError, match="^--set data.store: in YAML, '#.*' is a comment. Fix: put the value in quotes"
    ):
        c.read_config("nano", [f"data.store={text}"])
