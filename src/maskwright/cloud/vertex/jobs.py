"""Custom jobs of Vertex AI once they exist: submit, follow, status, logs, stop. A job is `vertex:PROJECT/REGION/ID`.

State comes from the job, lines from Cloud Logging, where they arrive some seconds late and not in order. The exit code
of the container is only in the sentence with which Vertex AI explains a failure.
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
from maskwright.core.errors import CloudError, InputError, JobError, MaskwrightError, StoppedEarly
from maskwright.core.secrets import redact
from maskwright.launch.follow import followed, until_over, wait_until_over

POLL_SECONDS = 5.0
LATE_SECONDS = 60
"""Entries are looked for again so far back: they arrive late, each replica's at its own pace."""
LAST_LOOKS = 3
"""At the log after the job's end, `POLL_SECONDS` apart, until two in a row bring nothing new."""
LOOKS = 3
"""For a job whose request had no answer, `POLL_SECONDS` apart."""
SUBMISSION_LABEL = "maskwright-submission"
"""By which a job is found whose request had no answer."""
OVER = ("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED", "PARTIALLY_SUCCEEDED")
LATER = "; the same submit continues the run"
TARGET = re.compile(r"vertex:(?:projects/)?([^/\s]+)/(?:locations/)?([^/\s]+)/(?:customJobs/)?(\d+)")
EXITS = re.compile(r"non-zero status of (\d+)|exit(?:ed with)? (?:code|status)[: ]+(\d+)")
"""As in "The replica workerpool0-0 exited with a non-zero status of 1."."""


@dataclass(frozen=True)
class VertexJob:
    """`state` without JOB_STATE_. `code`: of the container, where Vertex AI says it. Times as Google writes them."""

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
    found = TARGET.fullmatch(target)
    if not found:
        fix = "write it as vertex:PROJECT/REGION/ID, as submit prints it"
        raise InputError(f"{target[:120]!r} is not a Vertex AI job", where="vertex:…", fix=fix)
    return found[1], found[2], found[3]


class VertexJobs:
    """Of one project and region."""

    def __init__(self, project: str, region: str) -> None:
        self.project, self.region = project, region
        self._google = Google(project)
        self._parent = f"projects/{project}/locations/{region}"

    def create(self, request: Mapping[str, Any]) -> VertexJob:
        """One job, also where the answer to the request is lost: then it is looked for by its label."""
        path, number = f"{self._parent}/customJobs", request["labels"][SUBMISSION_LABEL]
        try:
            return self._job(self._google.call("aiplatform", "POST", path, dict(request)))
        except CloudError as error:
            if not unsure(error):
                raise
            if (made := self.find(number)) is None:
                raise CloudError(error.what, reason=error.reason, where=error.where, fix=self._look(number)) from None
            return made
        except StoppedEarly as stopped:
            if (made := self.find(number)) is None:
                raise StoppedEarly(f"there may be a job: {self._look(number)}", where=stopped.where) from None
            what = f"submitted, not followed; the job goes on: `maskwright logs {made.target} --follow`"
            raise StoppedEarly(what, where=made.target) from None

    def find(self, number: str) -> VertexJob | None:
        """The job of a submission, which may take a while to be seen."""
        query, path = f'labels.{SUBMISSION_LABEL}="{number}"', f"{self._parent}/customJobs"
        for look in range(LOOKS):
            time.sleep(POLL_SECONDS if look else 0)
            with suppress(CloudError):
                for made in self._google.pages("aiplatform", path, "customJobs", filter=query):
                    return self._job(made)
        return None

    def _look(self, number: str) -> str:
        """Submitting again would make another one, which costs as much again."""
        words = f"--project={self.project} --region={self.region} --filter=labels.{SUBMISSION_LABEL}={number}"
        return f"look for it before you submit again: gcloud ai custom-jobs list {words}"

    def get(self, job: str) -> VertexJob:
        return self._job(self._google.call("aiplatform", "GET", f"{self._parent}/customJobs/{job}"))

    def cancel(self, job: str) -> None:
        self._google.call("aiplatform", "POST", f"{self._parent}/customJobs/{job}:cancel", {})

    def entries(self, job: str, since: str) -> list[dict[str, Any]]:
        """Of its log, from a time on, in the order of their times."""
        wanted = f'resource.type="ml_job" AND resource.labels.job_id="{job}" AND timestamp>="{since}"'
        request = {"resourceNames": [f"projects/{self.project}"], "filter": wanted, "orderBy": "timestamp asc"}
        found: list[dict[str, Any]] = []
        token = None
        while True:
            page = {**request, "pageSize": 1000, **({"pageToken": token} if token else {})}
            answer = self._google.call("logging", "POST", "entries:list", page)
            found += answer.get("entries", [])
            token = answer.get("nextPageToken")
            if not token:
                return found

    def _job(self, told: Mapping[str, Any]) -> VertexJob:
        why = str((told.get("error") or {}).get("message", ""))
        return VertexJob(
            self.project,
            self.region,
            str(told["name"]).rpartition("/")[2],
            str(told.get("displayName", "")),
            str(told.get("state", "JOB_STATE_UNSPECIFIED")).removeprefix("JOB_STATE_"),
            exit_code(why),
            why,
            str(told.get("createTime", "")),
            told.get("startTime"),
            told.get("endTime"),
        )


