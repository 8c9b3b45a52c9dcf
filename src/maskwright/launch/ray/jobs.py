"""Ray's job API from outside the cluster: submit, follow, status, logs, stop, list.

Everything goes over HTTP to the head (port 8265), so a laptop needs no other access. This file needs Ray's package for
its client, and nothing of training.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shlex
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from maskwright.core.console import Show, lost_terminal_is_no_error, one_line, printable, show_line, warn
from maskwright.core.errors import CloudError, InputError, JobError, MaskwrightError, StoppedEarly
from maskwright.core.extras import missing
from maskwright.core.secrets import redact
from maskwright.launch.follow import followed, until_over, wait_until_over
from maskwright.launch.outcome import ASKED, conclude_elsewhere
from maskwright.launch.target import JobList, Option

LONGEST_REASON = 300
"""Characters. Ray's reasons end with tracebacks."""
USUAL_ADDRESS = "http://127.0.0.1:8265"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
CONNECT_SECONDS, POLL_SECONDS = 10.0, 0.5
QUIET_SECONDS = 60.0
"""Time without a line after which the connection is renewed, since a dead one looks like a quiet job."""
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+"
OF_RAY = re.compile(rf"\(raylet\b[^)]*\) |\t\(\d\) |\s*\[(state-dump|{TIME} [A-Z] \d+ \d+)\]|{TIME}\t[A-Z]+ |\s*$")
"""Lines that Ray's processes add to a job's log, in 2.60 dozens for each lost machine. Our lines never begin in this
way."""
TAIL = re.compile(r"\bLast (\d+) lines of the Raylet logs:")
"""Announces this many more lines of any content, each indented by four spaces (2.60, process_watcher.py)."""
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
T = TypeVar("T")
Address = Annotated[
    str | None, Option(f"Address of the Ray head. Default: RAY_API_SERVER_ADDRESS, else {USUAL_ADDRESS}.", "URL")
]


def choose_mode() -> str:
    """Sets RAY_AUTH_MODE to `token` if there is a token, else to `disabled`, unless it is set; returns it. `ray start`
    chooses alike (2.60), but a client with an address sends a token only if the variable asks for it."""
    names, file = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"), os.path.expanduser("~/.ray/auth_token")
    has_token = any(os.environ.get(name) for name in names) or os.path.exists(file)
    return os.environ.setdefault("RAY_AUTH_MODE", "token" if has_token else "disabled").lower()


@dataclass(frozen=True)
class RayJob:
    """Ray's description of a job. Times are Unix seconds."""

    id: str
    state: str
    """PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED."""
    code: int | None
    """The entrypoint's exit code, if Ray has it."""
    run: str | None
    """Its run directory; None if it is not a training of maskwright."""
    began: float | None
    ended: float | None
    why: str

    @property
    def over(self) -> bool:
        return self.state in ("SUCCEEDED", "FAILED", "STOPPED")

    def cells(self) -> tuple[str, ...]:
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.began)) if self.began else "-"
        return self.id, self.state, "-" if self.code is None else str(self.code), began, self.run or "-"

    def report(self) -> str:
        waits_or_failed = self.state in ("PENDING", "FAILED")
        why = [f"why: {redact(one_line(self.why))[:LONGEST_REASON]}"] if self.why and waits_or_failed else []
        return "\n".join([table_of([self]).report(), *why])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


# ---- the cluster ---------------------------------------------------------------------------------------------------


def parse_id(target: str) -> str:
    """The ID in `ray:ID`."""
    kind, _, name = target.partition(":")
    if kind != "ray" or not ID.fullmatch(name):
        fix = "write it as ray:ID; `maskwright status ray:` shows the IDs"
        raise InputError(f"{target[:120]!r} is not a Ray job", where="ray:ID", fix=fix)
    return name


def find_address(address: str | None) -> str:
    address = address or os.environ.get("RAY_API_SERVER_ADDRESS")
    if address is None and os.environ.get("RAY_ADDRESS", "").startswith(("http://", "https://")):
        address = os.environ["RAY_ADDRESS"]
    address = address or USUAL_ADDRESS
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        fix = "give the head's HTTP address, such as http://127.0.0.1:8265 (the end of a tunnel or port-forward)"
        raise InputError("is not an HTTP address", where=f"--address {address}", fix=fix)
    return address.rstrip("/")


