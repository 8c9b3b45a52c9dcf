"""What `maskwright doctor` finds on machines that are made up, and on this one."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import warm

from maskwright.doctor import frameworks, machine, surroundings, tools
from maskwright.doctor.finding import DoctorFinding, DoctorReport
from maskwright.doctor.frameworks import FrameworkProbe
from maskwright.engines.torch import probe
from maskwright.engines.torch.prepare import choose_device, choose_dtype
from maskwright.machine import hardware
from maskwright.machine.cgroups import Cgroups

SECRET = "hf_this-is-the-secret-itself"
FOREIGN = (
    *("HF_", "AWS_", "GOOGLE_", "CLOUDSDK", "KUBE", "RAY_"),
    *("WANDB_", "NETRC", "MLFLOW_", "DATABRICKS_", "TRACKIO_"),
)
"""Beginnings of the variables of others that `doctor` reads."""


def tree(folder: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return str(folder)


# ---- the machine ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "group", "memory", "cores", "throttled"),
    [
        # Version 2: the tightest of a group and of those above it; the parent's quota holds.
        ({"a/memory.max": "max", "memory.max": "3000000000", "a/b/cpu.max": "max 100000", "a/cpu.max": "150000 100000",
          "a/b/cpu.stat": "usage_usec 1\nnr_throttled 7"}, "0::/a/b", 3_000_000_000, 1.5, 7),
        # In a container, version 1: the path is the host's, and the files are the container's own.
        ({"memory/memory.limit_in_bytes": "2000", "cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000",
          "cpu/cpu.stat": "nr_throttled 0"}, "4:memory:/docker/1\n2:cpu,cpuacct:/docker/1", 2000, 0.5, 0),
        ({"memory/x/memory.limit_in_bytes": "9223372036854771712", "cpu/x/cpu.cfs_quota_us": "-1",
          "cpu/x/cpu.cfs_period_us": "100000"}, "4:memory:/x\n2:cpu:/x", None, None, None),
        ({}, "0::/", None, None, None),
    ],
)  # fmt: skip
def test_limits_are_the_tightest_of_all_groups(
    tmp_path: Path, files: dict[str, str], group: str, memory: int | None, cores: float | None, throttled: int | None
) -> None:
    own = tmp_path / "cgroup"
    own.write_text(group + "\n")
    found = Cgroups(tree(tmp_path / "fs", files), str(own))
    assert (found.memory_bytes(), found.cores(), found.throttled()) == (memory, cores, throttled)


def stat(ticks: int) -> str:
    return f"7 (a name) with) S {' '.join(['0'] * 10)} {ticks} 0 0"


def test_cores_say_who_else_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = "cpu  100 0 50 800 50 0 0 {} 0 0\n"
    proc = tree(tmp_path / "proc", {"7/stat": stat(100), "stat": cpu.format(0)})
    own = tmp_path / "own"
    own.write_text("0::/\n")
    clock = [0.0]
    monkeypatch.setattr(machine.time, "perf_counter", lambda: clock[0])

    def sleep(seconds: float) -> None:
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


def test_memory_is_what_the_container_may_have(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/\n")
    proc = tree(tmp_path / "proc", {"meminfo": "MemTotal: 1 kB\nMemAvailable:    8000000 kB\n"})
    small = Cgroups(tree(tmp_path / "small", {"memory.max": "1000000000"}), str(own))
    found = machine.memory(small, proc)
    assert found.state == "warn" and "the container may have 1.0 GB; 8.2 GB are free" in found.detail
    large = Cgroups(tree(tmp_path / "large", {"memory.max": "max"}), str(own))
    if hardware.memory_bytes() > machine.LEAST_MEMORY_BYTES:
        assert machine.memory(large, proc).state == "ok"


def test_disk_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "SLOW_DISK_BYTES_PER_SECOND", 0.0)
    for free, state in ((1 << 20, "fail"), (2 << 30, "warn"), (1 << 40, "ok")):
        monkeypatch.setattr(hardware, "free_disk_bytes", lambda folder, free=free: free)
        assert machine.disk(str(tmp_path)).state == state
    found = machine.disk(str(tmp_path / "nowhere"))
    assert found.state == "fail" and "No such file" in found.detail
    assert list(tmp_path.iterdir()) == []


# ---- frameworks -----------------------------------------------------------------------------------------------------

GPU = {"name": "Tesla K80", "memory_bytes": 12e9, "capability": "3.7", "in_build": False}
BUILD: dict[str, Any] = {
    "version": "2.13.0+cpu", "cuda_build": None, "hip_build": None, "gpus": [], "device": "cpu", "dtype": "fp32",
    "dtype_note": "", "attention": "", "cpu_kernels": "AVX2", "amx": False, "onednn": True, "bf16": False,
    "mps": False, "compiler": True, "threads": 2,
}  # fmt: skip


class Said:
    """In place of `FrameworkProbe`: what a framework's process printed, and how it ended."""

    def __init__(self, *lines: dict[str, Any], failure: str | None = None) -> None:
        self._lines, self._failure = list(lines), failure

    def lines(self) -> list[dict[str, Any]]:
        return self._lines

    def end(self) -> str | None:
        return self._failure


