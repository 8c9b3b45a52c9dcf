"""Checks of Python, torch and JAX against the hardware. Each framework runs in a process of its own: one that is
broken, or built for another processor, is a finding and not the end of `doctor`."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import signal
import struct
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
from maskwright.doctor.finding import DoctorFinding
from maskwright.machine import hardware
from maskwright.processes.child import python_module

TORCH, JAX = "maskwright.engines.torch.probe", "maskwright.engines.jax.probe"
OLDEST_PYTHON = (3, 11)
WHEN_IDLE = "run it again when the machine is idle"
LEFT_OUT = "the lines kernels and products are left out"
"""Said if torch does not answer, since those lines need it."""
UNITS = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_bf16": "AVX512-BF16", "amx_bf16": "AMX", "bf16": "bf16 (ARM)"}
"""The relevant units of a processor, by Linux's names."""


def present(package: str) -> bool:
    with suppress(ModuleNotFoundError):
        return installed(package)
    return False


# ---- Python and packages --------------------------------------------------------------------------------------------


def python() -> DoctorFinding:
    version, bits = platform.python_version(), 8 * struct.calcsize("P")
    values = {"version": version, "executable": sys.executable, "platform": platform.platform(), "bits": bits}
    detail = f"maskwright {__version__}, Python {version}, {platform.system()} on {platform.machine()}"
    if sys.version_info[:2] < OLDEST_PYTHON:
        fix = "install Python 3.11 or newer, and maskwright in an environment of it"
        return DoctorFinding("software", "Python", "fail", detail, fix, values)
    if sys.platform != "linux":
        fix = "compare the first losses of a run with those of a Linux machine"
        return DoctorFinding("software", "Python", "warn", f"{detail}; tried on Linux alone", fix, values)
    return DoctorFinding("software", "Python", "ok", detail, None, values)


def extras() -> DoctorFinding:
    """The installed extras of pyproject.toml; only complete ones count."""
    packages: dict[str, list[str]] = {}
    for package, extra in EXTRAS.items():
        packages.setdefault(extra, []).append(package)
    complete = {extra: all(map(present, names)) for extra, names in packages.items()}
    installed_extras = [extra for extra in complete if complete[extra]]
    lacking = [extra for extra in complete if not complete[extra]]
    detail = f"extras {', '.join(installed_extras) or 'none'}" + (
        f"; not installed: {', '.join(lacking)}" if lacking else ""
    )
    values = {"installed": installed_extras, "not_installed": lacking}
    if "train" in lacking:
        absent = next(name for name in packages["train"] if not present(name))
        detail += "; this machine submits and watches, and does not train"
        return DoctorFinding("software", "packages", "warn", detail, missing(absent).fix, values)
    return DoctorFinding("software", "packages", "ok", detail, None, values)


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
        fix = missing("torch").fix
        state, detail = "warn", "not installed: nothing can be trained or evaluated with engine.kind torch"
        yield DoctorFinding("software", "torch", state, detail, fix)  # type: ignore[arg-type]
        return
    lines = probe.lines()
    failure = probe.end()
    version = importlib.metadata.version("torch")
    if not lines:
        if failure:
            fix = "install torch anew, for this processor: scripts/install, or pip install --force-reinstall torch"
            yield DoctorFinding("software", "torch", "fail", f"{version} cannot be used: {failure}; {LEFT_OUT}", fix)
        else:
            yield DoctorFinding(
                "software", "torch", "warn", f"{version} was not imported in time; {LEFT_OUT}", WHEN_IDLE
            )
        return
    facts = lines[0]
    yield _build(facts, gpus)
    yield _kernels(facts)
    rates = lines[1]["flops_per_second"] if len(lines) > 1 else None
    yield _products(facts, rates, failure, busy)


def _build(facts: dict[str, Any], gpus: int) -> DoctorFinding:
    cuda, hip = facts["cuda_build"], facts["hip_build"]
    build = f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else "CPU"
    detail = f"{facts['version']}, built for {build}"
    for gpu in facts["gpus"]:
        detail += f"; {gpu['name']}, {human_bytes(gpu['memory_bytes'])}, compute capability {gpu['capability']}"
    if gpus > len(facts["gpus"]):
        detail += f"; the driver shows {gpus} NVIDIA GPUs, torch sees {len(facts['gpus'])}"
        fix = (
            "look at nvidia-smi: the driver has to know this version of CUDA"
            if cuda
            else f"pip install --force-reinstall torch=={facts['version'].partition('+')[0]}, the build for CUDA"
        )
        return DoctorFinding("software", "torch", "fail", detail, fix, facts)
    if lacking := [gpu["name"] for gpu in facts["gpus"] if not gpu["in_build"] and not hip]:
        fix = "install a build of torch for this GPU: pytorch.org/get-started"
        return DoctorFinding("software", "torch", "fail", f"{detail}; it has no code for {lacking[0]}", fix, facts)
    requirement = next(
        (line for line in importlib.metadata.requires("maskwright") or [] if re.match("torch[<>=]", line)), ""
    )
    bounds = re.match(r"torch(?=.*>=(\d+)\.(\d+))(?=.*<(\d+)\.(\d+))", requirement)
    version = re.match(r"(\d+)\.(\d+)", facts["version"])
    if bounds and version:
        low, high = tuple(map(int, bounds.groups()[:2])), tuple(map(int, bounds.groups()[2:]))
        if not low <= tuple(map(int, version.groups())) < high:
            fix = f"pip install '{requirement.partition(';')[0].strip()}'"
            return DoctorFinding("software", "torch", "fail", f"{detail}; another version is needed", fix, facts)
    return DoctorFinding("software", "torch", "ok", detail, None, facts)


