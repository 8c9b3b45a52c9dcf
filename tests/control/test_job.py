"""How a job's exit code comes about, and what happens on the hosts of a slice; without gcloud, with a real shell."""

import os
import signal
import subprocess
import time
from contextlib import nullcontext
from dataclasses import replace

import pytest
from fake_tpu import Hosts
from private_network import wait_until

from maskwright.config.pretraining import build_config
from maskwright.core.errors import EndedAsAsked, InputError, JobError, MaskwrightError, StoppedEarly
from maskwright.launch import attempts as attempts_module
from maskwright.launch import tpu_vm as slice_module
from maskwright.launch.checks import sized
from maskwright.launch.hosts import supervisor as host_module
from maskwright.launch.hosts.script import INSTALL, first_command, script_for
from maskwright.launch.hosts.supervisor import ShellAttempt
from maskwright.launch.outcome import End, JobOutcome, judge, report
from maskwright.launch.schedulers.slurm import Slurm
from maskwright.launch.target import Training, require_clean
from maskwright.launch.topology import WorkerGroup
from maskwright.training.stop import StopRequest

COMMAND = Training("a.yaml", "runs/a")
SETTINGS = {"job": "one", "folder": "maskwright", "setup": "", "grace": "20", "replace": ""}


# ---- the command ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setup", "is_clean"),
    [
        ("export HF_TOKEN=$MINE_OF_TODAY", True),
        ("API_KEY=`cat the_file`", True),
        ("TOKENIZERS_PARALLELISM=falsehoods", True),
        ("CREDENTIALS=/home/me/a.json", True),
        ("export HF_TOKEN=hf_abcdefghijkl && pip install x", False),
        ("WANDB_API_KEY='0123456789abc'; pip install x", False),
        (INSTALL, True),
    ],
)
def test_a_setup_that_sets_a_secret_is_not_submitted(setup, is_clean):
    with nullcontext() if is_clean else pytest.raises(InputError, match="setup sets a secret variable. Fix: pass it"):
        require_clean(slice_module.TpuSlice("pod", setup=setup), COMMAND)
    with nullcontext() if is_clean else pytest.raises(InputError, match="Fix: export NAME=… before you submit"):
        require_clean(Slurm(setup=setup), COMMAND)


def test_words_are_those_that_a_person_would_type():
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
        # At once: the error is the cause.
        ([End(1, 134, time=0), End(2, None, time=0), End(0, 1, time=1)], 1, False, 0),
        ([End(0, 1, time=0), End(1, 134, time=1), End(2, None, time=1)], 1, False, 0),
        ([End(1, 75, time=0), End(2, 134, time=5), End(0, 3, time=6)], 3, False, 0),
        ([End(1, 134, time=0), End(0, 1, told=True, time=1)], 1, True, 1),
        ([End(1, 134, time=0), End(0, 75, time=1)], 1, True, 1),
        ([End(1, 137, told=True), End(0, 75)], 75, True, 0),
        ([End(0, 75), End(1, 1, told=True)], 75, True, 0),
        ([End(0, 75, told=True), End(1, 75, told=True)], 75, True, 0),
        ([End(0, 75), End(1, None, told=True)], 75, True, 1),
        ([End(0, 75), End(1, 76)], 76, False, 1),  # one host had ended before it heard of the request
        ([End(0, 76), End(1, None, time=9)], 76, False, 0),
        ([End(0, 76), End(1, 1)], 1, False, 1),
        ([End(0, 0), End(1, 255)], 255, False, 1),
    ],
)
def test_first_end_that_is_no_consequence_decides(ends, code, restart, cause):
    verdict = judge(ends, len(ends))
    assert (verdict.code, verdict.restart) == (code, restart)
    assert (verdict.cause.host if verdict.cause else None) == cause


