"""The sign of life of each process of a run: `RUN/processes/rank-00003.json`, overwritten whole every few seconds.

Times are Unix seconds of that process's own host. What is compared are spans within one file, and ages of some tens of
seconds: clocks that differ by less do no harm.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from maskwright.core.secrets import redact
from maskwright.run.lease import this_machine

Doing = Literal["starting", "computing", "waiting", "step", "saving", "evaluating", "ended"]
State = Literal["alive", "stopped", "gone"]
FOLDER = "processes"


@dataclass(frozen=True)
class Beat:
    """`start` is the same in all files of one start of the run and differs between two; `every_seconds` lie between two
    writes. `doing` since `since`; `moved` is when the main thread last told anything, and `stepped` when it last
    finished a step. `waiting` is for the other processes; `step` is said where an engine cannot tell the two apart.
    Per step, over the last minute or 20 steps: `seconds_per_step` in all, `busy_seconds_per_step` without waiting.
    At the end: `exit`, `message` and, where it stopped early, `reason` (`StopReason`)."""

    rank: int
    world_size: int
    host: str
    machine: str
    pid: int
    pid_started: int
    start: str
    attempt: int
    started: float
    time: float
    every_seconds: float
    step: int
    stepped: float
    doing: str
    since: float
    moved: float
    seconds_per_step: float | None = None
    busy_seconds_per_step: float | None = None
    exit: int | None = None
    message: str = ""
    reason: str = ""

    @property
    def ended(self) -> bool:
        return self.doing == "ended"


def file_name(rank: int) -> str:
    return f"rank-{rank:05d}.json"


def rank_of(name: str) -> int | None:
    match = re.fullmatch(r"rank-(\d{5,})\.json", name)
    return int(match.group(1)) if match else None


def write_beat(folder: str, beat: Beat) -> None:
    """Raises `OSError`. No fsync: it is old after seconds. Nor is the folder made: where it is not, nobody reads."""
    path = os.path.join(folder, file_name(beat.rank))
    temporary = f"{path}.tmp-{os.getpid()}"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump({key: _short(value) for key, value in asdict(beat).items()}, file)
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _short(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else redact(value) if isinstance(value, str) else value


def parse_beat(content: bytes | None) -> Beat | None:
    """None for what is no such file, or a broken one: it is only ever a hint."""
    try:
        values = json.loads(content or b"")
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict):
        return None
    kinds = {
        "int": (int,),
        "float": (int, float),
        "str": (str,),
        "float | None": (int, float, type(None)),
        "int | None": (int, type(None)),
    }
    given: dict[str, Any] = {}
    for field in fields(Beat):
        value = values.get(field.name)
        if isinstance(value, bool) or not isinstance(value, kinds[str(field.type)]):
            return None
        given[field.name] = value
    return Beat(**given)


def read_beats(names: Iterable[str], read: Callable[[str], bytes | None]) -> list[Beat]:
    """Of the newest start alone, by rank: a process of an earlier one may have left its file, or still write it. `read`
    gives a file's content, None where there is none."""
    found = [beat for name in names if rank_of(name) is not None and (beat := parse_beat(read(name)))]
    if not found:
        return []
    # Process 0 is there first in each start, and alone in all of them.
    newest = next((beat for beat in found if beat.rank == 0), max(found, key=lambda beat: beat.started))
    same = [beat for beat in found if beat.start == newest.start and beat.rank < newest.world_size]
    return sorted(same, key=lambda beat: beat.rank)


def read_local(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


def local_beats(run: str) -> list[Beat]:
    """Of a run directory on this file system."""
    folder = os.path.join(run, FOLDER)
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return read_beats(names, lambda name: read_local(os.path.join(folder, name)))


# ---- processes of this machine --------------------------------------------------------------------------------------


def this_pid_space() -> str:
    """Where a pid means the same process: this machine since it was started and, in a container, that container."""
    with suppress(OSError):
        return f"{this_machine()} {os.readlink('/proc/self/ns/pid')}"
    return this_machine()


def pid_started(pid: int) -> int:
    """Clock ticks since the machine was started, to know a pid that was given again; 0 where /proc does not say."""
    found = _stat(pid)
    return int(found[19]) if found else 0


def state_of(pid: int, started: int) -> State:
    """Of a process of this pid space; `stopped` is by SIGSTOP, SIGTSTP or a debugger."""
    found = _stat(pid)
    if found is None:
        if os.path.exists("/proc/self/stat"):
            return "gone"
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return "gone"
        except OSError:
            pass
        return "alive"
    if found[0] in "ZX" or (started and int(found[19]) != started):
        return "gone"
    return "stopped" if found[0] in "Tt" else "alive"


def states_here(beats: Iterable[Beat]) -> dict[int, State]:
    """By rank, of those that are processes of this pid space."""
    here = this_pid_space()
    return {beat.rank: state_of(beat.pid, beat.pid_started) for beat in beats if beat.machine == here}


def _stat(pid: int) -> list[str] | None:
    """From the process's state on; its name before may hold anything."""
    content = read_local(f"/proc/{pid}/stat")
    return content.decode(errors="replace").rpartition(")")[2].split() if content else None
