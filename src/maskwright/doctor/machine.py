"""Checks of this machine by Linux's facts: cores and other programs on them, memory, disk, shared memory."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator

from maskwright.core.console import human_bytes, several
from maskwright.doctor.finding import DoctorFinding, State, first_of
from maskwright.machine import hardware
from maskwright.machine.cgroups import Cgroups
from maskwright.machine.usage import cpu_ticks, memory_bytes

LOOK_SECONDS = 0.4
"""How long other programs are watched: forty of the kernel's ticks."""
BUSY_SHARE = 0.2
"""Above this share of usable cores in use by others, measured speeds are not the machine's own."""
GIB = 1 << 30
LEAST_MEMORY_BYTES = 2 * GIB
"""A small model (6 layers x 512) peaks at 2.5 GB in training on a CPU, and mini at 1.6
(records/experiments.md)."""
FEW_DISK_BYTES, LEAST_DISK_BYTES = 10 * GIB, GIB
"""A checkpoint of base has 1.5 GB, and three are kept."""
WRITTEN_BYTES = 8 << 20
SLOW_DISK_BYTES_PER_SECOND = 10e6
LEAST_SHARED_BYTES = 256 << 20
"""Docker gives a container 64 MiB, and NCCL's ranks on one machine meet in shared memory:
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"""


def machine(cgroups: Cgroups | None = None, proc: str = "/proc") -> Iterator[DoctorFinding]:
    """Findings about this machine. It needs half a second, in which no other part of `doctor` may compute."""
    cgroups = cgroups or Cgroups()
    yield cores(cgroups, proc)
    yield memory(cgroups, proc)
    yield disk(os.getcwd())
    yield shared_memory("/dev/shm")


# ---- cores ----------------------------------------------------------------------------------------------------------


def cores(cgroups: Cgroups, proc: str = "/proc") -> DoctorFinding:
    allowed, quota = hardware.usable_cpus(), cgroups.cores()
    physical = len(hardware.physical_cores(allowed, "/sys/devices/system/cpu"))
    cpu_count = os.cpu_count() or 1
    others, busiest, stolen = _others(proc)
    values = {
        "cpus": cpu_count,
        "usable_cpus": len(allowed),
        "physical_cores": physical,
        "quota_cores": quota,
        "used_by_others_cores": None if others is None else round(others, 2),
        "stolen_share": None if stolen is None else round(stolen, 3),
        "throttled_periods": cgroups.throttled(),
        "name": hardware.cpu_name(),
    }
    detail = f"{physical} of {several(cpu_count, 'CPU')}"
    if physical != len(allowed):
        detail = f"{several(physical, 'core')} ({several(len(allowed), 'CPU')})"
    detail = f"{hardware.cpu_name()}, {detail}{' may be used' * (physical < cpu_count)}"
    if quota is not None:
        detail += f", and the time of {quota:g} by the container's quota"
    threads = f"--set engine.threads={max(1, int(quota or 0))} in each run"
    unread = "; the load of other programs cannot be read on this system"
    wait = "wait for them, or end them, since speeds measured now are too low"
    used, taken, room = others or 0.0, stolen or 0.0, min(len(allowed), quota or len(allowed))
    return first_of("hardware", "cores", detail, values, [
        # Threads that share less time than there are of them wait for each other in each product.
        (quota is not None and quota < hardware.usable_cores(), "warn", "; a run would start more threads", threads),
        (taken > BUSY_SHARE, "warn", f"; the hypervisor kept {taken:.0%} of their time for others",
         "use a larger or a dedicated machine"),
        (others is None, "ok", unread, None),
        (used > BUSY_SHARE * room, "warn", f"; others compute on {used:.1f} of them now ({busiest})", wait),
        (True, "ok", f"; no other program uses more than {max(used, 0.1):.1f}", None),
    ])  # fmt: skip


def _others(proc: str) -> tuple[float | None, str, float | None]:
    """(cores that other processes use, names of the busiest, share of time that a hypervisor took)."""
    before, begin, steal = _ticks(proc), time.perf_counter(), _stolen(proc)
    if not before:
        return None, "", None
    time.sleep(LOOK_SECONDS)
    after, steal_now = _ticks(proc), _stolen(proc)
    ticks = (time.perf_counter() - begin) * os.sysconf("SC_CLK_TCK")
    ticks_of = {
        pid: (used - before[pid][1] if pid in before else 0, name)
        for pid, (name, used) in after.items()
        if pid != os.getpid()
    }
    busiest = sorted(ticks_of.values(), reverse=True)[:3]
    named = ", ".join(f"{name} {used / ticks:.1f}" for used, name in busiest if used / ticks >= 0.05)
    stolen = None
    if steal and steal_now and steal_now[1] > steal[1]:
        stolen = (steal_now[0] - steal[0]) / (steal_now[1] - steal[1])
    return sum(used for used, _ in ticks_of.values()) / ticks, named, stolen


