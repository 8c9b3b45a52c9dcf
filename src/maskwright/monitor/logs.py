"""`maskwright logs`: a run's log.txt, also as it grows, over restarts of the run, until the run is over."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from maskwright.core.console import Show, human_seconds, say
from maskwright.core.errors import InputError, MaskwrightError
from maskwright.core.folder import Folder
from maskwright.monitor.status import RunReport, look

LOG = "log.txt"
POLL_SECONDS = 0.5
LOOK_SECONDS = 2.0
RESTART_SECONDS = 60.0
"""How long a launcher has to restart a run whose process died: enough to start processes, not machines."""
KILLED = 1
"""Exit code for a run that died without recording its end, as a launcher returns whose process is always killed."""


def show(run: str, lines: int | None, *, write: Show) -> int:
    """Writes the last `lines` of the log, or all. Raises `InputError` where there is no run."""
    report = look(run)
    content = Folder(run, reach=True).get(LOG)
    if content is None:
        say(f"{report.run}: no log yet ({report.state})")
        return 0
    log_lines = content.decode(errors="replace").removesuffix("\n").split("\n") if content else []
    _emit(_last(log_lines, lines), write)
    return 0


def follow(
    run: str,
    lines: int | None,
    *,
    write: Show,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Writes the log's lines as they come. Returns the run's exit code when it is over, at once if it already is."""
    path = Folder(run).path
    if path is None:
        fix = "follow it where the folder is; `maskwright logs` without --follow shows what there is"
        raise InputError("cannot be followed at a URL", where=run, fix=fix)
    tail, said = Tail(os.path.join(path, LOG), lines), ""
    looked = float("-inf")
    while True:
        _emit(tail.read(), write)
        if clock() - looked >= LOOK_SECONDS:
            looked = clock()
            report = _look(path, clock)
            code = exit_code(report)
            if code is not None:
                _emit(tail.read() + tail.rest(), write)
                if report:
                    say(f"{report.run}: {report.state}" + (f": {report.why}" if report.why else ""))
                return code
            note = _note(report)
            if note and note != said:
                say(f"{path}: {note}")
            said = note
        sleep(POLL_SECONDS)


def exit_code(report: RunReport | None) -> int | None:
    """The run's exit code; None while it goes on or its launcher may restart it."""
    if report is None or not (report.over or report.state == "lost"):
        return None
    heard = max([report.status.heartbeat if report.status else 0.0, *(rank.beat.time for rank in report.ranks)])
    if report.restartable and report.time - heard < RESTART_SECONDS:
        return None
    if report.over:
        return int(report.status.exit or 0) if report.status else 0
    # A rank is lost, but others still report: they will end soon, and their exit code counts.
    return KILLED if all(rank.verdict in ("lost", "ended", "silent") for rank in report.ranks) else None


class Tail:
    """Reads a text file's whole lines as they come; starts over when the file was replaced or cut."""

    def __init__(self, path: str, lines: int | None) -> None:
        self._path, self._lines = path, lines
        self._inode: int | None = None
        self._offset, self._partial = 0, b""
        self.again = False
        """Whether the last `read` began at the file's start."""

    def read(self) -> list[str]:
        self.again = False
        try:
            with open(self._path, "rb") as file:
                file_status = os.fstat(file.fileno())
                self.again = file_status.st_ino != self._inode or file_status.st_size < self._offset
                first, self._inode = self._inode is None, file_status.st_ino
                if self.again:
                    self._offset, self._partial = 0, b""
                file.seek(self._offset)
                content = file.read()
        except OSError:
            return []
        self._offset += len(content)
        whole, newline, self._partial = (self._partial + content).rpartition(b"\n")
        log_lines = whole.decode(errors="replace").split("\n") if newline else []
        return _last(log_lines, self._lines if first else None)

    def rest(self) -> list[str]:
        """The text after the last newline, once the run has ended."""
        partial, self._partial = self._partial, b""
        return [partial.decode(errors="replace")] if partial else []


def _last(lines: list[str], count: int | None) -> list[str]:
    return lines if count is None else lines[max(len(lines) - count, 0) :]


def _look(run: str, clock: Callable[[], float]) -> RunReport | None:
    try:
        return look(run, clock=clock)
    except MaskwrightError:
        return None


def _note(report: RunReport | None) -> str:
    """The run's state for a user who waits for lines; shown when it changes."""
    if report is None:
        return "no run there yet: waiting for it to start (Ctrl-C ends this)"
    if report.restartable:
        return f"{report.state}; waiting {human_seconds(RESTART_SECONDS)} for its launcher to start it again"
    if report.state in ("hung", "lost", "silent", "never started"):
        return f"{report.state} (`maskwright status` says more)"
    return ""


def _emit(lines: list[str], write: Show) -> None:
    for line in lines:
        write(None, line)
