"""Custom jobs of Vertex AI: create, follow, status, logs, stop. A job is `vertex:PROJECT/REGION/ID`.

The state comes from the job, lines from Cloud Logging, where they arrive some seconds late and out of order. The exit
code of a failed container is only in the sentence with which Vertex AI explains the failure. A container whose run
ended as asked (76) ends with 0, and its code is a line of the log (`node`).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, ClassVar

from maskwright.cloud.google.errors import unsure
from maskwright.cloud.google.rest import Google
from maskwright.cloud.vertex.node import ENDED_WITH
from maskwright.core.console import Show, say, show_line, typed
from maskwright.core.errors import CloudError, EndedAsAsked, InputError, NotFollowed, StoppedEarly
from maskwright.core.secrets import redact
from maskwright.launch.follow import followed, until_over, wait_until_over
from maskwright.launch.outcome import cause_of, conclude_elsewhere

POLL_SECONDS = 5.0
LATE_SECONDS = 60
"""How far back each poll of the log goes, since entries arrive late, with a different delay for each replica."""
FINAL_LOG_POLLS = 3
"""Polls of the log after the job's end, until one brings nothing new."""
SUBMISSION_LABEL = "maskwright-submission"
"""Label by which a job is found whose request got no answer."""
OVER = ("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED", "PARTIALLY_SUCCEEDED")
TARGET = re.compile(r"vertex:(?:projects/)?([^/\s]+)/(?:locations/)?([^/\s]+)/(?:customJobs/)?(\d+)")
EXITS = re.compile(r"non-zero status of (\d+)|exit(?:ed with)? (?:code|status)[: ]+(\d+)")
"""As in "The replica workerpool0-0 exited with a non-zero status of 1."."""


@dataclass(frozen=True)
class VertexJob:
    """`state` without JOB_STATE_. `code`: of the container, if Vertex AI gives it. Times are in Google's format."""

    project: str
    region: str
    id: str
    name: str
    state: str
    code: int | None
    why: str
    created: str
    started: str | None
    ended: str | None

    @property
    def over(self) -> bool:
        return self.state in OVER

    @property
    def target(self) -> str:
        return f"vertex:{self.project}/{self.region}/{self.id}"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "target": self.target}

    def report(self) -> str:
        rows = {"state": self.state, "created": self.created, "started": self.started, "ended": self.ended}
        rows["why"] = redact(self.why)
        return "\n".join([f"{self.target}  {self.name}", *(f"  {key:<8} {row}" for key, row in rows.items() if row)])


def _job(project: str, region: str, body: Mapping[str, Any]) -> VertexJob:
    why, ident = str((body.get("error") or {}).get("message", "")), str(body["name"]).rpartition("/")[2]
    state = str(body.get("state", "UNSPECIFIED")).removeprefix("JOB_STATE_")
    times = str(body.get("createTime", "")), body.get("startTime"), body.get("endTime")
    return VertexJob(project, region, ident, str(body.get("displayName", "")), state, exit_code(why), why, *times)


def exit_code(why: str) -> int | None:
    return cause_of(int(status or code) for status, code in EXITS.findall(why))


def create(project: str, region: str, request: Mapping[str, Any]) -> VertexJob:
    """Creates one job. If the answer to the request is lost, or a signal comes before it, the job is found by its
    label, since submitting again could create a second one, at twice the cost."""
    google, path = Google(project), f"projects/{project}/locations/{region}/customJobs"
    label = f"labels.{SUBMISSION_LABEL}={request['labels'][SUBMISSION_LABEL]}"
    try:
        return _job(project, region, google.call("aiplatform", "POST", path, dict(request)))
    except (CloudError, StoppedEarly) as error:
        if isinstance(error, CloudError) and not unsure(error):
            raise
        created = None
        with suppress(CloudError):
            time.sleep(POLL_SECONDS)  # it may take some seconds to appear
            found = google.pages("aiplatform", path, "customJobs", filter=label)
            created = next((_job(project, region, body) for body in found), None)
        if created is None:
            command = f"gcloud ai custom-jobs list --project={project} --region={region} --filter={label}"
            fix = f"search for it before you submit again: {command}"
            if isinstance(error, StoppedEarly):
                raise NotFollowed("the job may exist", where="submit vertex", fix=fix) from None
            error.fix = fix
            raise
        if isinstance(error, StoppedEarly):
            what = f"submitted, not followed; the job continues: `{typed(['logs', created.target, '--follow'])}`"
            raise NotFollowed(what, where=created.target) from None
        return created


