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
"""After a process's death, for its launcher to begin again: processes, not machines, are started by then."""
KILLED = 1
"""Exit code for a run that ended without a word, as of a launcher whose process is killed every time."""


def show(run: str, lines: int | None, *, write: Show) -> int:
    """Raises `InputError` where there is no run."""
    found = look(run)
    content = Folder(run, reach=True).get(LOG)
    if content is None:
        say(f"{found.run}: no log yet ({found.state})")
        return 0
    given = content.decode(errors="replace").removesuffix("\n").split("\n") if content else []
    _emit(_last(given, lines), write)
    return 0


def follow(
    run: str,
    lines: int | None,
    *,
    write: Show,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Returns the run's exit code when it is over: at once where it was before."""
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
            found = _look(path, clock)
            code = exit_code(found)
            if code is not None:
                _emit(tail.read() + tail.rest(), write)
                if found:
                    say(f"{found.run}: {found.state}" + (f": {found.why}" if found.why else ""))
                return code
            note = _note(found)
            if note and note != said:
                say(f"{path}: {note}")
            said = note
        sleep(POLL_SECONDS)


def exit_code(found: RunReport | None) -> int | None:
    """The run's exit code. None while it goes on, or may be begun again by its launcher."""
    if found is None or not (found.over or found.state == "lost"):
        return None
    heard = max([found.status.heartbeat if found.status else 0.0, *(one.beat.time for one in found.ranks)])
    if found.restartable and found.time - heard < RESTART_SECONDS:
        return None
    if found.over:
        return int(found.status.exit or 0) if found.status else 0
    # A rank is lost, but others still say something: their end is near, and theirs is the code.
    return KILLED if all(one.verdict in ("lost", "ended", "silent") for one in found.ranks) else None


class Tail:
    """A text file's whole lines as they come; a file that was replaced or cut is read from its start again."""

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
                found = os.fstat(file.fileno())
                self.again = found.st_ino != self._inode or found.st_size < self._offset
                first, self._inode = self._inode is None, found.st_ino
                if self.again:
                    self._offset, self._partial = 0, b""
                file.seek(self._offset)
                content = file.read()
        except OSError:
            return []
        self._offset += len(content)
        whole, newline, self._partial = (self._partial + content).rpartition(b"\n")
        given = whole.decode(errors="replace").split("\n") if newline else []
        return _last(given, self._lines if first else None)

    def rest(self) -> list[str]:
        """At the end: what no newline followed."""
        partial, self._partial = self._partial, b""
        return [partial.decode(errors="replace")] if partial else []


def _last(given: list[str], lines: int | None) -> list[str]:
    return given if lines is None else given[max(len(given) - lines, 0) :]


def _look(run: str, clock: Callable[[], float]) -> RunReport | None:
    try:
        return look(run, clock=clock)
    except MaskwrightError:
        return None


def _note(found: RunReport | None) -> str:
    """What one who waits for lines should know; said when it changes."""
    if found is None:
        return "no run there yet: waiting for it to start (Ctrl-C ends this)"
    if found.restartable:
        return f"{found.state}; waiting {human_seconds(RESTART_SECONDS)} for its launcher to start it again"
    if found.state in ("hung", "lost", "silent", "never started"):
        return f"{found.state} (`maskwright status` says more)"
    return ""


def _emit(lines: list[str], write: Show) -> None:
    for line in lines:
        write(None, line)
