"""A run's record: each question about a run has one answer, whoever asks, from whichever folder."""

import json
import shlex
import shutil
from dataclasses import replace

import numpy as np
import pytest
from conftest import small_config
from made_record import made_record
from safetensors.numpy import load_file, save_file

from maskwright.cli.main import run as command
from maskwright.config.places import absolute
from maskwright.config.settings import flat
from maskwright.core.errors import CheckpointError, InputError
from maskwright.data.prepare.driver import prepare
from maskwright.data.prepare.request import PrepareOptions, Request
from maskwright.report.configuration import how_to_repeat
from maskwright.report.document import Code
from maskwright.report.run import read
from maskwright.run.directory import RunDirectory
from maskwright.run.record import FromFolder, FromRun
from maskwright.tasks.export.hugging_face import export
from maskwright.tasks.models.load import load_model
from maskwright.tasks.models.runs import held_out_stores
from maskwright.tasks.pretrain.run import pretrain
from maskwright.tasks.start.changes import noted
from maskwright.tasks.start.opened import _require_same_keys
from maskwright.text.sources import Sources

SHORT = {"schedule.steps": 2, "schedule.warmup_steps": 0, "evaluation.every_steps": None}


@pytest.fixture(scope="module")
def base(store, tmp_path_factory):
    """A run, and its export beside it."""
    folder = tmp_path_factory.mktemp("base")
    pretrain(small_config(store.location, **SHORT), str(folder / "run"))
    export(load_model(str(folder / "run")), str(folder / "model"))
    return folder


@pytest.mark.parametrize("begins", ["init_from a run", "init_from a folder, then --from"])
def test_the_printed_command_trains_the_same_model(begins, base, config, tmp_path):
    own, origin = config(**SHORT, **{"model.init_from": str(base / "run")}), None
    if "--from" in begins:
        own = config(**SHORT, **{"model.init_from": str(base / "model")})
        pretrain(own, str(tmp_path / "parent"))
        origin, own = str(tmp_path / "parent"), own.model_copy(update={"seed": 5})
    pretrain(own, str(tmp_path / "child"), origin)
    began_from = RunDirectory(str(tmp_path / "child")).read_record().began_from
    assert isinstance(began_from, FromRun) and began_from.via == ("--from" if origin else "model.init_from")
    assert isinstance(began_from.began_from, FromFolder) == bool(origin)

    child = read(str(tmp_path / "child"))
    steps, yaml = (block.text for block in _codes(how_to_repeat(child)))
    (tmp_path / "config.yaml").write_text(yaml)
    (line,) = [line for line in steps.splitlines() if line.startswith("maskwright pretrain")]
    words = shlex.split(line.replace("config.yaml", str(tmp_path / "config.yaml")))[1:]
    assert command([str(tmp_path / "again") if word == "NEW" else word for word in words]) == 0
    assert read(str(tmp_path / "again")).saved == child.saved
    origins = ["--from", f"{origin}@2"] if origin else []
    assert child.record.command("config.yaml", "NEW") == [words[0], "config.yaml", "--run", "NEW", *origins]


def _codes(blocks):
    found = []
    for block in blocks:
        found += [block] if isinstance(block, Code) else _codes([*getattr(block, "blocks", ())])
    return found


def test_a_run_killed_before_its_first_save_begins_with_the_same_weights_or_not(base, config, tmp_path):
    """So does one whose base has moved; a base at another place that has other weights is refused."""
    model, run = tmp_path / "model", tmp_path / "run"
    shutil.copytree(base / "model", model)
    own = config(**SHORT, **{"model.init_from": str(model)})
    pretrain(own, str(run))
    moved = model.rename(tmp_path / "moved")
    pretrain(config(**SHORT, **{"model.init_from": str(moved)}), str(run))
    elsewhere = moved.rename(tmp_path / "elsewhere")
    whole = load_file(str(elsewhere / "model.safetensors"))
    save_file({name: -value for name, value in whole.items()}, str(elsewhere / "model.safetensors"), {"format": "pt"})
    with pytest.raises(CheckpointError, match="does not have the weights with which the run began. Fix: restore them"):
        pretrain(config(**SHORT, **{"model.init_from": str(elsewhere)}), str(run))
    elsewhere.rename(model)
    save_file(whole, str(model / "model.safetensors"), {"format": "pt"})
    shutil.rmtree(run / "checkpoints")
    (run / "status.json").unlink()
    file = model / "model.safetensors"
    weights = load_file(str(file))
    save_file({name: value + np.float32(0.5) for name, value in weights.items()}, str(file), {"format": "pt"})
    with pytest.raises(CheckpointError, match="does not have the weights with which the run began. Fix: restore them"):
        pretrain(own, str(run))


