"""`maskwright sync`: sends the lines of a run's metrics.jsonl to a service, once or as they come.

It is a process of its own, so a service cannot affect the run by a slow network, a crash or a lock. The file is the
queue. Lines that cannot be sent are sent later, by this process or the next one.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal, TextIO

from maskwright.core import extras, records, storage
from maskwright.core.console import answer, lost_terminal_is_no_error, typed
from maskwright.core.errors import Locked, MaskwrightError, StoppedEarly
from maskwright.core.folder import Folder
from maskwright.core.secrets import redact, redact_all
from maskwright.monitor.status import look
from maskwright.monitor.sync.mlflow import MLflow
from maskwright.monitor.sync.service import About, Begin, MetricsLine, Outcome, Service
from maskwright.monitor.sync.wandb import Wandb
from maskwright.run.directory import RunDirectory
from maskwright.run.grown import METRICS, Grown, lines_of
from maskwright.run.heartbeat import read_local
from maskwright.run.metric_names import is_held_out, trainer_names

To = Literal["wandb", "mlflow"]
SERVICES: dict[To, Begin] = {"wandb": Wandb, "mlflow": MLflow}
FOLDER = "sync"
OLD_FOLDER = "forward"
"""The folder's name until 2026-11-29, without whose content all lines would be sent again."""
OFFLINE = ("offline", "dryrun")
"""Values of WANDB_MODE with which W&B sends nothing, so that the lines count as sent to its files alone."""
POLL_SECONDS = 1.0
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 10.0, 300.0
LINGER_SECONDS = 600.0
"""The longest that a forwarder outlives its run: W&B, for example, waits for a network without end."""
LEAST_NICE = 10
"""The run's own processes come first."""


@dataclass
class Sent:
    """`sync/SERVICE.json` in the run directory: what was sent to a service so far."""

    run_id: str = ""
    trained: int = -1
    """Step of the last training line that was sent."""
    evaluated: int = -1
    outcome: str = ""
    """The outcome that was sent at the run's end; empty while it continues."""
    lines: int = 0

    def report(self, to: To) -> str:
        last = max(self.trained, self.evaluated, 0)
        return f"{to}: {self.lines:,} lines up to step {last:,} sent in all, to run {self.run_id}"

    def to_json(self, to: To) -> dict[str, Any]:
        return {"to": to, **asdict(self)}