def test_processes_of_all_machines_have_ranks_of_their_own():
    groups = [WorkerGroup(3, nodes=2, node_rank=node, rendezvous="[fd00::1]:29500") for node in (0, 1)]
    found = [group.variables(number, 1) for group in groups for number in range(3)]
    assert [(one["RANK"], one["LOCAL_RANK"]) for one in found] == [(str(n), str(n % 3)) for n in range(6)]
    assert {(one["WORLD_SIZE"], one["LOCAL_WORLD_SIZE"]) for one in found} == {("6", "3")}
    assert {(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in found} == {("[fd00::1]", "29500")}
    assert {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "7"}.items() <= WorkerGroup(1).variables(0, 7).items()


TOLD = [End(0, 75, told=True), End(1, 0, told=True)]


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        ([], 75),  # nobody was reached, or SIGTERM came twice
        ([End(0, 0)], 75),
        ([End(0, 0), End(1, None)], 75),
        ([End(0, None, told=True), End(1, None, told=True)], 75),
        (TOLD, 75),
        ([End(0, 0), End(1, 0, told=True)], 0),
        ([End(1, 75), End(0, 76)], 76),
        ([*TOLD, End(2, 1, told=True)], 1),  # such as a disk that was full when it saved
    ],
)
def test_job_that_was_stopped_is_not_begun_again_nor_done_before_every_host_is(ends, code):
    hosts = max(2, len(ends))
    found = judge(ends, hosts, asked=True)
    assert found == JobOutcome(code, False, next((end for end in ends if end.failed), None))
    assert code != 75 or judge(ends, hosts).code == 75


@pytest.mark.parametrize("times", [1, 2])
def test_submit_that_is_ended_while_it_connects_ends_with_75(monkeypatch, times):
    def connect(*given):
        for _ in range(times):
            signal.raise_signal(signal.SIGTERM)
        return ["sleep", "60"]

    monkeypatch.setattr(slice_module.TpuSlice, "describe", lambda _: ("READY", "v4-32", 2))
    monkeypatch.setattr(slice_module.TpuSlice, "ssh_words", connect)
    with pytest.raises(StoppedEarly):
        slice_module.TpuSlice("pod").submit(COMMAND, dry_run=False)


def test_a_limit_is_a_reason_and_the_first_reason_stays():
    for request in (StopRequest(stop_after_steps=1, stop_at_step=1), StopRequest(stop_after_hours=1.0, stop_at=0.0)):
        request.look(None, 1)
        request.ask("signal", "SIGTERM")
        assert request.reason == "limit" and request.why.startswith("--")
        request = replace(request, reason="signal")
        request.look(None, 1)
        assert request.reason == "limit", "no engine may start it again"


def test_report_begins_with_the_host_to_look_at():
    assert End(0, 128 + signal.SIGRTMIN + 1).describe() == f"host 0: killed by signal {signal.SIGRTMIN + 1}"
    ends = [End(2, 1, tail=("a", "error: b")), End(0, 75), End(1, None, told=True, why="did not answer")]
    assert report(ends, judge(ends, 3)) == [
        "first: host 2: exit 1",
        "host 2 | a",
        "host 2 | error: b",
        "host 0: exit 75, interrupted",
        "host 1: lost, asked to end (did not answer)",
    ]


