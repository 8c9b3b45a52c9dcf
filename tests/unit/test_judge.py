"""Which rank is lost, hangs or is slow, by what the files say: each case in a line or two."""

import errno
import fcntl
import json
import os
import threading
import time
from contextlib import nullcontext
from dataclasses import asdict, replace
from unittest.mock import Mock

import pytest

from maskwright.core import records
from maskwright.core.errors import MaskwrightError, StoppedEarly
from maskwright.core.folder import Folder
from maskwright.core.pids import state_of, this_pid_space
from maskwright.monitor.run import stop
from maskwright.monitor.status import whole
from maskwright.run import heartbeat as module
from maskwright.run.directory import RunDirectory, Status
from maskwright.run.heartbeat import Beat, read_beats
from maskwright.run.liveness import hung, judge, missing
from maskwright.training import beats as writer
from maskwright.training.beats import Beats

NOW = 1_000_000.0


def beat(rank, *, age=2.0, still=0.1, since_step=0.1, **keys):
    """Written `age` seconds ago, when its main thread had stood still for `still`."""
    written = NOW - age
    usual = {
        "world_size": 4,
        "host": "h",
        "machine": "m",
        "pid": 100 + rank,
        "pid_started": 1,
        "start": "s",
        "attempt": 1,
        "started": NOW - 900,
        "time": written,
        "every_seconds": 5.0,
        "step": 70,
        "stepped": written - since_step,
        "doing": "computing",
        "since": written - still,
        "moved": written - still,
        "seconds_per_step": 0.5,
        "busy_seconds_per_step": 0.4,
    }
    return Beat(rank=rank, **{**usual, **keys})


def team(*different):
    """Four ranks, those of `different` and others that compute."""
    given = {one.rank: one for one in different}
    return [given.get(rank) or beat(rank) for rank in range(4)]


def waiting(rank, seconds, **keys):
    return beat(rank, doing="waiting", still=seconds, since_step=seconds, **keys)


STUCK = [waiting(0, 300), waiting(2, 300), waiting(3, 300)]
LATE = [beat(rank, doing="step", still=300, since_step=300) for rank in (0, 2, 3)]
FAR = {"host": "other", "machine": "other"}
ENDED = [beat(rank, doing="ended", exit=75, reason="lost") for rank in (0, 2, 3)]
WELL = [replace(one, exit=0, reason="") for one in ENDED]
ALL_HUNG, ALL_SILENT = (dict.fromkeys(range(4), verdict) for verdict in ("hung", "silent"))


def each(**keys):
    return [beat(rank, **keys) for rank in range(4)]


