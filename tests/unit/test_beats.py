"""A process's sign of life: what it holds, where it is not written, and that nothing of it stops training."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from maskwright.core import records
from maskwright.core.errors import StoppedEarly
from maskwright.core.folder import Folder
from maskwright.core.pids import pid_started, state_of
from maskwright.core.storage import is_temporary
from maskwright.run import heartbeat as module
from maskwright.run.directory import RunDirectory
from maskwright.run.heartbeat import Beat, read_beats
from maskwright.training import beats as writer
from maskwright.training.beats import Beats


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "EVERY_SECONDS", 0.05)


class Engine:
    """One that knows when it waits for the others, or one that does not (`None`)."""

    def __init__(self, waiting: Any = nullcontext) -> None:
        self.waiting = waiting


def wait_for(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 120.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def ranks_in(run: Path) -> list[str]:
    """The files of ranks, without those that a thread is writing."""
    return sorted(name for name in os.listdir(run / "processes") if not is_temporary(name))


def of(run: Path, rank: int) -> Beat:
    wait_for(lambda: any(beat.rank == rank for beat in read_beats(Folder(str(run)))))
    return next(beat for beat in read_beats(Folder(str(run))) if beat.rank == rank)


def test_what_a_process_does_is_in_its_file(tmp_path: Path) -> None:
    engine = Engine()
    with Beats(RunDirectory(str(tmp_path)), 0, 2, "one").begin(engine, attempt=3) as beats:
        first = of(tmp_path, 0)
        assert (first.doing, first.attempt, first.pid, first.world_size) == ("starting", 3, os.getpid(), 2)
        assert state_of(first.pid, first.pid_started) == "alive"
        for step in range(25):
            beats.begin_step(step)
            time.sleep(0.002)
            with engine.waiting():
                time.sleep(0.004)
            beats.end_step(step + 1)
        wait_for(lambda: of(tmp_path, 0).step == 25 and of(tmp_path, 0).busy_seconds_per_step)
        after = of(tmp_path, 0)
        assert after.doing == "computing" and after.seconds_per_step and after.busy_seconds_per_step
        assert after.busy_seconds_per_step >= 0.002 and after.seconds_per_step - after.busy_seconds_per_step >= 0.004
        with engine.waiting():
            wait_for(lambda: of(tmp_path, 0).doing == "waiting")
            moved = of(tmp_path, 0).moved
            wait_for(lambda: of(tmp_path, 0).time - moved > 0.1)
            assert of(tmp_path, 0).moved == pytest.approx(moved, abs=0.01)  # its thread writes, its main thread stands
        beats.look("saving", 25)
        wait_for(lambda: of(tmp_path, 0).doing == "saving")
    last = of(tmp_path, 0)
    assert (last.doing, last.exit, last.step) == ("ended", 0, 25)
    assert os.listdir(tmp_path / "processes") == ["rank-00000.json"]


def test_how_it_ended_is_its_last_word(tmp_path: Path) -> None:
    with (
        pytest.raises(StoppedEarly),
        Beats(RunDirectory(str(tmp_path)), 0, 1, "one").begin(Engine()),
    ):
        raise StoppedEarly("SIGTERM: stopped at step 4")
    assert (of(tmp_path, 0).exit, of(tmp_path, 0).message) == (75, "SIGTERM: stopped at step 4")
    with pytest.raises(OSError), Beats(RunDirectory(str(tmp_path)), 0, 1, "two").begin(Engine()):
        raise OSError("no")
    assert of(tmp_path, 0).exit == 1


def test_an_engine_that_cannot_tell_says_step(tmp_path: Path) -> None:
    with Beats(RunDirectory(str(tmp_path)), 0, 2, "one").begin(Engine(None)) as beats:
        for step in range(30):
            beats.begin_step(step)
            beats.end_step(step + 1)
        wait_for(lambda: of(tmp_path, 0).step == 30 and of(tmp_path, 0).seconds_per_step is not None)
        assert of(tmp_path, 0).doing == "step" and of(tmp_path, 0).busy_seconds_per_step is None


def test_a_host_without_the_folder_writes_nothing_and_makes_nothing(tmp_path: Path) -> None:
    there, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    with Beats(RunDirectory(str(elsewhere)), 1, 2, "one").begin(Engine()):
        time.sleep(0.2)
    assert os.listdir(tmp_path) == []
    # A folder of that name, with another start in it, is another run's.
    with (
        Beats(RunDirectory(str(there)), 0, 2, "one").begin(Engine(), attempt=2),
        Beats(RunDirectory(str(there)), 1, 2, "another").begin(Engine()),
    ):
        of(there, 0)
        time.sleep(0.2)
        assert ranks_in(there) == ["rank-00000.json"]
        with Beats(RunDirectory(str(there)), 1, 2, "one").begin(Engine()):
            assert of(there, 1).attempt == 2  # as process 0 says


def test_files_of_earlier_starts_do_not_count(tmp_path: Path) -> None:
    run = RunDirectory(str(tmp_path))
    larger = [Beats(run, rank, 4, "one").begin(Engine()) for rank in range(4)]
    for rank in range(4):
        of(tmp_path, rank)
    # A new start with fewer ranks, while processes of the old one are still there, as after a long suspension.
    with Beats(run, 0, 2, "two").begin(Engine()), Beats(run, 1, 2, "two").begin(Engine()):
        wait_for(lambda: [beat.start for beat in read_beats(Folder(str(tmp_path)))] == ["two", "two"])
        time.sleep(0.2)
        assert [beat.start for beat in read_beats(Folder(str(tmp_path)))] == ["two", "two"]
        for old in larger:
            old.end(0, "")
        assert ranks_in(tmp_path) == ["rank-00000.json", "rank-00001.json"]
        assert [beat.start for beat in read_beats(Folder(str(tmp_path)))] == ["two", "two"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.ESTALE, errno.EIO])
def test_a_write_that_fails_is_said_once_and_costs_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    tries = []

    def fails(*names: str) -> None:
        tries.append(names)
        raise OSError(number, os.strerror(number))

    with Beats(RunDirectory(str(tmp_path)), 0, 1, "one").begin(Engine()) as beats:
        of(tmp_path, 0)
        with monkeypatch.context() as broken:
            broken.setattr(module.os, "replace", fails)
            wait_for(lambda: len(tries) > 3)
        beats.look("training", 7)
        wait_for(lambda: of(tmp_path, 0).step == 7)  # and goes on when the disk is back
    assert capsys.readouterr().err.count("no sign of life can be written") == 1
    assert os.listdir(tmp_path / "processes") == ["rank-00000.json"]


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "processes").write_text("a file")
    with Beats(RunDirectory(str(tmp_path)), 0, 1, "one").begin(Engine()):
        time.sleep(0.1)
    assert capsys.readouterr().err.count("warning") == 1


def test_many_ranks_beat_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    run = RunDirectory(str(tmp_path))
    assert [Beats(run, 0, size).every_seconds for size in (1, 64, 1024)] == [5.0, 5.0, 64.0]


def test_a_broken_file_is_passed_over(tmp_path: Path) -> None:
    with Beats(RunDirectory(str(tmp_path)), 0, 2, "one").begin(Engine()):
        good = json.loads((tmp_path / "processes" / "rank-00000.json").read_bytes()) if of(tmp_path, 0) else {}
    folder = tmp_path / "processes"
    for content in ("", "{", "[]", "null", '{"rank": 1}', json.dumps(good | {"rank": True})):
        (folder / "rank-00001.json").write_text(content)
        assert [beat.rank for beat in read_beats(Folder(str(tmp_path)))] == [0], content
    assert records.read(Beat, None) is None
    assert records.read(Beat, json.dumps(good | {"key of a later version": 1}).encode()) is not None
    (folder / "rank-00001.json").write_text(json.dumps(good | {"rank": 1}))
    (folder / "rank-1.json").write_text(json.dumps(good | {"rank": 1}))
    assert [beat.rank for beat in read_beats(Folder(str(tmp_path)))] == [0, 1]


def test_a_pid_that_was_given_again_is_another_process() -> None:
    assert state_of(os.getpid(), pid_started(os.getpid())) == "alive"
    assert state_of(os.getpid(), pid_started(os.getpid()) - 1) == "gone"
    assert state_of(2**22 + 1, 0) == "gone"
