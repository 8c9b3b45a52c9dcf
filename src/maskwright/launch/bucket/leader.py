"""The part of host 0's agent that leads a job: it starts and ends attempts, and records the job's result."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

from maskwright.core import records
from maskwright.core.console import say, warn
from maskwright.core.errors import MaskwrightError, StopReason
from maskwright.core.folder import Folder
from maskwright.launch import checks
from maskwright.launch.attempts import Streak
from maskwright.launch.bucket import job_folder
from maskwright.launch.bucket.claims import Pulse
from maskwright.launch.hosts.supervisor import OTHERS_SECONDS
from maskwright.launch.outcome import MOMENTS_SECONDS, End, judge, report
from maskwright.launch.target import JobSpec
from maskwright.run.directory import RunDirectory, whole_steps

LOST_SECONDS = 90.0
"""A host counts as lost once its heartbeat has stood still for this long."""
RESTART_WAIT_SECONDS = 10.0
"""Pause before the first restart of a job, the same as for `submit slice`."""


def saved_step(spec: JobSpec) -> int:
    """Step of the run's newest checkpoint, 0 if there is none: on this host, or among its copies, since a host that was
    recreated has only those."""
    folder, command = os.path.join(os.path.expanduser("~"), spec.folder), spec.command
    newest = RunDirectory(os.path.join(folder, command.run)).newest_step()
    path = os.path.join(folder, command.config)
    try:
        config, _ = checks.read(replace(command, config=path if os.path.isfile(path) else command.config))
        copies = whole_steps(Folder(config.checkpoint.copy_to)) if config.checkpoint.copy_to else []
    except MaskwrightError as error:
        warn(f"{error}; only checkpoints on this host are seen")
        copies = []
    return max([newest, *copies])


Beats = Sequence[job_folder.HostBeat | None]
"""The heartbeat of each host."""


class Leader:
    """Call `poll` again and again. `saved` returns the step of a job's newest checkpoint."""

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
        self._pause: tuple[str, Streak, float] = ("", Streak(), 0.0)
        """(folder of the attempt that ended last, its streak, end of the pause after it)."""

    def poll(self, spec: JobSpec, number: int, asked: bool) -> None:
        """`number`: of the last attempt, 0 before the first. `asked`: whether an operator asked the job to stop."""
        all_beats = job_folder.read_beats(self.folder, self.num_hosts)
        beats = [self._living(host, beat) for host, beat in enumerate(all_beats)]
        place = job_folder.attempt_folder(spec.submission, number)
        ends = self._ends(place, all_beats, beats) if number else []
        if number and len(ends) < self.num_hosts:
            self._end_others(place, ends)
            return
        verdict = judge(ends, self.num_hosts, asked=asked)
        cause = verdict.cause.describe() if verdict.cause else ""
        if asked and not number:
            self._conclude(spec, 75, "", ("stopped before it began",), "asked")
        elif number and not (verdict.restart and self._may_restart(spec, place, cause)):
            lines = tuple(report(ends, verdict)) if verdict.code else ()
            self._conclude(spec, verdict.code, cause, lines, "asked" if asked else "lost")
        elif self._ready(spec, beats):
            self._begin(spec, number, beats)

    def _begin(self, spec: JobSpec, number: int, beats: Beats) -> None:
        """Starts the attempt after `number`, once the pause between the two is over."""
        _, streak, until = self._pause if number else ("", Streak(), 0.0)
        if self._clock() < until:
            return
        self._failed_at = 0.0
        start = job_folder.AttemptStart(self.num_hosts, tuple(beat.address if beat else "" for beat in beats))
        values = {**asdict(start), **asdict(streak), "time": time.time()}
        self.folder.put_json(f"{job_folder.attempt_folder(spec.submission, number + 1)}/start.json", values)

    def _end_others(self, place: str, ends: Sequence[End]) -> None:
        """Ends the other hosts once one has failed and they had time to notice this by themselves."""
        if not any(end.code != 0 for end in ends):
            self._failed_at = 0.0
            return
        self._failed_at = self._failed_at or self._clock()
        patience = max(MOMENTS_SECONDS, min(OTHERS_SECONDS, 4 * self.poll_seconds))
        if self._clock() - self._failed_at > patience:
            self.folder.put_json(f"{place}/end.json", {"time": time.time()})

    def _may_restart(self, spec: JobSpec, place: str, cause: str) -> bool:
        """Whether the job goes on after the end of this attempt. The first call for an attempt counts it and sets the
        pause. The count is kept in start.json, since another machine may become host 0."""
        if self._pause[0] != place:
            before = records.read(Streak, self.folder.head(f"{place}/start.json", job_folder.BEAT_BYTES)) or Streak()
            streak = before.after(self._saved(spec), counted=False)
            seconds = streak.pause_seconds(min(RESTART_WAIT_SECONDS, 2 * self.poll_seconds))
            self._pause = (place, streak, self._clock() + seconds)
            if streak.ends <= spec.restarts:
                warn(streak.describe(cause, seconds))
        return self._pause[1].ends <= spec.restarts

    def _ready(self, spec: JobSpec, beats: Beats) -> bool:
        """Whether all hosts are there, idle, have read this submission and run the same software."""
        for host, beat in enumerate(beats):
            alive = beat and self._pulse.has_moved(host)
            if not (beat and alive and beat.idle and beat.submission == spec.submission):
                return False
        software = [beat.software if beat else {} for beat in beats]
        other = next((host for host in range(len(beats)) if software[host] != software[0]), None)
        text = f"host {other} runs {software[other]} and host 0 runs {software[0]}" if other is not None else ""
        if text and text != self._warned:
            warn(f"{text}: no attempt begins before all hosts run the same. Fix: recreate the hosts")
        self._warned = text
        return not text

    def _conclude(self, spec: JobSpec, code: int, cause: str, lines: tuple[str, ...], reason: StopReason) -> None:
        for line in lines:
            say(line)
        job_folder.put_result(self.folder, spec.submission, job_folder.JobResult(code, cause, reason, lines))

    def _living(self, host: int, beat: job_folder.HostBeat | None) -> job_folder.HostBeat | None:
        """A host's heartbeat; None if it stands still or its agent has ended."""
        lost = self._pulse.still(host, beat) >= LOST_SECONDS
        return None if lost or beat is None or beat.gone else beat

    def _ends(self, place: str, all_beats: Beats, beats: Beats) -> list[End]:
        """How the hosts ended that have ended or are lost, in the order of time. `beats`: of living hosts only."""
        ends = []
        for host, end in enumerate(job_folder.read_ends(self.folder, place, self.num_hosts)):
            if end is not None:
                ends.append(end)
            elif beats[host] is None:
                silent = all_beats[host]
                why = "its agent was stopped" if silent and silent.gone else f"no heartbeat for {LOST_SECONDS:.0f} s"
                ends.append(End(host, None, why=why))
        return sorted(ends, key=lambda end: end.time)
