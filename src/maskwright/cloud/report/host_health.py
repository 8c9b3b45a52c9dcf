"""The health of each host of a slice or group, from Google's state of its machine and from its files in the bucket.

reports/health/INSTANCE.json          a step of its start-up, from deploy/terraform/host/startup.sh
reports/hosts/host-3.json             the heartbeat of the agent that is host 3
reports/idle/INSTANCE.json            why it powered off
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Generic, Literal, TypeVar

from maskwright.cloud.environment import Environment
from maskwright.cloud.google import groups, queued_resource
from maskwright.cloud.google.host_states import Life, life_of
from maskwright.cloud.google.rest import Google, seconds_of
from maskwright.core import records
from maskwright.core.console import human_seconds
from maskwright.core.folder import Folder
from maskwright.launch.bucket.job_folder import BEAT_BYTES, HostBeat, StartUpStep
from maskwright.launch.bucket.leader import LOST_SECONDS

T = TypeVar("T")
CLOCK_SECONDS = 60.0
"""Tolerated difference between this machine's clock and Google's."""
Verdict = Literal["works", "waits", "starting", "coming", "stopped", "failed", "gone", "silent"]


@dataclass(frozen=True)
class HostHealth:
    """The health of one host."""

    name: str
    machine: str
    """Google's state of its machine."""
    verdict: Verdict
    detail: str
    index: int | None
    beat_seconds: float | None
    """Time since its last heartbeat."""
    software: dict[str, Any]

    @property
    def well(self) -> bool:
        return self.verdict in ("works", "waits", "starting", "coming", "stopped")

    def line(self) -> str:
        number = f" host {self.index}" if self.index is not None else ""
        beat = f", beat {human_seconds(self.beat_seconds)} ago" if self.beat_seconds is not None else ""
        more = f"; {self.detail}" if self.detail else ""
        return f"{self.name}{number}: {self.verdict} ({self.machine.lower() or 'no machine yet'}{beat}){more}"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "well": self.well}


@dataclass(frozen=True)
class Machine:
    """Google's view of a host's machine."""

    name: str
    state: str
    life: Life
    trouble: str = ""
    failed: bool = False
    """Whether the last attempt to create it failed."""


@dataclass(frozen=True)
class DatedFile(Generic[T]):
    """A file in the bucket, and its age by this machine's clock."""

    content: T
    seconds: float


def describe(google: Google, environment: Environment, kind: str, zone: str) -> list[HostHealth]:
    """Hosts that exist or are being created. Raises `CloudError`."""
    machines = list(_machines(google, environment, kind, zone))
    bucket = environment.jobs_bucket
    if not machines or google.find("storage", f"b/{bucket}") is None:
        return [_health(machine, None, None, None, {}) for machine in machines]
    beats = {
        file.content.instance: (int(index), file)
        for name, file in _read_files(google, bucket, f"{kind}/reports/hosts", HostBeat).items()
        if (index := name.removeprefix("host-")).isdecimal() and not file.content.gone
    }
    started = _read_files(google, bucket, f"{kind}/reports/health", StartUpStep)
    idle = _read_files(google, bucket, f"{kind}/reports/idle", StartUpStep)
    software = [beat.content.software for _, beat in beats.values()]
    usual = max(software, key=software.count, default={})
    return [
        _health(machine, beats.get(machine.name), started.get(machine.name), idle.get(machine.name), usual)
        for machine in machines
    ]


def _machines(google: Google, environment: Environment, kind: str, zone: str) -> Iterator[Machine]:
    name = f"{environment.name}-{kind}"
    if kind == "slice" and environment.queued:
        queued = queued_resource.describe(google, zone, name)
        for host in queued.hosts if queued else ():
            state = "RUNNING" if host.state == "READY" else host.state
            yield Machine(f"{name}-w-{host.number}", state, life_of(host.state), host.health)
        return
    group = groups.describe(google, zone, name)
    for member in group.members if group else ():
        action = "" if member.action in groups.KEEPING else member.action.lower()
        trouble = "; ".join(error.message for error in member.errors) or action
        yield Machine(member.name, member.status, member.life, trouble, bool(member.errors))


def _read_files(google: Google, bucket: str, folder: str, kind: type[T]) -> dict[str, DatedFile[T]]:
    """Records of this kind, by name without .json."""
    files, fields, there = {}, "items(name,updated),nextPageToken", Folder(f"gs://{bucket}/{folder}")
    for item in google.pages("storage", f"b/{bucket}/o", "items", prefix=f"{folder}/", fields=fields):
        name = str(item["name"]).removeprefix(f"{folder}/")
        if (content := records.read(kind, there.head(name, BEAT_BYTES))) is not None:
            written = seconds_of(str(item.get("updated", ""))) or 0.0
            files[name.removesuffix(".json")] = DatedFile(content, max(0.0, time.time() - written))
    return files


def _health(
    machine: Machine,
    beat: tuple[int, DatedFile[HostBeat]] | None,
    started: DatedFile[StartUpStep] | None,
    idle: DatedFile[StartUpStep] | None,
    usual: dict[str, str],
) -> HostHealth:
    index, heartbeat = beat if beat is not None else (None, None)
    seconds = heartbeat.seconds if heartbeat is not None else None
    software = heartbeat.content.software if heartbeat else {}
    verdict, detail = _verdict(machine, heartbeat, started, idle)
    if software and software != usual:
        detail = "; ".join(text for text in (detail, f"runs {_text(software)}, others {_text(usual)}") if text)
    return HostHealth(machine.name, machine.state, verdict, detail, index, seconds, software)


def _verdict(
    machine: Machine,
    beat: DatedFile[HostBeat] | None,
    started: DatedFile[StartUpStep] | None,
    idle: DatedFile[StartUpStep] | None,
) -> tuple[Verdict, str]:
    if machine.life == "coming":
        return ("failed" if machine.failed else "coming"), machine.trouble
    if machine.life != "runs":
        if idle is not None:
            return "stopped", idle.content.what
        return "gone", machine.trouble or "preempted by Google, or stopped by a user"
    if started is not None and not started.content.ok:
        return "failed", f"{started.content.step}: {started.content.what}"
    if beat is not None and beat.seconds < LOST_SECONDS + CLOCK_SECONDS:
        return ("waits" if beat.content.idle else "works"), ""
    if beat is not None and (started is None or started.seconds > beat.seconds):
        return "silent", "its agent no longer reports: see its log in Cloud Logging"
    if started is not None:
        return "starting", f"{started.content.step} for {human_seconds(started.seconds)}"
    return "starting", "has not reported yet"


def _text(software: dict[str, str]) -> str:
    return " ".join(f"{key} {value[-24:]}" for key, value in sorted(software.items()) if value)
