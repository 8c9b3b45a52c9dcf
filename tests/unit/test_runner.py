"""What goes between a driver and those that compute parts for it."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from runners import sent

from maskwright import __version__
from maskwright.core import errors
from maskwright.core.console import progress
from maskwright.core.errors import MaskwrightError
from maskwright.processes import runner
from maskwright.processes.ray import watch
from maskwright.processes.ray.watch import TaskResult, Watch
from maskwright.processes.runner import Here


def kinds(base: type[MaskwrightError]) -> list[type[MaskwrightError]]:
    below = [kind for kind in base.__subclasses__() if kind.__module__ == errors.__name__]
    return [base, *(kind for one in below for kind in kinds(one))]


@pytest.mark.parametrize("kind", kinds(MaskwrightError))
def test_an_error_comes_from_a_worker_as_it_was(kind: type[MaskwrightError]) -> None:
    more: dict[str, dict[str, Any]] = {
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


def test_a_part_is_computed_again_but_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="the extra ray is not installed")
    from ray import exceptions

    from maskwright.processes.ray import tasks

    def fails(error: Exception) -> None:
        def get(reference: object) -> None:
            raise error

        monkeypatch.setattr(ray, "get", get)

    with progress("work", 10, "bytes") as bar:
        seen = Watch("work", 4, None, bar)
        seen.ended(3, TaskResult("here", 1.0, 3_000_000_000), 10)
        fails(exceptions.OutOfMemoryError("Ray's own words"))
        assert [tasks._answer(None, 0, seen) for _ in range(tasks.MEMORY_REPETITIONS)] == [None, None]
        with pytest.raises(MaskwrightError, match="ran out of memory . times") as found:
            tasks._answer(None, 0, seen)
        assert "--worker-memory, more than the 3.0 GB" in str(found.value) and found.value.exit_code == 1
        fails(exceptions.WorkerCrashedError())
        assert [tasks._answer(None, 1, seen) for _ in range(tasks.REPETITIONS)] == [None] * 3
        with pytest.raises(MaskwrightError, match="its worker was lost 4 times"):
            tasks._answer(None, 1, seen)
        fails(exceptions.LocalRayletDiedError())
        with pytest.raises(MaskwrightError, match="the same command goes on"):
            tasks._answer(None, 2, seen)


def test_a_part_that_takes_long_is_named_with_its_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    now = [100.0]
    monkeypatch.setattr(watch.time, "monotonic", lambda: now[0])
    with progress("work", 10, "bytes") as bar:
        seen = Watch("work", 4, str(tmp_path), bar)
        seen.ended(0, TaskResult("node-1", 20.0, 1), 10)
        (tmp_path / "1").write_text("node-7 (process 12)")
        for _ in range(40):
            now[0] += 2.0
            seen.poll({1, 2})
    told = [line for line in capsys.readouterr().err.splitlines() if "has been running" in line]
    assert told == ["work: part 1 has been running for 62 s on node-7 (process 12); the median is 20.00 s"]


def test_every_machine_has_the_same_version(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = pytest.importorskip("maskwright.processes.ray.tasks")
    nodes = [{"Alive": True, "Resources": {"CPU": 4.0, "memory": 8e9}, "NodeManagerHostname": "node-1"}]
    monkeypatch.setattr(parts.Tasks, "_nodes", lambda self: nodes)
    for found, told in ((__version__, None), ("0.0.1", "node-1 has maskwright 0.0.1"), (None, "has no maskwright")):
        monkeypatch.setattr(parts.Tasks, "_ask", lambda self, nodes, what, found=found: [("node-1", found)])
        if told is None:
            assert parts.Tasks(3_000_000_000)._slots() == 2
            continue
        with pytest.raises(MaskwrightError, match=told):
            parts.Tasks(None)


def test_a_process_that_has_read_much_makes_way_for_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there is one alone; all parts are computed, each once."""
    monkeypatch.setattr(runner, "RENEWED_AFTER_BYTES", 20)
    parts = [f"({number}, __import__('os').getpid())" for number in range(5)]
    with Here(1) as one:
        found = dict(one.run(eval, parts, "count", [10] * 5))
    assert [found[place][0] for place in range(5)] == list(range(5))
    pids = [found[place][1] for place in range(5)]
    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4] and os.getpid() not in pids


def test_parts_that_run_end_at_once_with_the_work() -> None:
    """Ctrl-C closes the iterator. A part may be a text of an hour."""
    ends = Here(2).run(time.sleep, [0.01, 300.0, 300.0, 300.0], "sleep", [1] * 4)
    assert next(ends) == (0, None)
    began = time.monotonic()
    ends.close()
    assert time.monotonic() - began < 60 and not multiprocessing.active_children()


def test_a_script_that_prepares_much_does_not_run_again_in_its_processes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "print('begins')\n"
        "from maskwright.processes import runner\n"
        "runner.RENEWED_AFTER_BYTES = 1\n"
        "print(dict(runner.Here(1).run(eval, ['1 + 1', '2 + 2'], 'count', [10, 10])))\n"
    )
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert (ran.stdout, ran.returncode) == ("begins\n{0: 2, 1: 4}\n", 0), ran.stderr
