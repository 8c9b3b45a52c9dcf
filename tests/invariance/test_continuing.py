"""A run that gets more steps, and a run that begins from another's checkpoint: what is the same, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from maskwright.core.config import RunConfig
from maskwright.core.errors import ConfigError, StoppedEarly
from maskwright.engines.base import TrainState
from maskwright.monitor.status import look
from maskwright.run.directory import RunDirectory
from maskwright.tasks import pretrain as task
from maskwright.tasks.preflight import dry_run
from maskwright.training import checkpoint
from maskwright.training.stop import StopRequest

TIMES = {"time", "tokens_per_second", "matmul_share"}
Config = Callable[..., RunConfig]


def metrics(run: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if k not in TIMES} for record in RunDirectory(str(run)).read_metrics()]


def state(run: Path, step: int | None = None) -> TrainState:
    folder = run / "checkpoints"
    found = checkpoint.whole_steps(str(folder))[-1] if step is None else step
    return checkpoint.load(str(folder / f"step-{found:08d}"))[0]


def require_same(one: TrainState, other: TrainState) -> None:
    assert one.step == other.step
    for name, value in one.parameters.items():
        assert np.array_equal(value, other.parameters[name]), name
    assert set(one.moments) == set(other.moments)
    for kind, moments in one.moments.items():
        for name, value in moments.items():
            assert np.array_equal(value, other.moments[kind][name]), (kind, name)


def stopped_after(steps: int, config: RunConfig, run: Path) -> None:
    with pytest.raises(StoppedEarly):
        task.pretrain(config, str(run), stop_request=StopRequest(stop_after_steps=steps))


@pytest.mark.parametrize("engine", ["torch", "jax"])
def test_a_run_that_grows_before_its_decay_is_the_longer_run(engine: str, config: Config, tmp_path: Path) -> None:
    keys = {"schedule.kind": "wsd", "engine.kind": engine}
    long, grown = config(**keys, **{"schedule.steps": 20}), tmp_path / "grown"
    stopped_after(8, config(**keys, **{"schedule.steps": 10}), grown)  # its decay begins after step 8
    task.pretrain(long, str(grown))
    task.pretrain(long, str(tmp_path / "straight"))
    require_same(state(grown), state(tmp_path / "straight"))
    assert metrics(grown) == metrics(tmp_path / "straight")

    (change,) = RunDirectory(str(grown)).read_config()["changes"]
    assert (change["step"], change["keys"]) == (8, ["schedule.steps: 10 -> 20"])
    assert "changed at step 8: schedule.steps: 10 -> 20" in look(str(grown)).report()
    task.pretrain(long, str(grown))  # nothing is left to do, and nothing is forgotten
    assert checkpoint.load(str(grown / "checkpoints/step-00000020"))[1]["changes"] == [change]
    assert RunDirectory(str(grown)).read_config()["changes"] == [change]


def test_a_run_in_its_decay_names_the_checkpoint_to_branch_from(config: Config, tmp_path: Path) -> None:
    keys = {"schedule.kind": "wsd", "checkpoint.save_every_steps": 4, "checkpoint.keep_every_steps": 4}
    run = tmp_path / "run"
    task.pretrain(config(**keys, **{"schedule.steps": 10}), str(run))
    record = RunDirectory(str(run)).read_config()
    for start in (task.pretrain, dry_run):
        with pytest.raises(ConfigError) as refused:
            start(config(**keys, **{"schedule.steps": 20}), str(run))
        assert "the run has gone to step 10, and its decay began after step 8" in str(refused.value)
        branch = f"--from {run}@8 --set schedule.steps=12 --set schedule.warmup_steps=0"
        assert branch in str(refused.value) and "\n" not in str(refused.value)
    assert RunDirectory(str(run)).read_config() == record
    for step in (4, 8):
        (run / f"checkpoints/step-{step:08d}/MANIFEST.json").unlink()
    with pytest.raises(ConfigError, match="no checkpoint from before that is kept"):
        task.pretrain(config(**keys, **{"schedule.steps": 20}), str(run))


@pytest.mark.parametrize(
    ("before", "now", "why"),
    [
        ({"schedule.steps": 20}, {"schedule.steps": 10}, r"schedule.steps: 20 -> 10\)"),
        ({"schedule.kind": "linear"}, {"schedule.steps": 20}, "linear depends on them"),
        ({"masking.final_rate": 0.3}, {"schedule.steps": 20}, "masking.final_rate depends on schedule.steps"),
        ({}, {"schedule.steps": 20, "seed": 5}, "seed: 0 -> 5"),
    ],
    ids=["fewer", "linear", "masking rate", "another seed"],
)
def test_what_cannot_grow_says_why(
    before: dict[str, Any], now: dict[str, Any], why: str, config: Config, tmp_path: Path
) -> None:
    keys = {"schedule.kind": "wsd", "schedule.steps": 12} | before
    stopped_after(2, config(**keys), tmp_path / "run")
    with pytest.raises(ConfigError, match=why):
        dry_run(config(**keys | now), str(tmp_path / "run"))