def _ticks(proc: str) -> dict[int, tuple[str, int]]:
    """(name, CPU ticks) of each process. Names only: a command line may hold a secret."""
    processes = {}
    for entry in os.listdir(proc) if os.path.isdir(proc) else []:
        if not entry.isdigit():
            continue
        try:
            with open(os.path.join(proc, entry, "stat"), encoding="utf-8", errors="replace") as file:
                name, _, rest = file.read().partition("(")[2].rpartition(")")
            fields = rest.split()
            processes[int(entry)] = (name, int(fields[11]) + int(fields[12]))
        except (OSError, ValueError, IndexError):  # it has ended
            continue
    return processes


def _stolen(proc: str) -> tuple[int, int] | None:
    """(ticks that a hypervisor took from all CPUs, all ticks)."""
    ticks = cpu_ticks(proc)
    return (ticks[7], sum(ticks)) if len(ticks) > 7 else None


# ---- memory and disk ------------------------------------------------------------------------------------------------


def memory(cgroups: Cgroups, proc: str = "/proc") -> DoctorFinding:
    total, limit = hardware.memory_bytes(), cgroups.memory_bytes()
    free = memory_bytes(proc, "MemAvailable")
    usable = min(size for size in (total, limit, free) if size is not None)
    values = {"memory_bytes": total, "limit_bytes": limit, "available_bytes": free}
    detail = human_bytes(total)
    if limit is not None and limit < total:
        detail += f", and the container may use {human_bytes(limit)}"
    if free is not None:
        detail += f"; {human_bytes(free)} are free"
    fix = "end other programs or use a larger machine; the nano recipe still trains"
    return first_of("hardware", "memory", detail, values, [(usable < LEAST_MEMORY_BYTES, "warn", "", fix)])


def disk(folder: str) -> DoctorFinding:
    """Checks the disk of `folder`: writes 8 MiB and waits until they are on it."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            begin = time.perf_counter()
            file.write(b"\1" * WRITTEN_BYTES)
            file.flush()
            os.fsync(file.fileno())
            rate = WRITTEN_BYTES / max(time.perf_counter() - begin, 1e-9)
    except OSError as error:
        fix = "change to a folder that you may write to, on a disk with room"
        return DoctorFinding("hardware", "disk", "fail", f"{folder} cannot be written to: {error.strerror}", fix)
    free = hardware.free_disk_bytes(folder)
    values = {"folder": folder, "free_bytes": free, "write_bytes_per_second": round(rate)}
    detail = f"{human_bytes(free)} free in {folder}; {human_bytes(rate)}/s written and synced"
    few = "free some, since a run of base keeps three checkpoints of 1.5 GB"
    slow = "put --run on a local disk, and set checkpoint.copy_to for a slow or distant one"
    return first_of("hardware", "disk", detail, values, [
        (free < LEAST_DISK_BYTES, "fail", "", "free some, or work on another disk"),
        (free < FEW_DISK_BYTES, "warn", "", few),
        (rate < SLOW_DISK_BYTES_PER_SECOND, "warn", "", slow),
    ])  # fmt: skip


def shared_memory(folder: str) -> DoctorFinding:
    if sys.platform != "linux" or not os.path.isdir(folder):
        absent = f"there is no {folder} here; several GPUs of one machine need it"
        return DoctorFinding("hardware", "/dev/shm", "ok", absent)
    usage = shutil.disk_usage(folder)
    values = {"total_bytes": usage.total, "free_bytes": usage.free}
    detail = f"{human_bytes(usage.free)} of {human_bytes(usage.total)} free"
    state: State = "fail" if hardware.cuda_devices() > 1 else "warn"
    fix = "start the container with --shm-size=2g, for several GPUs of one machine"
    return first_of("hardware", "/dev/shm", detail, values, [(usage.free < LEAST_SHARED_BYTES, state, "", fix)])
