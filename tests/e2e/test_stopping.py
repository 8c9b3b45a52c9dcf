"""Wishes for a running run: stop it, save it, limit it; and the proof that stopping costs nothing."""

import itertools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest
import warm
from command_line import COMMAND, maskwright, write_config
from injection import injected

from maskwright.prove.verify_resume import compare, compare_results
from maskwright.run.directory import RunDirectory
from maskwright.training import checkpoint


def wait_for(condition, process, seconds=300.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def start(folder, **schedule):
    """A run that would take minutes, saved only when asked; returned once it trains."""
    process = warm.Popen(
        [*COMMAND, "pretrain", "run.yaml", "--run", "run", "--set", "checkpoint.save_every_steps=null"],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = folder / "run" / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and '"loss"' in metrics.read_text(), process)
    return process


def saved(folder, run="run"):
    return checkpoint.whole_steps(str(folder / run / "checkpoints"))


def test_a_run_saves_and_stops_when_asked_from_outside(store, tmp_path):
    write_config(tmp_path / "run.yaml", store.location, steps=100_000)
    process = start(tmp_path)
    assert saved(tmp_path) == []
    process.send_signal(signal.SIGUSR1)
    wait_for(lambda: len(saved(tmp_path)) == 1, process)
    assert "saved step" in maskwright("stop", "run", "--checkpoint", cwd=tmp_path)
    assert len(saved(tmp_path)) == 2 and process.poll() is None
    answer = maskwright("stop", "run", cwd=tmp_path)
    assert "stopped at step" in answer
    _, errors = process.communicate(timeout=300)
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (process.returncode, status["exit"], status["reason"]) == (76, 76, "asked"), errors
    assert saved(tmp_path)[-1] == status["step"]
    assert not (tmp_path / "run" / "request.json").exists()
    maskwright("stop", "run", cwd=tmp_path, code=2)  # nothing runs there any more


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stop_that_is_asked_for_as_an_engine_ends_the_run_is_final(store, tmp_path, number):
    """It is not lost with the process: the engine, which starts the run again after 75 or a kill, gets 76."""
    write_config(tmp_path / "run.yaml", store.location, steps=100_000)
    process = start(tmp_path)
    process.send_signal(signal.SIGSTOP)
    RunDirectory(str(tmp_path / "run")).leave_request("stop")
    process.send_signal(number)
    process.send_signal(signal.SIGCONT)
    process.communicate(timeout=300)
    if number == signal.SIGKILL:
        process = start(tmp_path)
        process.communicate(timeout=300)
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (process.returncode, status["exit"], status["reason"]) == (76, 76, "asked")


IN_ITS_TERMINAL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
os.execvp(sys.argv[1], sys.argv[1:])
"""


def test_a_closed_terminal_saves_a_run(store, tmp_path):
    """The kernel hangs up the terminal, as it does when ssh loses its connection; under nohup nothing is noticed."""
    write_config(tmp_path / "run.yaml", store.location, steps=100_000)
    words = [*COMMAND, "pretrain", "run.yaml", "--set", "checkpoint.save_every_steps=null", "--run"]
    for name, prefix in (("run", []), ("kept", ["nohup"])):
        master, terminal = os.openpty()
        process = subprocess.Popen(
            [sys.executable, "-c", IN_ITS_TERMINAL, *prefix, *words, name], cwd=tmp_path,
            stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
        )  # fmt: skip
        os.close(terminal)
        metrics = tmp_path / name / "metrics.jsonl"
        wait_for(lambda metrics=metrics: metrics.exists() and '"loss"' in metrics.read_text(), process)
        before = len(metrics.read_text())
        os.close(master)
        if prefix:
            wait_for(lambda metrics=metrics, before=before: len(metrics.read_text()) > before, process)
            assert process.poll() is None
            process.kill()
        code = process.wait(timeout=300)
        assert prefix or code == 75
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["exit"], status["reason"]) == (75, "signal") and saved(tmp_path) == [status["step"]]


def test_a_killed_run_is_not_waited_for(store, tmp_path):
    write_config(tmp_path / "run.yaml", store.location, steps=100_000)
    process = start(tmp_path)
    process.kill()
    process.communicate()
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    (tmp_path / "run" / "status.json").write_text(json.dumps(status | {"heartbeat": time.time() - 3600}))
    maskwright("stop", "run", cwd=tmp_path, code=2)
    RunDirectory(str(tmp_path / "run")).leave_request("stop")
    # A request that was left for the killed start does not stop the next one.
    short = ("pretrain", "run.yaml", "--run", "run", "--stop-after-steps", 5)
    maskwright(*short, cwd=tmp_path, code=76)
    assert not (tmp_path / "run" / "request.json").exists()


SAVE = "maskwright.training.checkpoint:_write"
ENGINE = "maskwright.engines.torch.engine:TorchEngine"
IN_A_PHASE = [
    ("maskwright.tasks.pretrain.prepare:prepare_run", 1, "terminate", 75),
    ("maskwright.tasks.start.train:make_job", 1, "terminate", 75),
    (f"{ENGINE}._accumulate", 3, "terminate", 75),
    (f"{ENGINE}.evaluate", 1, "terminate", 75),
    (SAVE, 1, "terminate", 75),
    (SAVE, 1, "terminate_twice", 75),
    (SAVE, 2, "kill", -signal.SIGKILL),
    ("maskwright.training.loop:_write_line", 2, "clock_back", 76),
]


def test_a_run_that_meets_a_signal_in_every_phase_ends_in_the_same_bits(store, tmp_path):
    write_config(tmp_path / "run.yaml", store.location, steps=40, warmup_steps=6)
    words = ("pretrain", "run.yaml", "--set", "checkpoint.save_every_steps=5", "--set", "evaluation.every_steps=20")
    words = (*words, "--set", "evaluation.max_rows=16")
    # In a Python that is started anew: processes that `warm` forks compute the same.
    maskwright(*words, "--run", "straight", cwd=tmp_path, popen=subprocess.Popen)
    newest = -1
    for call, number, do, code in IN_A_PHASE:
        fault = {"call": call, "number": number, "do": do}
        limit = ("--stop-after-steps", "4") if do == "clock_back" else ()
        maskwright(*words, "--run", "run", *limit, cwd=tmp_path, code=code, command=injected(fault))
        before, newest = newest, max(saved(tmp_path), default=-1)
        assert newest >= before, fault
    assert newest < 40
    maskwright(*words, "--run", "run", cwd=tmp_path)
    tensors, lines, differences = compare(*(RunDirectory(str(tmp_path / name)) for name in ("straight", "run")))
    assert tensors > 0 and lines > 0 and differences == []


def test_a_signal_in_an_export_leaves_nothing(store, tmp_path):
    write_config(tmp_path / "run.yaml", store.location)
    maskwright("pretrain", "run.yaml", "--run", "run", "--stop-after-steps", 1, cwd=tmp_path, code=76)
    before = set(tmp_path.iterdir())
    fault = {"call": "maskwright.tasks.export.hugging_face:verify", "number": 1, "do": "terminate"}
    maskwright("export", "run", "--to", "model", cwd=tmp_path, code=75, command=injected(fault))
    assert set(tmp_path.iterdir()) == before


def test_verify_resume_proves_a_job_exact(store, tmp_path):
    write_config(tmp_path / "run.yaml", store.location, steps=5000, warmup_steps=500)
    # The last kill comes after step 27: the run is not over before it, also on a busy machine.
    command = ("verify-resume", "run.yaml", "--steps", 48, "--kills", 3, "--to", "work", "--json")
    verdict = json.loads(maskwright(*command, cwd=tmp_path))
    assert verdict["differences"] == [] and verdict["steps"] == 48
    assert len(verdict["kills"]) == 3 and all(0 <= step <= 48 for step in verdict["kills"])
    assert verdict["tensors"] > 50 and verdict["metric_lines"] >= 48

    # The comparison sees a changed weight, a changed loss and a missing line.
    straight, killed = (RunDirectory(str(tmp_path / "work" / name)) for name in ("straight", "killed"))
    broken = RunDirectory(str(tmp_path / "broken"))
    shutil.copytree(killed.location, broken.location)
    lines = (tmp_path / "broken" / "metrics.jsonl").read_text().splitlines()
    changed = [line.replace('"loss": ', '"loss": 1') if '"step": 7,' in line else line for line in lines]
    (tmp_path / "broken" / "metrics.jsonl").write_text("\n".join(changed[:-1]) + "\n")
    state, record = checkpoint.load_newest(broken.checkpoints, set_aside=False)
    state.parameters["lm_head.bias"][3] = -0.0 if state.parameters["lm_head.bias"][3] == 0 else 0.0
    shutil.rmtree(broken.checkpoints)
    checkpoint.save(broken.checkpoints, state, record, keep=1)
    found = " ".join(compare(straight, broken)[2])
    assert "1 of" in found and "lm_head.bias" in found and "metrics at step 7" in found and "lines of metrics" in found


@pytest.mark.long
def test_verify_resume_takes_fine_tuning(tokenizer, tmp_path):
    for name in ("train", "test"):
        lines = (f"the {name} {n},{n % 3}\n" for n in range(60))
        (tmp_path / f"{name}.csv").write_text("text,label\n" + "".join(lines))
    values = {
        "data": {"train": "train.csv", "test": "test.csv"},
        "model": {"tokenizer": tokenizer, "size": "nano"},
        "schedule": {"epochs": 20.0},
        "evaluation": {"patience": 1},
        "engine": {"threads": 1},
    }
    (tmp_path / "run.yaml").write_text(json.dumps(values))
    command = ("verify-resume", "run.yaml", "--steps", 20, "--kills", 1, "--to", "work", "--json")
    verdict = json.loads(maskwright(*command, cwd=tmp_path))
    assert verdict["differences"] == [] and len(verdict["kills"]) == 1
    assert verdict["metric_lines"] >= 20 and verdict["result_files"] == 3
    (tmp_path / "work/killed/predictions-test.json").write_text("{}")
    straight, killed = (RunDirectory(str(tmp_path / "work" / name)) for name in ("straight", "killed"))
    assert compare_results(straight, killed) == (3, ["predictions-test.json differs"])


def test_a_lost_terminal_does_not_cost_the_work(store, tmp_path):
    """As of `maskwright pretrain … 2>&1 | tee log` after Ctrl-C, which tee does not survive."""
    write_config(tmp_path / "run.yaml", store.location, steps=100_000)
    process = start(tmp_path)
    process.stderr.close()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=300) == 75
    assert saved(tmp_path) != []


def test_closed_streams_are_no_error(tmp_path):
    """As a daemon or `2>&-` leaves them."""
    words = shlex.join([*COMMAND, "watch", str(tmp_path)])
    assert subprocess.run(["sh", "-c", f"exec {words} <&- >&- 2>&-"], check=False).returncode == 0


@pytest.mark.parametrize(
    "call", ["maskwright.tasks.start.train:make_job", "maskwright.engines.torch.engine:gemm_ceiling"]
)
def test_the_grace_period_ends_a_start_that_hangs(store, tmp_path, call):
    write_config(tmp_path / "run.yaml", store.location)
    arguments = ["pretrain", "run.yaml", "--run", "run", "--set", "checkpoint.grace_seconds=1"]
    command = injected({"call": call, "number": 1, "do": "hang", "sign": str(tmp_path / "hangs")}, *arguments)
    process = warm.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE)
    wait_for(lambda: (tmp_path / "hangs").exists(), process)
    process.send_signal(signal.SIGUSR1)  # too early to save, and no reason to die
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=300)
    assert process.returncode == 75


def test_who_lost_its_folder_stops_and_writes_no_more(store, tmp_path):
    write_config(tmp_path / "run.yaml", store.location, steps=100_000)
    process = start(tmp_path)
    lease = tmp_path / "run" / "lease.json"
    another, deadline = {"token": "another's", "machine": "m", "host": "h", "pid": 1}, time.monotonic() + 300
    try:
        for beat in itertools.count():  # a single one may fall between the holder's reading and its writing
            lease.write_text(json.dumps(another | {"beat": beat}))
            if process.poll() is not None or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        _, errors = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 2 and "taken over by another process" in errors
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["phase"] == "training" and saved(tmp_path) == []