class _Log:
    """A job's log as it is shown. `ended_as_asked`: whether a container has reported such an end."""

    def __init__(self, google: Google, job: VertexJob, show: Show) -> None:
        self._google, self._job, self._show = google, job, show
        self._since, self._shown, self.ended_as_asked = job.created or "1970-01-01T00:00:00Z", set[str](), False

    def show_new(self) -> bool:
        """Shows entries that have arrived since; True if there were any."""
        any_new = False
        for entry in self._entries():
            time_ = str(entry.get("timestamp", ""))
            ident = str(entry.get("insertId", "")) + time_
            if ident in self._shown:
                continue
            self._shown.add(ident)
            any_new = True
            host, line, fields = line_of(entry)
            if host is None:
                say(f"Vertex AI: {line}")
            elif fields.get(ENDED_WITH) == EndedAsAsked.exit_code:
                self.ended_as_asked = True
            else:
                self._show(host, line)
            with suppress(ValueError):
                late = datetime.fromisoformat(time_[:19]) - timedelta(seconds=LATE_SECONDS)
                self._since = max(self._since, f"{late.isoformat()}Z")
        return any_new

    def _entries(self) -> Iterator[dict[str, Any]]:
        of_job = f'resource.type="ml_job" AND resource.labels.job_id="{self._job.id}"'
        query = {
            "resourceNames": [f"projects/{self._job.project}"],
            "filter": f'{of_job} AND timestamp>="{self._since}"',
            "orderBy": "timestamp asc",
            "pageSize": 1000,
        }
        return self._google.pages("logging", "entries:list", "entries", body=query)


def line_of(entry: Mapping[str, Any]) -> tuple[int | None, str, dict[str, Any]]:
    """The replica's number, or None for Vertex AI itself; the line; and the fields of a line that is JSON."""
    fields = entry.get("jsonPayload") or {}
    text = str(entry.get("textPayload") or fields.get("message") or fields or "").rstrip("\n")
    if text.startswith("{"):
        with suppress(ValueError):
            fields = json.loads(text)
    task = str((entry.get("resource", {}).get("labels") or {}).get("task_name", ""))
    replica = re.fullmatch(r"workerpool(\d+)-(\d+)", task)
    return int(replica[2]) + (replica[1] != "0") if replica else None, text, fields


def conclude(job: VertexJob, ended_as_asked: bool) -> None:
    """Returns if the job has succeeded; else raises the error with its exit code."""
    why = redact(" ".join(job.why.split()))[:400]
    if job.state == "SUCCEEDED" and not ended_as_asked:
        return
    if ended_as_asked or job.state in ("CANCELLED", "EXPIRED"):
        how = "stopped as asked" if ended_as_asked else job.state.lower()
        raise EndedAsAsked(f"{how}{': ' + why if why else ''}; the same command continues the run", where=job.target)
    conclude_elsewhere(job.code or 1, why or "Vertex AI gives no reason", job.target)


@dataclass(frozen=True)
class VertexJobTarget:
    name: str
    """`vertex:PROJECT/REGION/ID`."""

    takes: ClassVar[frozenset[str]] = frozenset()

    @cached_property
    def _at(self) -> tuple[Google, str, str, str]:
        """The APIs; project, region and path of the job. Raises `InputError` for another address."""
        if (match := TARGET.fullmatch(self.name)) is None:
            fix = "write it as vertex:PROJECT/REGION/ID, as submit prints it"
            raise InputError(f"{self.name[:120]!r} is not a Vertex AI job", where="vertex:…", fix=fix)
        project, region, ident = match.groups()
        return Google(project), project, region, f"projects/{project}/locations/{region}/customJobs/{ident}"

    def status(self) -> VertexJob:
        google, project, region, path = self._at
        return _job(project, region, google.call("aiplatform", "GET", path))

    def logs(self, *, follow: bool, lines: int | None, show: Show) -> int:
        if follow:
            self.follow(show)
        else:
            _Log(self._at[0], self.status(), show).show_new()
        return 0

    def follow(self, show: Show = show_line) -> None:
        """Shows state and log until the job is over; raises the error with its exit code. Ctrl-C ends only the
        following."""
        log, state = None, ""

        def poll() -> tuple[VertexJob, _Log] | None:
            nonlocal log, state
            job = self.status()
            log = log or _Log(self._at[0], job, show)
            if job.state != state:
                state = job.state
                say(f"{self.name}: {state.lower()}")
            log.show_new()
            return (job, log) if job.over else None

        with followed(self.name):
            job, log = until_over(poll, self.name, POLL_SECONDS)
            with suppress(CloudError):
                for _ in range(FINAL_LOG_POLLS):
                    time.sleep(POLL_SECONDS)
                    if not log.show_new():
                        break
        conclude(job, log.ended_as_asked)

    def stop(self, *, checkpoint: bool = False, wait_seconds: float = 120.0) -> str:
        """Cancels it: the containers get SIGTERM, at which a run saves, and are then killed. Raises `MaskwrightError`
        if it is not over after `wait_seconds`."""
        if not self.status().over:
            google, _, _, path = self._at
            google.call("aiplatform", "POST", f"{path}:cancel", {})
        ended = wait_until_over(self.status, self.name, POLL_SECONDS, wait_seconds)
        return f"{self.name}: {ended.state.lower()}"
