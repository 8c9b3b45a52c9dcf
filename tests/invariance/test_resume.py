"""Stopping and starting again changes nothing: weights, optimizer, metrics, bit for bit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from maskwright.config.pretraining import RunConfig
from maskwright.core.errors import StoppedEarly
from maskwright.engines.torch import loss_scale
from maskwright.prove.verify_resume import TIMES
from maskwright.run.directory import RunDirectory
from maskwright.tasks.pretrain import run as task
from maskwright.training import checkpoint, loop
from maskwright.training.stop import StopRequest


def metrics(run: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if k not in TIMES} for record in RunDirectory(str(run)).read_metrics()]


def stop_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """The next `pretrain` is asked to stop once it has finished `steps` updates, as by SIGTERM."""

    def train(job: loop.Job, stop: StopRequest, original: Any = loop.train) -> None:
        step = job.engine.step

        def counted(*arguments: Any) -> Any:
            result = step(*arguments)
            if job.step + 1 == steps:
                stop.ask("asked", "test")
            return result

        job.engine.step = counted  # type: ignore[method-assign]
        original(job, stop)

    monkeypatch.setattr(loop, "train", train)


PHASES = [
    {"until_step": 5, "seq_len": 16, "rows_per_step": 16, "masking_rate": 0.3},
    {"until_step": 8, "seq_len": 24, "masking_kind": "span"},
]
"""The first border is where the run is stopped, the second one is between its stops."""


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"model.hidden_dropout": 0.1, "model.attention_dropout": 0.1},
        {"engine.dtype": "bf16", "model.hidden_dropout": 0.1, "masking.kind": "whole_word", "logging.every_steps": 3},
        {
            "data.packing": "full_sentences",
            "masking.kind": "span",
            "masking.rate": 0.1,
            "phases": [{"until_step": 7, "seq_len": 16, "rows_per_step": 16, "masking_rate": 0.3, "causal_share": 0.5}],
        },
        {"schedule.kind": "wsd", "batch.virtual_workers": 4, "evaluation.every_steps": 5},
        {
            "model.architecture": "modernbert",
            "model.hidden_dropout": 0.1,
            "model.attention_dropout": 0.1,
            "optimizer.kind": "muon",
            "phases": [*PHASES, {"until_step": 12, "rope_theta": 160_000.0}],
            "engine.dtype": "bf16",
        },
        {"engine.dtype": "fp16", "model.hidden_dropout": 0.1, "evaluation.every_steps": 5},
        pytest.param(
            {"engine.compile": "on", "engine.dtype": "bf16", "model.hidden_dropout": 0.1},
            marks=[
                pytest.mark.long,
                pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs g++ on a CPU; there is none"),
                pytest.mark.filterwarnings("ignore"),  # of the compiler itself
            ],
        ),
    ],
    ids=[
        "plain",
        "dropout",
        "bf16-whole-word",
        "sentences-span-rate",
        "wsd-accumulation",
        "modernbert-muon",
        "fp16-overflows",
        "compiled",
    ],
)
def test_resume_is_bit_identical(
    keys: dict[str, Any], config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = config(**keys)
    # In fp16 the first gradients overflow, and later ones do each time that the scale has grown.
    monkeypatch.setattr(loss_scale, "FIRST_SCALE", 2.0**21)
    monkeypatch.setattr(loss_scale, "DOUBLED_AFTER_UPDATES", 2)
    task.pretrain(run, str(tmp_path / "straight"))
    stops = (5,) if run.engine.compile == "on" else (5, 10)  # each start compiles again
    for steps in stops:
        with monkeypatch.context() as patch:
            stop_after(patch, steps)
            with pytest.raises(StoppedEarly):
                task.pretrain(run, str(tmp_path / "stopped"))
    task.pretrain(run, str(tmp_path / "stopped"))

    straight = checkpoint.load_newest(str(tmp_path / "straight/checkpoints"), set_aside=False)
    stopped = checkpoint.load_newest(str(tmp_path / "stopped/checkpoints"), set_aside=False)
    assert straight and stopped
    assert straight[0].step == stopped[0].step == 12
    for name, value in straight[0].parameters.items():
        assert np.array_equal(value, stopped[0].parameters[name]), name
    muon = {"momentum"} if keys.get("optimizer.kind") == "muon" else set()
    assert set(straight[0].moments) == {"exp_avg", "exp_avg_sq"} | muon
    for kind, moments in straight[0].moments.items():
        for name, value in moments.items():
            assert np.array_equal(value, stopped[0].moments[kind][name]), name
    assert straight[1]["counters"] == stopped[1]["counters"]
    assert metrics(tmp_path / "straight") == metrics(tmp_path / "stopped")
    assert straight[0].loss_scale == stopped[0].loss_scale
    if keys.get("engine.dtype") == "fp16":
        skipped = [line["skipped_updates"] for line in metrics(tmp_path / "stopped") if "loss" in line]
        assert 0 < skipped[4] < skipped[-1] < 12
    status = RunDirectory(str(tmp_path / "stopped")).read_status()
    assert status and status.attempt == len(stops) + 1


def test_a_finished_run_started_again_changes_nothing(config: Callable[..., RunConfig], tmp_path: Path) -> None:
    for _ in range(2):
        task.pretrain(config(), str(tmp_path / "run"))
    records = metrics(tmp_path / "run")
    assert [r["step"] for r in records if "valid_loss" in r] == [0, 12]
    assert [r["step"] for r in records if "loss" in r] == list(range(1, 13))


def test_lines_after_the_checkpoint_are_written_once(config: Callable[..., RunConfig], tmp_path: Path) -> None:
    """As after a kill between a log line and the next save: the line is there, its step is not saved."""
    directory = RunDirectory(str(tmp_path / "run"))
    task.pretrain(config(), directory.location)
    whole = metrics(tmp_path / "run")
    before = config(**{"schedule.steps": 12, "checkpoint.save_every_steps": 6})
    other = tmp_path / "other"
    task.pretrain(before, str(other))
    newest = checkpoint.whole_steps(str(other / "checkpoints"))
    assert newest == [6, 12]
    (other / "checkpoints" / "step-00000012" / "MANIFEST.json").unlink()
    with open(other / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"step": 12, "loss": 1.0')  # cut in the middle
    task.pretrain(before, str(other))
    assert metrics(other) == whole


def test_micro_batches_add_up_to_the_whole_batch(config: Callable[..., RunConfig], tmp_path: Path) -> None:
    """The loss is divided once by the global weight, so cutting a batch differently changes rounding only."""
    weights = []
    for number, (rows, workers) in enumerate([(8, 1), (4, 2), (1, 8)]):
        run = config(**{"batch.micro_batch_rows": rows, "batch.virtual_workers": workers, "schedule.steps": 6})
        task.pretrain(run, str(tmp_path / str(number)))
        loaded = checkpoint.load_newest(str(tmp_path / str(number) / "checkpoints"), set_aside=False)
        assert loaded
        weights.append(loaded[0].parameters)
    for name, value in weights[0].items():
        for other in weights[1:]:
            assert np.abs(value - other[name]).max() < 2e-4, name
    losses = [[r["loss"] for r in metrics(tmp_path / str(n)) if "loss" in r] for n in range(3)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0] == pytest.approx(losses[2], rel=1e-5)


def test_run_directory_records_what_was_run(config: Callable[..., RunConfig], tmp_path: Path) -> None:
    task.pretrain(config(**{"logging.report_to": ["tensorboard"]}), str(tmp_path / "run"))
    record = json.loads((tmp_path / "run/config.resolved.json").read_text())
    assert record["config"]["schedule.steps"] == 12
    assert record["digest"] == config().digest()  # what is logged does not count
    status = RunDirectory(str(tmp_path / "run")).read_status()
    assert status
    assert (status.phase, status.step, status.of, status.exit) == ("done", 12, 12, 0)
    assert list((tmp_path / "run/events").iterdir())
    environment = json.loads((tmp_path / "run/environment.json").read_text())
    assert environment["packages"]["torch"] and len(environment["source_sha256"]) == 64
