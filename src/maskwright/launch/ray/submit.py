"""A training job for a Ray cluster: what is uploaded, what is refused, what is sent.

Only the configuration is uploaded; the package is in the cluster's image, and data on storage that its machines see.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from maskwright.core.console import say
from maskwright.core.errors import InputError
from maskwright.core.secrets import SECRET_VARIABLE, redact
from maskwright.launch.ray.gang import GRACE_KEY, RESTARTS_KEY
from maskwright.launch.ray.jobs import ID, Cluster, find_address, follow

LARGEST_FOLDER_BYTES = 100 << 20
"""Ray refuses more (HTTP 413), after it has packed all of it."""
LEFT_OUT = {".git", ".venv", "venv", "__pycache__"}
"""What Ray leaves out of a working directory by itself (2.60)."""
STOP_WAIT = "RAY_JOB_STOP_WAIT_TIME_S"
"""Between SIGTERM and SIGKILL; 3 if not set, too short to save. Ray reads it in the job's own environment."""
BEYOND_GRACE_SECONDS = 30.0


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
        for name in [*folders, *names]:
            if os.path.islink(link := os.path.join(place, name)):
                fix = "copy what it points to, or leave it out of the folder"
                raise InputError("is a link, which would be followed when it is uploaded", where=link, fix=fix)
        size += sum(os.lstat(os.path.join(place, name)).st_size for name in names)
        if size > LARGEST_FOLDER_BYTES:
            fix = "leave data out of it: put it on storage that the cluster's machines see, and give its whole path"
            raise InputError("holds more than 100 MiB, Ray's limit", where=f"--working-dir {folder}", fix=fix)
