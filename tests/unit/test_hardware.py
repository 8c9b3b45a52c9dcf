"""Cores and memory: what a process takes of them."""

import os
import subprocess
import sys

import pytest

from maskwright.machine import hardware


def topology(folder, siblings):
    for cpu, together in siblings.items():
        place = folder / f"cpu{cpu}" / "topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(together + "\n")
    return str(folder)


def test_one_thread_a_physical_core(tmp_path):
    """Four cores with two threads each, numbered as Intel does; some of them not ours."""
    root = topology(tmp_path, {cpu: f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)})
    assert hardware.physical_cores(list(range(8)), root) == [0, 1, 2, 3]
    assert hardware.physical_cores([2, 3, 6, 7], root) == [2, 3]
    assert hardware.physical_cores([6, 7], root) == [6, 7]
    assert hardware.physical_cores([0, 3], str(tmp_path / "absent")) == [0, 3], "without a description each counts"


def test_processes_of_a_machine_share_its_cores_out(tmp_path, monkeypatch):
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
def test_freed_memory_is_kept():
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
