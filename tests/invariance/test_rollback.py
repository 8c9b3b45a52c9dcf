"""A spike that sends the run back: what data it then sees, and that a stop in between changes nothing. Where the host
is free, a log line is written late, with the next step begun; the run is the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ended_runs import metrics, require_same, require_same_ends, state

from maskwright.config.pretraining import RunConfig
from maskwright.core.errors import HealthError, StoppedEarly
from maskwright.data.batch import Batch
from maskwright.data.loader import Loader
from maskwright.engines.base import StepStats
from maskwright.engines.torch.engine import TorchEngine
from maskwright.tasks.pretrain import run as task
from maskwright.training.stop import StopRequest

KEYS = {"schedule.steps": 40, "logging.every_steps": 1, "checkpoint.save_every_steps": 4, "health.on_spike": "rollback"}


def read_late(monkeypatch: pytest.MonkeyPatch, *, whether: bool) -> None:
    monkeypatch.setattr(TorchEngine, "leaves_host_free", whether)


@pytest.fixture(params=[False, True], ids=["at once", "late"])
def late(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether log lines are written while the next step is computed."""
    read_late(monkeypatch, whether=request.param)
    return bool(request.param)


def spike_on(monkeypatch: pytest.MonkeyPatch, bad: set[int]) -> list[int]:
    """These steps of data look terrible, whenever they are trained on. Returns a list that gets the steps of data in
    the order in which updates are made of them."""
    batches, step, of, seen = Loader.batches, TorchEngine.step, {}, []

    def noted(self: Loader, step: int, workers: list[int]) -> list[Batch]:
        made = batches(self, step, workers)
        of[id(made[0])] = step, made[0]  # which is kept, so that its id stays its own
        return made

    def inflated(
        self: TorchEngine, batches: Sequence[Batch], learning_rate: float, give_up: Callable[[], bool], vote: int
    ) -> StepStats:
        stats = step(self, batches, learning_rate, give_up, vote)
        assert stats is not None
        seen.append(of[id(batches[0])][0])
        return StepStats(float(stats.loss_sum) * (30.0 if seen[-1] in bad else 1.0), stats.weight, stats.grad_norm)

    monkeypatch.setattr(Loader, "batches", noted)
    monkeypatch.setattr(TorchEngine, "step", inflated)
    return seen


def test_late_lines_are_those_that_are_read_at_once(
    config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {
        "schedule.steps": 23,
        "logging.every_steps": 2,
        "evaluation.every_steps": 5,
        "checkpoint.save_every_steps": 8,
    }
    for name in ("straight", "late", "stopped"):
        with monkeypatch.context() as patch:
            read_late(patch, whether=name != "straight")
            if name == "stopped":
                with pytest.raises(StoppedEarly):
                    task.pretrain(config(**keys), str(tmp_path / name), stop_request=StopRequest(stop_after_steps=11))
            task.pretrain(config(**keys), str(tmp_path / name))
    require_same_ends(*(tmp_path / name for name in ("straight", "late", "stopped")))
    assert [line["step"] for line in metrics(tmp_path / "late") if "loss" in line] == [*range(2, 23, 2), 23]


def test_the_data_of_a_spike_is_left_out(
    config: Callable[..., RunConfig], late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = spike_on(monkeypatch, {18})
    task.pretrain(config(**KEYS), str(tmp_path / "run"))
    # Seen in the log line of step 19; the newest checkpoint from before that line is step 16.
    assert json.loads((tmp_path / "run" / "rollbacks.json").read_text()) == [{"seen": 19, "step": 16, "data": 19}]
    begun = [*range(19), *([19] if late else [])]  # a step that was begun before the spike was seen
    assert seen == [*begun, *range(19, 43)]
    losses = [line["loss"] for line in metrics(tmp_path / "run") if "loss" in line]
    assert len(losses) == 40
    assert max(losses[10:]) < 2 * min(losses)


def test_a_bad_step_that_was_begun_before_the_spike_was_seen_is_forgotten(
    config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_late(monkeypatch, whether=True)
    seen = spike_on(monkeypatch, {18})
    inflated = TorchEngine.step

    def bad(self: TorchEngine, *arguments: Any) -> StepStats | None:
        stats = inflated(self, *arguments)
        if len(seen) == 20:  # of a device that runs ahead, which raises nothing here
            self._first_bad.fill_(19)
        return stats

    monkeypatch.setattr(TorchEngine, "step", bad)
    task.pretrain(config(**KEYS), str(tmp_path / "run"))
    assert seen == [*range(20), *range(19, 43)]


@pytest.mark.parametrize(("late", "stop_after"), [(False, 17), (True, 19), (False, 25)], indirect=["late"])
def test_a_stop_after_a_rollback_changes_nothing(
    config: Callable[..., RunConfig], late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_after: int
) -> None:
    spike_on(monkeypatch, {18, 30})
    task.pretrain(config(**KEYS), str(tmp_path / "straight"))
    with pytest.raises(StoppedEarly):
        limits = StopRequest(stop_after_steps=stop_after)
        task.pretrain(config(**KEYS), str(tmp_path / "stopped"), stop_request=limits)
    task.pretrain(config(**KEYS), str(tmp_path / "stopped"))
    assert len(json.loads((tmp_path / "stopped" / "rollbacks.json").read_text())) == 2
    require_same(*(state(tmp_path / name) for name in ("straight", "stopped")))


def test_a_checkpoint_from_within_the_spike_is_not_used(
    config: Callable[..., RunConfig], late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log lines every 5 steps: the spike of update 67 shows at 70, and the checkpoint of step 68 lies between."""
    spike_on(monkeypatch, {67})
    keys = KEYS | {"schedule.steps": 80, "logging.every_steps": 5}
    task.pretrain(config(**keys), str(tmp_path / "run"))
    assert json.loads((tmp_path / "run" / "rollbacks.json").read_text()) == [{"seen": 70, "step": 64, "data": 70}]
    assert (tmp_path / "run" / "checkpoints" / "spiked-step-00000068").is_dir()


def test_too_many_rollbacks_stop_the_run(
    config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spike_on(monkeypatch, set(range(18, 100)))
    with pytest.raises(HealthError, match="again after 2 rollbacks"):
        task.pretrain(config(**KEYS, **{"health.max_rollbacks": 2}), str(tmp_path / "run"))
    assert len(json.loads((tmp_path / "run" / "rollbacks.json").read_text())) == 2