# ---- on a host -----------------------------------------------------------------------------------------------------


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    monkeypatch.setattr(host_module, "OTHERS_SECONDS", 0.5)
    monkeypatch.setattr(slice_module, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(slice_module, "RESTART_WAIT_SECONDS", 0.0)
    made = Hosts(tmp_path / "hosts", 2)
    yield made
    made.end()


def begin(hosts, command=COMMAND, *, workers=1, **changed):
    """`changed`: other `SETTINGS`, or `values` of variables."""
    values = changed.pop("values", {})
    settings = SETTINGS | changed

    def script(mark):
        return script_for(command, values, {"mark": mark, **settings})

    return ShellAttempt(workers, hosts.argv, script, float(settings["grace"]))


def finish(attempt):
    until = time.monotonic() + 120
    while not attempt.over:
        assert time.monotonic() < until
        attempt.poll(0.05)
    attempt.close()
    return attempt.ends


def wait_for(path, attempt=None):
    wait_until(lambda: (attempt and attempt.poll(0.05)) or path.exists())


def test_words_and_values_survive_the_shell(hosts, capsys):
    words = ["it's", 'a "b"', "$HOME `id` \\", "x\ny", "", "*", "--set", "a=b c", "é"]
    there = ["pretrain", "a", "--run", "b", *(w for word in words for w in ("--set", word))]
    hosts.plan(0, 'printf "<%s>" "$@" "$ODD"; echo')
    [end] = finish(begin(hosts, Training("a", "b", tuple(words)), values={"ODD": 'v\'1 "$2"\n'}))
    assert end.code == 0
    text = "".join(line.removeprefix("host 0 | ") for line in capsys.readouterr().out.splitlines(True))
    assert text.strip() == "".join(f"<{word}>" for word in [*there, 'v\'1 "$2"\n'])


@pytest.mark.parametrize(
    ("plan", "code", "tail"),
    [
        *((f"printf 'no newline'; exit {code}", code, ["no newline"]) for code in (0, 1, 2, 3, 75, 76, 255)),
        ("kill -KILL $$", 137, []),
        ("echo exit 0; echo maskwright-0123456789abcdef exit 0; exit 3", 3,
         ["exit 0", "maskwright-0123456789abcdef exit 0"]),
    ],
)  # fmt: skip
def test_exit_code_is_the_one_of_the_job_whatever_it_prints(hosts, plan, code, tail):
    hosts.plan(0, plan)
    [end] = finish(begin(hosts))
    assert end.code == code and list(end.tail)[: len(tail)] == tail
    assert code != 137 or end.describe() == "host 0: killed by SIGKILL"


def test_what_is_missing_on_a_host_is_one_line(hosts):
    """Exit code 75 of a setup is not one of the job, which would start it again without end."""
    command = hosts.folder / "bin" / "maskwright"
    rows = [
        ({"folder": "no such"}, 2, "no such: no such folder here. Fix: "),
        ({"setup": "echo tried; exit 75"}, 1, "--setup ended with 75. Fix: read its lines above"),
        ({"setup": f"echo 'echo bad interpreter; exit 126' > {command}"}, 127, "does not start: bad interpreter. Fix:"),
        ({"setup": f"rm {command}"}, 127, "maskwright: not installed here. Fix: name a folder with a .venv by"),
    ]
    for settings, code, complaint in rows:
        [end] = finish(begin(hosts, **settings))
        assert end.code == code and complaint in end.why
    assert not hosts.file(0, "n").exists()


@pytest.mark.parametrize("settings", [{}, {"setup": "echo 'requires a different Python'; exit 1"}])
def test_host_whose_python_is_too_old_gets_the_line_that_brings_a_newer_one(hosts, settings):
    (hosts.folder / "bin" / "maskwright").unlink()
    python = hosts.folder / "bin" / "python3"
    python.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.10.12 || exit 1\n')
    python.chmod(0o755)
    [end] = finish(begin(hosts, **settings))
    assert end.code in (1, 127) and f"and Python 3.10.12 is older than 3.11. Fix: --setup '{INSTALL}'" in end.why


def test_setup_runs_in_the_home_folder_before_each_attempt(hosts):
    """A host that was made anew in between has an empty disk."""
    (hosts.home(0) / "maskwright" / "plan").rename(hosts.home(0) / "plan")
    (hosts.folder / "bin" / "maskwright").write_text("#!/bin/sh\npwd\n")
    for attempt in (1, 2):
        [end] = finish(begin(hosts, setup="pwd >> set-up; mkdir -p made", folder="made"))
        assert end.code == 0 and end.tail == (f"{hosts.home(0)}/made",)
        assert (hosts.home(0) / "set-up").read_text() == f"{hosts.home(0)}\n" * attempt


CATCH = "trap 'echo saving; echo term >> got; exit 75' TERM; sleep 100 & echo $$ > pid; wait"


@pytest.mark.parametrize(
    ("plan", "grace", "code", "last"),
    [
        (CATCH, "60", 75, "saving"),
        ("trap 'echo not now' TERM; echo > pid; while :; do sleep 0.1; done", "1", 137, "not now"),
    ],
)
def test_end_of_the_launcher_is_sigterm_for_the_job_and_sigkill_after_the_grace_period(hosts, plan, grace, code, last):
    hosts.plan(0, plan)
    attempt = begin(hosts, grace=grace)
    wait_for(hosts.file(0, "pid"), attempt)
    began = time.monotonic()
    attempt.request_stop()
    [end] = finish(attempt)
    assert (end.code, end.told) == (code, True) and last in end.tail and hosts.left_over() == []
    assert code == 75 or time.monotonic() - began > 0.9


def test_connection_that_breaks_lets_the_job_save(hosts):
    """What it prints meanwhile has no reader any more, which in a pipe would kill it."""
    hosts.plan(0, "trap 'echo saving; echo saving; echo term >> got; exit 75' TERM; echo $$ > pid; sleep 100 & wait")
    script = script_for(COMMAND, {}, {"mark": "mark", **SETTINGS})
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


def test_host_that_hangs_is_ended_when_another_one_fails(hosts):
    hosts.plan(0, "while ! [ -e ../../host-1/maskwright/n ]; do sleep 0.05; done; echo 'error: bad'; exit 1")
    hosts.plan(1, CATCH)
    ends = finish(begin(hosts, workers=2))
    assert [(end.host, end.code, end.told) for end in ends] == [(0, 1, False), (1, 75, True)]
    assert judge(ends, 2).code == 1 and hosts.left_over() == []


@pytest.mark.parametrize("late", [0, 1])
def test_error_wins_over_the_abort_of_another_host(hosts, late):
    """Also when it comes later than `OTHERS_SECONDS`, here 0.5: the others are told to end after 2 seconds at least."""
    for worker, end in ((0, "exit 1"), (1, "kill -ABRT $$")):
        wait = f"while ! [ -e ../../host-{1 - late}/maskwright/n ]; do sleep 0.05; done; sleep 0.8; "
        hosts.plan(worker, (wait if worker == late else "") + end)
    ends = finish(begin(hosts, workers=2))
    assert [end.host for end in ends] == [1 - late, late]
    verdict = judge(ends, 2)
    assert (verdict.code, verdict.restart) == (1, False) and verdict.cause and verdict.cause.host == 0


def test_host_that_does_not_answer_is_lost(hosts, monkeypatch):
    monkeypatch.setattr(host_module, "ANSWER_SECONDS", 0.3)
    once = hosts.argv
    hosts.argv = lambda worker, command: once(worker, command.replace("sh -s", "sleep 60"))
    attempt = begin(hosts)
    while not attempt.hosts[0].greeted:
        attempt.poll(0.05)
    attempt.request_stop()
    [end] = finish(attempt)
    assert (end.code, end.told, end.why) == (None, True, "did not answer")
    assert hosts.left_over() == []


def test_host_that_cannot_be_reached_is_lost_and_the_job_never_begins(hosts):
    once, said = hosts.argv, "ssh: connect to host h: Connection timed out"
    for words, why in (
        (["sh", "-c", f"echo '{said}'; sleep 60"], said),
        (["sh", "-c", f"echo '{said}'; exit 255"], said),
        (["sleep", "60"], "cannot be reached"),
    ):
        second = words
        hosts.argv = lambda worker, command: second if worker else once(worker, command)  # noqa: B023
        attempt = begin(hosts, workers=2)
        wait_until(lambda: attempt.poll(0.05) or (attempt.hosts[0].ready and (why != said or attempt.hosts[1].tail)))  # noqa: B023
        if "exit" not in words[-1]:
            attempt._connect_by = 0.0  # all the time for it has passed
        ends = finish(attempt)
        assert [(end.host, end.code, end.told) for end in ends] == [(1, None, False), (0, None, True)]
        assert ends[0].why == why and not hosts.file(0, "n").exists()


def orphaned(hosts, job):
    """A job whose launcher is gone without the host having noticed."""
    hosts.plan(0, CATCH)
    attempt = begin(hosts, job=job)
    wait_for(hosts.file(0, "pid"), attempt)
    attempt.hosts[0].end = End(0, None)  # forgotten: its input stays open until the test ends
    hosts.kept = attempt


def test_next_attempt_first_ends_what_is_left_of_the_one_before(hosts):
    orphaned(hosts, "one")
    old = int(hosts.file(0, "pid").read_text())
    hosts.plan(0, f"kill -0 {old} 2>/dev/null && exit 9; exit 0")
    [end] = finish(begin(hosts, job="one"))
    assert end.code == 0 and hosts.file(0, "got").read_text() == "term\n"
    hosts.kept.close()


def test_job_of_somebody_else_is_ended_only_with_replace(hosts):
    orphaned(hosts, "theirs")
    [end] = finish(begin(hosts, job="mine"))
    assert end.code == 2 and "is busy with another job. Fix: " in end.why
    os.kill(int(hosts.file(0, "pid").read_text()), 0)
    hosts.plan(0, "exit 0")
    [end] = finish(begin(hosts, job="mine", replace="yes"))
    assert end.code == 0 and hosts.file(0, "got").exists()
    hosts.kept.close()


def test_connection_that_makes_itself_again_starts_no_second_job(hosts):
    """As gcloud does after ssh has failed, should a later one say so in other words."""
    hosts.plan(0, "kill -KILL $PPID; sleep 1")  # the shell that supervises it
    once = hosts.argv
    hosts.argv = lambda worker, command: once(worker, f"({command}); sleep 0.1; ({command})")
    [end] = finish(begin(hosts, grace="0.5"))
    assert end.code is None and end.why == "the connection was lost"
    assert hosts.file(0, "n").read_text() == "1\n" and hosts.left_over() == []


def test_lines_of_hosts_never_mix_and_carry_no_secret(hosts, capsys, monkeypatch):
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


def submit(hosts, monkeypatch, *states):
    """On hosts of this machine; `states`: what Google says of the slice each time, and READY from then on."""
    left = list(states)

    def describe(place):
        state = left.pop(0) if left else "READY"
        if isinstance(state, MaskwrightError):
            raise state
        return state, "v4-16", 2

    monkeypatch.setattr(slice_module.TpuSlice, "describe", describe)
    monkeypatch.setattr(slice_module.TpuSlice, "ssh_words", lambda place, *given: hosts.argv(*given))
    slice_module.TpuSlice("pod", grace_seconds=3.0).submit(COMMAND, dry_run=False)


@pytest.mark.parametrize(
    ("plan", "error", "code", "attempts"),
    [
        ("[ $n = 1 ] && kill -KILL $$; exit 0", None, 0, 2),
        ("[ $n -lt 9 ] && exit 75; exit 0", None, 0, 9),  # the run itself counts its starts
        ("kill -KILL $$", JobError, 1, 3),
        ("echo 'error: bad' >&2; exit 2", JobError, 2, 1),
        ("exit 3", JobError, 3, 1),
        ("exit 76", EndedAsAsked, 76, 1),
    ],
)
def test_what_is_started_again_and_what_is_final(hosts, monkeypatch, plan, error, code, attempts):
    """The other host loses its partner, and its 75 is no sign that rank 0 has counted the start."""
    monkeypatch.setattr(attempts_module, "MOST_LOST", 2)
    until = "while [ $(cat ../../host-0/maskwright/n || echo 0) -lt $n ]; do sleep 0.02; done"
    hosts.plan(0, plan)
    hosts.plan(1, f"{until}; [ $n = {attempts} ] && [ {code} = 0 ] && exit 0; sleep 0.1; exit 75")
    if error is None:
        submit(hosts, monkeypatch)
    else:
        with pytest.raises(error) as caught:
            submit(hosts, monkeypatch)
        assert caught.value.exit_code == code
    assert hosts.file(0, "n").read_text() == f"{attempts}\n"


def test_pauses_double_up_to_half_a_minute_and_begin_anew_after_a_checkpoint():
    streak, pauses = attempts_module.Streak(), []
    for newest in (0, 0, 0, 0, 0, 0, 5, 5):
        streak = streak.after(newest, counted=False)
        pauses.append(streak.pause_seconds(2.0))
    assert pauses == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 2.0, 4.0] and streak.lost == 2
    assert attempts_module.Streak(5_000).pause_seconds(2.0) == 30.0
    assert attempts_module.Streak(9).pause_seconds(60.0) == 60.0