class RayCluster:
    """Client of a cluster's head. Raises `InputError` if the package is missing or the token refused, `CloudError` if
    the head does not answer or fails."""

    def __init__(self, address: str | None = None) -> None:
        self.address = find_address(address)
        parts = urlsplit(self.address)
        if choose_mode() == "token" and parts.scheme == "http" and parts.hostname not in LOOPBACK:
            warn(f"the token travels unencrypted to {parts.hostname}; use a tunnel or https")
        try:
            from ray.job_submission import JobSubmissionClient
        except ImportError:
            raise missing("ray", self.address) from None
        for handler in logging.getLogger("ray").handlers:
            handler.setLevel(logging.WARNING)  # Ray logs each upload and each end of a log
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            socket.create_connection((parts.hostname or "", port), CONNECT_SECONDS).close()
        except OSError as error:
            raise self._silent(error.strerror or str(error)) from None
        os.environ["RAY_API_SERVER_ADDRESS"] = self.address  # the client prefers this to its argument
        self._client = self.ask(lambda: JobSubmissionClient(self.address))

    def _silent(self, reason: str) -> CloudError:
        fix = "check --address; from outside: kubectl port-forward service/HEAD 8265, or ssh -L 8265:127.0.0.1:8265"
        return CloudError(f"no Ray head answers ({reason})", reason="unreached", where=self.address, fix=fix)

    def ask(self, request: Callable[[], T]) -> T:
        import requests
        from ray.exceptions import AuthenticationError

        try:
            return request()
        except AuthenticationError:
            fix = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH) to the cluster's token"
            raise InputError("the cluster refuses the token, or there is none", where=self.address, fix=fix) from None
        except (ConnectionError, requests.exceptions.RequestException) as error:
            raise self._silent(" ".join(str(error).split())[:200]) from None
        except (RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split()).removeprefix("Request failed with status code ")
            what = f"Ray refuses: {reason[:300]}"
            if reason.startswith("5"):
                fix = "check the head's dashboard_Job*.log"
                raise CloudError(what, reason="failed", where=self.address, fix=fix) from None
            raise MaskwrightError(what, where=self.address, fix="correct the options") from None

    def job(self, job: str) -> RayJob:
        details = self.ask(lambda: self._details(job))
        if details is None:
            fix = "list all jobs with `maskwright status ray:`; a restarted head has forgotten its jobs"
            raise InputError("no such job", where=f"ray:{job} at {self.address}", fix=fix)
        return _job(details)

    def _details(self, job: str) -> Any:
        try:
            return self._client.get_job_info(job)
        except RuntimeError as error:
            if "status code 404" in str(error):
                return None
            raise

    def jobs(self) -> list[RayJob]:
        """All submitted jobs, the oldest first. A driver that was started without the job API has no submission ID."""
        jobs = [_job(details) for details in self.ask(self._client.list_jobs) if details.submission_id]
        return sorted(jobs, key=lambda job: job.began or 0.0)

    def submit(self, **options: Any) -> None:
        self.ask(lambda: self._client.submit_job(**options))

    def stop(self, job: str) -> None:
        self.ask(lambda: self._client.stop_job(job))

    def logs(self, job: str) -> str:
        return str(self.ask(lambda: self._client.get_job_logs(job)))

    def follow(self, job: str, lines: Lines) -> RayJob:
        """Follows a job to its end, over lost connections. Raises `StoppedEarly` if the head forgets it."""
        return until_over(lambda: asyncio.run(self._tail(job, lines)), f"ray:{job}", POLL_SECONDS)

    async def _tail(self, job: str, lines: Lines) -> RayJob | None:
        """The job at its end; None if the connection ends before. Ray's own tail ends 3 seconds after the job, so the
        rest of the log is read at once."""
        pieces = self._client.tail_job_logs(job)
        position, heard = 0, time.monotonic()
        coming = asyncio.ensure_future(_next(pieces))
        while True:
            await asyncio.wait([coming], timeout=POLL_SECONDS)
            if coming.done() and (piece := coming.result()) is not None:
                lines.take(piece, position)
                position, heard = position + len(piece), time.monotonic()
                coming = asyncio.ensure_future(_next(pieces))
                continue
            details = self.ask(lambda: self._details(job))
            if details is None:
                what = "the head has started again and forgotten the job, which has saved"
                raise StoppedEarly(f"{what}; the same submission continues the run", where=f"ray:{job}")
            if (state := _job(details)).over:
                lines.take(self.logs(job), 0)
                return state
            if coming.done() or time.monotonic() - heard > QUIET_SECONDS:
                return None


async def _next(pieces: AsyncIterator[str]) -> str | None:
    """The next piece of a log; None at the end of the connection, whose cause the next request finds."""
    import aiohttp

    try:
        return await anext(pieces, None)
    except (RuntimeError, OSError, aiohttp.ClientError):
        return None


