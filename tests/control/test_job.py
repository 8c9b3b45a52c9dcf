"""What a job is, how its exit code comes about, and what happens on one host; without gcloud, with a real shell."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from fake_tpu import Hosts
from maskwright.launch.bucket.place import BucketPlace

from maskwright.config.pretraining import build_config
from maskwright.core.errors import InputError, JobError, StoppedEarly
from maskwright.launch import tpu_vm as slice_module
from maskwright.launch.checks import sized
from maskwright.launch.hosts import supervisor as host_module
from maskwright.launch.hosts.script import first_command, script_for
from maskwright.launch.hosts.supervisor import ShellAttempt
from maskwright.launch.outcome import End, JobOutcome, judge, report
from maskwright.launch.target import JobSpec, Training, parse_spec, require_clean
from maskwright.training.stop import StopRequest

SPEC = JobSpec(Training("a.yaml", "runs/a"), folder="maskwright", grace_seconds=3.0)


COMMAND = asdict(SPEC.command)


# ---- the spec ------------------------------------------------------------------------------------------------------


def test_spec_comes_back_from_json() -> None:
    command = Training("a.yaml", "runs/a", ("a.b='c d'",), 0.1, 7, 3, 8)
    spec = JobSpec(command, ("HF_TOKEN", "_a1"), "x", "echo 'é\n'", 0, 12.5, 7)
    assert parse_spec(spec.to_json(), "job.json") == spec
    assert parse_spec(SPEC.to_json(), "job.json") == SPEC


@pytest.mark.parametrize(
    ("setup", "is_clean"),
    [
        ("export HF_TOKEN=$MINE_OF_TODAY", True),
        ("API_KEY=`cat the_file`", True),
        ("TOKENIZERS_PARALLELISM=falsehoods", True),
        ("CREDENTIALS=/home/me/a.json", True),
        ("export HF_TOKEN=hf_abcdefghijkl && pip install x", False),
        ("WANDB_API_KEY='0123456789abc'; pip install x", False),
    ],
)
def test_a_setup_that_sets_a_secret_is_not_submitted(setup: str, is_clean: bool) -> None:
    """One that was submitted before can still be read, to be shown and stopped."""
    with nullcontext() if is_clean else pytest.raises(InputError, match="setup sets a secret variable. Fix: pass it"):
        require_clean(BucketPlace("gs://b/job.json", setup=setup), SPEC.command)
    values = json.loads(SPEC.to_json()) | {"setup": setup}
    assert parse_spec(json.dumps(values), "gs://b/job.json").setup == setup


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"format": 1}, "format 1"),
        ({"format": True}, "format True"),
        ({"command": ["rm", "-rf", "/"]}, "command is of the wrong type"),
        ({"command": {"config": "a.yaml"}}, "lacks key 'command.run'"),
        ({"command": COMMAND | {"config": ""}}, "command lacks its configuration or its run"),
        ({"command": COMMAND | {"overrides": ["a", 1]}}, r"command.overrides.1 is of the wrong type"),
        ({"command": COMMAND | {"stop_after_steps": 1.5}}, "stop_after_steps is of the wrong type"),
        ({"command": COMMAND | {"profile_steps": True}}, "profile_steps is of the wrong type"),
        ({"command": COMMAND | {"words": []}}, "unknown key 'words'"),
        ({"environment": ["A=secret"]}, "is not the name of a variable"),
        ({"restarts": 1.5}, "restarts is of the wrong type"),
        ({"restarts": -1}, "restarts is below 0"),
        ({"grace_seconds": float("nan")}, "grace_seconds is not above 0"),
        ({"setup": "a\0b"}, "setup holds a zero byte"),
        ({"command": COMMAND | {"overrides": ["a=https://me:hunter2@host/x"]}}, "command holds a secret"),
        ({"restart": 3}, "unknown key 'restart'"),
        ({"folder": None}, "folder is of the wrong type"),
    ],
)
def test_spec_is_refused(change: dict[str, Any], complaint: str) -> None:
    values = json.loads(SPEC.to_json()) | change
    with pytest.raises(InputError, match=complaint) as caught:
        parse_spec(json.dumps(values), "gs://b/job.json")
    assert str(caught.value).startswith("gs://b/job.json: ") and ". Fix: " in str(caught.value)


def test_spec_lacks_a_key_or_is_no_json() -> None:
    values = json.loads(SPEC.to_json())
    del values["setup"]
    for text, complaint in ((json.dumps(values), "lacks key 'setup'"), ("{", "not JSON"), ("[]", "not a job spec")):
        with pytest.raises(InputError, match=complaint):
            parse_spec(text, "x")


def test_words_are_those_that_a_person_would_type() -> None:
    assert Training("a.yaml", "runs/a").words() == ["pretrain", "a.yaml", "--run", "runs/a"]
    command = Training("a.yaml", "runs/a", ("a=1", "b=c d"), 0.5, 100, 3, processes=2)
    limits = "--stop-after-hours 0.5 --stop-after-steps 100 --profile-steps 3 --processes 2"
    assert command.words()[4:] == ["--set", "a=1", "--set", "b=c d", *limits.split()]
    branch = Training("a.yaml", "runs/b", ("a=1",), begin_from="runs/a@5", fresh_optimizer=True)
    assert branch.words()[4:] == ["--from", "runs/a@5", "--fresh-optimizer", "--set", "a=1"]


# ---- which exit code is the job's ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ends", "code", "restart", "cause"),
    [
        ([End(0, 0), End(1, 0)], 0, False, None),
        ([End(1, 2), End(0, 75)], 2, False, 1),
        ([End(0, 75), End(1, 3)], 3, False, 1),  # it said why, 75 is what the partner of a dead host says
        ([End(1, 1), End(0, None)], 1, False, 1),
        ([End(1, None, time=0), End(0, 1, time=9)], 75, True, 1),  # the failure came after the loss: its consequence
        ([End(1, 137, time=0), End(0, 1, time=9)], 1, True, 1),
        (
            [End(1, 134, time=0), End(2, None, time=0), End(0, 1, time=1)],
            1,
            False,
            0,
        ),  # at once: the error is the cause
        ([End(0, 1, time=0), End(1, 134, time=1), End(2, None, time=1)], 1, False, 0),
        ([End(1, 75, time=0), End(2, 134, time=5), End(0, 3, time=6)], 3, False, 0),
        ([End(1, 134, time=0), End(0, 1, told=True, time=1)], 1, True, 1),
        ([End(1, 134, time=0), End(0, 75, time=1)], 1, True, 1),
        ([End(1, 137, told=True), End(0, 75)], 75, True, 0),
        ([End(0, 75), End(1, 1, told=True)], 75, True, 0),
        ([End(0, 75, told=True), End(1, 75, told=True)], 75, True, 0),
        ([End(0, 75), End(1, None, told=True)], 75, True, 1),
        ([End(0, 75, reason="agreed"), End(1, 75, reason="asked")], 75, False, 1),
        ([End(0, 75, reason="limit"), End(1, 75)], 75, False, 0),
        ([End(0, 75, reason="signal"), End(1, 75, reason="agreed")], 75, True, 0),
        ([End(0, 0), End(1, 255)], 255, False, 1),
    ],
)
def test_first_end_that_is_no_consequence_decides(ends: list[End], code: int, restart: bool, cause: int | None) -> None:
    verdict = judge(ends, len(ends))
    assert (verdict.code, verdict.restart) == (code, restart)
    assert (verdict.cause.host if verdict.cause else None) == cause


def test_a_job_that_was_told_to_end_is_not_begun_again() -> None:
    told = [End(0, 75, told=True), End(1, 0, told=True)]
    assert judge(told, 2, asked=True).code == 75 and not judge(told, 2, asked=True).restart
    assert judge([End(0, 0, told=True)], 1, asked=True).code == 0
    assert judge([End(1, 75, reason="agreed"), End(0, 75, reason="asked")], 2, asked=True).reason == "asked"
    assert judge([*told, End(2, 1, told=True)], 3, asked=True).code == 1  # such as a disk that was full when it saved


@pytest.mark.parametrize(
    "ends",
    [
        [],  # nobody was reached, or SIGTERM came twice
        [End(0, 0)],
        [End(0, 0), End(1, None)],
        [End(0, None, told=True), End(1, None, told=True)],
    ],
)
def test_job_that_was_stopped_before_every_host_was_done_is_not_done(ends: list[End]) -> None:
    assert judge(ends, 2, asked=True) == JobOutcome(75, False, None, "signal")
    assert judge(ends, 2).code == 75


@pytest.mark.parametrize("times", [1, 2])
def test_submit_that_is_ended_while_it_connects_ends_with_75(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    def connect(*_: Any) -> list[str]:
        for _ in range(times):
            signal.raise_signal(signal.SIGTERM)
        return ["sleep", "60"]

    monkeypatch.setattr(slice_module.TpuSlice, "describe", lambda _: ("READY", "v4-32", 2))
    monkeypatch.setattr(slice_module.TpuSlice, "ssh_words", connect)
    with pytest.raises(StoppedEarly):
        slice_module.TpuSlice("pod").submit(SPEC.command, dry_run=False)


def test_a_limit_is_a_reason_and_the_first_reason_stays() -> None:
    for request in (StopRequest(stop_after_steps=1), StopRequest(stop_after_hours=0.0)):
        request.look(None, 1)
        request.ask("signal", "SIGTERM")
        assert request.reason == "limit" and request.why.startswith("--")


def test_report_begins_with_the_host_to_look_at() -> None:
    ends = [End(2, 1, tail=("a", "error: b")), End(0, 75), End(1, None, told=True, why="did not answer")]
    assert report(ends, judge(ends, 3)) == [
        "first: host 2: exit 1",
        "host 2 | a",
        "host 2 | error: b",
        "host 0: exit 75, stopped early",
        "host 1: lost, told to end (did not answer)",
    ]


# ---- on a host -----------------------------------------------------------------------------------------------------

Run = Callable[..., ShellAttempt]


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    monkeypatch.setattr(host_module, "OTHERS_SECONDS", 0.5)
    monkeypatch.setattr(slice_module, "POLL_SECONDS", 0.01)
    return Hosts(tmp_path / "hosts", 2)


def begin(hosts: Hosts, spec: JobSpec = SPEC, *, workers: int = 1, job: str = "one", **options: Any) -> ShellAttempt:
    options = {"values": {}, "setup": True, **options}
    return ShellAttempt(spec, range(workers), hosts.argv, job=job, **options)


def finish(attempt: ShellAttempt) -> list[End]:
    until = time.monotonic() + 120
    while not attempt.over:
        assert time.monotonic() < until
        attempt.poll(0.05)
    attempt.close()
    return attempt.ends


def wait_for(path: Path, attempt: ShellAttempt | None = None) -> None:
    until = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < until, path
        attempt.poll(0.05) if attempt else time.sleep(0.05)


def test_words_and_values_survive_the_shell(hosts: Hosts, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["it's", 'a "b"', "$HOME `id` \\", "x\ny", "", "*", "--set", "a=b c", "é"]
    there = ["pretrain", "a", "--run", "b", *(w for word in words for w in ("--set", word)), "--node-rank", "1"]
    hosts.plan(0, 'printf "<%s>" "$@" "$ODD"; echo')
    spec = replace(SPEC, command=Training("a", "b", tuple(words)), environment=("ODD",))
    [end] = finish(begin(hosts, spec, values={"ODD": 'v\'1 "$2"\n'}, more=["--node-rank", "1"]))
    assert end.code == 0
    text = "".join(line.removeprefix("host 0 | ") for line in capsys.readouterr().out.splitlines(True))
    assert text.strip() == "".join(f"<{word}>" for word in [*there, 'v\'1 "$2"\n'])


@pytest.mark.parametrize("code", [0, 1, 2, 3, 75, 255])
def test_exit_code_is_the_one_of_the_job(hosts: Hosts, code: int) -> None:
    hosts.plan(0, f"printf 'no newline'; exit {code}")
    [end] = finish(begin(hosts))
    assert end.code == code and end.tail == ("no newline",)


def test_killed_job_is_told_from_one_that_failed(hosts: Hosts) -> None:
    hosts.plan(0, "kill -KILL $$")
    [end] = finish(begin(hosts))
    assert end.code == 137 and end.describe() == "host 0: killed by SIGKILL"


def test_what_a_job_prints_is_never_taken_for_an_exit_code(hosts: Hosts) -> None:
    hosts.plan(0, "echo exit 0; echo maskwright-0123456789abcdef exit 0; exit 3")
    assert finish(begin(hosts))[0].code == 3


def test_what_is_missing_on_a_host_is_one_line(hosts: Hosts) -> None:
    for spec, code, complaint in (
        (replace(SPEC, folder="no such"), 2, "no such: no such folder here. Fix: "),
        (replace(SPEC, setup="echo tried; exit 4"), 4, "--setup ended with 4"),
        (replace(SPEC, setup="exit 75"), 75, "--setup ended with 75"),
    ):
        [end] = finish(begin(hosts, spec))
        assert end.code == code and complaint in end.why
    (hosts.folder / "bin" / "maskwright").unlink()
    [end] = finish(begin(hosts))
    assert end.code == 127 and "maskwright: not installed here. Fix: " in end.why
    assert not hosts.file(0, "n").exists()


def test_nothing_begins_before_every_host_is_ready(hosts: Hosts) -> None:
    (hosts.home(1) / "maskwright").rename(hosts.home(1) / "elsewhere")
    ends = finish(begin(hosts, workers=2))
    assert [end.host for end in ends if end.code == 2] == [1]
    assert not hosts.file(0, "n").exists()


def test_setup_runs_in_the_home_folder_before_the_first_attempt_only(hosts: Hosts) -> None:
    spec = replace(SPEC, setup="pwd >> set-up; mkdir -p made", folder="made")
    (hosts.home(0) / "maskwright" / "plan").rename(hosts.home(0) / "plan")
    (hosts.folder / "bin" / "maskwright").write_text("#!/bin/sh\npwd\n")
    for first in (True, False):
        [end] = finish(begin(hosts, spec, setup=first))
        assert end.code == 0 and end.tail == (f"{hosts.home(0)}/made",)
    assert (hosts.home(0) / "set-up").read_text() == f"{hosts.home(0)}\n"


CATCH = "trap 'echo saving; echo term >> got; exit 75' TERM; sleep 100 & echo $$ > pid; wait"


def test_end_of_the_launcher_is_sigterm_for_the_job(hosts: Hosts) -> None:
    hosts.plan(0, CATCH)
    attempt = begin(hosts)
    wait_for(hosts.file(0, "pid"), attempt)
    attempt.request_stop()
    [end] = finish(attempt)
    assert (end.code, end.told) == (75, True) and end.tail[-1] == "saving"
    assert hosts.left_over() == []


def test_launcher_that_was_killed_leaves_no_job_behind(hosts: Hosts) -> None:
    hosts.plan(0, CATCH)
    attempt = begin(hosts)
    wait_for(hosts.file(0, "pid"), attempt)
    attempt.hosts[0].drop()  # the connection's process is killed, and its input ends
    wait_for(hosts.file(0, "got"))
    attempt.close()
    assert hosts.left_over() == []


def test_connection_that_breaks_lets_the_job_save(hosts: Hosts) -> None:
    """What it prints meanwhile has no reader any more, which in a pipe would kill it."""
    hosts.plan(0, "trap 'echo saving; echo saving; echo term >> got; exit 75' TERM; echo $$ > pid; sleep 100 & wait")
    script = script_for(SPEC, {}, mark="mark", job="one", setup=False)
    pipe = subprocess.PIPE
    with subprocess.Popen(hosts.argv(0, first_command("mark")), stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin and process.stdout and process.stdout.readline() == "mark hello\n"
        process.stdin.write(script)
        process.stdin.flush()
        assert process.stdout.readline() == "mark ready\n"
        process.stdin.write("go\n")
        process.stdin.flush()
        wait_for(hosts.file(0, "pid"))
        process.stdout.close()
        process.stdin.close()
        wait_for(hosts.file(0, "got"))
    assert hosts.left_over() == []
    assert (hosts.home(0) / ".cache" / "maskwright" / "launch.log").read_text() == "saving\nsaving\n"


def test_job_that_ignores_sigterm_is_killed_after_the_grace_period(hosts: Hosts) -> None:
    hosts.plan(0, "trap 'echo not now' TERM; echo > pid; while :; do sleep 0.1; done")
    attempt = begin(hosts, replace(SPEC, grace_seconds=1.0))
    wait_for(hosts.file(0, "pid"), attempt)
    began = time.monotonic()
    attempt.request_stop()
    [end] = finish(attempt)
    assert end.code == 137 and 0.9 < time.monotonic() - began < 60
    assert hosts.left_over() == []


def test_host_that_hangs_is_ended_when_another_one_fails(hosts: Hosts) -> None:
    hosts.plan(0, "while ! [ -e ../../host-1/maskwright/n ]; do sleep 0.05; done; echo 'error: bad'; exit 1")
    hosts.plan(1, CATCH)
    ends = finish(begin(hosts, workers=2))
    assert [(end.host, end.code, end.told) for end in ends] == [(0, 1, False), (1, 75, True)]
    assert judge(ends, 2).code == 1 and hosts.left_over() == []


@pytest.mark.parametrize("late", [0, 1])
def test_error_wins_over_the_abort_of_another_host(hosts: Hosts, late: int) -> None:
    """Also when it comes later than `OTHERS_SECONDS`, here 0.5: the others are told to end after 2 seconds at least."""
    for worker, end in ((0, "exit 1"), (1, "kill -ABRT $$")):
        wait = f"while ! [ -e ../../host-{1 - late}/maskwright/n ]; do sleep 0.05; done; sleep 0.8; "
        hosts.plan(worker, (wait if worker == late else "") + end)
    ends = finish(begin(hosts, workers=2))
    assert [end.host for end in ends] == [1 - late, late]
    verdict = judge(ends, 2)
    assert (verdict.code, verdict.restart) == (1, False) and verdict.cause and verdict.cause.host == 0


def test_host_that_does_not_answer_is_lost(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "ANSWER_SECONDS", 0.3)
    once = hosts.argv
    hosts.argv = lambda worker, command: once(worker, command.replace("sh -s", "sleep 60"))  # type: ignore[method-assign]
    attempt = begin(hosts)
    while not attempt.hosts[0].greeted:
        attempt.poll(0.05)
    attempt.request_stop()
    [end] = finish(attempt)
    assert (end.code, end.told, end.why) == (None, True, "did not answer")
    assert hosts.left_over() == []


def orphaned(hosts: Hosts, job: str) -> None:
    """A job whose launcher is gone without the host having noticed."""
    hosts.plan(0, CATCH)
    attempt = begin(hosts, job=job)
    wait_for(hosts.file(0, "pid"), attempt)
    attempt.hosts[0].end = End(0, None)  # forgotten: its input stays open until the test ends
    hosts.kept = attempt  # type: ignore[attr-defined]


def test_next_attempt_first_ends_what_is_left_of_the_one_before(hosts: Hosts) -> None:
    orphaned(hosts, "one")
    old = int(hosts.file(0, "pid").read_text())
    hosts.plan(0, f"kill -0 {old} 2>/dev/null && exit 9; exit 0")
    [end] = finish(begin(hosts, job="one"))
    assert end.code == 0 and hosts.file(0, "got").read_text() == "term\n"
    hosts.kept.close()  # type: ignore[attr-defined]


def test_job_of_somebody_else_is_ended_only_with_replace(hosts: Hosts) -> None:
    orphaned(hosts, "theirs")
    [end] = finish(begin(hosts, job="mine"))
    assert end.code == 2 and "is busy with job theirs. Fix: " in end.why
    os.kill(int(hosts.file(0, "pid").read_text()), 0)
    hosts.plan(0, "exit 0")
    [end] = finish(begin(hosts, job="mine", replace=True))
    assert end.code == 0 and hosts.file(0, "got").exists()
    hosts.kept.close()  # type: ignore[attr-defined]


def test_connection_that_makes_itself_again_starts_no_second_job(hosts: Hosts) -> None:
    """As gcloud does after ssh has failed, should a later one say so in other words."""
    hosts.plan(0, "kill -KILL $PPID; sleep 1")  # the shell that supervises it
    once = hosts.argv
    hosts.argv = lambda worker, command: once(worker, f"({command}); sleep 0.1; ({command})")  # type: ignore[method-assign]
    [end] = finish(begin(hosts, replace(SPEC, grace_seconds=0.5)))
    assert end.code is None and end.why == "the connection was lost"
    assert hosts.file(0, "n").read_text() == "1\n" and hosts.left_over() == []


def test_lines_of_hosts_never_mix_and_carry_no_secret(
    hosts: Hosts, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
    for worker in hosts.workers:
        loop = 'i=0; while [ $i -lt 300 ]; do printf "begin %s " $i; echo "with hf_verysecret $i end"; i=$((i+1)); done'
        hosts.plan(worker, loop)
    finish(begin(hosts, workers=2))
    lines = capsys.readouterr().out.splitlines()
    for worker in hosts.workers:
        own = [line for line in lines if line.startswith(f"host {worker} | ")]
        assert own == [f"host {worker} | begin {i} with *** {i} end" for i in range(300)]
    assert len(lines) == 600


# ---- attempts ------------------------------------------------------------------------------------------------------


class Place:
    """Hosts of this machine as a slice."""

    name, replace, connect_seconds, restart_wait_seconds = "pod", False, 5.0, 0.0

    def __init__(self, hosts: Hosts, *states: str) -> None:
        self.states, self.ssh_words = list(states), hosts.argv

    def describe(self) -> tuple[str, str, int]:
        return self.states.pop(0) if self.states else "READY", "v4-16", 2


def submit(hosts: Hosts, *states: str, restarts: int = 1) -> None:
    place: Any = Place(hosts, *states)
    slice_module.attempts(place, replace(SPEC, restarts=restarts), {})


def test_lost_host_is_begun_again_and_the_job_ends_well(hosts: Hosts, capsys: pytest.CaptureFixture[str]) -> None:
    hosts.plan(0, "[ $n = 1 ] && kill -KILL $$; exit 0")
    hosts.plan(1, "[ $n = 1 ] && exit 75; exit 0")
    submit(hosts)
    assert [hosts.file(worker, "n").read_text() for worker in hosts.workers] == ["2\n", "2\n"]
    assert "restarting in 0 s (restart 1 of 1)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("plan", "error", "code", "attempts"),
    [
        ("exit 75", StoppedEarly, 75, 2),
        ("kill -KILL $$", JobError, 1, 2),
        ("echo 'error: bad' >&2; exit 2", JobError, 2, 1),
        ("exit 3", JobError, 3, 1),
        ('echo limit > "$MASKWRIGHT_REASON_FILE"; exit 75', StoppedEarly, 75, 1),
    ],
)
def test_budget_of_restarts_and_what_is_final(
    hosts: Hosts, plan: str, error: type[Exception], code: int, attempts: int
) -> None:
    hosts.plan(0, plan)
    hosts.plan(1, "while ! [ -e ../../host-0/maskwright/n ]; do sleep 0.05; done; sleep 0.1; exit 75")
    with pytest.raises(error) as caught:
        submit(hosts)
    assert caught.value.exit_code == code  # type: ignore[attr-defined]
    assert hosts.file(0, "n").read_text() == f"{attempts}\n"


def test_slice_that_is_not_ready(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    submit(hosts, "CREATING", "STARTING", "READY")
    monkeypatch.setattr(slice_module, "READY_SECONDS", 0.05)
    with pytest.raises(StoppedEarly, match="is still REPAIRING"):
        submit(hosts, *["REPAIRING"] * 100)
    with pytest.raises(InputError, match="is STOPPED, not READY"):
        submit(hosts, "STOPPED")
    hosts.plan(0, "exit 75")
    with pytest.raises(StoppedEarly, match="is PREEMPTED, not READY"):
        submit(hosts, "READY", "PREEMPTED")


def test_signal_numbers_without_a_name() -> None:
    assert End(0, 128 + signal.SIGRTMIN + 1).describe() == f"host 0: killed by signal {signal.SIGRTMIN + 1}"


@pytest.mark.parametrize(
    ("keys", "nodes", "gpus", "found"),
    [
        ({}, 2, 0, ("cpu", 1)),
        ({}, 2, 4, ("cuda", 4)),
        ({"engine": {"kind": "jax"}}, 2, 4, ("cuda", 1)),
        ({"engine": {"device": "cpu"}}, 1, 8, "engine.device: is cpu, and 8 GPUs on each node ask for cuda"),
        ({}, 3, 8, "16 virtual workers cannot be shared out evenly over 24 processes"),
        ({"engine": {"devices": 4}}, 2, 4, "engine.devices: 4 were asked for, and 8 compute"),
        ({"engine": {"devices": 8}}, 2, 4, ("cuda", 4)),
    ],
)
def test_what_each_machine_computes_on_is_what_was_asked_for(
    keys: dict[str, Any], nodes: int, gpus: int, found: tuple[str, int] | str
) -> None:
    values = {"data": {"store": "s"}, "schedule": {"steps": 1}, "batch": {"virtual_workers": 16}, **keys}
    config = build_config(values, "test")
    if isinstance(found, str):
        with pytest.raises(InputError, match=found):
            sized(SPEC.command, config, nodes, gpus)
    else:
        device, processes = found
        there = sized(SPEC.command, config, nodes, gpus)
        assert there == replace(SPEC.command, overrides=(f"engine.device={device}",), processes=processes)
