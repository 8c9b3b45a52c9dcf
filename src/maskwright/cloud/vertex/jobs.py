"""Custom jobs of Vertex AI: create, follow, status, logs, stop. A job is `vertex:PROJECT/REGION/ID`.

The state comes from the job, lines from Cloud Logging, where they arrive some seconds late and out of order. The exit
code of the container is only in the sentence with which Vertex AI explains a failure.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from maskwright.cloud.google.errors import unsure
from maskwright.cloud.google.rest import Google, seconds_of
from maskwright.core.console import Show, say, show_line
from maskwright.core.errors import CloudError, InputError, JobError, StoppedEarly
from maskwright.core.secrets import redact
from maskwright.core.shell import typed
from maskwright.launch.follow import followed, until_over, wait_until_over

POLL_SECONDS = 5.0
LATE_SECONDS = 60
"""How far back each poll of the log goes: entries arrive late, with another delay for each replica."""
FINAL_LOG_POLLS = 3
"""Polls of the log after the job's end, until one brings nothing new."""
SEARCHES = 3
"""Searches for a job whose request got no answer, `POLL_SECONDS` apart."""
SUBMISSION_LABEL = "maskwright-submission"
"""Label by which a job is found whose request got no answer."""
OVER = ("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED", "PARTIALLY_SUCCEEDED")
LATER = "; the same submit continues the run"
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
        return {**self.__dict__, "target": self.target}

    def report(self) -> str:
        lines = [f"{self.target}  {self.name}", f"  state    {self.state}"]
        for word, time_ in (("created", self.created), ("started", self.started), ("ended", self.ended)):
            lines += [f"  {word:<8} {time_}"] if time_ else []
        return "\n".join([*lines, f"  why      {redact(self.why)}"] if self.why else lines)


def parse_target(target: str) -> tuple[str, str, str]:
    match = TARGET.fullmatch(target)
    if not match:
        fix = "write it as vertex:PROJECT/REGION/ID, as submit prints it"
        raise InputError(f"{target[:120]!r} is not a Vertex AI job", where="vertex:…", fix=fix)
    return match[1], match[2], match[3]


class VertexJobs:
    """The jobs of one project and region."""

    def __init__(self, project: str, region: str) -> None:
        self.project, self.region = project, region
        self._google = Google(project)
        self._parent = f"projects/{project}/locations/{region}"

    def create(self, request: Mapping[str, Any]) -> VertexJob:
        """Create one job, even if the answer to the request is lost: then the job is found by its label."""
        path, number = f"{self._parent}/customJobs", request["labels"][SUBMISSION_LABEL]
        try:
            return self._job(self._google.call("aiplatform", "POST", path, dict(request)))
        except CloudError as error:
            if not unsure(error):
                raise
            if (created := self.find(number)) is None:
                fix = self._search_advice(number)
                raise CloudError(error.what, reason=error.reason, where=error.where, fix=fix) from None
            return created
        except StoppedEarly as stopped:
            if (created := self.find(number)) is None:
                what = f"there may be a job: {self._search_advice(number)}"
                raise StoppedEarly(what, where=stopped.where) from None
            what = f"submitted, not followed; the job continues: `{typed(['logs', created.target, '--follow'])}`"
            raise StoppedEarly(what, where=created.target) from None

    def find(self, number: str) -> VertexJob | None:
        """The job of a submission. It may take some seconds to appear."""
        query, path = f'labels.{SUBMISSION_LABEL}="{number}"', f"{self._parent}/customJobs"
        for search in range(SEARCHES):
            time.sleep(POLL_SECONDS if search else 0)
            with suppress(CloudError):
                for body in self._google.pages("aiplatform", path, "customJobs", filter=query):
                    return self._job(body)
        return None

    def _search_advice(self, number: str) -> str:
        """How to find the job: submitting again could create a second one, at twice the cost."""
        options = f"--project={self.project} --region={self.region} --filter=labels.{SUBMISSION_LABEL}={number}"
        return f"search for it before you submit again: gcloud ai custom-jobs list {options}"

    def get(self, job: str) -> VertexJob:
        return self._job(self._google.call("aiplatform", "GET", f"{self._parent}/customJobs/{job}"))

    def cancel(self, job: str) -> None:
        self._google.call("aiplatform", "POST", f"{self._parent}/customJobs/{job}:cancel", {})

    def entries(self, job: str, since: str) -> list[dict[str, Any]]:
        """Entries of its log from a time on, sorted by time."""
        query = f'resource.type="ml_job" AND resource.labels.job_id="{job}" AND timestamp>="{since}"'
        request = {"resourceNames": [f"projects/{self.project}"], "filter": query, "orderBy": "timestamp asc"}
        entries: list[dict[str, Any]] = []
        token = None
        while True:
            page = {**request, "pageSize": 1000, **({"pageToken": token} if token else {})}
            answer = self._google.call("logging", "POST", "entries:list", page)
            entries += answer.get("entries", [])
            token = answer.get("nextPageToken")
            if not token:
                return entries

    def _job(self, body: Mapping[str, Any]) -> VertexJob:
        why = str((body.get("error") or {}).get("message", ""))
        return VertexJob(
            self.project,
            self.region,
            str(body["name"]).rpartition("/")[2],
            str(body.get("displayName", "")),
            str(body.get("state", "JOB_STATE_UNSPECIFIED")).removeprefix("JOB_STATE_"),
            exit_code(why),
            why,
            str(body.get("createTime", "")),
            body.get("startTime"),
            body.get("endTime"),
        )


