"""How each host of a slice or group is: what Google says of its machine, what it wrote into the bucket, and when.

health/INSTANCE.json                  a step of its start-up, from deploy/terraform/host/startup.sh
hosts/host-3.json                     the beat of the agent that is host 3
idle/INSTANCE.json                    why it stopped itself
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from maskwright.cloud.environment import Environment
from maskwright.cloud.google import groups, queued_resource
from maskwright.cloud.google.rest import Google, seconds_of
from maskwright.core.console import human_seconds
from maskwright.core.errors import CloudError
from maskwright.core.folder import Folder
from maskwright.launch.bucket.leader import LOST_SECONDS

FOLDERS = ("hosts", "health", "idle")
CLOCK_SECONDS = 60.0
"""By which this machine's clock and Google's may differ before a beat counts as old."""


@dataclass(frozen=True)
class HostHealth:
    """`machine`: Google's word for it. `verdict`: works, waits, starting, failed, stopped, gone, silent or coming.
    `beat_seconds`: since its last beat."""

    name: str
    machine: str
    verdict: str
    detail: str
    index: int | None
    beat_seconds: float | None
    software: dict[str, Any]

    @property
    def well(self) -> bool:
        return self.verdict in ("works", "waits", "starting", "coming", "stopped")

    def line(self) -> str:
        number = f" host {self.index}" if self.index is not None else ""
        beat = f", beat {human_seconds(self.beat_seconds)} ago" if self.beat_seconds is not None else ""
        return f"{self.name}{number}: {self.verdict} ({self.machine.lower() or 'no machine yet'}{beat}){self._more()}"

    def _more(self) -> str:
        return f"; {self.detail}" if self.detail else ""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "well": self.well}


@dataclass(frozen=True)
class Machine:
    name: str
    state: str
    trouble: str


@dataclass(frozen=True)
class Note:
    """A file of the bucket, and how long ago it was written, by this machine's clock."""

    content: dict[str, Any]
    seconds: float


def look(google: Google, environment: Environment, kind: str, zone: str) -> list[HostHealth]:
    """Of those that exist or are on their way. Raises `CloudError`."""
    hosts = environment.hosts_of(kind)
    machines = list(_machines(google, environment, kind, zone))
    notes = _notes(google, environment.runs_bucket, kind)
    beats = {str(note.content.get("instance", "")): (index, note) for index, note in _beats(notes["hosts"])}
    software = [note.content.get("software") or {} for _, note in beats.values()]
    wanted = max(software, key=software.count) if software and hosts is not None else {}
    return [_health(one, beats.get(one.name), notes, wanted) for one in machines]


def _beats(found: dict[str, Note]) -> Iterator[tuple[int, Note]]:
    for name, note in found.items():
        if (index := name.removeprefix("host-")).isdecimal() and not note.content.get("gone"):
            yield int(index), note


def _machines(google: Google, environment: Environment, kind: str, zone: str) -> Iterator[Machine]:
    name = f"{environment.name}-{kind}"
    if environment.slice is not None and kind == "slice" and environment.slice.queued:
        found = queued_resource.describe(google, zone, name)
        for host in found.hosts if found else ():
            yield Machine(f"{name}-w-{host.number}", "RUNNING" if host.state == "READY" else host.state, host.health)
        return
    group = groups.describe(google, zone, name)
    for member in group.members if group else ():
        trouble = "; ".join(member.errors) or ("" if member.action in groups.WORKING else member.action.lower())
        yield Machine(member.name, member.status, trouble)


def _notes(google: Google, bucket: str, kind: str) -> dict[str, dict[str, Note]]:
    """By folder and name without .json; empty where there is no bucket yet."""
    folder = Folder(f"gs://{bucket}/jobs/{kind}")
    found: dict[str, dict[str, Note]] = {}
    for part in FOLDERS:
        prefix, fields = f"jobs/{kind}/{part}/", "items(name,updated),nextPageToken"
        found[part] = {}
        try:
            listed = list(google.pages("storage", f"b/{bucket}/o", "items", prefix=prefix, fields=fields))
        except CloudError as error:
            if error.reason != "missing":
                raise
            continue
        for one in listed:
            name = str(one["name"]).removeprefix(prefix).removesuffix(".json")
            if "/" in name or ".claim-" in name:
                continue
            content = folder.get_json(f"{part}/{name}.json")
            if content is not None:
                found[part][name] = Note(
                    content, max(0.0, time.time() - (seconds_of(str(one.get("updated", ""))) or 0.0))
                )
    return found


def _health(
    machine: Machine, beat: tuple[int, Note] | None, notes: dict[str, dict[str, Note]], wanted: dict[str, Any]
) -> HostHealth:
    started, idle = notes["health"].get(machine.name), notes["idle"].get(machine.name)
    index, seconds = (beat[0], beat[1].seconds) if beat else (None, None)
    software = (beat[1].content.get("software") or {}) if beat else {}
    verdict, detail = _verdict(machine, beat[1] if beat else None, started, idle)
    if software and software != wanted:
        detail = "; ".join(text for text in (detail, f"runs {_words(software)}, others {_words(wanted)}") if text)
    return HostHealth(machine.name, machine.state, verdict, detail, index, seconds, software)


def _verdict(machine: Machine, beat: Note | None, started: Note | None, idle: Note | None) -> tuple[str, str]:
    if not machine.state or machine.state in ("PROVISIONING", "STAGING", "CREATING"):
        return ("failed" if ":" in machine.trouble else "coming"), machine.trouble
    if machine.state != "RUNNING":
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
