"""Ray's job API from outside the cluster: submit, follow, status, logs, stop, list.

Everything goes over HTTP to the head (port 8265), so a laptop needs no other way in. The package is needed here only
for its client; nothing of training is.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar
from urllib.parse import urlsplit

from maskwright.core.console import lost_terminal_is_no_error, say, warn
from maskwright.core.errors import InputError, JobError, MaskwrightError, StoppedEarly
from maskwright.core.secrets import SECRET_VARIABLE, redact
from maskwright.launch.ray_gang import GRACE_KEY, RESTARTS_KEY

USUAL_ADDRESS = "http://127.0.0.1:8265"
CONNECT_SECONDS, POLL_SECONDS = 10.0, 0.5
LARGEST_FOLDER_BYTES = 100 << 20
"""Ray refuses more (HTTP 413), after it has packed all of it."""
LEFT_OUT = {".git", ".venv", "venv", "__pycache__"}
"""What Ray leaves out of a working directory by itself (2.60)."""
STOP_WAIT = "RAY_JOB_STOP_WAIT_TIME_S"
"""Between SIGTERM and SIGKILL; 3 if not set, too short to save. Ray reads it in the job's own environment."""
BEYOND_GRACE_SECONDS = 30.0
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
T = TypeVar("T")


@dataclass(frozen=True)
class RayJob:
    """`state`: PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED. `code`: the entrypoint's, where Ray knows. `run`: its
    run directory, None for what is no `maskwright pretrain`. Times are Unix seconds."""

    id: str
    state: str
    code: int | None
    run: str | None
    began: float | None
    ended: float | None
    why: str

    @property
    def over(self) -> bool:
        return self.state in ("SUCCEEDED", "FAILED", "STOPPED")


# ---- the cluster ---------------------------------------------------------------------------------------------------


def parse_id(target: str) -> str:
    """`ray:ID` as the ID."""
    kind, _, name = target.partition(":")
    if kind != "ray" or not ID.fullmatch(name):
        fix = "write it as ray:ID; `maskwright list --on ray` shows them"
        raise InputError(f"{target[:120]!r} is no Ray job", where="ray:ID", fix=fix)
    return name


def find_address(address: str | None) -> str:
    named = address or os.environ.get("RAY_API_SERVER_ADDRESS")
    if named is None and os.environ.get("RAY_ADDRESS", "").startswith(("http://", "https://")):
        named = os.environ["RAY_ADDRESS"]
    named = named or USUAL_ADDRESS
    parts = urlsplit(named)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        fix = "give the head's HTTP address, as http://127.0.0.1:8265 (a tunnel's or a port-forward's end)"
        raise InputError("is no HTTP address", where=f"--address {named}", fix=fix)
    return named.rstrip("/")


