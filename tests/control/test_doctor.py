"""What `maskwright doctor` finds on machines that are made up, and on this one."""

import json
import os
import subprocess
import sys
import time

import pytest
import warm

from maskwright.doctor import frameworks, machine, network
from maskwright.doctor.finding import DoctorFinding, DoctorReport
from maskwright.doctor.frameworks import FrameworkProbe
from maskwright.engines.torch import probe
from maskwright.engines.torch.prepare import choose_device, choose_dtype
from maskwright.machine import hardware
from maskwright.machine.cgroups import Cgroups

SECRET = "hf_this-is-the-secret-itself"


def tree(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return str(folder)


# ---- the machine ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "group", "memory", "cores", "throttled"),
    [
        # Version 2: the tightest of a group and of those above it; the root's quota holds.
        ({"a/memory.max": "max", "memory.max": "3000000000", "a/b/cpu.max": "max 100000", "a/cpu.max": "250000 100000",
          "cpu.max": "150000 100000", "a/b/cpu.stat": "usage_usec 1\nnr_throttled 7"},
         "0::/a/b", 3_000_000_000, 1.5, 7),
        # In a container, version 1: the path is the host's, and the files are the container's own.
        ({"memory/memory.limit_in_bytes": "2000", "cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000",
          "cpu/cpu.stat": "nr_throttled 0"}, "4:memory:/docker/1\n2:cpu,cpuacct:/docker/1", 2000, 0.5, 0),
        ({"memory/x/memory.limit_in_bytes": "9223372036854771712", "cpu/x/cpu.cfs_quota_us": "-1",
          "cpu/x/cpu.cfs_period_us": "100000"}, "4:memory:/x\n2:cpu:/x", None, None, None),
        ({}, "0::/", None, None, None),
    ],
)  # fmt: skip
def test_limits_are_the_tightest_of_all_groups(tmp_path, files, group, memory, cores, throttled):
    own = tmp_path / "cgroup"
    own.write_text(group + "\n")
    found = Cgroups(tree(tmp_path / "fs", files), str(own))
    assert (found.memory_bytes(), found.cores(), found.throttled()) == (memory, cores, throttled)


def stat(ticks):
    return f"7 (a name) with) S {' '.join(['0'] * 10)} {ticks} 0 0"


def test_cores_say_who_else_computes(tmp_path, monkeypatch):
    cpu = "cpu  100 0 50 800 50 0 0 {} 0 0\n"
    proc = tree(tmp_path / "proc", {"7/stat": stat(100), "stat": cpu.format(0)})
    own = tmp_path / "own"
    own.write_text("0::/\n")
    clock = [0.0]
    monkeypatch.setattr(machine.time, "perf_counter", lambda: clock[0])

    def sleep(seconds):
        clock[0] += seconds
        tree(
            tmp_path / "proc", {"7/stat": stat(100 + used), "8/stat": stat(10_000)}
        )  # 8 is new: what it did is unknown

    monkeypatch.setattr(machine.time, "sleep", sleep)
    used = round(0.8 * machine.LOOK_SECONDS * os.sysconf("SC_CLK_TCK"))
    monkeypatch.setattr(hardware, "usable_cpus", lambda: [0, 1])
    free = Cgroups(str(tmp_path / "none"), str(own))
    found = machine.cores(free, proc)
    assert found.state == "warn" and "others compute on 0.8 of them now (a name) with 0.8)" in found.detail
    used = 0
    tree(tmp_path / "proc", {"7/stat": stat(100)})
    assert machine.cores(free, proc).state == "ok"
    quota = Cgroups(tree(tmp_path / "fs", {"cpu.max": "50000 100000"}), str(own))
    found = machine.cores(quota, proc)
    assert (found.state, found.fix) == ("warn", "--set engine.threads=1 in each run")
    assert machine.cores(free, str(tmp_path / "none")).values["used_by_others_cores"] is None


def test_memory_is_what_the_container_may_have(tmp_path):
    own = tmp_path / "own"
    own.write_text("0::/\n")
    proc = tree(tmp_path / "proc", {"meminfo": "MemTotal: 1 kB\nMemAvailable:    8000000 kB\n"})
    small = Cgroups(tree(tmp_path / "small", {"memory.max": "1000000000"}), str(own))
    found = machine.memory(small, proc)
    assert found.state == "warn" and "the container may use 1.0 GB; 8.2 GB are free" in found.detail
    large = Cgroups(tree(tmp_path / "large", {"memory.max": "max"}), str(own))
    if hardware.memory_bytes() > machine.LEAST_MEMORY_BYTES:
        assert machine.memory(large, proc).state == "ok"


