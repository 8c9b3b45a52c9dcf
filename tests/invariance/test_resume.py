"""Stopping and starting again changes nothing: weights, optimizer, metrics, bit for bit."""

import shutil

import pytest
from ended_runs import metrics, require_same_ends

from maskwright.core.errors import StoppedEarly
from maskwright.engines.torch import loss_scale
from maskwright.run.directory import RunDirectory
from maskwright.tasks.pretrain import run as task
from maskwright.training import checkpoint, loop


def stop_after(monkeypatch, steps):
    """The next `pretrain` is asked to stop once it has finished `steps` updates, as by SIGTERM."""

    def train(job, stop, original=loop.train):
        step = job.engine.step

        def counted(*arguments):
            result = step(*arguments)
            if job.step + 1 == steps:
                stop.ask("asked", "test")
            return result

        job.engine.step = counted
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
        {"model.hidden_dropout": 0.1, "model.attention_dropout": 0.1, "optimizer.layer_decay": 0.5},
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
def test_resume_is_bit_identical(keys, config, tmp_path, monkeypatch):
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

    require_same_ends(tmp_path / "straight", tmp_path / "stopped")
    ends = [
        checkpoint.load_newest(str(tmp_path / name / "checkpoints"), set_aside=False)
        for name in ("straight", "stopped")
    ]
    assert ends[0] and ends[1] and ends[0][0].step == 12
    muon = {"momentum"} if keys.get("optimizer.kind") == "muon" else set()
    assert set(ends[0][0].moments) == {"exp_avg", "exp_avg_sq"} | muon
    assert ends[0][1]["counters"] == ends[1][1]["counters"] and ends[0][0].loss_scale == ends[1][0].loss_scale
    if keys.get("engine.dtype") == "fp16":
        skipped = [line["skipped_updates"] for line in metrics(tmp_path / "stopped") if "loss" in line]
        assert 0 < skipped[4] < skipped[-1] < 12
    status = RunDirectory(str(tmp_path / "stopped")).read_status()
    assert status and status.attempt == len(stops) + 1


def test_a_finished_run_started_again_changes_nothing(config, tmp_path):
    for _ in range(2):
        task.pretrain(config(), str(tmp_path / "run"))
    records = metrics(tmp_path / "run")
    assert [r["step"] for r in records if "valid_loss" in r] == [0, 12]
    assert [r["step"] for r in records if "loss" in r] == list(range(1, 13))
