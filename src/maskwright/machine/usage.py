"""Use of this machine: CPUs and memory from Linux, NVIDIA GPUs from NVML, without torch."""

from __future__ import annotations

import ctypes
import os
from typing import Any

NVML = "libnvidia-ml.so.1"
"""NVML's library, which comes with NVIDIA's driver: docs.nvidia.com/deploy/nvml-api"""


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Usage:
    """Used shares, from 0 to 1, of the machine's resources. Unknown ones are left out."""

    def __init__(self, *, gpus: bool = False, proc: str = "/proc") -> None:
        self._proc, self._gpus = proc, _gpus() if gpus else None
        self._before = self._ticks()

    def take(self) -> dict[str, float]:
        """CPUs on average since the last call, memory now; GPUs on average over the last moment (NVML: up to a
        second), and their memory now, each the mean of the machine's GPUs that this process may use."""
        shares = {"cpu_share": self._cpus(), "memory_share": self._memory(), **self._of_gpus()}
        return {name: round(share, 3) for name, share in shares.items() if share is not None}

    def _ticks(self) -> tuple[int, int] | None:
        """(busy ticks, all ticks); time that a hypervisor took counts as busy."""
        ticks = cpu_ticks(self._proc)
        return (sum(ticks) - sum(ticks[3:5]), sum(ticks)) if len(ticks) > 4 else None

    def _cpus(self) -> float | None:
        before, now = self._before, self._ticks()
        self._before = now
        if before is None or now is None or now[1] <= before[1]:
            return None
        return (now[0] - before[0]) / (now[1] - before[1])

    def _memory(self) -> float | None:
        total, free = memory_bytes(self._proc, "MemTotal"), memory_bytes(self._proc, "MemAvailable")
        return 1.0 - free / total if total and free is not None else None

    def _of_gpus(self) -> dict[str, float | None]:
        if not self._gpus:
            return {}
        library, handles = self._gpus
        busy, used = [], []
        for handle in handles:
            rates, memory = _Utilization(), _Memory()
            if library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates)) == 0:
                busy.append(rates.gpu / 100)
            if library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0 and memory.total:
                used.append(memory.used / memory.total)
        means = {"gpu_share": busy, "gpu_memory_share": used}
        return {name: sum(shares) / len(shares) if shares else None for name, shares in means.items()}


def cpu_ticks(proc: str = "/proc") -> list[int]:
    """Ticks of all CPUs since boot: user, nice, system, idle, waiting, two kinds of interrupts, taken by a hypervisor.
    Empty if the system does not count them."""
    try:
        with open(os.path.join(proc, "stat"), encoding="ascii") as file:
            return [int(word) for word in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return []


def memory_bytes(proc: str, name: str) -> int | None:
    """Bytes of a line of /proc/meminfo, such as MemAvailable; None if the system has no such line."""
    try:
        with open(os.path.join(proc, "meminfo"), encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines[name].split()[0]) * 1024
    except (OSError, KeyError, ValueError, IndexError):
        return None


def _gpus() -> tuple[Any, list[ctypes.c_void_p]] | None:
    """(NVML, its handles of the GPUs in CUDA_VISIBLE_DEVICES, or of all). NVML itself ignores that variable."""
    try:
        library = ctypes.CDLL(NVML)
    except OSError:
        return None
    count = ctypes.c_uint()
    if library.nvmlInit_v2() or library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return None
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    numbers = [int(name) for name in named] if all(name.strip().isdigit() for name in named) else range(count.value)
    handles = []
    for number in numbers:
        handle = ctypes.c_void_p()
        if library.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle)) == 0:
            handles.append(handle)
    return library, handles
