"""Judges whether each rank of a run is lost, hung or slow, by the ranks' heartbeats (`run.heartbeat`).

A thread writes a rank's file even while its main thread stands still. So an old file means that the process is gone,
stopped, or stuck in the system, and a fresh file shows how long the main thread has not moved. In a collective
operation all ranks wait for the last, so a waiting rank is not to blame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from statistics import median
from typing import Literal

from maskwright.core.console import human_seconds
from maskwright.core.pids import State
from maskwright.run.heartbeat import Beat

Verdict = Literal["fine", "ended", "slow", "hung", "lost", "silent"]

STALE_SECONDS, STALE_BEATS = 30.0, 3.0
"""A file older than both is stale. As with `lease.WATCH_SECONDS`, a network file system may be slow."""
STOPPED_BEATS = 2.0
"""A process that the kernel calls stopped is only being inspected, unless it has missed this many heartbeats."""
HUNG_SECONDS, HUNG_STEPS = 120.0, 20.0
"""A rank that is in a step for longer than both hangs. Compiling for new shapes, or running out of memory, can take a
minute."""
QUIET_SECONDS = {"starting": 1800.0, "first step": 1800.0, "saving": 1800.0, "evaluating": 600.0}
"""Limits of phases that may take long: read a checkpoint, compile for a large slice, hash and upload a checkpoint."""
SLOW_RATIO = 1.5
"""A slow rank's own computing over the median of the others', over the last minute or 20 steps (`training.beats`). A
rank that slows all others down by half deserves attention; equal ranks that share a machine differ by less."""
SLOW_SECONDS = 0.005
"""A smaller difference is the host's own work."""


@dataclass(frozen=True)
class Judgement:
    """The verdict on one rank."""

    beat: Beat
    verdict: Verdict
    seconds: float = 0.0
    """How long this state has lasted."""
    why: str = ""
    """The reason, for the user; empty if all is well."""
    fix: str = ""

    @property
    def who(self) -> str:
        return f"rank {self.beat.rank} (process {self.beat.pid} on {self.beat.host})"

    def line(self) -> str:
        if self.beat.ended:
            return f"{self.who} ended with exit code {self.beat.exit}: {self.beat.message}"
        return f"{self.who} is {self.verdict}: {self.why}. {self.fix}" if self.why else f"{self.who}: {self.verdict}"


def judge(beats: Sequence[Beat], now: float, states: Mapping[int, State] | None = None) -> list[Judgement]:
    """A judgement for each of `beats`, which belong to one start. `now`: Unix seconds. `states`: from the kernel, of
    the processes of this machine by rank."""
    known = states or {}
    silent = {beat.rank for beat in beats if not beat.ended and now - beat.time > stale_after(beat)}
    by_file = [_by_file(beat, beats, silent, now, known.get(beat.rank)) for beat in beats]
    blamed = any(judgement and judgement.verdict in ("lost", "hung") for judgement in by_file)
    return [judgement or _by_contents(beat, beats, blamed) for beat, judgement in zip(beats, by_file, strict=True)]


def hung(beats: Sequence[Beat], now: float, states: Mapping[int, State] | None = None) -> int | None:
    """The rank that blocks the others, for a supervisor, which finds lost ranks by their exit codes; None if no rank
    hangs. `states` (`heartbeat.states_here`) distinguish files of an attempt that has just ended from the files of the
    next one."""
    return next((each.beat.rank for each in judge(beats, now, states) if each.verdict == "hung"), None)


def missing(beats: Sequence[Beat]) -> list[int]:
    """Ranks without a heartbeat in this start: they have not started yet, or their hosts do not see the folder."""
    return sorted(set(range(beats[0].world_size)) - {beat.rank for beat in beats}) if beats else []


def stale_after(beat: Beat) -> float:
    return max(STALE_SECONDS, STALE_BEATS * beat.every_seconds)


def _by_file(beat: Beat, beats: Sequence[Beat], silent: Set[int], now: float, state: State | None) -> Judgement | None:
    """Judges by the age of the file and by the kernel; None if neither shows a failure."""
    age = max(now - beat.time, 0.0)
    ago = f"no sign of life for {human_seconds(age)}"
    others = [other for other in beats if other is not beat]
    if beat.ended or (others and all(other.exit == 0 for other in others) and (state == "gone" or beat.rank in silent)):
        return Judgement(beat, "ended", age)  # the others trained to the end, so this rank did too
    if state == "gone":
        why = f"its process no longer exists, and left no exit code; {ago}"
        return Judgement(beat, "lost", age, why, "Look for SIGKILL or out of memory (`dmesg`), and start the run again")
    if state == "stopped" and age > STOPPED_BEATS * beat.every_seconds:
        why = f"stopped by a signal or a debugger (SIGSTOP) at step {beat.step:,}; {ago}"
        return Judgement(beat, "hung", age, why, f"`kill -CONT {beat.pid}`, or end it and start the run again")
    if beat.rank not in silent:
        return None
    heard = [other for other in others if not other.ended and other.rank not in silent]
    if any(other.stepped > beat.time + stale_after(beat) for other in heard):
        why = f"its file is {human_seconds(age)} old, but the others have made steps since, which need this rank"
        return Judgement(beat, "fine", age, why, f"The folder may be slow or full as {beat.host} sees it")
    if state is not None:
        why = f"its process exists, but stands still (a dead disk or driver); {ago}"
        return Judgement(
            beat, "hung", age, why, f"see where with `ps -o stat,wchan {beat.pid}`; end it, start the run again"
        )
    return _far_away(beat, others, silent, age, ago)


