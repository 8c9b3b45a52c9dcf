"""`maskwright status`: the state of a run, read from its run directory, as a report or as JSON.

It is the same for every launcher, since it comes from files that the run's own processes write.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from maskwright.core import records
from maskwright.core.console import human_count, human_seconds
from maskwright.core.errors import EndedAsAsked, InputError, stopped
from maskwright.core.folder import Folder
from maskwright.core.lease import WATCH_SECONDS
from maskwright.core.pids import State, state_of, this_pid_space
from maskwright.run.directory import MANIFEST, Status, step_folder, whole_steps
from maskwright.run.heartbeat import Beat, read_beats, states_here
from maskwright.run.liveness import Judgement, judge, missing
from maskwright.run.record import CONFIG, BeganFrom, RecordedChange, RunRecord, describe, parse
from maskwright.run.starts import MOST_STARTS, STARTS, Starts

Whole = Literal[
    "never started", "starting", "running", "hung", "lost", "silent", "done", "stopped", "failed", "only checkpoints"
]
OVER: dict[str, Whole] = {"done": "done", "stopped": "stopped", "failed": "failed"}
INTERRUPTED = "interrupted"
SILENT_SECONDS = 120.0
"""Without other signs, a run counts as running while `status.json` is younger than this, since a step may be slow."""
CONTINUES = "the same command continues it"
BEGINS = "the same command begins it again, since it has no checkpoint"
SIGNS = (CONFIG, "status.json", "log.txt", "lock", "checkpoints")
"""Names that mark a run directory from its first second on."""
MOST_CHANGES = 5
"""Last changes in the report; JSON has all."""
MOST_LINES = 20
"""Lines about ranks in the report; JSON has all."""


@dataclass(frozen=True)
class NewestCheckpoint:
    step: int
    saved: float | None
    """Unix seconds, if the file system records them."""
    of: int | None = None
    """Steps of the whole run, if only the checkpoint records them."""


@dataclass(frozen=True)
class RunReport:
    """The state of a run, from its run directory."""

    run: str
    state: Whole
    why: str
    """Explains `state`."""
    fix: str
    time: float
    status: Status | None
    checkpoint: NewestCheckpoint | None
    ranks: list[Judgement] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    held_by: int | None = None
    """The process of this machine that holds the folder now."""
    changes: tuple[RecordedChange, ...] = ()
    """Changes to the configuration between starts."""
    began_from: BeganFrom = None
    """The model folder, or the run's checkpoint, whose weights it began with."""
    starts: Starts | None = None
    """The starts since the run last ended by itself, and its limits."""

    @property
    def over(self) -> bool:
        return self.state in OVER

    @property
    def restartable(self) -> bool:
        """Whether it was interrupted, after which an engine starts it again."""
        return self.state == "lost" or self.ending == INTERRUPTED

    @property
    def ending(self) -> str:
        """How a stopped run ended; empty for any other."""
        return _ending(self.status.exit) if self.status and self.state == "stopped" else ""

    def to_json(self) -> dict[str, Any]:
        """Its fields; each rank has its heartbeat's fields as well as its verdict."""
        fields = asdict(self)
        for rank in fields["ranks"]:
            beat = rank.pop("beat")
            rank |= {**beat, "age_seconds": round(self.time - beat["time"], 3)}
        return fields

    def report(self) -> str:
        lines = [f"{self.run}: {self.state}" + (f": {self.why}" if self.why else "")]
        if self.fix:
            lines.append(f"  to do: {self.fix}")
        if self.status:
            lines += _progress(self.status, self.time, self.over)
        if self.checkpoint:
            saved = self.checkpoint.saved
            age = f", saved {human_seconds(max(self.time - saved, 0.0))} ago" if saved else ""
            of = f" of {self.checkpoint.of:,}" if self.checkpoint.of else ""
            lines.append(f"  last checkpoint: step {self.checkpoint.step:,}{of}{age}")
        elif self.state != "never started":
            lines.append("  last checkpoint: none yet")
        lines += [f"  {line}" for line in [*self.limits(), *describe(self.began_from)]]
        for change in self.changes[-MOST_CHANGES:]:
            lines.append(f"  changed at step {change.step}: {', '.join(change.keys)}")
        return "\n".join([*lines, *self._ranks()])

    def limits(self) -> list[str]:
        """The ends that limits set to a run that is not finally over, in words."""
        starts, lines = self.starts, list[str]()
        if starts is None:
            return lines
        if starts.stop_at is not None:
            moment = time.strftime("%Y-%m-%d %H:%M", time.localtime(starts.stop_at))
            lines.append(f"stops at {moment} (--stop-after-hours {starts.stop_after_hours:g})")
        if starts.stop_at_step is not None:
            lines.append(f"stops at step {starts.stop_at_step:,} (--stop-after-steps {starts.stop_after_steps})")
        if starts.without_checkpoint > 1:
            count = f"start {starts.without_checkpoint} of {MOST_STARTS}"
            lines.append(f"{count} without a newer checkpoint than step {starts.step:,}")
        return lines

    def _ranks(self) -> list[str]:
        if not self.ranks:
            return []
        size, hosts = self.ranks[0].beat.world_size, sorted({rank.beat.host for rank in self.ranks})
        counts = Counter(rank.verdict for rank in self.ranks)
        counted = ", ".join(f"{number} {verdict}" for verdict, number in counts.most_common())
        shown = ", ".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "")
        lines = [f"  ranks: {counted} of {size} on {shown}"]
        if self.missing:
            named = ", ".join(map(str, self.missing[:8])) + (" …" if len(self.missing) > 8 else "")
            lines.append(f"  no word from rank {named}: not begun yet, or on hosts that do not see the folder")
        telling = [rank for rank in self.ranks if rank.why]
        telling += [rank for rank in self.ranks if rank.beat.ended and rank.beat.exit and not stopped(rank.beat.exit)]
        lines += [f"  {rank.line()}" for rank in telling[:MOST_LINES]]
        return lines + ([f"  … and {len(telling) - MOST_LINES} more (--json)"] if len(telling) > MOST_LINES else [])


