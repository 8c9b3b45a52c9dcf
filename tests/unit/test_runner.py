"""Parts of a work in processes of one command, and of several that share a folder; errors that a launcher passes on."""

import json
import multiprocessing
import os
import re
import shlex
import subprocess
import sys
import time

import pytest
from runners import sent

from maskwright.core import errors, lease
from maskwright.core.console import progress
from maskwright.core.errors import EndedAsAsked, HealthError, InputError, JobError, Locked, MaskwrightError, as_record
from maskwright.core.lease import WATCH_SECONDS
from maskwright.core.pids import this_pid_space
from maskwright.processes import claims, runner
from maskwright.processes.claims import joined
from maskwright.processes.parent import ERROR_FILE, pass_error_on, read_error, write_error
from maskwright.processes.runner import Runner


def kinds(base):
    below = [kind for kind in base.__subclasses__() if kind.__module__ == errors.__name__]
    return [base, *(kind for one in below for kind in kinds(one))]


@pytest.mark.parametrize("kind", kinds(MaskwrightError))
def test_an_error_comes_from_a_worker_as_it_was(kind):
    more = {
        "ConfigError": {"lines": ("one", "two")},
        "CloudError": {"reason": "quota"},
        "JobError": {"exit_code": 7},
        "TerraformError": {"exit_code": 7},
        "HealthError": {"step": 3},
        "StoppedEarly": {"reason": "asked"},
    }
    error = kind("what", where="a.txt:7", fix="do", **more.get(kind.__name__, {}))
    again = sent(error)
    assert type(again) is kind and str(again) == str(error) and vars(again) == vars(error)
    assert again.exit_code == error.exit_code and again.args == error.args
    assert vars(errors)[kind.__name__] is kind


def ends(runner, work, parts, size=1):
    with progress("work", len(parts) * size, "bytes") as bar:
        yield from runner.run(work, enumerate(parts), dict.fromkeys(range(len(parts)), size), bar)


def test_a_process_that_has_read_much_makes_way_for_a_new_one(monkeypatch):
    """Also where there is one alone; all parts are computed, each once."""
    monkeypatch.setattr(runner, "RENEWED_AFTER_BYTES", 20)
    parts = [f"({number}, __import__('os').getpid())" for number in range(5)]
    with Runner(1) as one:
        found = dict(ends(one, eval, parts, 10))
    assert [found[place][0] for place in range(5)] == list(range(5))
    pids = [found[place][1] for place in range(5)]
    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4] and os.getpid() not in pids


def test_parts_that_run_end_at_once_with_the_work():
    """Ctrl-C closes the iterator. A part may be a text of an hour."""
    running = ends(Runner(2), time.sleep, [0.01, 300.0, 300.0, 300.0])
    assert next(running) == (0, None)
    began = time.monotonic()
    running.close()
    assert time.monotonic() - began < 240 and not multiprocessing.active_children()


def test_claims_of_living_processes_hold_and_those_of_dead_ones_are_free(tmp_path, monkeypatch):
    folder = str(tmp_path)
    with joined(folder, "one") as ours, joined(folder, "one") as others:
        assert ours.take("a") and not others.take("a") and others.take("b")
        others.free_dead()
        assert not others.take("a")
        command = re.escape(shlex.join(sys.argv)[:200])
        with pytest.raises(Locked, match=f"in use by process {os.getpid()} on .* other .* options: {command}"):
            joined(folder, "another").__enter__()
        ours.give_back("a")
        assert others.take("a")
    assert not os.listdir(folder)
    clock = [100.0]
    monkeypatch.setattr(claims.time, "monotonic", lambda: clock[0])
    record = {"request": "one", "host": "node-7", "pid": 3, "pid_started": 1, "beat": 5}
    for space, seconds in ((this_pid_space(), 0.0), ("elsewhere", WATCH_SECONDS)):
        (tmp_path / ".lease-x").write_text(json.dumps({**record, "pid": 2**22 + 1, "pid_space": space}))
        (tmp_path / ".claim-a").write_text(".lease-x")
        (tmp_path / ".claim-b").write_text("")  # its process was killed when it had created it
        with joined(folder, "one") as ours:
            begun = clock[0]
            while not ours.take("a"):
                clock[0] += 1.0
                ours.free_dead()
            assert clock[0] - begun == pytest.approx(seconds, abs=1.0)
            while not ours.take("b"):
                clock[0] += 1.0
                ours.free_dead()
        assert not os.listdir(folder)


def test_who_was_taken_for_dead_claims_no_more(tmp_path, monkeypatch):
    """For example after hours of sleep, while another request has been begun in the folder."""
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.01)
    with joined(str(tmp_path), "one") as ours:
        (name,) = os.listdir(tmp_path)
        os.unlink(tmp_path / name)
        with pytest.raises(InputError, match="taken over by another process"):
            for number in range(1_000):
                time.sleep(0.01)
                ours.take(str(number))
                ours.give_back(str(number))


def test_a_script_that_prepares_much_does_not_run_again_in_its_processes(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "print('begins')\n"
        "from maskwright.processes import runner\n"
        "runner.RENEWED_AFTER_BYTES = 1\n"
        "from maskwright.core.console import progress\n"
        "with progress('count', 20, 'bytes') as bar:\n"
        "    print(dict(runner.Runner(1).run(eval, enumerate(['1 + 1', '2 + 2']), {0: 10, 1: 10}, bar)))\n"
    )
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert (ran.stdout, ran.returncode) == ("begins\n{0: 2, 1: 4}\n", 0), ran.stderr


HEARD = JobError("rank 0: the loss is not finite", 3)


@pytest.mark.parametrize(
    ("ended", "told"),
    [
        ([HEARD, HealthError("the loss is not finite")], HealthError),  # who heard of it was the first to end
        ([HealthError("the loss is not finite"), HEARD], HealthError),
        ([HealthError("the loss is not finite"), InputError("is too late")], HealthError),
        ([HEARD], JobError),
    ],
)
def test_who_failed_comes_before_who_heard_of_it(ended, told, tmp_path, monkeypatch):
    own = tmp_path / "own.json"
    monkeypatch.setenv(ERROR_FILE, str(own))
    pass_error_on(str(tmp_path / "killed.json"))
    assert read_error(str(own)) is None
    for number, error in enumerate(ended):
        (tmp_path / f"{number}.json").write_text(json.dumps(as_record(error)))
        pass_error_on(str(tmp_path / f"{number}.json"))
    assert type(read_error(str(own))) is told


def test_why_a_process_was_stopped_is_not_lost(tmp_path, monkeypatch):
    own, of_process = tmp_path / "own.json", tmp_path / "0.json"
    monkeypatch.setenv(ERROR_FILE, str(own))
    of_process.write_text(json.dumps(as_record(EndedAsAsked("--stop-after-steps 3: stopped", reason="limit"))))
    pass_error_on(str(of_process))
    write_error(EndedAsAsked("2 processes: stopped as asked"))
    told = read_error(str(own))
    assert isinstance(told, EndedAsAsked) and told.reason == "limit"