CASES = {
    "all well": (team(), {}, {}),
    "some wait a little": (team(waiting(0, 3), waiting(2, 3)), {}, {}),
    "gone, at once": (team(beat(1, age=0.1)), {1: "gone"}, {1: "lost"}),
    "gone, and the others ended by it": (team(*ENDED, beat(1, age=4000)), {1: "gone"}, {1: "lost"}),
    "gone far away, and the others ended by it": (team(*ENDED, beat(1, age=4000, **FAR)), {}, {1: "lost"}),
    "no last word, but the others came to the end": (team(*WELL, beat(1, age=9)), {1: "gone"}, {}),
    "gone with its host": (team(*STUCK, beat(1, age=310, **FAR)), {}, {1: "lost"}),
    "one of two on a far host": (
        [waiting(0, 300), beat(1, age=310, **FAR), waiting(2, 300, **FAR), waiting(3, 300)],
        {0: "alive", 3: "alive"},
        {1: "hung"},
    ),
    "stopped by a signal": (team(*STUCK, beat(1, age=12)), {1: "stopped"}, {1: "hung"}),
    "stopped for a moment": (team(beat(1, age=6)), {1: "stopped"}, {}),
    "there, but its file is old": (team(*STUCK, beat(1, age=60)), {1: "alive"}, {1: "hung"}),
    "its file is old, but all go on": (team(beat(1, age=60)), {1: "alive"}, {}),
    "far away, its file is old, but all go on": (team(beat(1, age=60, **FAR)), {}, {}),
    "computes while the others wait": (team(*STUCK, beat(1, still=300, since_step=300)), {}, {1: "hung"}),
    "computes for as long as its steps may take": (team(*STUCK, beat(1, still=300, seconds_per_step=20.0)), {}, {}),
    "compiles its first step": (each(doing="step", still=900, seconds_per_step=None, step=0), {}, {}),
    "compiles it for ever": (each(doing="step", still=3600, seconds_per_step=None, step=0), {}, ALL_HUNG),
    "nobody can tell who": (team(*LATE, beat(1, doing="step", still=300)), {}, ALL_HUNG),
    "all compute for too long, as on devices that run ahead": (each(still=300), {}, ALL_HUNG),
    "all late, one is stopped": (team(*LATE, beat(1, doing="step", age=290)), {1: "stopped"}, {1: "hung"}),
    "saving for long, the others wait": (team(*STUCK, beat(1, doing="saving", still=900)), {}, {}),
    "saving for ever": (team(*STUCK, beat(1, doing="saving", still=3600)), {}, {1: "hung"}),
    "all wait for each other": (team(*STUCK, waiting(1, 290)), {}, ALL_HUNG),
    "its file was old while they went on, then all fell silent": (
        [beat(rank, age=100 + 200 * (rank == 1), **FAR) for rank in range(4)],
        {},
        ALL_SILENT,
    ),
    "alone and stuck": ([beat(0, world_size=1, still=300)], {0: "alive"}, {0: "hung"}),
    "alone and silent, far away": ([beat(0, world_size=1, age=300)], {}, {0: "silent"}),
    "all silent, far away": (each(age=300), {}, ALL_SILENT),
    "slow": (team(beat(1, busy_seconds_per_step=0.65)), {}, {1: "slow"}),
    "a little slow": (team(beat(1, busy_seconds_per_step=0.55)), {}, {}),
    "slow by less than a host's small work": (
        [beat(rank, busy_seconds_per_step=0.002 + 0.003 * (rank == 1)) for rank in range(4)],
        {},
        {},
    ),
    "two of four slow, for whom the others wait": (
        team(waiting(0, 1), *[beat(rank, busy_seconds_per_step=0.9) for rank in (1, 2)], waiting(3, 1)),
        {},
        {1: "slow", 2: "slow"},
    ),
    "an engine that cannot tell is not slow": (team(beat(1, doing="step", busy_seconds_per_step=None)), {}, {}),
    "1,024 ranks beat once a minute": (each(age=100, every_seconds=64.0), {}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_who_is_to_blame(case):
    beats, states, expected = CASES[case]
    found = judge(beats, NOW, states)
    assert [one.beat.rank for one in found] == [one.rank for one in beats]
    assert [one.verdict for one in judge(beats[::-1], NOW, states)][::-1] == [one.verdict for one in found]
    assert {one.beat.rank: one.verdict for one in found if one.verdict not in ("fine", "ended")} == expected
    for one in found:
        if one.verdict in ("lost", "hung", "slow", "silent"):
            assert one.why and one.fix and one.who in one.line() and one.verdict in one.line()
    first_hung = min((rank for rank, verdict in expected.items() if verdict == "hung"), default=None)
    assert hung(beats, NOW, states) == first_hung


def test_files_of_an_attempt_that_a_supervisor_has_ended_are_no_hang():
    beats = team(*STUCK, beat(1, still=300))
    assert hung(beats, NOW, dict.fromkeys(range(4), "alive")) == 1
    assert hung(beats, NOW, dict.fromkeys(range(4), "gone")) is None


def test_ranks_that_said_nothing_are_named():
    assert missing([beat(0), beat(2)]) == [1, 3] and missing([]) == [] and missing(team()) == []


GOING = Status("training", 70, 100, heartbeat=NOW - 2.0, pid=100)


@pytest.mark.parametrize(
    ("status", "beats", "states", "held_by", "state", "said"),
    [
        (None, [], {}, None, "never started", "first step"),
        (None, [], {}, 7, "starting", "process 7"),
        (GOING, [], {}, 100, "running", "training"),
        (replace(GOING, heartbeat=NOW - 500), [], {}, None, "silent", "8:20"),
        (replace(GOING, heartbeat=NOW - 500), team(), {}, None, "running", "training"),  # a long step
        (GOING, team(*STUCK, beat(1, age=12)), {1: "stopped"}, 100, "hung", "rank 1"),
        (GOING, team(beat(1)), {1: "gone"}, 100, "lost", "rank 1"),
        (GOING, team(beat(1, busy_seconds_per_step=0.9)), {}, 100, "running", "rank 1 slow"),
        (GOING, each(age=300), {}, None, "silent", "no sign of life"),
        (replace(GOING, phase="done", exit=0, message="trained"), team(*ENDED), {}, None, "done", "trained"),
        (replace(GOING, phase="failed", exit=3, message="nan"), [], {}, None, "failed", "nan (exit 3)"),
        (replace(GOING, phase="stopped", exit=75, message="x"), [], {}, None, "stopped", "interrupted (exit 75): x"),
        (replace(GOING, phase="stopped", exit=76, message="x"), [], {}, None, "stopped", "as asked (exit 76): x"),
        (replace(GOING, phase="stopped", exit=75), [], {}, 8, "starting", "process 8"),
        (replace(GOING, phase="stopped", exit=75), [], {}, 100, "stopped", "75"),  # it ends at this moment
        (replace(GOING, phase="stopped", heartbeat=NOW - 950), team(), {}, None, "starting", "process 100 on h"),
    ],
)
def test_how_the_whole_run_is(status, beats, states, held_by, state, said):
    found = whole(status, judge(beats, NOW, states), held_by, NOW, False)
    assert found[0] == state and said in found[1]
    assert whole(None, [], None, NOW, True)[0] == "only checkpoints"


@pytest.mark.parametrize(
    ("pid_space", "pid", "age", "said"),
    [
        (this_pid_space(), os.getpid(), 1000, "did not answer within 0 seconds"),
        ("another", 3, 0, "did not answer within 0 seconds"),
        ("another", os.getpid(), 1000, "is not running: .* no process holds it"),
        (this_pid_space(), 2**22 + 1, 0, "is not running: .* no process holds it"),
    ],
    ids=["a process here", "a beat elsewhere", "no beat elsewhere", "no process here"],
)
def test_a_silent_run_is_asked_to_stop_while_its_lease_says_that_it_lives(
    tmp_path, monkeypatch, pid_space, pid, age, said
):
    """Who would try its lock instead might be in the way of a start."""
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=AssertionError("the lock is none of stop's business")))
    directory, lease = RunDirectory(str(tmp_path)), tmp_path / "lease.json"
    (tmp_path / "config.resolved.json").write_text("{}")
    (tmp_path / "status.json").write_text(json.dumps(asdict(replace(Status("training"), heartbeat=time.time() - 1000))))
    lease.write_text(json.dumps({"pid_space": pid_space, "pid": pid}))
    os.utime(lease, (time.time() - age,) * 2)
    with pytest.raises(MaskwrightError, match=said):
        stop(directory, "stop", 0.0)
    assert directory.take_request() == ("stop" if "did not answer" in said else None), "it stays for a slow run"


