"""`maskwright stop`: leaves a request in a run's folder, and waits until it is met."""

from __future__ import annotations

import time
from collections.abc import Callable

from maskwright.core.errors import InputError, MaskwrightError
from maskwright.monitor.status import OVER, SILENT_SECONDS
from maskwright.run.directory import Request, RunDirectory, Status


def stop(
    directory: RunDirectory,
    request: Request,
    wait_seconds: float,
    *,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """What became of the request, in one line. Raises `InputError` if nothing runs there, and `MaskwrightError` if the
    run does not answer in time; the request is then taken back."""
    saved_before = directory.newest_step()
    _require_running(directory, clock())
    directory.leave_request(request)
    until = clock() + wait_seconds
    while clock() < until:
        status, saved = directory.read_status() or Status(), directory.newest_step()
        if request == "checkpoint" and saved > saved_before:
            return f"{directory.location}: saved step {saved:,}, going on"
        if status.phase in OVER:
            directory.take_request()
            return f"{directory.location}: {status.phase} at step {status.step:,}"
        sleep(0.2)
    directory.take_request()
    raise MaskwrightError(
        f"did not answer within {wait_seconds:g} seconds",
        where=directory.location,
        fix="`maskwright status` says how it is; or give --wait-seconds more",
    )


def _require_running(directory: RunDirectory, now: float) -> None:
    directory.require()
    status = directory.read_status()
    if status is None or status.phase in OVER:
        found = f"{status.phase} at step {status.step:,}" if status else "nothing has run there yet"
        raise InputError(f"is not running ({found})", where=directory.location, fix="there is nothing to stop")
    silent = now - status.heartbeat
    if silent > SILENT_SECONDS and not directory.is_locked():
        raise InputError(
            f"is not running: its last sign of life is {silent:,.0f} seconds old, and nothing holds its lock",
            where=directory.location,
            fix="the command that started it continues it",
        )
