"""A process's sign of life: what it holds, where it is not written, and that nothing of it stops training."""

from __future__ import annotations

import errno
import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from maskwright.core import records
from maskwright.core.errors import StoppedEarly
from maskwright.core.folder import Folder
from maskwright.core.pids import state_of
from maskwright.run import heartbeat as module
from maskwright.run.directory import RunDirectory
from maskwright.run.heartbeat import Beat, read_beats
from maskwright.training import beats as writer
from maskwright.training.beats import Beats


class Engine:
    """One that knows when it waits for the others, or one that does not (`None`)."""

    def __init__(self, waiting: Any = nullcontext) -> None:
        self.waiting = waiting


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that have passed. No thread writes: `written` does it, when a test wants to look."""
    now = [0.0]
    monkeypatch.setattr(writer.threading, "Thread", Mock(return_value=Mock(is_alive=lambda: False)))
    monkeypatch.setattr(writer.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(writer.time, "time", lambda: 1e9 + now[0])
    return now


def begun(run: Path, rank: int, size: int, start: str = "one", engine: Engine | None = None, attempt: int = 0) -> Beats:
    return Beats(RunDirectory(str(run)), rank, size, start).begin(engine or Engine(), attempt)  # type: ignore[arg-type]


def written(*all_beats: Beats) -> None:
    for beats in all_beats:
        beats._write()


def found(run: Path) -> list[Beat]:
    return list(read_beats(Folder(str(run))))


def test_what_a_process_does_is_in_its_file(tmp_path: Path, clock: list[float]) -> None:
    engine = Engine()
    with begun(tmp_path, 0, 2, engine=engine, attempt=3) as beats:
        written(beats)
        (first,) = found(tmp_path)
        assert (first.doing, first.attempt, first.pid, first.world_size) == ("starting", 3, os.getpid(), 2)
        assert state_of(first.pid, first.pid_started) == "alive"
        for step in range(25):
            beats.begin_step(step)
            clock[0] += 2
            with engine.waiting():
                clock[0] += 4
            beats.end_step(step + 1)
        written(beats)
        (after,) = found(tmp_path)
        assert (after.doing, after.step) == ("computing", 25)
        assert (after.seconds_per_step, after.busy_seconds_per_step) == (6.0, 2.0)
        with engine.waiting():
            clock[0] += 30
            written(beats)
            (waits,) = found(tmp_path)  # its thread writes, its main thread stands
            assert (waits.doing, waits.time - waits.moved) == ("waiting", 30.0)
        beats.look("saving", 25)
        written(beats)
        assert found(tmp_path)[0].doing == "saving"
    (last,) = found(tmp_path)
    assert (last.doing, last.exit, last.step) == ("ended", 0, 25)
    assert os.listdir(tmp_path / "processes") == ["rank-00000.json"]


def test_how_it_ended_is_its_last_word(tmp_path: Path) -> None:
    """With the thread as it is."""
    for error, told in ((StoppedEarly("SIGTERM: stopped at step 4"), (75, "SIGTERM: stopped at step 4")),
                        (OSError("no"), (1, "no"))):  # fmt: skip
        with pytest.raises(type(error)), begun(tmp_path, 0, 1):
            raise error
        assert (found(tmp_path)[0].exit, found(tmp_path)[0].message) == told


def test_an_engine_that_cannot_tell_says_step(tmp_path: Path, clock: list[float]) -> None:
    beats = begun(tmp_path, 0, 2, engine=Engine(None))
    for step in range(30):
        beats.begin_step(step)
        clock[0] += 1
        beats.end_step(step + 1)
    written(beats)
    (one,) = found(tmp_path)
    assert (one.doing, one.step, one.seconds_per_step, one.busy_seconds_per_step) == ("step", 30, 1.0, None)


def test_a_host_without_the_folder_writes_nothing_and_makes_nothing(tmp_path: Path, clock: list[float]) -> None:
    there, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    written(begun(elsewhere, 1, 2))
    assert os.listdir(tmp_path) == []
    # A folder of that name, with another start in it, is another run's.
    written(begun(there, 0, 2, attempt=2), begun(there, 1, 2, "another"))
    assert os.listdir(there / "processes") == ["rank-00000.json"]
    written(begun(there, 1, 2))
    assert found(there)[1].attempt == 2  # as process 0 says


def test_files_of_earlier_starts_do_not_count(tmp_path: Path, clock: list[float]) -> None:
    larger = [begun(tmp_path, rank, 4) for rank in range(4)]
    written(*larger)
    assert len(found(tmp_path)) == 4
    late = tmp_path / module.FOLDER / module.file_name(1)
    content = late.read_bytes()
    # A new start with fewer ranks, while processes of the old one are still there, as after a long suspension.
    written(*(begun(tmp_path, rank, 2, "two") for rank in range(2)))
    written(*larger)
    for old in larger:
        old.end(0, "")
    assert [beat.start for beat in found(tmp_path)] == ["two", "two"]
    late.write_bytes(content)  # by a process of before, which looked whose folder it is just before the new start
    assert [beat.rank for beat in found(tmp_path)] == [0]


def test_a_write_that_fails_is_said_once_and_costs_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    (tmp_path / "processes").write_text("a file")
    written(begun(tmp_path, 0, 1))
    assert capsys.readouterr().err.count("warning") == 1
    (tmp_path / "processes").unlink()
    beats = begun(tmp_path, 0, 1)
    with monkeypatch.context() as broken:
        broken.setattr(module.os, "replace", Mock(side_effect=OSError(errno.ESTALE, "Stale file handle")))
        written(*[beats] * 4)
    beats.look("training", 7)
    written(beats)  # and goes on when the disk is back
    assert found(tmp_path)[0].step == 7 and capsys.readouterr().err.count("no heartbeat can be written") == 1
    assert os.listdir(tmp_path / "processes") == ["rank-00000.json"]


def test_many_ranks_beat_seldom(tmp_path: Path) -> None:
    run = RunDirectory(str(tmp_path))
    assert [Beats(run, 0, size).every_seconds for size in (1, 64, 1024)] == [5.0, 5.0, 64.0]


def test_a_broken_file_is_passed_over(tmp_path: Path, clock: list[float]) -> None:
    written(begun(tmp_path, 0, 2))
    folder = tmp_path / "processes"
    good = json.loads((folder / "rank-00000.json").read_bytes())
    for content in ("", "{", "[]", "null", '{"rank": 1}', json.dumps(good | {"rank": True})):
        (folder / "rank-00001.json").write_text(content)
        assert [beat.rank for beat in found(tmp_path)] == [0], content
    assert records.read(Beat, None) is None
    assert records.read(Beat, json.dumps(good | {"key of a later version": 1}).encode()) is not None
    for name in ("rank-00001.json", "rank-1.json"):
        (folder / name).write_text(json.dumps(good | {"rank": 1}))
    assert [beat.rank for beat in found(tmp_path)] == [0, 1]