def test_a_start_that_goes_on_with_a_stopped_run_can_be_stopped(tmp_path):
    directory = RunDirectory(str(tmp_path))
    (tmp_path / "config.resolved.json").write_text("{}")
    directory.write_status(Status("stopped", step=5))
    with pytest.raises(MaskwrightError, match="there is nothing to stop"):
        stop(directory, "stop", 0.0)
    (tmp_path / "lease.json").write_text(json.dumps({"pid_space": this_pid_space(), "pid": os.getpid()}))
    with pytest.raises(MaskwrightError, match="did not answer"):  # what an earlier start said is no answer
        stop(directory, "stop", 0.1)
    answer = threading.Timer(0.2, lambda: directory.write_status(Status("stopped", step=7)))
    answer.start()
    assert stop(directory, "stop", 60.0) == f"{tmp_path}: stopped at step 7"
    answer.join()
    assert not (tmp_path / "request.json").exists()


# ---- what a process writes of itself ---------------------------------------------------------------------------------


class Engine:
    """One that knows when it waits for the others, or one that does not (`None`)."""

    def __init__(self, waiting=nullcontext):
        self.waiting = waiting


@pytest.fixture
def clock(monkeypatch):
    """The seconds that have passed. No thread writes: `written` does it, when a test wants to look."""
    now = [0.0]
    monkeypatch.setattr(writer.threading, "Thread", Mock(return_value=Mock(is_alive=lambda: False)))
    monkeypatch.setattr(writer.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(writer.time, "time", lambda: 1e9 + now[0])
    return now


def begun(run, rank, size, start="one", engine=None, attempt=0):
    return Beats(RunDirectory(str(run)), rank, size, start).begin(engine or Engine(), attempt)


def written(*all_beats):
    for beats in all_beats:
        beats._write()


def found(run):
    return list(read_beats(Folder(str(run))))


def test_what_a_process_does_is_in_its_file(tmp_path, clock):
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


def test_how_it_ended_is_its_last_word(tmp_path):
    """With the thread as it is."""
    for error, told in ((StoppedEarly("SIGTERM: stopped at step 4"), (75, "SIGTERM: stopped at step 4")),
                        (OSError("no"), (1, "no"))):  # fmt: skip
        with pytest.raises(type(error)), begun(tmp_path, 0, 1):
            raise error
        assert (found(tmp_path)[0].exit, found(tmp_path)[0].message) == told


def test_an_engine_that_cannot_tell_says_step(tmp_path, clock):
    beats = begun(tmp_path, 0, 2, engine=Engine(None))
    for step in range(30):
        beats.begin_step(step)
        clock[0] += 1
        beats.end_step(step + 1)
    written(beats)
    (one,) = found(tmp_path)
    assert (one.doing, one.step, one.seconds_per_step, one.busy_seconds_per_step) == ("step", 30, 1.0, None)


def test_a_host_without_the_folder_writes_nothing_and_makes_nothing(tmp_path, clock):
    there, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    written(begun(elsewhere, 1, 2))
    assert os.listdir(tmp_path) == []
    # A folder of that name, with another start in it, is another run's.
    written(begun(there, 0, 2, attempt=2), begun(there, 1, 2, "another"))
    assert os.listdir(there / "processes") == ["rank-00000.json"]
    written(begun(there, 1, 2))
    assert found(there)[1].attempt == 2  # as process 0 says


def test_files_of_earlier_starts_do_not_count(tmp_path, clock):
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


def test_a_write_that_fails_is_said_once_and_costs_nothing_else(tmp_path, capsys, monkeypatch, clock):
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


def test_many_ranks_beat_seldom(tmp_path):
    run = RunDirectory(str(tmp_path))
    assert [Beats(run, 0, size).every_seconds for size in (1, 64, 1024)] == [5.0, 5.0, 64.0]


def test_a_broken_file_is_passed_over(tmp_path, clock):
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