def test_disk_is_written_to(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "SLOW_DISK_BYTES_PER_SECOND", 0.0)
    for free, state in ((1 << 20, "fail"), (2 << 30, "warn"), (1 << 40, "ok")):
        monkeypatch.setattr(hardware, "free_disk_bytes", lambda folder, free=free: free)
        assert machine.disk(str(tmp_path)).state == state
    found = machine.disk(str(tmp_path / "nowhere"))
    assert found.state == "fail" and "No such file" in found.detail
    assert list(tmp_path.iterdir()) == []


# ---- frameworks -----------------------------------------------------------------------------------------------------

GPU = {"name": "Tesla K80", "memory_bytes": 12e9, "capability": "3.7", "in_build": False}
BUILD = {
    "version": "2.13.0+cpu", "cuda_build": None, "hip_build": None, "gpus": [], "device": "cpu", "dtype": "fp32",
    "dtype_note": "", "attention": "", "cpu_kernels": "AVX2", "amx": False, "onednn": True, "bf16": False,
    "compiler": True, "threads": 2,
}  # fmt: skip


class Said:
    """In place of `FrameworkProbe`: what a framework's process printed, and how it ended."""

    def __init__(self, *lines, failure=None):
        self._lines, self._failure = list(lines), failure

    def lines(self):
        return self._lines

    def end(self):
        return self._failure


RATES = {"flops_per_second": {"fp32": 2e12}}
CUDA = BUILD | {"cuda_build": "13.0", "version": "2.13.0"}
SLOWER = {"flops_per_second": {"fp32": 2e12, "bf16": 1e12}}
LEFT_OUT = "the lines kernels and products are left out"


@pytest.mark.parametrize(
    ("lines", "gpus", "failure", "name", "state", "told"),
    [
        ((BUILD, RATES), 0, None, "torch", "ok", "built for CPU"),
        ((BUILD, RATES), 0, None, "kernels", "ok", "auto takes cpu in fp32"),
        ((BUILD, RATES), 0, None, "products", "ok", "2,000 GFLOP/s in fp32"),
        ((BUILD, RATES), 2, None, "torch", "fail", "the driver shows 2 NVIDIA GPUs, torch sees 0"),
        ((BUILD, RATES), 2, None, "torch", "fail", "torch==2.13.0,"),
        ((CUDA, RATES), 1, None, "torch", "fail", "nvidia-smi"),
        ((CUDA | {"gpus": [GPU]}, RATES), 1, None, "torch", "fail", "no code for Tesla K80"),
        ((CUDA | {"gpus": [GPU | {"in_build": True}]}, RATES), 1, None, "torch", "ok", "Tesla K80"),
        ((BUILD | {"dtype": "bf16"}, SLOWER), 0, None, "products", "warn",
         "2,000 GFLOP/s in fp32, 1,000 GFLOP/s in bf16 in plain matrix multiplication on cpu, the fastest of several; "
         "bf16 is the slower one --set engine.dtype=fp32"),
        ((BUILD,), 0, None, "products", "warn", "no time left run it again when the machine is idle"),
        ((BUILD,), 0, "CUDA error", "products", "fail", "CUDA error"),
        ((BUILD | {"onednn": False}, RATES), 0, None, "kernels", "warn", "lacks oneDNN"),
        (None, 0, None, "torch", "warn", "not installed"),
        ((), 0, None, "torch", "warn", f"was not imported in time; {LEFT_OUT} run it again when the machine is idle"),
        ((), 0, "its process was ended by SIGILL", "torch", "fail", f"ended by SIGILL; {LEFT_OUT}"),
    ],
)  # fmt: skip
def test_torch_has_to_fit_the_hardware(lines, gpus, failure, name, state, told):
    found = frameworks.torch(None if lines is None else Said(*lines, failure=failure), gpus)
    (one,) = [one for one in found if one.name == name]
    assert one.state == state and told in f"{one.detail} {one.fix}"


def test_a_processors_slow_bf16_is_said(monkeypatch):
    for vendor, said in (
        ("GenuineIntel", "AVX512-BF16 (slower than fp32 without AMX)"),
        ("AuthenticAMD", "AVX512-BF16,"),
    ):
        flags = {"flags": "avx512_bf16", "vendor_id": vendor}
        monkeypatch.setattr(hardware, "_cpuinfo", lambda name, *_, flags=flags: flags[name])
        found = frameworks.torch(Said(BUILD, RATES), 0)
        assert any(f"this CPU has {said}" in one.detail for one in found)


@pytest.mark.parametrize(
    ("said", "state"),
    [
        (Said({"version": "0.10", "platform": "cpu", "devices": ["cpu"]}), "ok"),
        (Said(failure="libtpu is too old"), "fail"),
        (Said(), "warn"),
        (None, "ok"),
    ],
)
def test_jax_has_to_see_what_is_there(said, state):
    assert frameworks.jax(said).state == state


