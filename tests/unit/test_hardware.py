"""Cores and memory: what a process takes of them, and threads of a run that wait for a core."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from maskwright.machine import hardware
from maskwright.training.contention import Contention


def topology(folder: Path, siblings: dict[int, str]) -> str:
    for cpu, together in siblings.items():
        place = folder / f"cpu{cpu}" / "topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(together + "\n")
    return str(folder)


def test_one_thread_a_physical_core(tmp_path: Path) -> None:
    """Four cores with two threads each, numbered as Intel does; some of them not ours."""
    root = topology(tmp_path, {cpu: f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)})
    assert hardware.physical_cores(list(range(8)), root) == [0, 1, 2, 3]
    assert hardware.physical_cores([2, 3, 6, 7], root) == [2, 3]
    assert hardware.physical_cores([6, 7], root) == [6, 7]
    assert hardware.physical_cores([0, 3], str(tmp_path / "absent")) == [0, 3], "without a description each counts"


def test_processes_of_a_machine_share_its_cores_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, kept = topology(tmp_path, {cpu: f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)}), list[list[int]]()
    monkeypatch.setattr(hardware, "usable_cpus", lambda: [*range(8)])
    monkeypatch.setattr(hardware, "_cgroup_cores", lambda: None)
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: kept.append(cpus), raising=False)
    for shares in ([[0, 1, 2, 3]], [[0, 1], [2, 3]], [[0], [1], [2, 3]], [[0], [1], [2], [3]]):
        kept.clear()
        count = len(shares)
        threads = [hardware.spread_over_cores(root, number=number, count=count) for number in range(count)]
        assert kept == shares and threads == [4 // count] * count


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator is Linux's")
def test_freed_memory_is_kept() -> None:
    """A second tensor of the same size touches no fresh page; by default each one does."""
    code = (
        "import numpy, resource; from maskwright.machine import hardware\n"
        "def faults():\n"
        "    numpy.ones(20_000_000)\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "    numpy.ones(20_000_000)\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before\n"
        "print(faults(), hardware.keep_freed_memory(), faults())\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    by_default, kept, since = result.stdout.split()
    if kept == "False":
        pytest.skip("this C library has no mallopt")
    assert int(since) < int(by_default) / 10


# ---- threads that wait for a core: the kernel's files as Linux writes them ---


class Machine:
    def __init__(self, folder: Path) -> None:
        self.folder, self.now, self.throttled = folder, 100.0, 0
        self.threads = {"10": [5.0, 1.0], "11": [0.0, 0.0]}
        self.write()

    def write(self) -> None:
        for thread, (ran, waited) in self.threads.items():
            (self.folder / thread).mkdir(exist_ok=True)
            (self.folder / thread / "schedstat").write_text(f"{ran * 1e9:.0f} {waited * 1e9:.0f} 7\n")

    def contention(self, cores: int = 2) -> Contention:
        return Contention(str(self.folder), lambda: self.now, lambda: cores, lambda: self.throttled)

    def passes(self, seconds: float, **threads: tuple[float, float]) -> None:
        """`threads`: what each ran and waited meanwhile, as shares."""
        self.now += seconds
        for name, shares in threads.items():
            own = self.threads.setdefault(name.lstrip("t"), [0.0, 0.0])
            for index, share in enumerate(shares):
                own[index] += share * seconds
        self.write()


def test_what_waits_for_a_core_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    machine = Machine(tmp_path)
    contention = machine.contention()
    machine.passes(20.0, t10=(0.2, 0.8))
    assert contention.look() is None  # not long enough yet
    machine.passes(20.0, t10=(1.0, 0.0), t11=(0.9, 0.1))
    said = contention.look()
    assert said and "waited for 40% of the last 40 seconds" in said and "OMP_WAIT_POLICY=passive" in said
    machine.passes(40.0, t10=(0.2, 0.8))
    assert contention.look() is None


@pytest.mark.parametrize(
    ("threads", "cores", "throttled"),
    [
        ({"t10": (0.98, 0.02), "t11": (0.9, 0.1)}, 2, 0),  # cores of one's own, all but
        ({"t10": (1.0, 0.0), "t12": (0.1, 0.35)}, 2, 0),  # what saves in the background waits for our own threads
        ({"t10": (0.0, 0.0), "t11": (0.05, 0.0)}, 2, 0),  # sleeping
        ({"t10": (0.5, 0.5), "t11": (0.5, 0.5)}, 1, 0),  # one's own threads share a core
        ({"t10": (0.5, 0.5), "t11": (0.5, 0.5)}, 2, 3),  # a quota
    ],
)
def test_what_is_no_crowd(tmp_path: Path, threads: dict[str, tuple[float, float]], cores: int, throttled: int) -> None:
    machine = Machine(tmp_path)
    (tmp_path / "09").mkdir()  # it ends as its file is opened
    contention = machine.contention(cores)
    machine.threads["13"] = [50.0, 400.0]  # it began meanwhile
    for _ in range(3):
        machine.passes(31.0, **threads)
        machine.throttled += throttled
        assert contention.look() is None
    machine.folder = tmp_path / "absent"  # a system that does not tell
    contention = machine.contention()
    machine.now += 100.0
    assert contention.look() is None


@pytest.mark.parametrize(
    ("policy", "others", "end"), [("PASSIVE", ["t11"], "slowest thread"), ("ACTIVE", [], "seconds")]
)
def test_who_waits_passively_or_for_nobody_is_told_to_end_the_others(
    policy: str, others: list[str], end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    machine = Machine(tmp_path)
    contention = machine.contention()
    machine.passes(60.0, **dict.fromkeys(["t10", *others], (0.5, 0.5)))
    said = contention.look()
    assert said and said.endswith(f"{end}. Fix: end them")