BUSY = {"cpu_share": "CPU", "memory_share": "memory", "gpu_share": "GPU", "gpu_memory_share": "GPU memory"}


def _progress(status: Status, now: float, over: bool) -> list[str]:
    share = f" ({status.step / status.of:.1%})" if status.of else ""
    words = [f"step {status.step:,} of {status.of:,}{share}"]
    if status.loss is not None:
        words.append(f"loss {status.loss:.4f}")
    if status.tokens_per_second is not None and not over:
        words.append(f"{human_count(status.tokens_per_second)} tokens/s")
        words += [f"{status.examples_per_second:,.0f} examples/s"] if status.examples_per_second else []
    if status.eta_seconds is not None and not over:
        words.append(f"ETA {human_seconds(status.eta_seconds)}")
    age = human_seconds(max(now - status.heartbeat, 0.0))
    who = f"attempt {status.attempt} on {status.host}, process {status.pid}; last heartbeat {age} ago"
    lines = ["  " + ", ".join(words), f"  {who}"]
    if status.busy and not over:
        shares = {name: status.busy[key] for key, name in BUSY.items() if key in status.busy}
        lines.append("  in use: " + ", ".join(f"{name} {share:.0%}" for name, share in shares.items()))
    if status.skipped_updates:
        lines.append(f"  fp16: {status.skipped_updates:,} updates overflowed and were skipped")
    return lines


# ---- reading ---------------------------------------------------------------------------------------------------------


def look(location: str, *, clock: Callable[[], float] = time.time) -> RunReport:
    """Reads the state of the run at a path or URL. Raises `InputError` without a run."""
    folder = Folder(location, reach=True)
    names = folder.names()
    checkpoint = newest_checkpoint(folder, "checkpoints" in names)
    if not set(SIGNS) & set(names) and checkpoint is None:
        what = "is not a run directory" if names else "is not there, or is empty"
        fix = "give the folder that `maskwright pretrain … --run` writes, as this machine sees it"
        raise InputError(what, where=folder.location, fix=fix)
    beats, states = _beats(folder)
    status = records.read(Status, folder.get("status.json"))
    held_by = _holder(folder)
    now = clock()
    ranks = judge(beats, now, states)
    state, why, fix = whole(status, ranks, held_by, now, checkpoint is not None)
    record = read_record(folder)
    absent = missing(beats) if state in ("running", "hung", "lost") else []
    if state == "only checkpoints" and checkpoint:
        beside = read_record(folder, f"{step_folder(checkpoint.step)}/")
        checkpoint, record = replace(checkpoint, of=beside.steps if beside else None), record or beside
    return RunReport(
        folder.location,
        state,
        why,
        fix,
        now,
        status,
        checkpoint,
        ranks,
        absent,
        held_by,
        record.changes if record else (),
        record.began_from if record else None,
        records.read(Starts, folder.get(STARTS)),
    )


def read_record(folder: Folder, inside: str = "") -> RunRecord | None:
    """The record of a run; None if this version cannot read one, since the rest of the folder is shown."""
    try:
        return parse(folder.get_json(inside + CONFIG), folder.location)
    except InputError:
        return None


