"""The hardware of this machine, found without importing torch."""

from __future__ import annotations

import ctypes
import glob
import os
import platform
import shutil
from functools import cache

from maskwright.core.console import several
from maskwright.machine.cgroups import Cgroups

GOOGLE, TPU_DEVICES = "0x1ae0", {"0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"}
"""PCI vendor, and the PCI devices of its TPUs from v3 to 7x."""


@cache
def _cpuinfo(*names: str) -> str | None:
    """The first value in Linux's /proc/cpuinfo under one of these names; None elsewhere."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line.split(":", 1)[1].strip() for line in file if line.startswith(names)), None)
    except OSError:
        return None


def cpu_flags() -> frozenset[str]:
    """The processor's flags by Linux's names; empty elsewhere."""
    return frozenset((_cpuinfo("flags", "Features") or "").split())


def instructions() -> str:
    """The processor's vector instructions, which decide the order in which kernels add numbers up."""
    return " ".join(
        sorted(flag for flag in cpu_flags() if flag.startswith(("avx", "amx", "fma", "sse4", "asimd", "sve")))
    )


def cpu_has_amx() -> bool:
    """Whether the processor has Intel's matrix units, which multiply bf16."""
    return "amx_bf16" in cpu_flags()


def cpu_multiplies_bf16_faster() -> bool:
    """True with AMX, with ARM's bf16 products and with AMD's AVX512-BF16: 4.2 times fp32, measured on 2 Zen 5 cores.

    Intel's AVX512-BF16 without AMX, as where a hypervisor hides AMX, measured half of fp32 (159 against 325 GFLOP/s),
    and whole training steps took 1.3 to 1.7 times as long. The vendor decides, not a timing, so that all machines of a
    kind make the same choice.
    """
    flags = cpu_flags()
    amd = _cpuinfo("vendor_id") == "AuthenticAMD"
    return cpu_has_amx() or "bf16" in flags or ("avx512_bf16" in flags and amd)


def usable_cpus() -> list[int]:
    """CPUs that this process may run on. macOS restricts none."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [*range(os.cpu_count() or 1)]


def usable_cores() -> int:
    """Cores that this process may run on: a container's or scheduler's share, not the whole machine."""
    cores = len(usable_cpus())
    return min(cores, _cgroup_cores() or cores)


def spread_over_cores(topology: str = "/sys/devices/system/cpu", *, number: int = 0, count: int = 1) -> int:
    """Number of threads with which process `number` of `count` on this machine multiplies matrices: one a physical
    core of its share, at most its share of the container's quota; the same in all of them.

    Where cores run two threads each, this process is confined to the first of each, since two processes on one core
    would share its multipliers. Must come before the threads start.
    """
    allowed = usable_cpus()
    cores = physical_cores(allowed, topology)
    share = cores[number * len(cores) // count : (number + 1) * len(cores) // count] or cores
    if len(share) < len(allowed) and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, share)
    return max(1, min(len(cores), _cgroup_cores() or len(cores)) // count)


def cuda_devices(devices: str = "/dev") -> int:
    """Number of NVIDIA GPUs that this process may use, found without torch: the driver's, without those that
    CUDA_VISIBLE_DEVICES hides."""
    device_count = sum(name.startswith("nvidia") and name[6:].isdigit() for name in os.listdir(devices))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not device_count:
        return device_count
    named = [name.strip() for name in visible.split(",")]
    visible_names = named[: named.index("-1")] if "-1" in named else [name for name in named if name]
    return min(device_count, len(visible_names))


def tpu_chips(devices: str = "/sys/bus/pci/devices") -> int:
    """Number of TPU chips in this machine, counted without loading libtpu."""
    chips = 0
    for path in glob.glob(os.path.join(glob.escape(devices), "*", "vendor")):
        with open(path, encoding="ascii") as vendor, open(path[:-6] + "device", encoding="ascii") as device:
            chips += vendor.read().strip() == GOOGLE and device.read().strip() in TPU_DEVICES
    return chips


def physical_cores(allowed: list[int], topology: str) -> list[int]:
    """The first of `allowed` CPUs on each physical core, by Linux's description; all if there is none."""
    seen: set[str] = set()
    first = []
    for cpu in allowed:
        try:
            with open(
                os.path.join(topology, f"cpu{cpu}", "topology", "thread_siblings_list"), encoding="ascii"
            ) as file:
                siblings = file.read().strip()
        except OSError:
            siblings = str(cpu)
        if siblings not in seen:
            seen.add(siblings)
            first.append(cpu)
    return first


def _cgroup_cores() -> int | None:
    quota = Cgroups().cores()
    return None if quota is None else max(1, int(quota))


def keep_freed_memory() -> bool:
    """Makes glibc's allocator keep freed memory for this process instead of returning it to the system.

    By default each large tensor is a fresh mapping, whose pages fault at first touch in every step. base at 512 tokens
    spent a third of its step there (755 to 1,130 tokens/s on 2 Zen 5 cores in a virtual machine). The process then
    holds its peak until it ends. False, and no change, if the C library has no `mallopt`.
    """
    M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, never = -1, -2, -4, -1
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, never) and mallopt(M_TOP_PAD, 64 << 20))


def other_load() -> str:
    """What the load of the last minute shows of other programs; empty where there is a core for each of them. A speed
    that is measured while they run is too low."""
    cpus, load = os.cpu_count() or 1, os.getloadavg()[0]
    if load <= max(1.5 * cpus, cpus + 1):
        return ""
    beside = f"a load of {load:.1f} on {several(cpus, 'core')}"
    return f"other programs compute here too ({beside}), so it is faster without them"


def cpu_name() -> str:
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def usable_memory_bytes() -> int:
    """Memory that this process may use: a container's or scheduler's share, not the whole machine's."""
    total = memory_bytes()
    return min(total, Cgroups().memory_bytes() or total)


def free_disk_bytes(path: str) -> int:
    """Free bytes on the file system that holds `path` or its nearest existing parent."""
    path = os.path.abspath(path)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return shutil.disk_usage(path).free


def describe() -> dict[str, object]:
    return {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cpu": cpu_name(),
        "instructions": instructions(),
        "cores": usable_cores(),
        "memory_bytes": memory_bytes(),
        "host": platform.node(),
    }
