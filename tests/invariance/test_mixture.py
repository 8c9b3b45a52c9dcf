"""A run on a mixture of stores, from its first line to its export."""

import shutil

import pytest
from conftest import small_config
from ended_runs import metrics, require_same_ends

from maskwright.core.errors import ConfigError, StoppedEarly
from maskwright.data.store import TokenStore
from maskwright.tasks.export.hugging_face import model_card
from maskwright.tasks.measure.held_out import evaluate_sources
from maskwright.tasks.models.load import load_model
from maskwright.tasks.pretrain import run as task
from maskwright.training.stop import StopRequest


@pytest.fixture
def stores(store, tmp_path):
    """Two copies of the same store: what differs is where a row is counted."""
    for name in ("one", "two"):
        shutil.copytree(store.location, tmp_path / name)
    return {name: str(tmp_path / name) for name in ("one", "two")}


def mixture(stores, weight=1.0, **keys):
    sources = {"one": {"store": stores["one"], "weight": 3.0}, "two": {"store": stores["two"], "weight": weight}}
    return small_config("", **{"data.store": None, "data.mixture": sources, **keys})


def test_a_run_on_a_mixture_stops_and_goes_on_with_the_same_bits(stores, tmp_path, capsys):
    config = mixture(stores, **{"checkpoint.save_every_steps": 4})
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    task.pretrain(config, str(straight))
    with pytest.raises(StoppedEarly):
        task.pretrain(config, str(stopped), stop_request=StopRequest(stop_after_steps=5))
    moved = {"one": stores["one"], "two": str(tmp_path / "moved")}
    shutil.move(stores["two"], moved["two"])
    same = mixture(moved, **{"checkpoint.save_every_steps": 4})
    with pytest.raises(ConfigError, match="the run was started with another token store"):
        task.pretrain(mixture(moved, 2.0), str(stopped))
    task.pretrain(same, str(stopped))
    require_same_ends(straight, stopped)
    (last,) = (line for line in metrics(stopped) if line["step"] == 12 and "valid_loss" in line)
    assert last["valid_loss"] == last["valid_one_loss"] == last["valid_two_loss"]
    assert "mixture: " in capsys.readouterr().err
    trained = load_model(str(stopped))
    found = evaluate_sources(trained, {"": TokenStore(trained.run.train.location)}, max_rows=8).sources[""]
    assert found.loss == pytest.approx(last["valid_one_loss"], abs=5e-3)  # in bf16
    card = model_card(trained, 0.0)
    assert "- a mixture of one, weight 3; two, weight 1\n" in card and stores["one"] not in card