def test_a_framework_that_crashes_or_hangs_is_a_finding(tmp_path, monkeypatch):
    answers = 'import sys\nprint("[1]\\n{\\"a\\": 1}", flush=True)\nsys.stdin.read()\nprint("{}")'
    crashes = "import os, signal\nos.kill(os.getpid(), signal.SIGILL)"
    hangs, raises = "import time\ntime.sleep(60)", "import nothing_here"
    tree(tmp_path, {"crashes.py": crashes, "hangs.py": hangs, "raises.py": raises, "answers.py": answers})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    crashing, hanging, raising, answering = map(FrameworkProbe, ("crashes", "hangs", "raises", "answers"))
    until = time.monotonic() + 60
    for one in (crashing, raising):
        one.wait(until, lines=1)
    answering.wait(until, lines=1)
    assert answering.lines() == [{"a": 1}]
    answering.go_on()
    answering.wait(until, lines=2)
    assert answering.lines() == [{"a": 1}, {}] and answering.end() is None
    hanging.wait(time.monotonic(), lines=1)
    assert hanging.end() is None
    assert crashing.end() == "its process was ended by SIGILL"
    (found,) = frameworks.torch(raising, 0)
    assert found.state == "fail" and "No module named 'nothing_here'" in found.detail


def test_what_torch_tells_of_this_machine_is_what_a_run_takes():
    found = probe.build()
    device = choose_device("auto")
    assert (found["device"], found["dtype"]) == (device, probe._name(choose_dtype("auto", device)))
    assert {"fp32", found["dtype"]} == set(probe.measured()) and all(rate > 0 for rate in probe.measured().values())
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize(
    ("capability", "built", "runs"),
    [
        ((9, 0), ["sm_80", "sm_90"], True),
        ((8, 6), ["sm_80"], True),
        ((8, 0), ["sm_86"], False),
        ((12, 0), ["sm_90"], False),
        ((12, 0), ["sm_90", "compute_90"], True),
        ((9, 0), ["sm_90a"], True),
        ((3, 7), ["sm_75", "compute_75"], False),
        ((10, 0), ["sm_100"], True),
        ((9, 0), ["gfx90a"], False),
    ],
)
def test_machine_code_runs_on_its_own_major_version(capability, built, runs):
    assert probe._in_build(*capability, built) is runs


# ---- network --------------------------------------------------------------------------------------------------------


def test_the_network_is_not_asked(monkeypatch):
    for name in [name for name in os.environ if name.upper() in (*network.PROXIES, *network.BUNDLES)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HTTPS_PROXY", f"http://me:{SECRET}@proxy:3128")
    report = DoctorReport([network.network()], 0.0)
    assert report.state == "ok" and "HTTPS_PROXY http://***@proxy:3128" in report.text()
    assert SECRET not in report.text() + json.dumps(report.to_json())
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/none.pem")
    assert network.network().state == "fail"


# ---- all of it ------------------------------------------------------------------------------------------------------


def test_the_command_on_this_machine(cli, monkeypatch):
    """Without the time limit: the machine that tests share may be many times slower than its user's."""
    from maskwright.doctor import examine

    monkeypatch.setattr(examine, "IMPORTED_SECONDS", 120.0)
    monkeypatch.setattr(examine, "SECONDS", 240.0)
    monkeypatch.setattr(subprocess, "Popen", warm.Popen)
    result = cli("doctor", "--json")
    value = json.loads(result.out)
    assert (value["version"], result.code) == (1, 1 if value["state"] == "fail" else 0)
    fields = {"area", "name", "state", "detail", "fix", "values"}
    assert all(set(found) == fields for found in value["findings"])
    named = {found["name"]: found for found in value["findings"]}
    hardware = {"kernels", "products", "cores", "memory", "disk", "/dev/shm"}
    assert {"Python", "packages", "torch", "JAX", "settings"} | hardware == set(named)
    assert named["Python"]["values"]["executable"] == sys.executable
    assert all(rate > 0 for rate in named["products"]["values"]["flops_per_second"].values())


def test_the_exit_code_is_that_of_the_worst_finding(cli, monkeypatch):
    from maskwright.doctor import examine

    found = [
        DoctorFinding("hardware", "disk", state, "a disk", "mend it" if state != "ok" else None)
        for state in ("ok", "warn")
    ]
    monkeypatch.setattr(examine, "examine", lambda: DoctorReport(found, 1.0))
    result = cli("doctor")
    assert (result.code, result.out.splitlines()) == (0, [
        "hardware", "  ok    disk          a disk", "  warn  disk          a disk",
        "                      Fix: mend it", "1 ok, 1 warn, 0 fail; 1.0 s",
    ])  # fmt: skip
    found.append(DoctorFinding("hardware", "disk", "fail", "a disk", "mend it"))
    assert cli("doctor").code == 1
