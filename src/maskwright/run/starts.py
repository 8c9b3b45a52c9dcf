"""`starts.json`: how often a run has started since its last own end, and the moments at which its limits end it.

Engines (Kubernetes, SLURM, Ray, Vertex AI) start a run again after each 75, without an end of their own. So the run
counts starts, and ends with 1 after `MOST_STARTS` without a newer checkpoint. A limit is a moment, which a restart
keeps. An end with a code other than 75 removes the file, so that the same command begins again.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace

from maskwright.core import records, storage
from maskwright.core.errors import EndedAsAsked, Locked, MaskwrightError, StoppedEarly
from maskwright.core.folder import Folder
from maskwright.core.lease import Lease, leased
from maskwright.run.directory import RunDirectory
from maskwright.run.heartbeat import read_local

STARTS = "starts.json"
MOST_STARTS = 6
"""Starts in a row without a newer checkpoint. A run that needs more can save more often."""


@dataclass(frozen=True)
class Starts:
    """The starts of a run since it last ended by itself, this one included."""

    starts: int = 1
    without_checkpoint: int = 1
    """Starts in a row, this one included, since the newest checkpoint was saved."""
    step: int = 0
    """Step of the newest checkpoint at the beginning of this start."""
    time: float = 0.0
    """Unix seconds at which it began."""
    stop_after_hours: float | None = None
    """The option, as it was given when `stop_at` was set."""
    stop_at: float | None = None
    """Unix seconds."""
    stop_after_steps: int | None = None
    stop_at_step: int | None = None

    def next(self, step: int, hours: float | None, steps: int | None, now: float) -> Starts:
        """The record of the start after this one. `step`: of the newest checkpoint; `hours` and `steps`: its limits. A
        limit with another value than before counts from now."""
        new = first(step, hours, steps, now)
        in_a_row = 1 + self.without_checkpoint * (step == self.step)
        stop_at = new.stop_at
        if hours == self.stop_after_hours and self.stop_at and new.stop_at:
            stop_at = min(self.stop_at, new.stop_at)  # a later moment means that the clock was set back
        stop_at_step = self.stop_at_step if steps == self.stop_after_steps else new.stop_at_step
        counts = {"starts": self.starts + 1, "without_checkpoint": in_a_row}
        return replace(new, **counts, stop_at=stop_at, stop_at_step=stop_at_step)


def first(step: int, hours: float | None, steps: int | None, now: float) -> Starts:
    stop_at = None if hours is None else now + 3600.0 * hours
    return Starts(1, 1, step, now, hours, stop_at, steps, None if steps is None else step + steps)


class StartsFile:
    """The record in the run directory and, for a run whose machine may be lost with its disk, next to its copies."""

    def __init__(self, directory: RunDirectory, copies: Folder | None = None) -> None:
        self._directory, self._copies = directory, copies
        self._held = False

    def read(self) -> Starts | None:
        """The record of the last start. Of two, the later, since the run may have continued elsewhere."""
        contents = [read_local(self._directory.path(STARTS))]
        if self._copies is not None:
            contents.append(self._copies.get(STARTS))
        found = [record for content in contents if (record := records.read(Starts, content)) is not None]
        return max(found, key=lambda record: record.time, default=None)

    def following(self, hours: float | None, steps: int | None) -> Starts:
        step, now, last = self._directory.newest_step(), time.time(), self.read()
        return last.next(step, hours, steps, now) if last else first(step, hours, steps, now)

    def require(self, start: Starts) -> None:
        """Raises `EndedAsAsked` for a limit that is over, and `MaskwrightError` (1) for one start too many without a
        checkpoint. Both remove the record, so that the same command begins again."""
        error: MaskwrightError
        if start.starts > 1 and start.stop_at is not None and start.stop_at <= start.time:
            moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(start.stop_at))
            what = f"--stop-after-hours {start.stop_after_hours:g} was over at {moment}"
            error = EndedAsAsked(f"{what}; the same command gives the run as many hours again", reason="limit")
        elif start.without_checkpoint > MOST_STARTS:
            what = f"{MOST_STARTS} starts in a row have brought no checkpoint newer than step {start.step:,}"
            fix = "read in log.txt how they ended, or save more often (checkpoint.save_every_seconds), then start again"
            error = MaskwrightError(what, where=self._directory.location, fix=fix)
        else:
            return
        with leased(self._directory.location):
            self.remove()
            if status := self._directory.read_status():  # for `status`, and the code of `logs --follow`
                status.phase = "stopped" if isinstance(error, EndedAsAsked) else "failed"
                status.message, status.exit, status.reason = str(error), error.exit_code, getattr(error, "reason", "")
                self._directory.write_status(status)
        raise error

    def end_of(self, start: Starts, error: BaseException) -> None:
        """Notes the end of a start that may not have reached `holding`. An interruption (75) counts there too, and
        raises as `require` does. Another end removes the record; a refused first start leaves none."""
        again = _starts_again(error)
        if self._held or isinstance(error, Locked):
            return
        if again:
            self.require(start)
        if again or self.read() is not None:
            with suppress(Locked), leased(self._directory.location):  # another process may train
                self.write(start) if again else self.remove()

    @contextmanager
    def holding(self, start: Starts, lease: Lease) -> Iterator[None]:
        """Writes the record; inside, the run trains. Removes the record at an end that is final."""
        self._held = True
        self.write(start)
        try:
            yield
        except BaseException as error:
            if not _starts_again(error) and not lease.lost:
                self.remove()
            raise
        self.remove()

    def write(self, start: Starts) -> None:
        content = json.dumps(asdict(start), indent=1).encode()
        with storage.atomic_writer(self._directory.path(STARTS)) as file:
            file.write(content)
        if self._copies is not None:
            self._copies.put(STARTS, content)

    def remove(self) -> None:
        with suppress(OSError):
            os.unlink(self._directory.path(STARTS))
        if self._copies is not None:
            with suppress(MaskwrightError):
                self._copies.remove(STARTS)


def _starts_again(error: BaseException) -> bool:
    return isinstance(error, StoppedEarly) and not isinstance(error, EndedAsAsked)