def torch_states(*lines: dict[str, Any], gpus: int = 0, failure: str | None = None) -> dict[str, tuple[str, str]]:
    found = frameworks.torch(Said(*lines, failure=failure), gpus)  # type: ignore[arg-type]
    return {one.name: (one.state, f"{one.detail} {one.fix}") for one in found}


def test_torch_has_to_fit_the_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {"flops_per_second": {"fp32": 2e12}}
    assert {state for state, _ in torch_states(BUILD, rates).values()} == {"ok"}
    for vendor, said in (
        ("GenuineIntel", "AVX512-BF16 (slower than fp32 without AMX)"),
        ("AuthenticAMD", "AVX512-BF16,"),
    ):
        flags = {"flags": "avx512_bf16", "vendor_id": vendor}
        monkeypatch.setattr(hardware, "_cpuinfo", lambda name, *_, flags=flags: flags[name])
        assert any(f"this CPU has {said}" in detail for _, detail in torch_states(BUILD, rates).values())
    state, told = torch_states(BUILD, rates, gpus=2)["torch"]
    assert state == "fail" and "the driver shows 2 NVIDIA GPUs, torch sees 0" in told and "torch==2.13.0," in told
    with_cuda = BUILD | {"cuda_build": "13.0", "version": "2.13.0"}
    assert "nvidia-smi" in torch_states(with_cuda, rates, gpus=1)["torch"][1]
    state, told = torch_states(with_cuda | {"gpus": [GPU]}, rates, gpus=1)["torch"]
    assert state == "fail" and "no code for Tesla K80" in told
    assert torch_states(with_cuda | {"gpus": [GPU | {"in_build": True}]}, rates, gpus=1)["torch"][0] == "ok"
    state, told = torch_states(BUILD | {"version": "2.4.1"}, rates)["torch"]
    assert state == "fail" and "pip install 'torch" in told
    slower = BUILD | {"dtype": "bf16"}, {"flops_per_second": {"fp32": 2e12, "bf16": 1e12}}
    assert torch_states(*slower)["products"] == (
        "warn",
        "2,000 GFLOP/s in fp32, 1,000 GFLOP/s in bf16 in plain matrix multiplication on cpu, the fastest of several; "
        "bf16 is the slower one --set engine.dtype=fp32",
    )
    assert torch_states(BUILD)["products"][0] == "warn"
    state, told = torch_states(BUILD, failure="CUDA error")["products"]
    assert state == "fail" and "CUDA error" in told
    assert torch_states(BUILD | {"onednn": False}, rates)["kernels"][0] == "warn"
    assert [one.state for one in frameworks.torch(None, 0)] == ["warn"]