def whole(
    status: Status | None, ranks: list[Judgement], held_by: int | None, now: float, saved: bool
) -> tuple[Whole, str, str]:
    """(state of the run, reason, fix)."""
    first = ranks[0] if ranks and ranks[0].beat.rank == 0 else None
    newer = first is not None and not first.beat.ended and (status is None or first.beat.started > status.heartbeat)
    if newer and first and first.verdict == "fine":
        return "starting", f"process {first.beat.pid} on {first.beat.host} is starting", ""
    over = status is None or status.phase in OVER
    if held_by is not None and over and (status is None or held_by != status.pid):
        return "starting", f"process {held_by} holds the folder", ""
    if status is None:
        if saved:
            return "only checkpoints", "", "a copy for `pretrain` to continue from: checkpoint.copy_to in its config"
        return "never started", "no process has reached its first step here", "start it, or read its output"
    if status.phase in OVER:
        fixed = f"read log.txt and the rank's own output; when it is fixed, {_again(status, saved)}"
        fix = fixed if status.phase == "failed" else ""  # a stop itself names the effect of the same command
        code = f" (exit {status.exit})" if status.exit else ""
        why = status.message + code
        if status.phase == "stopped" and (how := _ending(status.exit)):
            why = f"{how}{code}" + (f": {status.message}" if status.message else "")
        return OVER[status.phase], why, fix
    return _going_on(status, ranks, held_by, now, _again(status, saved))


def _ending(code: int | None) -> str:
    kind = stopped(code)
    return "" if kind is None else "as asked" if kind is EndedAsAsked else INTERRUPTED


def _again(status: Status, saved: bool) -> str:
    """Says whether the run's command would continue it or begin again. `saved`: whether a checkpoint is here;
    `checkpoint.copy_to` may hold one elsewhere."""
    return CONTINUES if saved or status.saved else BEGINS


def _going_on(
    status: Status, ranks: list[Judgement], held_by: int | None, now: float, again: str
) -> tuple[Whole, str, str]:
    """Judges a run that has not recorded its end."""
    for verdict in ("lost", "hung"):
        affected = [rank for rank in ranks if rank.verdict == verdict]
        if affected:
            named = ", ".join(str(rank.beat.rank) for rank in affected[:8]) + (" …" if len(affected) > 8 else "")
            over = verdict == "lost" and all(rank.verdict in ("lost", "ended") for rank in ranks)
            return ("lost" if verdict == "lost" else "hung"), f"rank {named}", again if over else ""
    silent = now - status.heartbeat
    heard = any(rank.verdict in ("fine", "slow") for rank in ranks)
    if not heard if ranks else silent > SILENT_SECONDS:
        held = f", process {held_by} holds the folder" if held_by is not None else ""
        why = f"no sign of life for {human_seconds(silent)}{held}"
        return "silent", why, f"look at {status.host}; if nothing runs there, {again}"
    slow = [f"rank {rank.beat.rank}" for rank in ranks if rank.verdict == "slow"]
    return "running", f"{status.phase}" + (f", {', '.join(slow)} slow" if slow else ""), ""


def _beats(folder: Folder) -> tuple[list[Beat], dict[int, State]]:
    beats = read_beats(folder)
    states = states_here(beats)
    if "gone" in states.values():  # a rank that has just ended may have recorded it since its file was read
        beats = read_beats(folder)
    return beats, states


def _holder(folder: Folder) -> int | None:
    """The live holder's pid. Read from the lease: trying the lock could block a starting run."""
    pid = _pid_here(folder.get_json("lease.json"))
    return None if pid is None or state_of(pid, 0) == "gone" else pid


def is_held(run: str, now: float) -> bool:
    """Whether the lease shows a holder: a live process of this machine, or one elsewhere that still renews it."""
    folder = Folder(run)
    if _pid_here(folder.get_json("lease.json")) is not None:
        return _holder(folder) is not None
    beaten = folder.modified("lease.json")
    return beaten is not None and now - beaten < WATCH_SECONDS


def _pid_here(lease: dict[str, Any] | None) -> int | None:
    """The holder's pid, if it is in this process's own pid space."""
    pid = (lease or {}).get("pid")
    return pid if isinstance(pid, int) and (lease or {}).get("pid_space") == this_pid_space() else None


def newest_checkpoint(folder: Folder, in_a_run: bool) -> NewestCheckpoint | None:
    """The last whole checkpoint: in `checkpoints/` of a run, directly in a folder of copies (checkpoint.copy_to)."""
    inside = "checkpoints/" if in_a_run else ""
    steps = whole_steps(folder, inside)
    if not steps:
        return None
    return NewestCheckpoint(steps[-1], folder.modified(f"{inside}{step_folder(steps[-1])}/{MANIFEST}"))
