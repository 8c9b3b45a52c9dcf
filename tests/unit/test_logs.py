"""Following a log that grows, is replaced and is cut; and when a run counts as over."""

import json
import os
import time
import tracemalloc
from dataclasses import asdict, replace

import pytest

from maskwright.cli.main import run as command
from maskwright.core.errors import CloudError, InputError, MaskwrightError, StoppedEarly
from maskwright.core.folder import Folder
from maskwright.core.pids import pid_started, this_pid_space
from maskwright.launch.follow import until_over
from maskwright.monitor.logs import RESTART_SECONDS, GrowingLog, follow, show
from maskwright.monitor.status import look
from maskwright.run import grown
from maskwright.run.directory import Status
from maskwright.run.heartbeat import Beat, write_beat
from maskwright.run.starts import Starts


def test_whole_lines_as_they_come(tmp_path):
    path = tmp_path / "log.txt"
    log = GrowingLog(Folder(str(tmp_path)), None)

    def read(text="", mode="a"):
        with path.open(mode) as file:
            file.write(text)
        return list(log.news())

    assert list(log.news()) == []
    assert read("one\ntwo\nthr") == ["one", "two"] and read() == []
    assert read("ee\n\nfour\n") == ["three", "", "four"]
    assert read("cut\n", "w") == ["cut"]
    other = tmp_path / "other"
    other.write_text("another file, longer than the one before\n")
    os.replace(other, path)
    assert read() == ["another file, longer than the one before"]
    path.unlink()
    assert list(log.news()) == [] and log.rest() == []
    path.write_bytes(b"again\n\xff no newline")
    assert read() == ["again"] and log.rest() == ["\ufffd no newline"]


