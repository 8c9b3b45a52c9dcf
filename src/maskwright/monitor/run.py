"""A run directory as a target of `status`, `logs` and `stop`: whoever started the run, its folder is enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from maskwright.core.errors import INTERRUPTED, StoppedEarly
from maskwright.monitor import logs, status, stop
from maskwright.run.directory import RunDirectory


@dataclass(frozen=True)
class RunFolder:
    location: str
    """Also any URL, but for `stop`."""

    takes: ClassVar[frozenset[str]] = frozenset({"--lines", "--checkpoint"})

    def status(self) -> status.Report:
        return status.look(self.location)

    def logs(self, *, follow: bool, lines: int | None) -> int:
        try:
            return logs.follow(self.location, lines) if follow else logs.show(self.location, lines)
        except StoppedEarly:
            return INTERRUPTED

    def stop(self, *, checkpoint: bool, wait_seconds: float) -> str:
        return stop.stop(RunDirectory(self.location), "checkpoint" if checkpoint else "stop", wait_seconds)
