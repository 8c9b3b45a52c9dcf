"""Held-out sets of a run: stores of their own, by name, and stores made from given files."""

import json

import numpy as np
import pytest
from conftest import documents, prepared

import maskwright
from maskwright.cli.main import run
from maskwright.config.pretraining import build_config
from maskwright.core.errors import ConfigError, StoreError
from maskwright.data.prepare.request import PrepareOptions
from maskwright.data.store import TokenStore
from maskwright.machine import hardware
from maskwright.run.directory import RunDirectory
from maskwright.run.record import RecordedText
from maskwright.tasks.export.hugging_face import model_card
from maskwright.tasks.measure.held_out import Evaluations
from maskwright.tasks.models.load import load_model
from maskwright.tasks.pretrain import run as task
from maskwright.tasks.pretrain.prepare import prepare_run
from maskwright.text.sources import Sources
from maskwright.text.tokenizer import train_tokenizer
from maskwright.training import checkpoint


def text(path, count, seed):
    stories = "\n\n".join("\n".join(lines) for lines in documents(count, seed))
    path.write_text(f"{stories}\n", encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def other_set(tokenizer, tmp_path_factory):
    """All of its text is held out."""
    folder = tmp_path_factory.mktemp("held-out")
    source = Sources([text(folder / "other.txt", 30, seed=9)], layout="sentences")
    return prepared(source, tokenizer, folder / "other", PrepareOptions(valid_fraction=1.0)).location


def measured(run):
    lines = RunDirectory(str(run)).read_metrics()
    return [{key: value for key, value in line.items() if key != "time"} for line in lines if "valid_loss" in line]


def test_other_sets_are_reported_by_name_and_change_nothing_else(
    config, store, other_set, tmp_path, capsys, monkeypatch
):
    # `evaluate` takes bf16 where that is faster, and the runs here are of fp32.
    monkeypatch.setattr(hardware, "cpu_multiplies_bf16_faster", lambda: False)
    keys = {"schedule.steps": 4, "logging.report_to": ["tensorboard"]}
    task.pretrain(config(**keys), str(tmp_path / "plain"))
    stores = {"other-text": other_set, "own": store.location}
    capsys.readouterr()
    task.pretrain(config(**keys, **{"data.validation": stores}), str(tmp_path / "named"))
    said = capsys.readouterr().err
    assert "step 4: held-out loss of other-text " in said and "step 4: held-out loss of own " in said
    plain, named = (measured(tmp_path / name) for name in ("plain", "named"))
    for default, several in zip(plain, named, strict=True):
        for kind in ("loss", "accuracy"):
            assert several[f"valid_own_{kind}"] == default[f"valid_{kind}"]
        assert several["valid_loss"] == several["valid_other-text_loss"] and default["judges"] != several["judges"]
        assert set(default) == {"step", "valid_loss", "valid_accuracy", "judges"}
    places = [str(tmp_path / name / "checkpoints/step-00000004") for name in ("plain", "named")]
    first, second = (checkpoint.load(place)[0].parameters for place in places)
    assert all(np.array_equal(value, second[name]) for name, value in first.items())
    (events,) = (tmp_path / "named/events").iterdir()
    assert b"eval/other-text_loss" in events.read_bytes()
    card = model_card(load_model(str(tmp_path / "named")), 0.0)
    assert "- held-out loss of other-text " in card and "- held-out loss of own " in card
    record = RunDirectory(str(tmp_path / "named")).read_record()
    judges = {"other-text": RecordedText(other_set, TokenStore(other_set).fingerprint), "own": record.train}
    assert record.held_out == judges
    assert record.digest == RunDirectory(str(tmp_path / "plain")).read_record().digest
    again = maskwright.evaluate(str(tmp_path / "named"), max_rows=8, device="cpu")
    assert isinstance(again, Evaluations) and list(again.sources) == ["other-text", "own"]
    assert again.sources["other-text"].loss == pytest.approx(named[-1]["valid_loss"], rel=1e-5)
    assert run(["evaluate", str(tmp_path / "plain"), "--max-rows", "8", "--device", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["loss"] == again.sources["own"].loss

    task.pretrain(config(**keys, **{"data.validation": other_set}), str(tmp_path / "named"))  # resumable
    (change,) = RunDirectory(str(tmp_path / "named")).read_record().changes
    assert change.decides and [key.partition(": ")[0] for key in change.keys] == ["data.validation", "held-out text"]


def test_what_is_no_held_out_set_is_refused(config, corpus, tokenizer, tmp_path):
    source = Sources([str(corpus)], layout="sentences")
    nothing = prepared(source, tokenizer, tmp_path / "nothing", PrepareOptions(valid_fraction=0.0)).location
    with pytest.raises(StoreError, match="holds no documents out"):
        prepare_run(config(**{"data.validation": nothing}))
    train_tokenizer(source, str(tmp_path / "tokenizer"), vocab_size=300)
    other = prepared(source, str(tmp_path / "tokenizer"), tmp_path / "other", PrepareOptions(valid_fraction=1.0))
    with pytest.raises(StoreError, match="was made with another tokenizer"):
        prepare_run(config(**{"data.validation": {"a": other.location}}))
    for wrong in ({}, {"a b": "s"}, {"a": 1}, ["s"], 3, {1: "s"}):
        with pytest.raises(ConfigError, match="names no token stores"):
            build_config({"data": {"store": "s", "validation": wrong}, "schedule": {"steps": 9}}, "x")


def test_the_command_holds_files_out(tokenizer, tmp_path, capsys):
    train, valid = text(tmp_path / "train.txt", 20, 1), text(tmp_path / "valid.txt", 5, 2)
    words, no = ["data", "prepare", train, "--tokenizer", tokenizer, "--to"], str(tmp_path / "no")
    assert run([*words, str(tmp_path / "store"), "--valid-files", valid]) == 0
    splits = TokenStore(str(tmp_path / "store")).manifest["splits"]
    assert {name: split["documents"] for name, split in splits.items()} == {"train": 20, "valid": 5}
    capsys.readouterr()
    assert run([*words, no, "--valid-files", valid, "--valid-fraction", "0.1"]) == 2
    assert "has no effect with --valid-files" in capsys.readouterr().err
    (tmp_path / "link.txt").symlink_to(train)
    for again in (train, f"{tmp_path}/../{tmp_path.name}/train.txt", f"{tmp_path}/link.txt"):
        assert run([*words, no, "--valid-files", again]) == 2
        assert "is among the files to train on and in --valid-files" in capsys.readouterr().err
