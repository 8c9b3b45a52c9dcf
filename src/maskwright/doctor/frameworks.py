"""Checks of Python, torch and JAX against the hardware. Each framework runs in a process of its own: a broken one, or
one built for another processor, is a finding and not the end of `doctor`."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, Any

from maskwright import __version__
from maskwright.core.console import human_bytes, several
from maskwright.core.extras import EXTRAS, installed, missing
from maskwright.doctor.finding import DoctorFinding, first_of
from maskwright.machine import hardware
from maskwright.processes.child import python_module

TORCH, JAX = "maskwright.engines.torch.probe", "maskwright.engines.jax.probe"
WHEN_IDLE = "run it again when the machine is idle"
LEFT_OUT = "the lines kernels and products are left out"
"""Remark if torch does not answer, since those lines need it."""
UNITS = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_bf16": "AVX512-BF16", "amx_bf16": "AMX", "bf16": "bf16 (ARM)"}
"""The relevant units of a processor, by Linux's names."""


# ---- Python and packages --------------------------------------------------------------------------------------------


def python() -> DoctorFinding:
    version = platform.python_version()
    values = {"version": version, "executable": sys.executable, "platform": platform.platform()}
    detail = f"maskwright {__version__}, Python {version}, {platform.system()} on {platform.machine()}"
    compare = "compare the first losses of a run with the losses on a Linux machine"
    return first_of("software", "Python", detail, values, [
        (sys.platform != "linux", "warn", "; tested only on Linux", compare),
    ])  # fmt: skip


def extras() -> DoctorFinding:
    """The installed extras of pyproject.toml; only complete ones count."""
    packages: dict[str, list[str]] = {}
    for package, extra in EXTRAS.items():
        packages.setdefault(extra, []).append(package)
    having = [extra for extra, names in packages.items() if all(map(installed, names))]
    lacking = [extra for extra in packages if extra not in having]
    detail = f"extras {', '.join(having) or 'none'}" + (f"; not installed: {', '.join(lacking)}" if lacking else "")
    values = {"installed": having, "not_installed": lacking}
    absent = next((name for name in packages["train"] if not installed(name)), "")
    more, fix = "; this machine submits and watches, and does not train", missing(absent).fix if absent else None
    return first_of("software", "packages", detail, values, [(bool(absent), "warn", more, fix)])


# ---- the frameworks -------------------------------------------------------------------------------------------------


class FrameworkProbe:
    """A framework's own process: the lines of JSON that it has printed, and how it ended."""

    def __init__(self, module: str, **environment: str) -> None:
        # Files, since an unread pipe would block it.
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - `end` closes them
        self._process = subprocess.Popen(
            python_module(module),
            stdin=subprocess.PIPE,
            stdout=self._out,
            stderr=self._err,
            env={**os.environ, **environment},
        )

    def go_on(self) -> None:
        """Lets the process start to compute."""
        with suppress(OSError):
            assert self._process.stdin
            self._process.stdin.close()

    def wait(self, until: float, lines: int) -> None:
        """Waits until it has ended, or printed `lines` lines, or `time.monotonic()` is `until`."""
        while self._process.poll() is None and time.monotonic() < until and len(self.lines()) < lines:
            time.sleep(0.02)

    def lines(self) -> list[dict[str, Any]]:
        records = []
        for line in _text(self._out).splitlines():
            with suppress(ValueError):
                if isinstance(value := json.loads(line), dict):
                    records.append(value)
        return records

    def end(self) -> str | None:
        """Ends the process. Returns why it failed, in one line; None if it did not fail, or was still working."""
        working = self._process.poll() is None
        if working:
            self._process.kill()
        code = self._process.wait()
        self.go_on()
        error_lines = [line.strip() for line in _text(self._err).splitlines() if line.strip()]
        for file in (self._out, self._err):
            file.close()
        if working or code == 0:
            return None
        if code < 0:
            return f"its process was ended by {signal.Signals(-code).name}"
        return error_lines[-1][:200] if error_lines else f"its process ended with {code}"


def _text(file: IO[bytes]) -> str:
    """The whole file. A seek would also move the place where the process writes."""
    return os.pread(file.fileno(), 1 << 20, 0).decode(errors="replace")


def torch(probe: FrameworkProbe | None, gpus: int | None = None, *, busy: bool = False) -> Iterator[DoctorFinding]:
    """Findings about torch. `probe`: None if torch is not installed. `gpus`: number of NVIDIA GPUs that the driver
    shows. `busy`: whether other programs computed during the measurement."""
    gpus = hardware.cuda_devices() if gpus is None else gpus
    if probe is None:
        detail = "not installed: nothing can be trained or evaluated with engine.kind torch"
        yield DoctorFinding("software", "torch", "warn", detail, missing("torch").fix)
        return
    lines, failure, version = probe.lines(), probe.end(), importlib.metadata.version("torch")
    if lines:
        yield _build(lines[0], gpus)
        yield _kernels(lines[0])
        yield _products(lines[0], lines[1]["flops_per_second"] if len(lines) > 1 else None, failure, busy)
    elif failure:
        fix = "install torch again, for this processor: scripts/install, or pip install --force-reinstall torch"
        yield DoctorFinding("software", "torch", "fail", f"{version} cannot be used: {failure}; {LEFT_OUT}", fix)
    else:
        yield DoctorFinding("software", "torch", "warn", f"{version} was not imported in time; {LEFT_OUT}", WHEN_IDLE)