class Forwarder:
    """Forwards one run to one service. Tests pass `clock` and `sleep`."""

    def __init__(
        self,
        run: str,
        to: To,
        *,
        begin: Begin | None = None,
        tell: Callable[[str], object] = print,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.directory, self.to, self.tell = RunDirectory(run), to, tell
        self.directory.require()
        self._begin, self._clock, self._sleep = begin or SERVICES[to], clock, sleep
        offline = to == "wandb" and os.environ.get("WANDB_MODE") in OFFLINE
        self._path = self.directory.path(FOLDER, "wandb-offline.json" if offline else f"{to}.json")
        self._grown = Grown(Folder(run), METRICS)
        self._service: Service | None = None
        self._waiting: list[dict[str, Any]] = []
        self._said = False
        self.sent = Sent()

    def send_all(self) -> Literal[True]:
        """Sends all unsent lines. Raises `Locked` if another process does, `MaskwrightError` if the service fails."""
        with self._held(wait=False):
            self._read()
            self._pass_on(self._outcome() or "stopped")
            return True

    def follow(self) -> bool:
        """Sends lines as they come, until the run is over. Returns whether the service accepted all of them; its error
        is shown once."""
        with suppress(OSError):
            os.nice(max(0, LEAST_NICE - os.nice(0)))
        with self._held(wait=True):
            retry, next_try = FIRST_RETRY_SECONDS, self._clock()
            while True:
                outcome = self._outcome()  # before reading, so that the last lines are among those read
                self._read()
                if outcome:
                    with self._ended_at_last():
                        return self._try(outcome)
                if self._clock() >= next_try:
                    taken = self._try(None)
                    next_try = self._clock() + (0.0 if taken else retry)
                    retry = FIRST_RETRY_SECONDS if taken else min(2 * retry, LONGEST_RETRY_SECONDS)
                self._sleep(POLL_SECONDS)

    def _try(self, outcome: Outcome | None) -> bool:
        try:
            self._pass_on(outcome)
            return True
        except MaskwrightError as error:
            if not self._said:
                self.tell(f"warning: {error}")
            self._said = True
            return False

    @contextmanager
    def _held(self, *, wait: bool) -> Iterator[None]:
        """Lets one process at a time send to a service: the forwarder of the run's last start may still be at work."""
        old, new = self.directory.path(OLD_FOLDER), self.directory.path(FOLDER)
        if os.path.isdir(old) and not os.path.exists(new):
            with suppress(OSError):
                os.rename(old, new)
        storage.make_folder(new)
        while True:
            try:
                with storage.locked(self.directory.path(FOLDER, f"{self.to}.lock"), remove=False):
                    self.sent = records.read(Sent, read_local(self._path)) or Sent()
                    yield
                    return
            except Locked:
                if not wait:
                    raise
            self._sleep(POLL_SECONDS)

    def _outcome(self) -> Outcome | None:
        """None while the run continues."""
        report = look(self.directory.location)
        if report.state in ("done", "failed", "stopped"):
            return report.state
        return "stopped" if report.state == "lost" else None

    def _read(self) -> None:
        """Queues the new lines. A file that the run has rewritten repeats lines that were sent, with the same numbers
        for steps that were computed again."""
        for block in self._grown.news():
            self._waiting = [] if block is None else [*self._waiting, *lines_of(block)]

    def _pass_on(self, outcome: Outcome | None) -> None:
        """Sends the queued lines, and an outcome if there is one. Raises `MaskwrightError` with the service's words."""
        last = {True: self.sent.evaluated, False: self.sent.trained}
        new = [record for record in self._waiting if record["step"] > last[is_held_out(record)]]
        if not new and (outcome or "") == self.sent.outcome and (outcome or self._service):
            self._waiting = []
            return
        try:
            if self._service is None:
                name, config = os.path.basename(self.directory.location), self.directory.read_record().keys
                about = About(name, self.directory.path(FOLDER), redact_all(config))
                self._service = self._begin(about, self.sent.run_id or None)
                self.sent.run_id, self.sent.outcome = self._service.run_id, ""
                self._keep()
            if new:
                self._service.send([_line(record) for record in new])
            for record in new:
                if is_held_out(record):
                    self.sent.evaluated = record["step"]
                else:
                    self.sent.trained = record["step"]
            self.sent.lines += len(new)
            self._waiting = []
            if outcome:
                self._service.finish(outcome)
                self.sent.outcome = outcome
            self._keep()
        except StoppedEarly:
            raise
        except Exception as error:
            self._service = None
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> MaskwrightError:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        again = f"`{typed(['sync', self.directory.location, '--to', self.to])}` sends the rest"
        what = f"{said[:200]}; this does not affect the run, and {self.directory.metrics} has every line"
        return MaskwrightError(what, where=self.to, fix=f"when it can be reached, {again}")

    def _keep(self) -> None:
        storage.write_json(self._path, asdict(self.sent))

    @contextmanager
    def _ended_at_last(self) -> Iterator[None]:
        """Ends this process when the service keeps it for too long after the run."""

        def end() -> None:
            late = TimeoutError(f"has not accepted everything within {LINGER_SECONDS:.0f} seconds of the run's end")
            self.tell(f"warning: {self._explained(late)}")
            os._exit(1)

        timer = threading.Timer(LINGER_SECONDS, end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def sync(run: str, to: To, *, follow: bool = False) -> tuple[Sent, bool]:
    """Forwards a run; returns what was sent, and whether the service accepted everything. Raises `ConfigError` if its
    package is not installed, and the errors of `Forwarder`."""
    extras.require(to, "--to")
    with _only_ours_is_shown() as stream:

        def tell(line: str) -> None:
            with lost_terminal_is_no_error():  # the run that listened may be over
                answer(redact(line), stream)

        forwarder = Forwarder(run, to, tell=tell)
        try:
            taken = forwarder.follow() if follow else forwarder.send_all()
        except StoppedEarly:  # by a signal, perhaps meant for the run; the next start sends the rest
            taken = False
        return forwarder.sent, taken


def _line(record: dict[str, Any]) -> MetricsLine:
    return MetricsLine(record["step"], float(record.get("time") or 0.0), trainer_names(record))


@contextmanager
def _only_ours_is_shown() -> Iterator[TextIO]:
    """Hides the output of the services' packages and of their processes, which is long and may hold a URL with a
    password. Yields a stream to the true stderr."""
    sys.stdout.flush()
    sys.stderr.flush()
    shown = (sys.stdout, sys.stderr)
    kept = [os.dup(1), os.dup(2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with os.fdopen(os.dup(2), "w") as stream, open(os.devnull, "w") as silent:
        try:
            for number in (1, 2):
                os.dup2(nowhere, number)
            sys.stdout = sys.stderr = silent
            yield stream
        finally:
            sys.stdout, sys.stderr = shown
            for number, before in zip((1, 2), kept, strict=True):
                os.dup2(before, number)
            for number in (*kept, nowhere):
                os.close(number)