def exit_code(why: str) -> int | None:
    """The exit code. Of several machines, one with an error matters more than its partners' 75 or signal."""
    codes = [int(status or code) for status, code in EXITS.findall(why)]
    errors = [code for code in codes if code not in (0, StoppedEarly.exit_code) and code <= 128]
    return next(iter(errors or codes), None)


# ---- following -----------------------------------------------------------------------------------------------------


class Log:
    """A job's log as it is shown."""

    def __init__(self, jobs: VertexJobs, job: VertexJob, show: Show) -> None:
        self._jobs, self._job, self._show = jobs, job, show
        self._since, self._shown = job.created or "1970-01-01T00:00:00Z", set[str]()

    def show_new(self) -> bool:
        """Show entries that have arrived since; True if there were any."""
        any_new = False
        for entry in self._jobs.entries(self._job.id, self._since):
            ident = str(entry.get("insertId", "")) + str(entry.get("timestamp", ""))
            if ident in self._shown:
                continue
            self._shown.add(ident)
            any_new = True
            host, line = line_of(entry)
            if host is None:
                say(line)
            else:
                self._show(host, line)
            self._since = max(self._since, _earlier(str(entry.get("timestamp", ""))))
        return any_new


def line_of(entry: Mapping[str, Any]) -> tuple[int | None, str]:
    """The replica's number, or None for Vertex AI itself, and the line."""
    payload = entry.get("jsonPayload") or {}
    text = str(entry.get("textPayload") or payload.get("message") or payload or "").rstrip("\n")
    task = str((entry.get("resource", {}).get("labels") or {}).get("task_name", ""))
    match = re.fullmatch(r"workerpool(\d+)-(\d+)", task)
    if not match:
        return None, f"Vertex AI: {text}"
    return int(match[2]) + (1 if int(match[1]) else 0), text


def _earlier(timestamp: str) -> str:
    """`LATE_SECONDS` before, to the second."""
    seconds = seconds_of(timestamp)
    if seconds is None:
        return ""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds - LATE_SECONDS))


def follow_to_its_end(job: VertexJob, show: Show = show_line) -> None:
    """Show state and log until the job is over; raise the error with its exit code. Ctrl-C ends only the following."""
    jobs, state, where = VertexJobs(job.project, job.region), "", job.target
    log = Log(jobs, job, show)

    def poll() -> VertexJob | None:
        nonlocal state
        current = jobs.get(job.id)
        if current.state != state:
            state = current.state
            say(f"{where}: {state.lower()}")
        log.show_new()
        return current if current.over else None

    with followed(where):
        ended = until_over(poll, where, POLL_SECONDS)
        with suppress(CloudError):
            for _ in range(FINAL_LOG_POLLS):
                time.sleep(POLL_SECONDS)
                if not log.show_new():
                    break
    conclude(ended)


def conclude(job: VertexJob) -> None:
    """Return if the job has succeeded; else raise the error with its exit code."""
    why = redact(" ".join(job.why.split()))[:400]
    if job.state == "SUCCEEDED":
        return
    if job.state in ("CANCELLED", "EXPIRED") or job.code == StoppedEarly.exit_code:
        raise StoppedEarly(f"{job.state.lower()}{': ' + why if why else ''}{LATER}", where=job.target)
    if job.code in (126, 127):
        fix = "use an image with maskwright in it: `maskwright env image` builds one"
        raise JobError(f"the image has no such command: {why}", 1, where=job.target, fix=fix)
    if job.code is not None and job.code > 128:
        raise JobError(f"the container was killed: {why}{LATER}", 1, where=job.target)
    raise JobError(f"the job failed: {why or 'Vertex AI gives no reason'}", job.code or 1, where=job.target)


@dataclass(frozen=True)
class VertexJobTarget:
    """One job, as a target."""

    name: str
    """`vertex:PROJECT/REGION/ID`."""

    takes: ClassVar[frozenset[str]] = frozenset()

    def _find(self) -> tuple[VertexJobs, VertexJob]:
        project, region, ident = parse_target(self.name)
        jobs = VertexJobs(project, region)
        return jobs, jobs.get(ident)

    def status(self) -> VertexJob:
        return self._find()[1]

    def logs(self, *, follow: bool, lines: int | None, show: Show) -> int:
        jobs, job = self._find()
        if follow:
            follow_to_its_end(job, show)
        else:
            Log(jobs, job, show).show_new()
        return 0

    def stop(self, *, checkpoint: bool = False, wait_seconds: float = 120.0) -> str:
        """Cancel it: the containers get SIGTERM, upon which a run saves, and are then killed. Raises `MaskwrightError`
        if it is not over after `wait_seconds`."""
        jobs, job = self._find()
        if not job.over:
            jobs.cancel(job.id)
        ended = wait_until_over(lambda: jobs.get(job.id), self.name, POLL_SECONDS, wait_seconds)
        return f"{self.name}: {ended.state.lower()}"
