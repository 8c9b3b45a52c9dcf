"""Ray's job API from outside the cluster: submit, follow, status, logs, stop, list.

Everything goes over HTTP to the head (port 8265), so a laptop needs no other access. This file needs the package for
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
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from maskwright.core.console import Show, lost_terminal_is_no_error, one_line, show_line, warn
from maskwright.core.errors import InputError, JobError, MaskwrightError, StoppedEarly
from maskwright.core.extras import missing
from maskwright.core.secrets import redact
from maskwright.launch.follow import followed, wait_until_over
from maskwright.launch.outcome import killed_by
from maskwright.launch.target import Option
from maskwright.processes.ray.authentication import choose_mode, refusal

USUAL_ADDRESS = "http://127.0.0.1:8265"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
CONNECT_SECONDS, POLL_SECONDS = 10.0, 0.5
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
T = TypeVar("T")
Address = Annotated[
    str | None, Option(f"Address of the Ray head. Default: RAY_API_SERVER_ADDRESS, else {USUAL_ADDRESS}.", "URL")
]


@dataclass(frozen=True)
class RayJob:
    """Ray's description of a job. Times are Unix seconds."""

    id: str
    state: str
    """PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED."""
    code: int | None
    """The entrypoint's exit code, if Ray knows it."""
    run: str | None
    """Its run directory; None if it is not a training of maskwright."""
    began: float | None
    ended: float | None
    why: str

    @property
    def over(self) -> bool:
        return self.state in ("SUCCEEDED", "FAILED", "STOPPED")

    def report(self) -> str:
        return describe_jobs([self])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


# ---- the cluster ---------------------------------------------------------------------------------------------------


def parse_id(target: str) -> str:
    """The ID in `ray:ID`."""
    kind, _, name = target.partition(":")
    if kind != "ray" or not ID.fullmatch(name):
        fix = "write it as ray:ID; `maskwright list` shows the IDs"
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
    """Client of a cluster's head. Raises `InputError` if the package is missing or the token refused, `MaskwrightError`
    if the head does not answer."""

    def __init__(self, address: str | None = None) -> None:
        self.address = find_address(address)
        parts = urlsplit(self.address)
        if choose_mode() == "token" and parts.scheme == "http" and parts.hostname not in LOOPBACK:
            warn(f"the token goes unencrypted to {parts.hostname}; use a tunnel or https")
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

    def _silent(self, reason: str) -> MaskwrightError:
        fix = "check --address; from outside: kubectl port-forward service/HEAD 8265, or ssh -L 8265:127.0.0.1:8265"
        return MaskwrightError(f"no Ray head answers ({reason})", where=self.address, fix=fix)

    def ask(self, request: Callable[[], T]) -> T:
        import requests
        from ray.exceptions import AuthenticationError

        try:
            return request()
        except AuthenticationError:
            raise refusal(self.address) from None
        except (ConnectionError, requests.exceptions.RequestException) as error:
            raise self._silent(" ".join(str(error).split())[:200]) from None
        except (RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split()).removeprefix("Request failed with status code ")
            fix = "see the head's dashboard_Job*.log" if reason.startswith("5") else "correct the options"
            raise MaskwrightError(f"Ray refuses: {reason[:300]}", where=self.address, fix=fix) from None

    def job(self, job: str) -> RayJob:
        details = self.ask(lambda: self._details(job))
        if details is None:
            fix = "`maskwright list` shows all jobs; a restarted head has forgotten its jobs"
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

    def follow(self, job: str, show: Callable[[str], None]) -> RayJob:
        """Follows a job until it is over. `show` gets pieces of the log, from its beginning."""
        import aiohttp

        try:
            return self.ask(lambda: asyncio.run(self._tail(job, show)))
        except aiohttp.ClientError as error:
            raise self._silent(str(error)) from None

    async def _tail(self, job: str, show: Callable[[str], None]) -> RayJob:
        """Ends with the job: Ray's own tail ends 3 seconds later, so the rest of the log is read at once."""
        pieces = self._client.tail_job_logs(job)
        shown = 0
        coming = asyncio.ensure_future(anext(pieces, None))
        while True:
            await asyncio.wait([coming], timeout=POLL_SECONDS)
            if coming.done() and (piece := coming.result()) is not None:
                show(piece)
                shown += len(piece)
                coming = asyncio.ensure_future(anext(pieces, None))
            elif (state := self.job(job)).over:
                coming.cancel()
                show(self.logs(job)[shown:])
                return state
            elif coming.done():
                await asyncio.sleep(POLL_SECONDS)


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
    """Shows whole lines of a log that comes in pieces."""

    def __init__(self, show: Show) -> None:
        self._show, self._partial = show, ""

    def take(self, piece: str) -> None:
        *whole, self._partial = (self._partial + piece).split("\n")
        for line in whole:
            with lost_terminal_is_no_error():  # the client would take it for an error of the network
                self._show(None, line)

    def end(self) -> None:
        if self._partial:
            self.take("\n")


