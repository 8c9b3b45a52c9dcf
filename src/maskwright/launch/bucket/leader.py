"""What the agent of host 0 does besides running the job: it begins attempts, ends them and says how all ended."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from maskwright.core import records
from maskwright.core.console import say, warn
from maskwright.core.errors import StopReason
from maskwright.core.folder import Folder
from maskwright.launch.bucket.queue import attempt_folder, put_result
from maskwright.launch.bucket.slots import Pulse
from maskwright.launch.outcome import MOMENTS_SECONDS, End, judge, report
from maskwright.launch.ssh.host import OTHERS_SECONDS
from maskwright.launch.target import JobSpec

LOST_SECONDS = 90.0
"""A host whose heartbeat stands still for so long counts as lost."""


class Leader:
    def __init__(self, folder: Folder, num_hosts: int, poll_seconds: float) -> None:
        self.folder, self.num_hosts, self.poll_seconds = folder, num_hosts, poll_seconds
        self._pulse = Pulse()
        self._failed_at, self._warned = 0.0, ""

    def turn(self, spec: JobSpec, number: int, asked: bool) -> None:
        """`number` is that of the last attempt, 0 before the first. `asked`: the job is to end."""
        beats = {host: self._look_at(host) for host in range(self.num_hosts)}
        place = attempt_folder(spec.submission, number)
        ends = self._ends(place, beats) if number else []
        if number and len(ends) < self.num_hosts:
            if not any(end.code != 0 for end in ends):
                self._failed_at = 0.0
                return
            self._failed_at = self._failed_at or time.monotonic()
            others = max(MOMENTS_SECONDS, min(OTHERS_SECONDS, 4 * self.poll_seconds))
            if time.monotonic() - self._failed_at > others:
                self.folder.put_json(f"{place}/end.json", {"time": time.time()})
            return
        verdict = judge(ends, self.num_hosts, asked=asked)
        again = not number or (verdict.restart and number <= spec.restarts)
        if asked and not number:
            self._conclude(spec, 75, "", ["stopped before it began"], "asked")
        elif not again:
            cause = verdict.cause.describe() if verdict.cause else ""
            lines = report(ends, verdict) if verdict.code else []
            self._conclude(spec, verdict.code, cause, lines, "asked" if asked else verdict.reason)
        elif self._ready(spec, beats):  # else it waits for hosts to come, or to come back
            self._failed_at = 0.0
            addresses = [str((beats[host] or {}).get("address", "")) for host in range(self.num_hosts)]
            start = {"hosts": self.num_hosts, "addresses": addresses, "time": time.time()}
            self.folder.put_json(f"{attempt_folder(spec.submission, number + 1)}/start.json", start)

    def _ready(self, spec: JobSpec, beats: Mapping[int, dict[str, Any] | None]) -> bool:
        for host, beat in beats.items():
            here = beat and self._pulse.has_moved(host)
            if not (beat and here and beat["idle"] and beat["submission"] == spec.submission):
                return False
        made_of = {host: (beat or {}).get("software") for host, beat in beats.items()}
        odd = [host for host, found in made_of.items() if found != made_of[0]]
        text = f"host {odd[0]} runs {made_of[odd[0]]} and host 0 runs {made_of[0]}" if odd else ""
        if text and text != self._warned:
            warn(f"{text}: no attempt begins before all hosts run the same. Fix: recreate the hosts")
        self._warned = text
        return not odd

    def _conclude(self, spec: JobSpec, code: int, cause: str, lines: list[str], reason: StopReason) -> None:
        for line in lines:
            say(line)
        put_result(self.folder, spec.submission, code, cause, reason=reason, report=lines)

    def _look_at(self, host: int) -> dict[str, Any] | None:
        """A host's heartbeat, None when it stands still."""
        beat = self.folder.get_json(f"hosts/host-{host}.json")
        lost = self._pulse.still(host, beat) >= LOST_SECONDS
        return None if lost or beat is None or beat.get("gone") else beat

    def _ends(self, place: str, beats: Mapping[int, Any]) -> list[End]:
        """Of the hosts that have ended, and that are lost, by the time at which they did."""
        ends = []
        for host, beat in beats.items():
            said = records.read(End, self.folder.get(f"{place}/host-{host}/exit.json"))
            if said is not None:
                ends.append(said)
            elif beat is None:
                left = (self.folder.get_json(f"hosts/host-{host}.json") or {}).get("gone")
                why = "its agent was ended" if left else f"no sign of life for {LOST_SECONDS:.0f} s"
                ends.append(End(host, None, why=why))
        return sorted(ends, key=lambda end: end.time)