@pytest.mark.parametrize("piece_bytes", [1, 5, 64, 1 << 18])
@pytest.mark.parametrize("text", ["", "\n", "one", "one\n", "one\n\ntwo\n", "one\n\n" + "long " * 9 + "\nthree"])
def test_the_last_lines_are_found_from_the_end(tmp_path, monkeypatch, text, piece_bytes):
    monkeypatch.setattr(grown, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(grown, "BLOCK_BYTES", piece_bytes)
    folder = Folder(str(tmp_path))
    folder.put("log.txt", text.encode())
    lines = text.removesuffix("\n").split("\n") if text else []
    for count in range(len(lines) + 2):
        begin = grown.last_lines(folder, "log.txt", count, len(text))
        last = lines[max(len(lines) - count, 0) :]
        assert text[begin:] == "".join(f"{line}\n" for line in last)[: None if text.endswith("\n") else -1]


def test_the_end_of_a_long_log_takes_no_memory(tmp_path):
    """And a run that goes on afterwards shows its next lines."""
    path = tmp_path / "log.txt"
    path.write_text("".join(f"line {number}\n" for number in range(2_000_000)))
    log = GrowingLog(Folder(str(tmp_path)), 2)
    tracemalloc.start()
    assert list(log.news()) == ["line 1999998", "line 1999999"]
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4 * grown.PIECE_BYTES < path.stat().st_size / 20
    with path.open("a") as file:
        file.write("one\ntwo\nthree\n")
    assert list(log.news()) == ["one", "two", "three"]


class Run:
    """A folder in which a run seems to go on, by a clock that the test turns."""

    def __init__(self, folder):
        self.folder, self.now = folder, float(int(time.time()))  # as exact in a file
        self.status = Status("training", 5, 10, host="far", pid=7)
        self.actions: dict[int, object] = {}
        self.polls = 0
        self.lines: list[str] = []

    def write(self, **keys):
        self.folder.mkdir(exist_ok=True)
        self.status = replace(self.status, heartbeat=self.now, **keys)
        (self.folder / "status.json").write_text(json.dumps(asdict(self.status)))

    def log(self, text):
        with (self.folder / "log.txt").open("a") as file:
            file.write(text)

    def sleep(self, seconds):
        self.now += seconds
        self.polls += 1
        assert self.polls < 2000
        action = self.actions.pop(self.polls, None)
        if callable(action):
            action()

    def take(self, host, line):
        assert host is None
        self.lines.append(line)

    def follow(self):
        folder = str(self.folder)
        return follow(folder, None, write=self.take, clock=lambda: self.now, sleep=self.sleep)


@pytest.mark.parametrize(("phase", "code"), [("done", 0), ("failed", 3), ("stopped", 76)])
def test_it_waits_for_the_start_and_ends_with_the_runs_code(tmp_path, phase, code, capsys):
    run = Run(tmp_path / "run")
    run.actions = {
        5: lambda: (run.write(), run.log("2026  step 1  loss 2\n")),
        9: lambda: run.log("2026  step 2  loss 1\n"),
        20: lambda: (run.log("2026  end"), run.write(phase=phase, exit=code, message="so it was")),
    }
    assert run.follow() == code
    assert run.lines == ["2026  step 1  loss 2", "2026  step 2  loss 1", "2026  end"]
    said = capsys.readouterr().err
    assert said.count("no run there yet") == 1 and "so it was" in said and f"/run: {phase}: " in said
    assert run.polls < 30


def test_after_a_lost_process_it_waits_for_the_launcher(tmp_path, capsys):
    run = Run(tmp_path / "run")
    run.write()
    run.actions = {
        4: lambda: run.write(phase="stopped", exit=75),
        40: lambda: (run.write(phase="training", exit=None, attempt=2), run.log("attempt 2\n")),
        60: lambda: run.write(phase="done", exit=0, message="trained to the last step"),
    }
    assert run.follow() == 0 and run.lines == ["attempt 2"]
    assert "waiting 60 s for its launcher" in capsys.readouterr().err

    began, run.polls = run.now, 0
    run.actions = {4: lambda: run.write(phase="stopped", exit=75)}
    run.write(phase="training")
    assert run.follow() == 75  # nobody begins again
    assert RESTART_SECONDS < run.now - began < RESTART_SECONDS + 10
    began = run.now
    assert run.follow() == 75 and run.now == began  # over long ago


def test_a_run_that_ended_without_a_word(tmp_path):
    run = Run(tmp_path / "run")
    run.write()
    (run.folder / "processes").mkdir()
    gone = 2**22 + 1
    values = dict.fromkeys(("started", "time", "stepped", "since", "moved"), run.now)
    here = {"host": "h", "machine": this_pid_space(), "pid": gone, "pid_started": 1, "start": "s", "attempt": 1}
    beat = Beat(rank=0, world_size=1, **here, **values, every_seconds=5.0, step=5, doing="computing")
    write_beat(str(run.folder / "processes"), beat)
    assert look(str(run.folder)).state == "lost"
    assert run.follow() == 1
    # The same file of a process that is there, and then silent for long: it is not over, as far as one can say.
    write_beat(str(run.folder / "processes"), replace(beat, pid=os.getpid(), pid_started=pid_started(os.getpid())))
    assert look(str(run.folder)).state == "running"


@pytest.mark.parametrize(
    ("starts", "said"),
    [
        ({}, []),
        ({"stop_after_hours": 20.0, "stop_at": 1796040000.0}, ["stops at 2026-11-30 12:00 (--stop-after-hours 20)"]),
        ({"stop_after_steps": 5000, "stop_at_step": 7500}, ["stops at step 7,500 (--stop-after-steps 5000)"]),
        ({"starts": 9, "without_checkpoint": 3, "step": 2500},
         ["start 3 of 6 without a newer checkpoint than step 2,500"]),
    ],
)  # fmt: skip
def test_limits_and_starts_in_vain_are_shown(tmp_path, monkeypatch, starts, said):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    run = Run(tmp_path / "run")
    run.write()
    assert look(str(run.folder)).limits() == []
    (run.folder / "starts.json").write_text(json.dumps(asdict(Starts(**starts))))
    found = look(str(run.folder))
    assert found.limits() == said and all(f"\n  {line}\n" in found.report() + "\n" for line in said)
    assert found.to_json()["starts"] == asdict(Starts(**starts))


def test_show(tmp_path, capsys):
    run = Run(tmp_path / "run")
    with pytest.raises(InputError):
        show(str(run.folder), None, write=run.take)
    run.write()
    assert show(str(run.folder), None, write=run.take) == 0
    assert "no log yet" in capsys.readouterr().err
    run.log("one\ntwo\nthree")
    show(str(run.folder), 2, write=run.take)
    assert run.lines == ["two", "three"]
    with pytest.raises(InputError, match="URL"):
        follow("memory://nowhere", None, write=run.take)


def test_a_document_for_each_line(tmp_path, capsys):
    run = Run(tmp_path / "run")
    run.write(phase="failed", exit=3, message="so it was")
    run.log('one "é"\nhttps://me:hunter22@host/x\n')
    documents = [
        {"version": 1, "host": None, "line": 'one "é"'},
        {"version": 1, "host": None, "line": "https://***@host/x"},
    ]
    for more, code in (((), 0), (("--follow",), 3)):
        assert command(["logs", str(run.folder), "--json", *more]) == code
        assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == documents
    assert command(["logs", str(run.folder), "--lines", "1"]) == 0
    assert capsys.readouterr().out == "https://***@host/x\n"


# ---- following a job -------------------------------------------------------------------------------------------------


def cloud(reason):
    return CloudError("no", reason=reason)


@pytest.mark.parametrize("reason", ["unreached", "failed", "quota"])
def test_an_error_that_may_pass_is_shown_once(reason, capsys):
    answers = iter([cloud(reason), cloud(reason), None, cloud(reason), "end"])

    def poll():
        answer = next(answers)
        if isinstance(answer, MaskwrightError):
            raise answer
        return answer

    rounds = []
    assert until_over(poll, "ray:1", 0.0, meanwhile=lambda: rounds.append(1)) == "end"
    assert capsys.readouterr().err.count("the job continues; trying again") == 2  # it had passed in between
    assert len(rounds) == 4


@pytest.mark.parametrize(
    "error",
    [
        *map(cloud, ("permission", "credentials", "missing", "disabled", "other")),
        MaskwrightError("no"),
        InputError("no"),
        StoppedEarly("no longer followed"),
    ],
    ids=str,
)
def test_any_other_error_ends_the_following_at_once(error, capsys):
    def poll():
        raise error

    with pytest.raises(type(error)) as raised:
        until_over(poll, "ray:1", 60.0)
    is_failure = not isinstance(error, StoppedEarly)
    assert raised.value is error and ("`maskwright stop ray:1` ends it" in capsys.readouterr().err) == is_failure