def _job(details: Any) -> RayJob:
    def seconds(milliseconds: int | None) -> float | None:
        return milliseconds / 1000 if milliseconds else None

    why = f"{details.error_type or ''} {details.message or ''}".strip()
    return RayJob(
        str(details.submission_id),
        str(getattr(details.status, "value", details.status)),
        details.driver_exit_code,
        _run_of(details.entrypoint or ""),
        seconds(details.start_time),
        seconds(details.end_time),
        why,
    )


def _run_of(entrypoint: str) -> str | None:
    """The run directory in a submitted command, which may also be Ray's spelling of it."""
    try:
        words = shlex.split(entrypoint)
    except ValueError:
        return None
    if not {"pretrain", "finetune"} & set(words):
        return None
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if (word == "--run" and following) or word.startswith("--run="):
            return os.path.normpath(following if word == "--run" else word.removeprefix("--run="))
    return None


# ---- follow and stop -----------------------------------------------------------------------------------------------


class Lines:
    """Shows whole lines of a log that comes in pieces, each once, without Ray's own lines."""

    def __init__(self, show: Show) -> None:
        self._show, self._partial, self._taken, self._of_tail = show, "", 0, 0

    def take(self, piece: str, position: int) -> None:
        """`position`: the number of characters before the piece. Text that was taken before is left out."""
        new = piece[max(0, self._taken - position) :]
        self._taken += len(new)
        *whole, self._partial = (self._partial + new).split("\n")
        for line in whole:
            self._take_line(line)

    def end(self) -> None:
        if self._partial:
            self._take_line(self._partial)

    def _take_line(self, line: str) -> None:
        if self._of_tail and line.startswith("    "):
            self._of_tail -= 1
        elif OF_RAY.match(printable(line)):  # Ray colours its name
            announced = TAIL.search(line)
            self._of_tail += int(announced[1]) if announced else 0
        else:
            self._of_tail = 0  # Ray's log may have fewer lines than it announces
            with lost_terminal_is_no_error():  # the client would take it for an error of the network
                self._show(None, line)


def follow_to_its_end(cluster: RayCluster, name: str, show: Show = show_line) -> None:
    """Shows the log to the job's end, then raises as `conclude` does. Ctrl-C ends the following; the job continues."""
    lines = Lines(show)
    try:
        with followed(f"ray:{name}"):
            job = cluster.follow(name, lines)
    finally:
        lines.end()
    conclude(job)


def conclude(job: RayJob) -> None:
    """Raises the error that gives this process the exit code of a job that is over, unless that is 0."""
    where, code, what = f"ray:{job.id}", job.code, one_line(job.why)[:LONGEST_REASON] or "Ray gives no reason"
    if job.state == "SUCCEEDED":
        return
    if job.state == "STOPPED":  # by Ray's API, and nothing starts it again
        code = ASKED
    elif code is None and ("RUNTIME_ENV" in what or "START" in what):
        raise JobError(f"the job did not start: {what}", 1, where=where, fix="check `ray status` and the head's logs")
    elif code is None:  # the driver's machine is gone
        raise StoppedEarly(f"{what}; the same submission continues the run", where=where)
    absent = "install maskwright, with its `ray` extra, where `ray start` runs, on every machine"
    conclude_elsewhere(code or 0, "" if job.code is None else f"exit {job.code}", where, absent)


@dataclass(frozen=True)
class RayJobTarget:
    job: str
    address: str | None = None

    takes: ClassVar[frozenset[str]] = frozenset({"--address"})

    def status(self) -> RayJob:
        return RayCluster(self.address).job(self.job)

    def logs(self, *, follow: bool, lines: int | None, show: Show) -> int:
        cluster = RayCluster(self.address)
        cluster.job(self.job)
        if follow:
            follow_to_its_end(cluster, self.job, show)
        else:
            whole = Lines(show)
            whole.take(cluster.logs(self.job), 0)
            whole.end()
        return 0

    def stop(self, *, checkpoint: bool = False, wait_seconds: float = 120.0) -> str:
        """Asks the job to save and end. Raises `MaskwrightError` if it still runs after `wait_seconds`."""
        cluster = RayCluster(self.address)
        if not cluster.job(self.job).over:
            cluster.stop(self.job)
        where = f"ray:{self.job}"
        job = wait_until_over(lambda: cluster.job(self.job), where, POLL_SECONDS, wait_seconds)
        return f"{where}: {job.state}"


def list_jobs(address: str | None = None) -> JobList:
    return table_of(RayCluster(address).jobs())


def table_of(jobs: Sequence[RayJob]) -> JobList:
    return JobList(("ID", "STATE", "EXIT", "STARTED", "RUN"), jobs)