class Cluster:
    """Raises `InputError` when the package is missing or the token refused, `MaskwrightError` when nothing answers."""

    def __init__(self, address: str | None = None) -> None:
        self.address = find_address(address)
        _choose_token(self.address)
        try:
            from ray.job_submission import JobSubmissionClient
        except ImportError:
            fix = "pip install 'maskwright[ray]', the version of the cluster"
            raise InputError("the package ray is not installed here", where="ray", fix=fix) from None
        parts = urlsplit(self.address)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            socket.create_connection((parts.hostname or "", port), CONNECT_SECONDS).close()
        except OSError as error:
            raise self._silent(error.strerror or str(error)) from None
        os.environ["RAY_API_SERVER_ADDRESS"] = self.address  # which the client prefers to what it is given
        self._client = self.ask(lambda: JobSubmissionClient(self.address))

    def _silent(self, reason: str) -> MaskwrightError:
        fix = "check --address; from outside: kubectl port-forward service/HEAD 8265, or ssh -L 8265:127.0.0.1:8265"
        return MaskwrightError(f"no Ray head answers ({reason})", where=self.address, fix=fix)

    def ask(self, what: Callable[[], T]) -> T:
        import requests
        from ray.exceptions import AuthenticationError

        try:
            return what()
        except AuthenticationError:
            fix = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH) to the cluster's token"
            raise InputError("the cluster refuses the token, or there is none", where=self.address, fix=fix) from None
        except (ConnectionError, requests.exceptions.RequestException) as error:
            raise self._silent(" ".join(str(error).split())[:200]) from None
        except (RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split()).removeprefix("Request failed with status code ")
            fix = "see the head's dashboard_Job*.log" if reason.startswith("5") else "correct it"
            raise MaskwrightError(f"Ray refuses: {reason[:300]}", where=self.address, fix=fix) from None

    def find(self, job: str) -> RayJob | None:
        return next((one for one in self.jobs() if one.id == job), None)

    def job(self, job: str) -> RayJob:
        found = self.find(job)
        if found is None:
            fix = "`maskwright list --on ray` shows them; a head that started again has forgotten its jobs"
            raise InputError("no such job", where=f"ray:{job} at {self.address}", fix=fix)
        return found

    def jobs(self) -> list[RayJob]:
        """Submitted ones, the oldest first. Drivers that were started without the job API have no such ID."""
        found = [_job(details) for details in self.ask(self._client.list_jobs) if details.submission_id]
        return sorted(found, key=lambda job: job.began or 0.0)

    def submit(self, **options: Any) -> None:
        self.ask(lambda: self._client.submit_job(**options))

    def stop(self, job: str) -> None:
        self.ask(lambda: self._client.stop_job(job))

    def logs(self, job: str) -> str:
        return str(self.ask(lambda: self._client.get_job_logs(job)))

    def follow(self, job: str, show: Callable[[str], None]) -> None:
        """Until it is over. `show` gets pieces of the log, from its beginning."""

        async def tail() -> None:
            async for piece in self._client.tail_job_logs(job):
                show(piece)

        import aiohttp

        try:
            self.ask(lambda: asyncio.run(tail()))
        except aiohttp.ClientError as error:
            raise self._silent(str(error)) from None