def test_what_a_busy_machine_leaves_out_is_said() -> None:
    ((name, (state, told)),) = torch_states().items()
    assert (name, state) == ("torch", "warn")
    assert " was not imported in time; the lines kernels and products are left out " in told
    state, broken = torch_states(failure="its process was ended by SIGILL")["torch"]
    assert state == "fail" and "ended by SIGILL; the lines kernels and products are left out" in broken
    fixes = {told.partition("left out ")[2], torch_states(BUILD)["products"][1].partition("time left ")[2]}
    assert fixes == {frameworks.jax(Said(), 0).fix} == {"run it again when the machine is idle"}  # type: ignore[arg-type]


def test_jax_has_to_see_what_is_there() -> None:
    cpu = {"version": "0.10", "platform": "cpu", "devices": ["cpu"]}
    assert frameworks.jax(Said(cpu), 0).state == "ok"  # type: ignore[arg-type]
    assert frameworks.jax(Said(cpu), 1).state == "warn"  # type: ignore[arg-type]
    assert frameworks.jax(Said(failure="libtpu is too old"), 0).state == "fail"  # type: ignore[arg-type]
    assert frameworks.jax(Said(), 0).state == "warn"  # type: ignore[arg-type]
    assert frameworks.jax(None, 0).state == "ok"


def test_a_framework_that_crashes_or_hangs_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_what_torch_tells_of_this_machine_is_what_a_run_takes() -> None:
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
def test_machine_code_runs_on_its_own_major_version(capability: tuple[int, int], built: list[str], runs: bool) -> None:
    assert probe._in_build(*capability, built) is runs


# ---- tools ----------------------------------------------------------------------------------------------------------


def test_tools_tell_their_version_or_why_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    says: dict[str, str] = {
        "sbatch": "echo; echo >&2",
        "kubectl": """echo '{"clientVersion": {"gitVersion": "v1.32.4"}}'""",
        "terraform": """echo '{"terraform_version": "1.5.7"}'""",
        "gcloud": "exec sleep 600",
        "docker": f"echo 28.2.2; echo Cannot connect with https://me:{SECRET}@host >&2; exit 1",
    }
    for name, line in says.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o700)
    monkeypatch.setattr(tools, "SECONDS", 3.0)
    monkeypatch.setattr(tools.shutil, "which", lambda name: str(tmp_path / name) if name in says else None)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    found = {one.name: one for one in tools.tools()}
    assert {name: one.state for name, one in found.items() if name != "Ray"} == {
        "SLURM": "warn", "kubectl": "ok", "terraform": "warn", "gcloud": "warn", "docker": "ok",
    }  # fmt: skip
    assert found["kubectl"].values["version"] == "v1.32.4"
    assert found["terraform"].detail == "1.5.7, which `env` refuses" and "1.7 or newer" in str(found["terraform"].fix)
    assert "within 3 seconds" in found["gcloud"].detail
    assert found["gcloud"].values == {"version": None, "path": str(tmp_path / "gcloud")}
    assert "), but: Cannot connect with https://***@host; only a container of" in found["docker"].detail
    assert (found["docker"].fix, found["docker"].values["version"]) == (None, "28.2.2")
    assert found["SLURM"].detail == f"{tmp_path / 'sbatch'} does not tell its version", "empty lines"
    del says["sbatch"]
    assert "not on the path" in tools.look(tools.TOOLS[0]).detail


