"""The record of a run's starts: limits are moments that restarts keep, and starts in vain come to an end."""

import json
import time
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import asdict, replace
from unittest.mock import Mock

import pytest
from made_record import made_record, saved

from maskwright.core.errors import (
    CloudError,
    ConfigError,
    EndedAsAsked,
    HealthError,
    InputError,
    Locked,
    MaskwrightError,
    StoppedEarly,
    stopped,
)
from maskwright.core.folder import Folder
from maskwright.core.lease import leased
from maskwright.engines.processes import Alone
from maskwright.model.config import ModelConfig
from maskwright.run.directory import RunDirectory, Status
from maskwright.run.record import RecordedText
from maskwright.run.starts import MOST_STARTS, STARTS, Starts, StartsFile, first
from maskwright.tasks.pretrain.run import pretrain
from maskwright.tasks.start.changes import require_same_run
from maskwright.tasks.start.opened import opened
from maskwright.training.stop import StopRequest

SHAPE = asdict(ModelConfig(400, 32, 2, 2, 64, 34))


@pytest.mark.parametrize(
    ("hours", "steps", "stop_at", "stop_at_step"),
    [
        (20.0, 100, 73_000.0, 150),  # a restart keeps the moments of the first start
        (30.0, 100, 158_000.0, 150),  # another value counts from now
        (20.0, 200, 73_000.0, 260),
        (None, None, None, None),
    ],
)
def test_limits_are_moments(hours, steps, stop_at, stop_at_step):
    began = first(50, 20.0, 100, 1000.0)
    again = began.next(60, hours, steps, 50_000.0)
    assert (again.stop_at, again.stop_at_step) == (stop_at, stop_at_step)
    assert (again.starts, again.without_checkpoint, again.step) == (2, 1, 60)
    assert began.next(60, 20.0, 100, 400.0).stop_at == 72_400.0, "the clock was set back"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tokenizer_fingerprint": "b"}, "another tokenizer \\("),
        ({"roles_sha256": "b"}, "another mask or other special token"),
        ({"dtype": "bfloat16"}, "another precision"),
        ({"rows": 2}, "another order of rows"),
        ({"train": RecordedText("none", "b")}, "another token store"),
        ({"model": {**SHAPE, "hidden_size": 64}}, "another model shape"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_run_goes_on_as_what_it_is(tmp_path, changed, said):
    """Each alone, whatever else would show it."""
    before = made_record(model=SHAPE, rows=1)
    assert require_same_run(before, before, RunDirectory(str(tmp_path))) == {}
    with pytest.raises(ConfigError, match=f"was started with {said}"):
        require_same_run(before, replace(before, **changed), RunDirectory(str(tmp_path)))


def test_starts_without_a_newer_checkpoint_are_counted():
    start = first(0, None, None, 0.0)
    for count in range(2, MOST_STARTS + 2):
        start = start.next(0, None, None, float(count))
        assert (start.starts, start.without_checkpoint) == (count, count)
    assert start.next(5, None, None, 9.0).without_checkpoint == 1


@pytest.mark.parametrize("on_copies", [False, True])
def test_starts_in_vain_end_once_with_1_and_begin_anew(tmp_path, on_copies):
    copies = Folder(str(tmp_path / "copies")) if on_copies else None

    def start(machine):  # with copies, each start is on a new machine
        directory = RunDirectory(str(tmp_path / f"run-{machine if on_copies else 0}"))
        file = StartsFile(directory, copies)
        starts = file.following(1e6, None)
        file.require(starts)
        with leased(directory.location) as lease, pytest.raises(StoppedEarly), file.holding(starts, lease):
            raise StoppedEarly("the machine goes")
        return starts

    moments = {start(number).stop_at for number in range(MOST_STARTS)}
    assert len(moments) == 1, "every restart keeps the moment of the first start"
    with pytest.raises(MaskwrightError, match="6 starts in a row") as caught:
        start(MOST_STARTS)
    assert caught.value.exit_code == 1
    assert start(MOST_STARTS).starts == 1


ENDS = [
    (StoppedEarly("SIGTERM"), True),
    (EndedAsAsked("asked"), False),
    (HealthError("nan"), False),
    (InputError("typo"), False),
    (ValueError("bug"), False),
]


@pytest.mark.parametrize(("error", "stays"), [*ENDS, (None, False)])
def test_only_a_75_keeps_the_record(tmp_path, error, stays):
    file = StartsFile(RunDirectory(str(tmp_path)))
    with suppress(MaskwrightError, ValueError):  # noqa: SIM117
        with leased(str(tmp_path)) as lease, file.holding(first(0, None, None, 1.0), lease):
            assert file.read() == first(0, None, None, 1.0)
            if error:
                raise error
    assert (tmp_path / STARTS).exists() == stays


@pytest.mark.parametrize(("error", "stays"), [*ENDS, (Locked("in use"), None)])
@pytest.mark.parametrize("is_first", [True, False])
def test_an_end_before_training_counts_too(config, tmp_path, error, stays, is_first):
    """A partner that is killed each time while the run is prepared, and a store that is refused at a restart."""
    run = tmp_path / "run"
    file, before = StartsFile(RunDirectory(str(run))), first(0, 20.0, None, time.time())
    if not is_first:
        run.mkdir()
        file.write(before)
    with pytest.raises(type(error)), opened(config(), str(run), StopRequest(stop_after_hours=20.0)):
        raise error
    after = file.read()
    if stays is None:
        assert after == (None if is_first else before), "another process trains"
    else:
        assert (after.starts if after else None) == ((1 if is_first else 2) if stays else None)
    assert run.exists() == (bool(stays) or not is_first), "a first start that is refused leaves nothing behind"


@pytest.mark.parametrize("trains", [False, True])
def test_copies_out_of_reach_do_not_change_the_code(config, tmp_path, monkeypatch, trains):
    away = Mock(side_effect=CloudError("no answer", reason="unreached"))
    with pytest.raises(StoppedEarly), opened(config(), str(tmp_path / "run")) as start, ExitStack() as training:
        assert start.starts_file
        if trains:
            lease = training.enter_context(leased(start.directory.location))
            training.enter_context(start.starts_file.holding(start.starts, lease))
        monkeypatch.setattr(StartsFile, "read", away)
        monkeypatch.setattr(StartsFile, "write", away)
        raise StoppedEarly("SIGTERM")


@pytest.mark.parametrize(("of_rank_0", "copied"), [(0, False), (8, False), (0, True), (8, True), (12, False)])
def test_hosts_that_changed_places_lose_nothing_but_what_came_after_a_copy(
    config, tmp_path, monkeypatch, capsys, of_rank_0, copied
):
    """This host has step 12 on its own disk, and rank 0's has what is in its message, or fetched from the copies."""
    keys = {"checkpoint.copy_to": f"file://{tmp_path}/copies"} if copied else {}
    monkeypatch.setattr(RunDirectory, "newest_step", lambda run: 12)
    received = {"newest": of_rank_0}
    monkeypatch.setattr(Alone, "broadcast", lambda alone, data: json.dumps(json.loads(data) | received).encode())
    goes_on = of_rank_0 == 12 or (copied and of_rank_0)
    refused = pytest.raises(ConfigError, match="has step 12 of the run here, and rank 0's")
    with nullcontext() if goes_on else refused, opened(config(**keys), str(tmp_path / "run")):
        pass
    assert ("from its copy of step 8" in capsys.readouterr().err) is (copied and of_rank_0 == 8)


def test_a_start_that_lost_its_lease_leaves_the_record_to_the_other(tmp_path):
    file = StartsFile(RunDirectory(str(tmp_path)))
    with pytest.raises(InputError), leased(str(tmp_path)) as lease, file.holding(Starts(), lease):
        lease.lost = True
        lease.require()
    assert (tmp_path / STARTS).exists()


def test_a_moment_that_is_over_ends_at_once_and_only_once(tmp_path):
    saved(tmp_path, 7)
    file = StartsFile(RunDirectory(str(tmp_path)))
    file.write(replace(first(7, 20.0, None, time.time() - 80_000), stop_at=time.time() - 1))
    RunDirectory(str(tmp_path)).write_status(Status("stopped", exit=75))
    with pytest.raises(EndedAsAsked, match="--stop-after-hours 20 was over at"):
        file.require(file.following(20.0, None))
    status = RunDirectory(str(tmp_path)).read_status()
    assert status and (status.exit, status.reason) == (76, "limit")
    again = file.following(20.0, None)
    file.require(again)
    assert again.starts == 1 and again.stop_at == pytest.approx(time.time() + 72_000, abs=60)


def test_a_limit_in_steps_ends_at_its_step_and_not_a_run_at_its_last(config, tmp_path):
    directory = RunDirectory(str(tmp_path / "run"))
    of_4 = config(**{"schedule.steps": 4})
    with pytest.raises(EndedAsAsked, match="step 2 of 4 is saved"):
        pretrain(of_4, directory.location, stop_request=StopRequest(stop_after_steps=2))
    StartsFile(directory).write(first(0, None, 2, 1.0))  # as if SIGTERM had come at that step
    with pytest.raises(EndedAsAsked, match="step 2 of 4 is saved"):
        pretrain(of_4, directory.location, stop_request=StopRequest(stop_after_steps=2))
    pretrain(of_4, directory.location, stop_request=StopRequest(stop_after_steps=2))
    assert directory.read_metrics()[-1]["step"] == 4 and "valid_loss" in directory.read_metrics()[-1]


def test_codes_of_stops():
    assert [stopped(code) for code in (0, 1, 75, 76, None)] == [None, None, StoppedEarly, EndedAsAsked, None]
