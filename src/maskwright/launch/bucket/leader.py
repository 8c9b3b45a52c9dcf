"""What the agent of host 0 does besides running the job: it begins attempts, ends them and says how all ended."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from maskwright.core import records
from maskwright.core.console import say, warn
from maskwright.core.errors import MaskwrightError, StopReason
from maskwright.core.folder import Folder
from maskwright.launch import checks
from maskwright.launch.attempts import Streak
from maskwright.launch.bucket.claims import Pulse
from maskwright.launch.bucket.job_folder import attempt_folder, put_result, read_beats, read_ends
from maskwright.launch.hosts.supervisor import OTHERS_SECONDS
from maskwright.launch.outcome import MOMENTS_SECONDS, End, judge, report
from maskwright.launch.target import JobSpec
from maskwright.run.directory import RunDirectory, whole_steps

LOST_SECONDS = 90.0
"""A host whose heartbeat stands still for so long counts as lost."""
RESTART_WAIT_SECONDS = 10.0
"""Pause before the first restart of a job, as `submit slice` has it."""


def saved_step(spec: JobSpec) -> int:
    """Step of the run's newest checkpoint, in its directory on this host or where its copies go: a host that was made
    again has no others. 0 if there is none."""
    folder, command = os.path.join(os.path.expanduser("~"), spec.folder), spec.command
    here = RunDirectory(os.path.join(folder, command.run)).newest_step()
    config = os.path.join(folder, command.config)
    try:
        found, _ = checks.read(replace(command, config=config if os.path.isfile(config) else command.config))
        copies = whole_steps(Folder(found.checkpoint.copy_to)) if found.checkpoint.copy_to else []
    except MaskwrightError as error:
        warn(f"{error}; only checkpoints on this host are seen")
        copies = []
    return max([here, *copies])


Beats = Sequence[dict[str, Any] | None]
"""By host."""


class Leader:
    """`saved`: step of a job's newest checkpoint."""

    def __init__(
        self,
        folder: Folder,
        num_hosts: int,
        poll_seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        saved: Callable[[JobSpec], int] = saved_step,
    ) -> None:
        self.folder, self.num_hosts, self.poll_seconds = folder, num_hosts, poll_seconds
        self._clock, self._saved, self._pulse = clock, saved, Pulse(clock)
        self._failed_at, self._warned = 0.0, ""
        self._rest: tuple[str, Streak, float] = ("", Streak(), 0.0)
        """After the end of which attempt, which of how many it is, and until when."""

    def poll(self, spec: JobSpec, number: int, asked: bool) -> None:
        """`number` is that of the last attempt, 0 before the first. `asked`: the job is to end."""
        said = read_beats(self.folder, self.num_hosts)
        beats = [self._living(host, beat) for host, beat in enumerate(said)]
        place = attempt_folder(spec.submission, number)
        ends = self._ends(place, said, beats) if number else []
        if number and len(ends) < self.num_hosts:
            self._end_others(place, ends)
            return
        verdict = judge(ends, self.num_hosts, asked=asked)
        cause = verdict.cause.describe() if verdict.cause else ""
        if asked and not number:
            self._conclude(spec, 75, "", ["stopped before it began"], "asked")
        elif number and not (verdict.restart and self._may_restart(spec, place, cause)):
            lines = report(ends, verdict) if verdict.code else []
            self._conclude(spec, verdict.code, cause, lines, "asked" if asked else verdict.reason)
        elif self._ready(spec, beats):  # else it waits for hosts to come, or to come back
            self._begin(spec, number, beats)

    def _begin(self, spec: JobSpec, number: int, beats: Beats) -> None:
        """The attempt after `number`, unless the pause between the two is not over."""
        _, streak, until = self._rest if number else ("", Streak(), 0.0)
        if self._clock() < until:
            return
        self._failed_at = 0.0
        addresses = [str((beat or {}).get("address", "")) for beat in beats]
        start = {"hosts": self.num_hosts, "addresses": addresses, **asdict(streak), "time": time.time()}
        self.folder.put_json(f"{attempt_folder(spec.submission, number + 1)}/start.json", start)

    def _end_others(self, place: str, ends: Sequence[End]) -> None:
        """Once one has ended badly, and the others had time to find out for themselves."""
        if not any(end.code != 0 for end in ends):
            self._failed_at = 0.0
            return
        self._failed_at = self._failed_at or self._clock()
        others = max(MOMENTS_SECONDS, min(OTHERS_SECONDS, 4 * self.poll_seconds))
        if self._clock() - self._failed_at > others:
            self.folder.put_json(f"{place}/end.json", {"time": time.time()})

    def _may_restart(self, spec: JobSpec, place: str, cause: str) -> bool:
        """Whether the job goes on after the end of this attempt. Counts it, and sets the pause, once: the count lies in
        the attempt's start, as the next agent of host 0 may be another one."""
        if self._rest[0] != place:
            before = records.read(Streak, self.folder.get(f"{place}/start.json")) or Streak()
            streak = before.after(self._saved(spec))
            seconds = streak.pause_seconds(min(RESTART_WAIT_SECONDS, 2 * self.poll_seconds))
            self._rest = (place, streak, self._clock() + seconds)
            if streak.ends <= spec.restarts:
                warn(streak.describe(cause, spec.restarts, seconds))
        return self._rest[1].ends <= spec.restarts

    def _ready(self, spec: JobSpec, beats: Beats) -> bool:
        for host, beat in enumerate(beats):
            here = beat and self._pulse.has_moved(host)
            if not (beat and here and beat["idle"] and beat["submission"] == spec.submission):
                return False
        made_of = [(beat or {}).get("software") for beat in beats]
        odd = [host for host, found in enumerate(made_of) if found != made_of[0]]
        text = f"host {odd[0]} runs {made_of[odd[0]]} and host 0 runs {made_of[0]}" if odd else ""
        if text and text != self._warned:
            warn(f"{text}: no attempt begins before all hosts run the same. Fix: recreate the hosts")
        self._warned = text
        return not odd

    def _conclude(self, spec: JobSpec, code: int, cause: str, lines: list[str], reason: StopReason) -> None:
        for line in lines:
            say(line)
        put_result(self.folder, spec.submission, code, cause, reason=reason, report=lines)

    def _living(self, host: int, beat: dict[str, Any] | None) -> dict[str, Any] | None:
        """A host's heartbeat, None when it stands still."""
        lost = self._pulse.still(host, beat) >= LOST_SECONDS
        return None if lost or beat is None or beat.get("gone") else beat

    def _ends(self, place: str, said: Beats, beats: Beats) -> list[End]:
        """Of the hosts that have ended, and that are lost, by the time at which they did. `beats` has the living."""
        ends = []
        for host, end in enumerate(read_ends(self.folder, place, self.num_hosts)):
            if end is not None:
                ends.append(end)
            elif beats[host] is None:
                left = (said[host] or {}).get("gone")
                why = "its agent was ended" if left else f"no sign of life for {LOST_SECONDS:.0f} s"
                ends.append(End(host, None, why=why))
        return sorted(ends, key=lambda end: end.time)
