"""The heartbeat of each rank of a run: `RUN/processes/rank-00003.json`, replaced every few seconds.

Times are Unix seconds of that rank's own host. Only spans within one file and ages of some tens of seconds are
compared, so clocks may differ by less.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from maskwright.core import records, storage
from maskwright.core.folder import Folder, open_regular
from maskwright.core.pids import State, state_of, this_pid_space
from maskwright.core.secrets import redact

Doing = Literal["starting", "computing", "waiting", "step", "saving", "evaluating", "ended"]
FOLDER = "processes"


@dataclass(frozen=True)
class Beat:
    """One rank's file. Times are Unix seconds."""

    rank: int
    world_size: int
    host: str
    machine: str
    """The pid space in which `pid` is this process: see `this_pid_space`."""
    pid: int
    pid_started: int
    """See `pid_started`."""
    start: str
    """Id of this start of the run, the same in all ranks' files."""
    attempt: int
    started: float
    time: float
    every_seconds: float
    """Time between two writes."""
    step: int
    stepped: float
    """When the main thread last finished a step."""
    doing: str
    """`waiting`: for other ranks; `step`: the engine cannot distinguish waiting from computing."""
    since: float
    """When it began with `doing`."""
    moved: float
    """When the main thread last reported anything."""
    seconds_per_step: float | None = None
    """Mean over the last minute or 20 steps."""
    busy_seconds_per_step: float | None = None
    """Mean seconds of a step, without waiting for other ranks."""
    exit: int | None = None
    message: str = ""
    reason: str = ""
    """`StopReason` of a rank that stopped early."""

    @property
    def ended(self) -> bool:
        return self.doing == "ended"


def file_name(rank: int) -> str:
    return f"rank-{rank:05d}.json"


def rank_of(name: str) -> int | None:
    match = re.fullmatch(r"rank-(\d{5,})\.json", name)
    return int(match.group(1)) if match else None


def write_beat(folder: str, beat: Beat) -> None:
    """Writes a file into `folder`, which must exist. Raises `OSError`. There is no fsync, since a heartbeat is stale
    after seconds."""
    content = json.dumps({key: _short(value) for key, value in asdict(beat).items()})
    with storage.atomic_writer(os.path.join(folder, file_name(beat.rank)), sync=False) as file:
        file.write(content.encode())


def _short(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else redact(value) if isinstance(value, str) else value


def read_beats(run: Folder) -> list[Beat]:
    """The heartbeats of the newest start, by rank. A rank of an earlier start may have left its file, or still write
    it."""
    names = [name for name in run.names(FOLDER) if rank_of(name) is not None]
    beats = [beat for name in names if (beat := records.read(Beat, run.get(f"{FOLDER}/{name}")))]
    if not beats:
        return []
    # Rank 0 writes first in each start, and is the only rank that every start has.
    newest = next((beat for beat in beats if beat.rank == 0), max(beats, key=lambda beat: beat.started))
    same = [beat for beat in beats if beat.start == newest.start and beat.rank < newest.world_size]
    return sorted(same, key=lambda beat: beat.rank)


def read_local(path: str) -> bytes | None:
    try:
        with open_regular(path) as file:
            return file.read()
    except OSError:
        return None


def states_here(beats: Iterable[Beat]) -> dict[int, State]:
    """States of the ranks that are processes of this pid space, by rank."""
    here = this_pid_space()
    return {beat.rank: state_of(beat.pid, beat.pid_started) for beat in beats if beat.machine == here}
