"""Limits of this process by a container or a scheduler, from Linux's control groups (versions 1 and 2)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

UNLIMITED_BYTES = 1 << 60
"""Version 1 writes a number of this size if there is no limit."""


class Cgroups:
    """The groups of this process and their parents. The tightest limit applies.

    https://docs.kernel.org/admin-guide/cgroup-v2.html, https://docs.kernel.org/admin-guide/cgroup-v1/index.html
    """

    def __init__(self, root: str = "/sys/fs/cgroup", proc: str = "/proc/self/cgroup") -> None:
        self._root = root
        self._paths: dict[str, str] = {}  # by controller; "" is version 2
        with suppress(OSError), open(proc, encoding="utf-8") as file:
            for line in file:
                _, controllers, path = line.rstrip("\n").split(":", 2)
                self._paths |= dict.fromkeys(controllers.split(","), path)

    def memory_bytes(self) -> int | None:
        """The memory limit of this process's groups in bytes; None without a limit."""
        limits = [*self._numbers("", "memory.max"), *self._numbers("memory", "memory.limit_in_bytes")]
        return min((limit for limit in map(int, limits) if limit < UNLIMITED_BYTES), default=None)

    def cores(self) -> float | None:
        """Cores by time, which may be a fraction; None without a quota."""
        quotas_in_cores = []
        for text in self._texts("", "cpu.max"):
            with suppress(ValueError):  # "max 100000"
                quota, period = map(int, text.split())
                quotas_in_cores.append(quota / period)
        quotas, periods = self._numbers("cpu", "cpu.cfs_quota_us"), self._numbers("cpu", "cpu.cfs_period_us")
        quotas_in_cores += [
            quota / period for quota, period in zip(quotas, periods, strict=False) if quota > 0 and period > 0
        ]
        return min(quotas_in_cores, default=None)

    def throttled(self) -> int | None:
        """Periods so far in which the quota of this process's own group ran out; None if it is not recorded."""
        for text in (*self._texts("", "cpu.stat"), *self._texts("cpu", "cpu.stat")):
            values = dict(line.split(maxsplit=1) for line in text.splitlines() if " " in line)
            with suppress(KeyError, ValueError):
                return int(values["nr_throttled"])
        return None

    def _numbers(self, controller: str, name: str) -> list[int]:
        numbers = []
        for text in self._texts(controller, name):
            with suppress(ValueError):
                numbers.append(int(text))
        return numbers

    def _texts(self, controller: str, name: str) -> Iterator[str]:
        """Yields the contents of the files of this name, from the process's own group up to the root.

        Inside a container the path is often the host's and does not exist, and the root is the container's own."""
        mounted = [os.path.join(self._root, controller)] if controller else [self._root, f"{self._root}/unified"]
        path = self._paths.get(controller, "/").strip("/")
        while True:
            for folder in mounted:
                with suppress(OSError), open(os.path.join(folder, path, name), encoding="ascii") as file:
                    yield file.read().strip()
            if not path:
                return
            path = os.path.dirname(path)