def exit_code(why: str) -> int | None:
    """Several machines may be named: an error says more than the 75 or the signal of one whose partner had it."""
    codes = [int(one or other) for one, other in EXITS.findall(why)]
    errors = [code for code in codes if code not in (0, StoppedEarly.exit_code) and code <= 128]
    return next(iter(errors or codes), None)


# ---- following -----------------------------------------------------------------------------------------------------


class Log:
    """What was shown of a job's log. `more` shows what came since; true when that was something."""

    def __init__(self, jobs: VertexJobs, job: VertexJob, show: Show) -> None:
        self._jobs, self._job, self._show = jobs, job, show
        self._since, self._shown = job.created or "1970-01-01T00:00:00Z", set[str]()

    def more(self) -> bool:
        anything = False
        for entry in self._jobs.entries(self._job.id, self._since):
            ident = str(entry.get("insertId", "")) + str(entry.get("timestamp", ""))
            if ident in self._shown:
                continue
            self._shown.add(ident)
            anything = True
            host, line = line_of(entry)
            if host is None:
                say(line)
            else:
                self._show(host, line)
            self._since = max(self._since, _earlier(str(entry.get("timestamp", ""))))
        return anything


def line_of(entry: Mapping[str, Any]) -> tuple[int | None, str]:
    """The replica's number, None for Vertex AI itself, and what it says."""
    payload = entry.get("jsonPayload") or {}
    text = str(entry.get("textPayload") or payload.get("message") or payload or "").rstrip("\n")
    task = str((entry.get("resource", {}).get("labels") or {}).get("task_name", ""))
    named = re.fullmatch(r"workerpool(\d+)-(\d+)", task)
    if not named:
        return None, f"Vertex AI: {text}"
    return int(named[2]) + (1 if int(named[1]) else 0), text


def _earlier(timestamp: str) -> str:
    """`LATE_SECONDS` before, to the second."""
    seconds = seconds_of(timestamp)
    if seconds is None:
        return ""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds - LATE_SECONDS))


def follow_to_its_end(job: VertexJob, show: Show = show_line) -> None:
    """Shows state and log until the job is over; raises what gives its exit code. Ctrl-C ends only the following."""
    jobs, state, where = VertexJobs(job.project, job.region), "", job.target
    log = Log(jobs, job, show)

    def look() -> VertexJob | None:
        nonlocal state
        found = jobs.get(job.id)
        if found.state != state:
            state = found.state
            say(f"{where}: {state.lower()}")
        log.more()
        return found if found.over else None

    with followed(where):
        ended = until_over(look, where, POLL_SECONDS, is_transient=_passes)
        with suppress(CloudError):
            for _ in range(LAST_LOOKS):
                time.sleep(POLL_SECONDS)
                if not log.more():
                    break
    conclude(ended)


def _passes(error: MaskwrightError) -> bool:
    """The network, Google's service, too many requests."""
    return isinstance(error, CloudError) and (unsure(error) or error.reason == "quota")


def conclude(job: VertexJob) -> None:
    """Returns when the job is done; raises what gives the process the job's exit code."""
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
    raise JobError(f"the job failed: {why or 'Vertex AI does not say why'}", job.code or 1, where=job.target)


@dataclass(frozen=True)
class VertexJobTarget:
    """A job by its name, as a target."""

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
            Log(jobs, job, show).more()
        return 0

    def stop(self, *, checkpoint: bool = False, wait_seconds: float = 120.0) -> str:
        """Cancels it: the containers get SIGTERM, in which a run saves, and are ended. Raises `MaskwrightError` when it
        is not over by then."""
        jobs, found = self._find()
        if not found.over:
            jobs.cancel(found.id)
        ended = wait_until_over(lambda: jobs.get(found.id), self.name, POLL_SECONDS, wait_seconds)
        return f"{self.name}: {ended.state.lower()}"
