"""The health of each host of a slice or group, from what Google says of its machine and its own files in the bucket.

health/INSTANCE.json                  a step of its start-up, from deploy/terraform/host/startup.sh
hosts/host-3.json                     the beat of the agent that is host 3
idle/INSTANCE.json                    why it stopped itself
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from maskwright.cloud.environment import Environment
from maskwright.cloud.google import groups, queued_resource
from maskwright.cloud.google.host_states import Life, life_of
from maskwright.cloud.google.rest import Google, seconds_of
from maskwright.core.console import human_seconds
from maskwright.core.folder import Folder
from maskwright.launch.bucket.leader import LOST_SECONDS

FOLDERS = ("hosts", "health", "idle")
CLOCK_SECONDS = 60.0
"""This machine's clock and Google's may differ by so much before a beat counts as old."""
Verdict = Literal["works", "waits", "starting", "coming", "stopped", "failed", "gone", "silent"]


@dataclass(frozen=True)
class HostHealth:
    """How one host is."""

    name: str
    machine: str
    """State of its machine, in Google's word."""
    verdict: Verdict
    detail: str
    index: int | None
    beat_seconds: float | None
    """Time since its last beat."""
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
    """A host's machine, as Google knows it."""

    name: str
    state: str
    life: Life
    trouble: str = ""
    failed: bool = False
    """Whether the last attempt to make it failed."""


@dataclass(frozen=True)
class DatedFile:
    """A file of the bucket, and how long ago it was written, by this machine's clock."""

    content: dict[str, Any]
    seconds: float


def describe(google: Google, environment: Environment, kind: str, zone: str) -> list[HostHealth]:
    """Those that exist or are on their way. Raises `CloudError`."""
    notes = _notes(google, environment.runs_bucket, kind)
    beats = {
        str(note.content.get("instance", "")): (int(index), note)
        for name, note in notes["hosts"].items()
        if (index := name.removeprefix("host-")).isdecimal() and not note.content.get("gone")
    }
    software = [note.content.get("software") or {} for _, note in beats.values()]
    wanted = max(software, key=software.count, default={})
    return [_health(one, beats.get(one.name), notes, wanted) for one in _machines(google, environment, kind, zone)]


def _machines(google: Google, environment: Environment, kind: str, zone: str) -> Iterator[Machine]:
    name = f"{environment.name}-{kind}"
    if kind == "slice" and environment.queued:
        found = queued_resource.describe(google, zone, name)
        for host in found.hosts if found else ():
            state = "RUNNING" if host.state == "READY" else host.state
            yield Machine(f"{name}-w-{host.number}", state, life_of(host.state), host.health)
        return
    group = groups.describe(google, zone, name)
    for member in group.members if group else ():
        doing = "" if member.action in groups.KEEPING else member.action.lower()
        trouble = "; ".join(error.message for error in member.errors) or doing
        yield Machine(member.name, member.status, member.life, trouble, bool(member.errors))


def _notes(google: Google, bucket: str, kind: str) -> dict[str, dict[str, DatedFile]]:
    """Notes by folder, and by name without .json. They are empty where there is no bucket yet."""
    folder = Folder(f"gs://{bucket}/jobs/{kind}")
    found: dict[str, dict[str, DatedFile]] = {part: {} for part in FOLDERS}
    if google.find("storage", f"b/{bucket}") is None:
        return found
    for part in FOLDERS:
        prefix, fields = f"jobs/{kind}/{part}/", "items(name,updated),nextPageToken"
        for one in google.pages("storage", f"b/{bucket}/o", "items", prefix=prefix, fields=fields):
            name = str(one["name"]).removeprefix(prefix).removesuffix(".json")
            if "/" in name or ".claim-" in name:
                continue
            if (content := folder.get_json(f"{part}/{name}.json")) is not None:
                written = seconds_of(str(one.get("updated", ""))) or 0.0
                found[part][name] = DatedFile(content, max(0.0, time.time() - written))
    return found


def _health(
    machine: Machine, beat: tuple[int, DatedFile] | None, notes: dict[str, dict[str, DatedFile]], wanted: dict[str, Any]
) -> HostHealth:
    index, note = beat if beat is not None else (None, None)
    seconds = note.seconds if note is not None else None
    software = (note.content.get("software") or {}) if note else {}
    verdict, detail = _verdict(machine, note, notes["health"].get(machine.name), notes["idle"].get(machine.name))
    if software and software != wanted:
        detail = "; ".join(text for text in (detail, f"runs {_words(software)}, others {_words(wanted)}") if text)
    return HostHealth(machine.name, machine.state, verdict, detail, index, seconds, software)


def _verdict(
    machine: Machine, beat: DatedFile | None, started: DatedFile | None, idle: DatedFile | None
) -> tuple[Verdict, str]:
    if machine.life == "coming":
        return ("failed" if machine.failed else "coming"), machine.trouble
    if machine.life != "runs":
        if idle is not None:
            return "stopped", str(idle.content.get("what", ""))
        return "gone", machine.trouble or "taken away by Google, or stopped by somebody"
    if started is not None and not started.content.get("ok", True):
        return "failed", f"{started.content.get('step', '')}: {started.content.get('what', '')}"
    if beat is not None and beat.seconds < LOST_SECONDS + CLOCK_SECONDS:
        return ("waits" if beat.content.get("idle") else "works"), ""
    if beat is not None and (started is None or started.seconds > beat.seconds):
        return "silent", "its agent says nothing any more: see its log in Cloud Logging"
    if started is not None:
        return "starting", f"{started.content.get('step', '')} for {human_seconds(started.seconds)}"
    return "starting", "has said nothing yet"


def _words(software: dict[str, Any]) -> str:
    return " ".join(f"{key} {str(value)[-24:]}" for key, value in sorted(software.items()) if value)