def _far_away(beat: Beat, others: Sequence[Beat], silent: Set[int], age: float, ago: str) -> Judgement:
    """Judges a silent rank on another machine."""
    again = f"Look at {beat.host}, and start the run again"
    if any(other.ended and other.reason == "lost" for other in others):
        return Judgement(beat, "lost", age, f"others ended because a process was gone; {ago}", again)
    beside = [other for other in others if other.host == beat.host and other.rank not in silent]
    if beside:
        why = f"other ranks on its host are alive; {ago}"
        return Judgement(beat, "hung", age, why, f"see where with `ps -o stat,wchan {beat.pid}` there; end it")
    if all(other.rank in silent or other.ended for other in others):
        fix = f"Look at {beat.host}; the clock of this machine may also be ahead. The same command continues the run"
        return Judgement(beat, "silent", age, ago, fix)
    return Judgement(beat, "lost", age, f"its host is silent: gone, or cut off; {ago}", again)


def _by_contents(beat: Beat, beats: Sequence[Beat], blamed: bool) -> Judgement:
    """Judges by the contents of a fresh file. `blamed`: another rank is known to block the run."""
    still, limit = beat.time - beat.moved, _limit(beat)
    others = [other for other in beats if other is not beat and not other.ended]
    if beat.doing == "waiting":
        waiting = all(other.doing == "waiting" for other in others) and others
        if waiting and not blamed and still > limit and all(o.time - o.moved > limit for o in others):
            why = f"all ranks wait for each other for {human_seconds(still)}"
            return Judgement(beat, "hung", still, why, "Look at the network between the hosts, and start the run again")
        return _by_speed(beat, others)
    if still <= limit:
        return _by_speed(beat, others)
    busy = any(other.doing in QUIET_SECONDS and other.time - other.moved <= _limit(other) for other in others)
    if (blamed or busy) and beat.doing != "computing":
        return Judgement(beat, "fine")  # it waits for that rank
    if others and (beat.doing == "step" or all(_stands(other) for other in others)):
        why = f"in step {beat.step:,} for {human_seconds(still)}, as all are; the engine cannot see whom they wait for"
        return Judgement(beat, "hung", still, why, "Look at the hosts' loads (`py-spy dump`), and start the run again")
    why = f"{beat.doing} at step {beat.step:,} for {human_seconds(still)}"
    if beat.seconds_per_step and beat.doing in ("computing", "step"):
        why += f", where a step takes {_short(beat.seconds_per_step)}"
    if any(other.doing == "waiting" for other in others):
        why += "; the others wait for it"
    fix = f"see where with `py-spy dump --pid {beat.pid}` on {beat.host}; end it, start the run again"
    return Judgement(beat, "hung", still, why, fix)


def _stands(beat: Beat) -> bool:
    """Whether the rank has stood still for too long, and does not wait for another one."""
    return beat.doing != "waiting" and beat.time - beat.moved > _limit(beat)


def _limit(beat: Beat) -> float:
    """Seconds that the main thread may stand still in its phase."""
    if beat.doing in QUIET_SECONDS:
        return QUIET_SECONDS[beat.doing]
    if beat.seconds_per_step is None:
        return QUIET_SECONDS["first step"]
    return max(HUNG_SECONDS, HUNG_STEPS * beat.seconds_per_step)


def _by_speed(beat: Beat, others: Sequence[Beat]) -> Judgement:
    busy = beat.busy_seconds_per_step
    of_others = [seconds for other in others if (seconds := other.busy_seconds_per_step) is not None]
    if busy is None or not of_others:
        return Judgement(beat, "fine")
    usual = median(of_others)
    if busy <= SLOW_RATIO * usual or busy - usual <= SLOW_SECONDS:
        return Judgement(beat, "fine")
    why = f"computes {_short(busy)} a step, the others {_short(usual)} ({busy / max(usual, 1e-9):.1f} times as long)"
    why += ", over the last minute or 20 steps"
    fix = f"Look at {beat.host}: heat, another process, a slower disk or card; all ranks wait for it"
    return Judgement(beat, "slow", 0.0, why, fix)


def _short(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
