"""`maskwright logs`: a run's log.txt, also as it grows, over restarts of the run, until the run is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from maskwright.core.console import Show, human_seconds, say
from maskwright.core.errors import InputError, MaskwrightError
from maskwright.core.folder import Folder
from maskwright.monitor.status import RunReport, look
from maskwright.run.grown import Grown, last_lines

LOG = "log.txt"
POLL_SECONDS = 0.5
LOOK_SECONDS = 2.0
RESTART_SECONDS = 60.0
"""Time for a launcher to restart a run whose process died: enough to start processes, not machines."""
KILLED = 1
"""Exit code for a run that died without recording its end, like a launcher's whose process is always killed."""


def show(run: str, lines: int | None, *, write: Show) -> int:
    """Writes the last `lines` of the log, or all. Raises `InputError` without a run."""
    report, folder = look(run), Folder(run, reach=True)
    if folder.size(LOG) is None:
        say(f"{report.run}: no log yet ({report.state})")
        return 0
    log = GrowingLog(folder, lines)
    _emit(log.news(), write)
    _emit(log.rest(), write)
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
    folder = Folder(run)
    path = folder.path
    if path is None:
        fix = "follow it on a machine with the folder, or leave --follow out"
        raise InputError("cannot be followed at a URL", where=run, fix=fix)
    log, said = GrowingLog(folder, lines), ""
    looked = float("-inf")
    while True:
        _emit(log.news(), write)
        if clock() - looked >= LOOK_SECONDS:
            looked = clock()
            report = _look(path, clock)
            code = exit_code(report)
            if code is not None:
                _emit(log.news(), write)
                _emit(log.rest(), write)
                if report:
                    say(f"{report.run}: {report.state}" + (f": {report.why}" if report.why else ""))
                return code
            note = _note(report)
            if note and note != said:
                say(f"{path}: {note}")
            said = note
        sleep(POLL_SECONDS)


def exit_code(report: RunReport | None) -> int | None:
    """The run's exit code; None while it runs or its launcher may restart it."""
    if report is None or not (report.over or report.state == "lost"):
        return None
    heard = max([report.status.heartbeat if report.status else 0.0, *(rank.beat.time for rank in report.ranks)])
    if report.restartable and report.time - heard < RESTART_SECONDS:
        return None
    if report.over:
        return int(report.status.exit or 0) if report.status else 0
    # A rank is lost, but others still report. They will end soon, and their exit code counts.
    return KILLED if all(rank.verdict in ("lost", "ended", "silent") for rank in report.ranks) else None


class GrowingLog:
    """A run's log as it grows, in constant memory. `lines`: how many of the existing lines count; by default all."""

    def __init__(self, folder: Folder, lines: int | None) -> None:
        self._folder, self._lines = folder, lines
        self._grown = Grown(folder, LOG)

    def news(self) -> Iterator[str]:
        """Yields the whole lines that came since the last call; all of them after the file was replaced or cut."""
        for block in self._grown.news():
            if block:
                yield from block.decode(errors="replace").removesuffix("\n").split("\n")
            elif block is None and self._lines is not None and self._grown.size:
                self._grown.begin(last_lines(self._folder, LOG, self._lines, self._grown.size))
                self._lines = None

    def rest(self) -> list[str]:
        """The text after the last newline, once the run has ended."""
        rest = self._grown.rest().decode(errors="replace")
        return [rest] if rest else []


def _look(run: str, clock: Callable[[], float]) -> RunReport | None:
    try:
        return look(run, clock=clock)
    except MaskwrightError:
        return None


def _note(report: RunReport | None) -> str:
    """The run's state for a user who waits for lines; shown when it changes."""
    if report is None:
        return "no run there yet; waiting for it to start (Ctrl-C ends this)"
    if report.restartable:
        return f"{report.state}; waiting {human_seconds(RESTART_SECONDS)} for its launcher to start it again"
    if report.state in ("hung", "lost", "silent", "never started"):
        return f"{report.state} (`maskwright status` shows more)"
    return ""


def _emit(lines: Iterable[str], write: Show) -> None:
    for line in lines:
        write(None, line)