def _build(facts: dict[str, Any], gpus: int) -> DoctorFinding:
    cuda, hip = facts["cuda_build"], facts["hip_build"]
    build = f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else "CPU"
    detail = f"{facts['version']}, built for {build}"
    for gpu in facts["gpus"]:
        detail += f"; {gpu['name']}, {human_bytes(gpu['memory_bytes'])}, compute capability {gpu['capability']}"
    plain = facts["version"].partition("+")[0]
    for_cuda = f"pip install --force-reinstall torch=={plain}, the build for CUDA"
    driver = "check with nvidia-smi that the driver supports this version of CUDA" if cuda else for_cuda
    lacking = [gpu["name"] for gpu in facts["gpus"] if not gpu["in_build"] and not hip]
    return first_of("software", "torch", detail, facts, [
        (gpus > len(facts["gpus"]), "fail",
         f"; the driver shows {gpus} NVIDIA GPUs, torch sees {len(facts['gpus'])}", driver),
        (bool(lacking), "fail", f"; it has no code for {''.join(lacking[:1])}",
         "install a build of torch for this GPU: pytorch.org/get-started"),
    ])  # fmt: skip


def _kernels(facts: dict[str, Any]) -> DoctorFinding:
    device, on_cpu = facts["device"], facts["device"] == "cpu"
    names = ("device", "dtype", "attention", "cpu_kernels", "amx", "onednn", "bf16")
    values = {name: facts[name] for name in names}
    note = f" {facts['dtype_note']}" if facts["dtype_note"] else ""
    detail = f"auto takes {device} in {facts['dtype']}{note}; attention: {facts['attention']}"
    units = [word for flag, word in UNITS.items() if flag in hardware.cpu_flags()] if on_cpu else []
    if on_cpu:
        values["units"] = units
        fast = hardware.cpu_multiplies_bf16_faster()
        slower = {} if fast else {"AVX512-BF16": "AVX512-BF16 (slower than fp32 without AMX)"}
        named = [slower.get(unit, unit) for unit in units]
        detail += f"; this CPU has {', '.join(named) or 'none of AVX2, AVX-512, AMX'}, and torch computes by its "
        detail += f"{facts['cpu_kernels']} kernels{' and AMX' if facts['amx'] else ''}"
        detail += f" with {several(facts['threads'], 'thread')}"
    forced = os.environ.get("ATEN_CPU_CAPABILITY")
    held_down = on_cpu and bool(forced) and "AVX-512" in units and facts["cpu_kernels"] == "AVX2"
    return first_of("hardware", "kernels", detail, values, [
        (held_down, "warn", "", f"unset ATEN_CPU_CAPABILITY, which is {forced}"),
        (on_cpu and not facts["onednn"], "warn", "; this build lacks oneDNN",
         "install PyTorch's own build: pip install torch --index-url https://download.pytorch.org/whl/cpu"),
        (device == "cuda" and not facts["compiler"], "warn", "; layers cannot be compiled without a C compiler",
         "install a C compiler (gcc), or set engine.compile: off"),
    ])  # fmt: skip


def _products(facts: dict[str, Any], rates: dict[str, float] | None, failure: str | None, busy: bool) -> DoctorFinding:
    name = "products"
    if rates is None and failure:
        fix = "set engine.device or engine.dtype (docs/where-to-run.md), since the same would end a run"
        return DoctorFinding("hardware", name, "fail", f"a matrix multiplication failed: {failure}", fix)
    if rates is None:
        return DoctorFinding("hardware", name, "warn", "not measured, since there was no time left", WHEN_IDLE)
    rates_text = ", ".join(f"{rate / 1e9:,.0f} GFLOP/s in {dtype}" for dtype, rate in rates.items())
    detail = f"{rates_text} in plain matrix multiplication on {facts['device']}, the fastest of several"
    detail += " while others computed too" if busy and facts["device"] == "cpu" else ""
    values = {"flops_per_second": {dtype: round(rate) for dtype, rate in rates.items()}, "busy": busy}
    slower = rates[facts["dtype"]] < 0.9 * rates["fp32"]
    more, fix = f"; {facts['dtype']} is the slower one", "--set engine.dtype=fp32"
    return first_of("hardware", name, detail, values, [(slower, "warn", more, fix)])


def jax(probe: FrameworkProbe | None) -> DoctorFinding:
    if probe is None:
        return DoctorFinding("software", "JAX", "ok", "not installed; only engine.kind jax and TPUs need it")
    lines, failure, version = probe.lines(), probe.end(), importlib.metadata.version("jax")
    if not lines and failure:
        fix = "install it again: scripts/install --jax, or --tpu on a TPU"
        return DoctorFinding("software", "JAX", "fail", f"{version} cannot be used: {failure}", fix)
    if not lines:
        return DoctorFinding("software", "JAX", "warn", f"{version} did not name its devices in time", WHEN_IDLE)
    facts = lines[0]
    kinds = {kind: facts["devices"].count(kind) for kind in facts["devices"]}
    detail = f"{facts['version']} on {facts['platform']}: " + ", ".join(f"{n} x {kind}" for kind, n in kinds.items())
    on_cpu, libtpu = facts["platform"] == "cpu", "scripts/install --tpu, which adds libtpu"
    return first_of("software", "JAX", detail, facts, [
        (on_cpu and os.path.exists("/dev/accel0"), "fail", ", though a TPU is here", libtpu),
    ])  # fmt: skip