def test_no_other_text_is_measured_on_in_silence(store, corpus, tokenizer, config, tmp_path, monkeypatch):
    """Neither that of another folder, by a relative path, nor what was prepared in the place of the run's own."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(store.location, "held")
    pretrain(config(**SHORT, **{"data.validation": "held"}), "run")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    record = RunDirectory(str(tmp_path / "run")).read_record()
    (opened,) = held_out_stores(record).values()
    assert opened.location == str(tmp_path / "held") == record.held_out[""].location

    shutil.rmtree(tmp_path / "held")
    prepare(Request(Sources([str(corpus)]), tokenizer, str(tmp_path / "held"), PrepareOptions(valid_fraction=0.5)))
    with pytest.raises(InputError, match="held: is another token store than the run had"):
        held_out_stores(record)
    assert command(["evaluate", str(tmp_path / "run"), "--device", "cpu"]) == 2


LINES = [(0, 9.0, ""), (2, 1.0, "easy"), (4, 3.0, ""), (6, 2.0, ""), (8, 2.5, ""), (10, 0.5, "")]
"""(step, loss, text) of evaluations. An easier text judged that of step 2; that of step 10 has no checkpoint yet."""


@pytest.mark.parametrize(
    ("kind", "keys", "more", "chosen", "settled"),
    [
        ("pretrain", {}, {}, 8, False),
        ("pretrain", {"evaluation.patience": 1}, {}, 6, True),
        ("pretrain", {"evaluation.patience": 2}, {}, 6, False),
        ("finetune", {}, {}, 6, False),
        ("finetune", {}, {"metric": "f1", "lower_is_better": False}, 4, False),
    ],
)
def test_the_step_of_the_model_is_chosen_by_evaluations_on_one_text(kind, keys, more, chosen, settled):
    record = made_record(kind, keys, steps=20, **more)
    lines = [
        {"step": step, "valid_loss": loss, "valid_f1": loss, "judges": text or record.judges}
        for step, loss, text in LINES
    ]
    saved = [2, 4, 6, 8]
    assert (record.chosen(lines, saved), record.best(lines, saved).settled) == (chosen, settled)
    assert record.chosen(lines, []) is None
    assert record.has_ended(lines, saved, has_results=False) == (kind == "pretrain" and settled)
    assert record.has_ended(lines, [*saved, 20], has_results=kind == "finetune")
    other = replace(record, held_out={"": replace(record.train, fingerprint="other")})
    assert other.judges != record.judges and other.chosen(lines, saved) == 8


@pytest.mark.parametrize(
    ("key", "decides"),
    [
        ("checkpoint.keep", False),
        ("logging.every_steps", False),
        ("data.store", False),
        ("data.validation", False),
        ("schedule.steps", False),
        ("held-out text", True),
        ("engine.device", True),
        ("evaluation.patience", True),
    ],
)
def test_only_what_decides_numbers_takes_several_commands(key, decides):
    changes = noted({key: f"{key}: 2 -> 3"}, 5)
    assert made_record(changes=tuple(changes)).repeats == (not decides)
    assert made_record(changes=tuple(noted({}, 5))).repeats


def test_hosts_may_keep_what_a_run_reads_in_different_places(config):
    here = flat(config())
    _require_same_keys(here, here | {"data.arrow.tokenizer": "elsewhere", "data.store": "elsewhere"})
    with pytest.raises(InputError, match="is not the configuration of rank 0"):
        _require_same_keys(here, here | {"seed": 9})


def test_a_record_holds_no_path_that_depends_on_a_folder(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sources = {"a": {"store": "one", "format": "arrow", "arrow": {"tokenizer": "words"}}, "b": {"store": "gs://b/two"}}
    keys = {
        "data.store": None,
        "data.mixture": sources,
        "data.validation": {"c": "three"},
        "model.init_from": "hf://o/n",
    }
    values = flat(absolute(config(**keys)))
    assert json.loads(json.dumps(values["data.mixture"]))["a"]["store"] == str(tmp_path / "one")
    assert values["data.mixture"]["a"]["arrow"]["tokenizer"] == str(tmp_path / "words")
    assert values["data.mixture"]["b"]["store"] == "gs://b/two" and values["model.init_from"] == "hf://o/n"
    assert values["data.validation"] == {"c": str(tmp_path / "three")}