# ---- network and credentials ----------------------------------------------------------------------------------------


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without anything."""
    for name in list(os.environ):
        if name.upper().endswith("_PROXY") or name.startswith(FOREIGN):
            monkeypatch.delenv(name)
    for name in surroundings.BUNDLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return tmp_path


def test_credentials_are_named_and_never_shown(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = [(one.name, one.state) for one in surroundings.credentials(reach=False)]
    names = ("Hub", "Google", "S3", "Kubernetes", "W&B", "MLflow", "trackio")
    assert states == [(name, "ok") for name in names]
    key = bare / "key.json"
    key.write_text(json.dumps({"type": "service_account", "private_key": SECRET}))
    key.chmod(0o600)
    tree(bare, {
        ".cache/huggingface/token": SECRET, ".aws/credentials": f"[default]\naws_secret_access_key = {SECRET}\n",
        ".kube/config": f"current-context: lab\nusers: [{{name: me, user: {{token: {SECRET}}}}}]\n",
        ".netrc": f"machine api.wandb.ai login user password {SECRET}\n",
    })  # fmt: skip
    (bare / ".cache/huggingface/token").chmod(0o600)
    (bare / ".aws/credentials").chmod(0o644)
    (bare / ".kube/config").chmod(0o600)
    (bare / ".netrc").chmod(0o600)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    found = {one.name: one for one in surroundings.credentials(reach=False)}
    assert {name: one.state for name, one in found.items()} == {
        "Hub": "ok", "Google": "ok", "S3": "warn", "Kubernetes": "ok", "W&B": "ok", "MLflow": "ok", "trackio": "ok",
    }  # fmt: skip
    assert found["W&B"].values["source"] == f"{bare}/.netrc"
    assert found["S3"].fix == f"chmod 600 {bare}/.aws/credentials"
    assert found["Google"].values["kind"] == "service_account" and found["Kubernetes"].values["context"] == "lab"
    report = DoctorReport(list(found.values()), 0.1)
    assert SECRET not in report.text() + json.dumps(report.to_json())
    key.unlink()
    assert surroundings.google(reach=False).state == "fail"
    monkeypatch.setenv("HF_TOKEN", SECRET)
    assert surroundings.hub().values == {"source": "HF_TOKEN"}


@pytest.mark.parametrize(
    ("service", "variables", "state", "source", "told"),
    [
        ("W&B", {}, "ok", None, "needs one, by `wandb login`"),
        ("W&B", {"WANDB_MODE": "offline"}, "ok", None, "none is needed: WANDB_MODE is offline"),
        ("W&B", {"WANDB_API_KEY": SECRET}, "ok", "WANDB_API_KEY", "a key in WANDB_API_KEY"),
        ("W&B", {"NETRC": "~/shared"}, "warn", "~/shared", "for api.wandb.ai in ~/shared; others may read"),
        ("W&B", {"NETRC": "~/shared", "WANDB_BASE_URL": "https://w.b"}, "ok", None, "none here"),
        ("MLflow", {"MLFLOW_TRACKING_URI": "sqlite:///runs.db"}, "ok", None, "runs go to sqlite:///runs.db"),
        ("MLflow", {"MLFLOW_TRACKING_URI": f"https://me:{SECRET}@m"}, "ok", None, "for https://***@m; MLFLOW"),
        ("MLflow", {"MLFLOW_TRACKING_URI": "https://m", "MLFLOW_TRACKING_TOKEN": SECRET}, "ok", "MLFLOW_TRACKING_TOKEN",
         "for https://m, in MLFLOW_TRACKING_TOKEN"),
        ("MLflow", {"MLFLOW_TRACKING_URI": "databricks"}, "warn", "~/.databrickscfg", "for databricks, in "),
        ("trackio", {"TRACKIO_SERVER_URL": "https://t"}, "warn", None, "none here for https://t"),
        ("trackio", {"TRACKIO_SERVER_URL": f"https://t?write_token={SECRET}"}, "ok", "TRACKIO_SERVER_URL", "=***, in"),
        ("trackio", {"TRACKIO_SPACE_ID": "me/runs"}, "ok", "Hub", "the Space me/runs takes the Hub's token"),
    ],
)  # fmt: skip
def test_credentials_of_services_are_looked_for_where_they_look(
    bare: Path, monkeypatch: pytest.MonkeyPatch, service: str, variables: dict[str, str], state: str,
    source: str | None, told: str,
) -> None:  # fmt: skip
    for file in (bare / "shared", bare / ".databrickscfg"):
        file.write_text(f"machine api.wandb.ai login user password {SECRET}\n")
        file.chmod(0o644)
    for name, value in variables.items():
        monkeypatch.setenv(name, value.replace("~", str(bare)))
    found = next(one for one in surroundings.credentials(reach=False) if one.name == service)
    assert (found.state, found.values) == (state, {"source": source and source.replace("~", str(bare))})
    shown = DoctorReport([found], 0.0)
    assert told.replace("~", str(bare)) in found.detail and SECRET not in shown.text() + json.dumps(shown.to_json())


@pytest.fixture
def server() -> Any:
    class Answers(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(401)
            self.end_headers()

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"https://www.googleapis.com/auth/devstorage.read_only\n")

        def log_message(self, *words: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as found:
        thread = threading.Thread(target=found.serve_forever, daemon=True)
        thread.start()
        yield f"127.0.0.1:{found.server_port}"
        found.shutdown()


def test_the_network_is_asked_on_request_only(bare: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://me:{SECRET}@proxy:3128")
    monkeypatch.setattr(surroundings, "_servers", lambda: 1 / 0)
    report = DoctorReport(list(surroundings.network(reach=False)), 0.0)
    assert report.state == "ok" and "HTTPS_PROXY http://***@proxy:3128" in report.text()
    monkeypatch.delenv("HTTPS_PROXY")
    asked = [("there", f"http://{server}", "one"), ("gone", "http://127.0.0.1:9", "another")]
    monkeypatch.setattr(surroundings, "_servers", lambda: asked)
    _, there, gone = surroundings.network(reach=True)
    assert (there.state, there.detail) == ("ok", f"http://{server} answers (401)")
    assert gone.state == "warn" and "does not answer: " in gone.detail
    monkeypatch.setenv("SSL_CERT_FILE", str(bare / "none.pem"))
    assert next(surroundings.network(reach=False)).state == "fail"
    monkeypatch.setenv("GCE_METADATA_HOST", server)
    found = surroundings.google(reach=True)
    assert found.state == "warn" and found.values["scopes"] == ["https://www.googleapis.com/auth/devstorage.read_only"]


# ---- all of it ------------------------------------------------------------------------------------------------------


def test_the_command_on_this_machine(cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the time limit: the machine that tests share may be many times slower than its user's."""
    from maskwright.doctor import examine

    monkeypatch.setattr(examine, "IMPORTED_SECONDS", 120.0)
    monkeypatch.setattr(examine, "SECONDS", 240.0)
    monkeypatch.setattr(examine, "tools", list)
    monkeypatch.setattr(subprocess, "Popen", warm.Popen)
    result = cli("doctor", "--json")
    value = json.loads(result.out)
    assert (value["version"], result.code) == (1, 1 if value["state"] == "fail" else 0)
    fields = {"area", "name", "state", "detail", "fix", "values"}
    assert all(set(found) == fields for found in value["findings"])
    named = {found["name"]: found for found in value["findings"]}
    assert {"Python", "packages", "torch", "JAX", "kernels", "products", "cores", "memory", "disk", "/dev/shm"} < set(
        named
    )
    assert named["Python"]["values"]["executable"] == sys.executable
    assert all(rate > 0 for rate in named["products"]["values"]["flops_per_second"].values())


def test_the_exit_code_is_that_of_the_worst_finding(cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from maskwright.doctor import examine

    found = [
        DoctorFinding("hardware", "disk", state, "a disk", "mend it" if state != "ok" else None)
        for state in ("ok", "warn")
    ]  # type: ignore[arg-type]
    monkeypatch.setattr(examine, "examine", lambda network: DoctorReport(found, 1.0))
    result = cli("doctor")
    assert (result.code, result.out.splitlines()) == (0, [
        "hardware", "  ok    disk          a disk", "  warn  disk          a disk",
        "                      Fix: mend it", "1 ok, 1 warn, 0 fail; 1.0 s",
    ])  # fmt: skip
    found.append(DoctorFinding("hardware", "disk", "fail", "a disk", "mend it"))
    assert cli("doctor").code == 1
