import os
import subprocess
import sys
from pathlib import Path

import pytest

from maskwright.machine import hardware


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


def test_without_a_description_every_cpu_counts(tmp_path: Path) -> None:
    assert hardware.physical_cores([0, 3], str(tmp_path)) == [0, 3]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system has no CPU affinity")
def test_threads_are_kept_off_shared_cores(tmp_path: Path) -> None:
    """In a process of its own, because it changes where the process may run."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("one CPU only")
    root = topology(tmp_path, dict.fromkeys(allowed[:2], f"{allowed[0]}-{allowed[1]}"))
    code = (
        "import os; from maskwright.machine import hardware; "
        f"print(hardware.spread_over_cores({root!r}), sorted(os.sched_getaffinity(0)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split(" ", 1)[1].strip() == str([allowed[0], *allowed[2:]])
    assert int(result.stdout.split()[0]) <= len(allowed) - 1


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
        "import resource, sys; from maskwright.machine import hardware\n"
        "import numpy\n"
        "kept = hardware.keep_freed_memory() if sys.argv[1] == 'keep' else None\n"
        "numpy.ones(20_000_000)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "numpy.ones(20_000_000)\n"
        "print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)\n"
    )
    faults = {}
    for mode in ("keep", "default"):
        result = subprocess.run([sys.executable, "-c", code, mode], capture_output=True, text=True, check=True)
        kept, count = result.stdout.split()
        if kept == "False":
            pytest.skip("this C library has no mallopt")
        faults[mode] = int(count)
    assert faults["keep"] < faults["default"] / 10
