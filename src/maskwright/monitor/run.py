"""A run directory as a target of `status`, `logs` and `stop`: the folder suffices for runs from any launcher."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import ClassVar

from maskwright.core.console import Show
from maskwright.core.errors import INTERRUPTED, InputError, MaskwrightError, StoppedEarly
from maskwright.monitor import logs, status
from maskwright.monitor.status import OVER, SILENT_SECONDS, is_held
from maskwright.run.directory import SEARCH, Request, RunDirectory, Status


@dataclass(frozen=True)
class RunFolder:
    location: str
    """A path; a URL too, except for `stop`."""

    takes: ClassVar[frozenset[str]] = frozenset({"--lines", "--checkpoint"})

    def status(self) -> status.RunReport:
        return status.look(self.location)

    def logs(self, *, follow: bool, lines: int | None, show: Show) -> int:
        try:
            return (logs.follow if follow else logs.show)(self.location, lines, write=show)
        except StoppedEarly:
            return INTERRUPTED

    def stop(self, *, checkpoint: bool, wait_seconds: float) -> str:
        return stop(RunDirectory(self.location), "checkpoint" if checkpoint else "stop", wait_seconds)


def stop(directory: RunDirectory, request: Request, wait_seconds: float) -> str:
    """Requests a stop or a checkpoint and returns the outcome in one line. Raises `InputError` if nothing runs there,
    and `MaskwrightError` if the run does not answer in time. The request then stays, since a step or an evaluation may
    take longer. Ctrl-C deletes it."""
    saved_before = directory.newest_step()
    heard_before = _require_running(directory, time.time()).heartbeat
    try:
        directory.leave_request(request)
        said = _answer(directory, request, saved_before, heard_before, wait_seconds)
    except BaseException:
        directory.take_request()
        raise
    if said:
        return said
    fix = "wait, since the request stays until the run's next step; see `maskwright status`"
    raise MaskwrightError(f"did not answer within {wait_seconds:g} seconds", where=directory.location, fix=fix)


def _answer(
    directory: RunDirectory, request: Request, saved_before: int, heard_before: float, wait_seconds: float
) -> str:
    """Polls for the outcome; empty if none came in time. `heard_before`: the heartbeat of the earlier status, which may
    be the last of an earlier start."""
    until = time.time() + wait_seconds
    while time.time() < until:
        status, saved = directory.read_status() or Status(), directory.newest_step()
        if request == "checkpoint" and saved > saved_before:
            return f"{directory.location}: saved step {saved:,}, and continues"
        if status.phase in OVER and (status.heartbeat != heard_before or not is_held(directory.location, time.time())):
            directory.take_request()
            return f"{directory.location}: {status.phase} at step {status.step:,}"
        time.sleep(0.2)
    return ""


def _require_running(directory: RunDirectory, now: float) -> Status:
    """Its status; a new one if a process holds the folder but has not written one yet."""
    if os.path.exists(directory.path(SEARCH)):
        what = "is a training for search, which accepts no requests"
        raise InputError(what, where=directory.location, fix="end it with Ctrl-C in its terminal")
    directory.require()
    status = directory.read_status()
    if is_held(directory.location, now):  # even by a start that continues a run whose status still shows its end
        return status or Status()
    if status is None or status.phase in OVER:
        state = f"{status.phase} at step {status.step:,}" if status else "nothing has run there yet"
        raise InputError(f"is not running ({state})", where=directory.location, fix="there is nothing to stop")
    silent = now - status.heartbeat
    if silent > SILENT_SECONDS:
        what = f"is not running: its last sign of life is {silent:,.0f} seconds old, and no process holds it"
        raise InputError(what, where=directory.location, fix="continue it with the command that started it")
    return status