def follow_to_its_end(cluster: RayCluster, name: str, show: Show = show_line) -> None:
    """Shows the log to the job's end, then raises as `conclude` does. Ctrl-C ends the following; the job goes on."""
    where, lines = f"ray:{name}", Lines(show)
    try:
        with followed(where):
            job = cluster.follow(name, lines.take)
    except StoppedEarly:
        raise
    except MaskwrightError as error:
        fix = "check the head; if it is gone, its jobs have saved and ended, and the same submission continues"
        raise MaskwrightError(f"cannot be followed any more: {error.what}", where=where, fix=fix) from None
    finally:
        lines.end()
    conclude(job)


def conclude(job: RayJob) -> None:
    """Raises the error that gives this process the exit code of a job that is over, unless that is 0."""
    where, again = f"ray:{job.id}", "the same submission continues the run"
    if job.state == "SUCCEEDED":
        return
    if job.state == "STOPPED" or job.code == StoppedEarly.exit_code:
        raise StoppedEarly(again, where=where)
    if job.code is None:  # the driver did not start, or its machine is gone
        lost = "RUNTIME_ENV" not in job.why and "START" not in job.why
        what = " ".join(job.why.split())[:300] or "Ray gives no reason"
        if lost:
            raise StoppedEarly(f"{what}; {again}", where=where)
        raise JobError(f"the job did not start: {what}", 1, where=where, fix="see `ray status` and the head's logs")
    if job.code in (127, 126):
        fix = "install it, with its `ray` extra, in the environment that `ray start` runs in, on every machine"
        raise JobError("`maskwright` is not installed on the cluster", 1, where=where, fix=fix)
    if (name := killed_by(job.code)) is not None:
        raise JobError(f"its driver was killed by {name}; {again}", 1, where=where)
    raise JobError(f"the job failed: exit {job.code}", job.code, where=where)


@dataclass(frozen=True)
class RayJobTarget:
    """A run target: a job by its ID."""

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
            whole.take(cluster.logs(self.job))
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


@dataclass(frozen=True)
class RayJobs:
    """All jobs that were submitted to a cluster."""

    jobs: list[RayJob]

    @property
    def over(self) -> bool:
        return all(job.over for job in self.jobs)

    def report(self) -> str:
        return describe_jobs(self.jobs)

    def to_json(self) -> dict[str, Any]:
        return {"jobs": [asdict(job) for job in self.jobs]}


def list_jobs(address: str | None = None) -> RayJobs:
    return RayJobs(RayCluster(address).jobs())


def describe_jobs(jobs: Sequence[RayJob]) -> str:
    lines: list[tuple[str, ...]] = [("ID", "STATE", "EXIT", "STARTED", "RUN")]
    for job in jobs:
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(job.began)) if job.began else "-"
        cells = (job.id, job.state, "-" if job.code is None else str(job.code), began, job.run or "-")
        lines.append(tuple(map(one_line, cells)))
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    return "\n".join(
        redact("  ".join([*(line[i].ljust(widths[i]) for i in range(4)), line[4]])).rstrip() for line in lines
    )