def _kernels(facts: dict[str, Any]) -> DoctorFinding:
    device, dtype = facts["device"], facts["dtype"]
    values = {
        name: facts[name] for name in ("device", "dtype", "attention", "cpu_kernels", "amx", "onednn", "bf16", "mps")
    }
    note = f" {facts['dtype_note']}" if facts["dtype_note"] else ""
    detail = f"auto takes {device} in {dtype}{note}; attention: {facts['attention']}"
    if device == "cpu":
        units = [word for flag, word in UNITS.items() if flag in hardware.cpu_flags()]
        values["units"] = units
        if "AVX512-BF16" in units and not hardware.cpu_multiplies_bf16_faster():
            units = [word.replace("AVX512-BF16", "AVX512-BF16 (slower than fp32 without AMX)") for word in units]
        detail += f"; this CPU has {', '.join(units) or 'none of AVX2, AVX-512, AMX'}, and torch computes by its "
        kernels = f"{facts['cpu_kernels']} kernels{' and AMX' if facts['amx'] else ''}"
        detail += f"{kernels} with {several(facts['threads'], 'thread')}"
        if "AVX-512" in units and facts["cpu_kernels"] == "AVX2" and (forced := os.environ.get("ATEN_CPU_CAPABILITY")):
            fix = f"unset ATEN_CPU_CAPABILITY, which is {forced}"
            return DoctorFinding("hardware", "kernels", "warn", detail, fix, values)
        if not facts["onednn"]:
            fix = "take PyTorch's own build: pip install torch --index-url https://download.pytorch.org/whl/cpu"
            return DoctorFinding("hardware", "kernels", "warn", f"{detail}; this build lacks oneDNN", fix, values)
    if device == "mps":
        fix = "compare the first losses with --set engine.device=cpu"
        return DoctorFinding("hardware", "kernels", "warn", f"{detail}; never tried on such a GPU", fix, values)
    if device == "cuda" and not facts["compiler"]:
        fix = "install a C compiler (gcc), or say engine.compile: off"
        detail += "; layers cannot be compiled without a C compiler"
        return DoctorFinding("hardware", "kernels", "warn", detail, fix, values)
    return DoctorFinding("hardware", "kernels", "ok", detail, None, values)


def _products(facts: dict[str, Any], rates: dict[str, float] | None, failure: str | None, busy: bool) -> DoctorFinding:
    name = "products"
    if rates is None and failure:
        fix = "the same would end a run: see docs/hardware.md for engine.device and engine.dtype"
        return DoctorFinding("hardware", name, "fail", f"a matrix multiplication failed: {failure}", fix)
    if rates is None:
        return DoctorFinding("hardware", name, "warn", "not measured: there was no time left", WHEN_IDLE)
    rates_text = ", ".join(f"{rate / 1e9:,.0f} GFLOP/s in {dtype}" for dtype, rate in rates.items())
    detail = f"{rates_text} in plain matrix multiplication on {facts['device']}, the fastest of several"
    detail += " while others computed too" if busy and facts["device"] == "cpu" else ""
    values = {"flops_per_second": {dtype: round(rate) for dtype, rate in rates.items()}, "busy": busy}
    if rates[facts["dtype"]] < 0.9 * rates["fp32"]:
        fix = "--set engine.dtype=fp32"
        return DoctorFinding("hardware", name, "warn", f"{detail}; {facts['dtype']} is the slower one", fix, values)
    return DoctorFinding("hardware", name, "ok", detail, None, values)


def jax(probe: FrameworkProbe | None, gpus: int | None = None) -> DoctorFinding:
    gpus = hardware.cuda_devices() if gpus is None else gpus
    if probe is None:
        return DoctorFinding("software", "JAX", "ok", "not installed; only engine.kind jax and TPUs need it")
    lines = probe.lines()
    failure = probe.end()
    version = importlib.metadata.version("jax")
    if not lines:
        if failure:
            fix = "install it anew: scripts/install --jax, or --tpu on a TPU"
            return DoctorFinding("software", "JAX", "fail", f"{version} cannot be used: {failure}", fix)
        return DoctorFinding("software", "JAX", "warn", f"{version} did not name its devices in time", WHEN_IDLE)
    facts = lines[0]
    kinds = {kind: facts["devices"].count(kind) for kind in facts["devices"]}
    detail = f"{facts['version']} on {facts['platform']}: " + ", ".join(f"{n} x {kind}" for kind, n in kinds.items())
    if facts["platform"] == "cpu" and os.path.exists("/dev/accel0"):
        fix = "scripts/install --tpu, which adds libtpu"
        return DoctorFinding("software", "JAX", "fail", f"{detail}, though a TPU is here", fix, facts)
    if facts["platform"] == "cpu" and gpus:
        detail += "; it does not see the NVIDIA GPU, which torch is the faster engine for"
        return DoctorFinding(
            "software", "JAX", "warn", detail, 'pip install "jax[cuda12]", or stay with engine.kind torch', facts
        )
    return DoctorFinding("software", "JAX", "ok", detail, None, facts)