def test_slice_that_is_not_ready(hosts, monkeypatch):
    """Before a restart, a moment without an answer ends nothing; what the user has to mend ends the attempts."""
    unreached, refused = MaskwrightError("no answer in 120 s"), InputError("NOT_FOUND: no such node")
    submit(hosts, monkeypatch, "CREATING", "STARTING", "READY")
    rows = [
        (["STOPPED"], InputError, "is STOPPED, not READY"),
        ([unreached], MaskwrightError, "no answer"),
        ([refused], InputError, "no such node"),
        (["READY", unreached, "REPAIRING", "PREEMPTED"], StoppedEarly, "is PREEMPTED, not READY"),
        (["READY", refused], StoppedEarly, "no such node"),
    ]
    hosts.plan(0, "exit 75")
    for states, error, complaint in rows:
        with pytest.raises(error, match=complaint):
            submit(hosts, monkeypatch, *states)
    monkeypatch.setattr(slice_module, "READY_SECONDS", 0.05)
    with pytest.raises(StoppedEarly, match="is still REPAIRING"):
        submit(hosts, monkeypatch, *["REPAIRING"] * 100)


@pytest.mark.parametrize(
    ("keys", "nodes", "gpus", "found"),
    [
        ({}, 2, 0, ("cpu", 1)),
        ({}, 2, 4, ("cuda", 4)),
        ({"engine": {"kind": "jax"}}, 2, 0, ("cpu", 1)),
        ({"engine": {"kind": "jax"}}, 2, 4, "engine.kind: jax is for TPUs, .* Fix: set engine.kind: torch"),
        ({"engine": {"device": "cpu"}}, 1, 8, "engine.device: is cpu, but 8 GPUs on each node need cuda"),
        ({}, 3, 8, "16 virtual workers cannot be shared out evenly over 24 processes"),
        ({"engine": {"devices": 4}}, 2, 4, "engine.devices: asks for 4 devices, but 8 compute"),
        ({"engine": {"devices": 8}}, 2, 4, ("cuda", 4)),
    ],
)
def test_what_each_machine_computes_on_is_what_was_asked_for(keys, nodes, gpus, found):
    values = {"data": {"store": "s"}, "schedule": {"steps": 1}, "batch": {"virtual_workers": 16}, **keys}
    config = build_config(values, "test")
    if isinstance(found, str):
        with pytest.raises(InputError, match=found):
            sized(COMMAND, config, nodes, gpus)
    else:
        device, processes = found
        there = sized(COMMAND, config, nodes, gpus)
        assert there == replace(COMMAND, overrides=(f"engine.device={device}",), processes=processes)