def _choose_token(address: str) -> None:
    """Ray sends a token only in the mode `token`; it is on where a token is given, as in `ray start` (2.60)."""
    kept = os.path.expanduser("~/.ray/auth_token")
    given = any(os.environ.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")) or os.path.exists(kept)
    mode = os.environ.setdefault("RAY_AUTH_MODE", "token" if given else "disabled")
    parts = urlsplit(address)
    if mode.lower() == "token" and parts.scheme == "http" and parts.hostname not in ("127.0.0.1", "localhost", "::1"):
        warn(f"the token goes unencrypted to {parts.hostname}: better a tunnel or https")


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
    """The run directory that a submitted command names, in Ray's own spelling too."""
    try:
        words = shlex.split(entrypoint)
    except ValueError:
        return None
    if "pretrain" not in words:
        return None
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if (word == "--run" and following) or word.startswith("--run="):
            return os.path.normpath(following if word == "--run" else word.removeprefix("--run="))
    return None


# ---- submitting ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Submission:
    """`arguments` of `maskwright`, in which the configuration goes by `config_name`: a file with `config` is uploaded,
    and `working_dir` with it if given. `values` of variables that the job gets too."""

    arguments: tuple[str, ...]
    run: str
    config_name: str
    config: bytes
    working_dir: str | None = None
    values: Mapping[str, str] | None = None
    restarts: int = 3
    grace_seconds: float = 30.0
    id: str | None = None

    @property
    def entrypoint(self) -> str:
        """`exec`, so that no shell stands between Ray and the exit code."""
        return f"exec maskwright {shlex.join(self.arguments)}"

    def name(self) -> str:
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", os.path.basename(self.run.rstrip("/"))).strip("-._")[:60] or "run"
        return self.id or f"{stem}-{secrets.token_hex(3)}"

    def check(self) -> None:
        if self.id is not None and not ID.fullmatch(self.id):
            fix = "letters, digits, '.', '_' and '-', at most 100"
            raise InputError(f"{self.id[:120]!r} is no ID", where="--job-id", fix=fix)
        for name, value in (self.values or {}).items():
            if SECRET_VARIABLE.search(name) or redact(value) != value:
                raise InputError(
                    "looks like a secret, and Ray shows a job's variables to all who see its dashboard",
                    where=f"--env {name}",
                    fix="give it to the cluster's machines instead (on Kubernetes a Secret in the pods' env)",
                )

    def environment(self) -> dict[str, str]:
        return {STOP_WAIT: str(int(self.grace_seconds + BEYOND_GRACE_SECONDS)), **(self.values or {})}


def describe(submission: Submission, address: str | None) -> str:
    """What `submit` would send, without the values of variables."""
    submission.check()
    shown = {**submission.environment(), **dict.fromkeys(submission.values or {}, "***")}
    folder = f"{submission.working_dir} and " if submission.working_dir else ""
    return "\n".join(
        [
            f"address      {find_address(address)}",
            f"entrypoint   {submission.entrypoint}",
            f"uploaded     {folder}{submission.config_name}",
            *(f"environment  {name}={value}" for name, value in shown.items()),
        ]
    )


def submit(submission: Submission, address: str | None, *, follow_it: bool) -> str:
    """The ID. With `follow_it` shows the log, and raises what gives the process the job's exit code."""
    submission.check()
    with _packed(submission) as folder:
        cluster = Cluster(address)
        name = submission.name()
        _refuse_doubles(cluster, name, submission.run)
        os.environ["RAY_RUNTIME_ENV_IGNORE_GITIGNORE"] = "1"  # the folder is uploaded as it is
        cluster.submit(
            entrypoint=submission.entrypoint,
            submission_id=name,
            runtime_env={"working_dir": folder, "env_vars": submission.environment()},
            metadata={RESTARTS_KEY: str(submission.restarts), GRACE_KEY: f"{submission.grace_seconds:g}"},
        )
    say(f"ray:{name}: submitted to {cluster.address}")
    if follow_it:
        follow(cluster, name)
    else:
        say(f"follow it with `maskwright logs ray:{name} --follow`, end it with `maskwright stop ray:{name}`")
    return name


def _refuse_doubles(cluster: Cluster, name: str, run: str) -> None:
    for job in cluster.jobs():
        if job.id == name:
            fix = f"`maskwright logs ray:{name} --follow` follows it; for a new one give another --job-id, or none"
            raise InputError(f"there is such a job, {job.state}", where=f"--job-id {name}", fix=fix)
        if not job.over and job.run == os.path.normpath(run):
            fix = f"`maskwright logs ray:{job.id} --follow` follows it, `maskwright stop ray:{job.id}` ends it"
            raise InputError(f"is being trained by ray:{job.id}, {job.state}", where=f"--run {run}", fix=fix)


@contextmanager
def _packed(submission: Submission) -> Iterator[str]:
    """A folder with what is uploaded."""
    with tempfile.TemporaryDirectory(prefix="maskwright-") as folder:
        if submission.working_dir is not None:
            _require_small(submission.working_dir)
            shutil.copytree(
                submission.working_dir, folder, dirs_exist_ok=True, ignore=lambda _, names: LEFT_OUT & set(names)
            )
        path = os.path.join(folder, submission.config_name)
        with open(path, "wb") as file:
            file.write(submission.config)
        yield folder


def _require_small(folder: str) -> None:
    if not os.path.isdir(folder):
        raise InputError("is no folder", where=f"--working-dir {folder}", fix="give one, or leave it out")
    size = 0
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        size += sum(os.lstat(os.path.join(place, name)).st_size for name in names)
        if size > LARGEST_FOLDER_BYTES:
            fix = "leave data out of it: put it on storage that the cluster's machines see, and give its whole path"
            raise InputError("holds more than 100 MiB, Ray's limit", where=f"--working-dir {folder}", fix=fix)


# ---- following and ending ------------------------------------------------------------------------------------------


class _Leave(BaseException):
    pass


def _leave(number: int, frame: FrameType | None) -> None:
    raise _Leave


def _show(text: str) -> None:
    with lost_terminal_is_no_error():
        print(redact(text), end="", flush=True)


def follow(cluster: Cluster, name: str) -> None:
    """Shows the log until the job is over, then `conclude`. Ctrl-C ends the following; the job goes on."""
    before = {number: signal.signal(number, _leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        cluster.follow(name, _show)
        while not (job := cluster.job(name)).over:
            time.sleep(POLL_SECONDS)
    except _Leave:
        what = f"no longer followed; the job goes on. `maskwright stop ray:{name}` ends it"
        raise StoppedEarly(what, where=f"ray:{name}") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    conclude(job)


def conclude(job: RayJob) -> None:
    """Raises what gives this process the exit code of a job that is over."""
    where, again = f"ray:{job.id}", "the same submission continues the run"
    if job.state == "SUCCEEDED":
        return
    if job.state == "STOPPED" or job.code == StoppedEarly.exit_code:
        raise StoppedEarly(again, where=where)
    if job.code is None:  # the driver never began, or its machine is gone
        lost = "RUNTIME_ENV" not in job.why and "START" not in job.why
        what = " ".join(job.why.split())[:300] or "Ray does not say why"
        if lost:
            raise StoppedEarly(f"{what}; {again}", where=where)
        raise JobError(f"the job did not begin: {what}", 1, where=where, fix="see `ray status` and the head's logs")
    if job.code in (127, 126):
        fix = "install it, with its `ray` extra, in the environment that `ray start` runs in, on every machine"
        raise JobError("`maskwright` is not installed on the cluster", 1, where=where, fix=fix)
    if job.code < 0 or job.code > 128:
        number = -job.code if job.code < 0 else job.code - 128
        raise JobError(f"its driver was killed by {signal.Signals(number).name}; {again}", 1, where=where)
    raise JobError(f"the job failed: exit {job.code}", job.code, where=where)


def logs(job: str, *, follow_it: bool = False, address: str | None = None) -> None:
    """Prints the log on stdout; with `follow_it` as it grows, ending with the job's exit code."""
    cluster = Cluster(address)
    cluster.job(job)
    if follow_it:
        follow(cluster, job)
    else:
        _show(cluster.logs(job))


def status(job: str, address: str | None = None) -> RayJob:
    return Cluster(address).job(job)


def list_jobs(address: str | None = None) -> list[RayJob]:
    return Cluster(address).jobs()


def stop(job: str, address: str | None = None, *, wait_seconds: float = 120.0) -> RayJob:
    """Asks it to save and end, and waits until it is over. Raises `MaskwrightError` when that takes longer."""
    cluster = Cluster(address)
    if cluster.job(job).over:
        return cluster.job(job)
    cluster.stop(job)
    deadline = time.monotonic() + wait_seconds
    while not (found := cluster.job(job)).over:
        if time.monotonic() > deadline:
            fix = f"`maskwright status ray:{job}` and `maskwright logs ray:{job}` tell how it goes on"
            raise MaskwrightError(f"still saves after {wait_seconds:g} s", where=f"ray:{job}", fix=fix)
        time.sleep(POLL_SECONDS)
    return found


def describe_jobs(jobs: Sequence[RayJob]) -> str:
    lines = [("ID", "STATE", "EXIT", "STARTED", "RUN")]
    for job in jobs:
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(job.began)) if job.began else "-"
        lines.append((job.id, job.state, "-" if job.code is None else str(job.code), began, job.run or "-"))
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    return "\n".join(
        redact("  ".join([*(line[i].ljust(widths[i]) for i in range(4)), line[4]])).rstrip() for line in lines
    )
