"""`maskwright status|logs|stop lab.yaml`: the jobs of an environment, read only from its jobs bucket."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from maskwright.cloud.environment import read_environment
from maskwright.cloud.jobs.spec import JobHosts
from maskwright.cloud.jobs.watcher import HISTORY
from maskwright.core.console import Show, human_seconds, say
from maskwright.core.errors import InputError, StoppedEarly
from maskwright.core.shell import typed
from maskwright.launch.bucket.job_folder import JobResult, put_result, read_spec
from maskwright.launch.bucket.place import BucketPlace, JobReport, read_report


@dataclass(frozen=True)
class WatchedJob:
    """The job of one slice or group, with its watcher's counts."""

    environment: str
    kind: str
    job: JobReport
    phase: str
    why: str
    hours: float | None
    """Hours in which hosts have existed; None if no watcher has counted."""
    usd: float | None

    def report(self) -> str:
        lines = [self.job.report()]
        if self.hours is not None:
            cost = f", {self.usd:,.2f} USD by the price table" if self.usd else ""
            lines.append(f"  hosts have existed for {human_seconds(3600 * self.hours)}{cost}")
            lines.append(f"  last decision: {self.phase}{f' ({self.why})' if self.why else ''}")
        return "\n".join(lines)


@dataclass(frozen=True)
class JobsReport:
    jobs: list[WatchedJob]

    @property
    def over(self) -> bool:
        return all(watched.job.over or not watched.job.submission for watched in self.jobs)

    def report(self) -> str:
        return "\n".join(watched.report() for watched in self.jobs)

    def to_json(self) -> dict[str, Any]:
        pairs = ((asdict(watched), watched.job) for watched in self.jobs)
        return {"jobs": [{**values, **asdict(job), "job": job.name} for values, job in pairs]}


@dataclass(frozen=True)
class EnvironmentJobs:
    """The jobs of the environment whose YAML is at `location`, as a target."""

    location: str

    takes: ClassVar[frozenset[str]] = frozenset({"--lines"})

    def status(self) -> JobsReport:
        return JobsReport([_watched_job(place) for place in places(self.location)])

    def logs(self, *, follow: bool, lines: int | None, show: Show) -> int:
        """With `follow`, raises the error with the job's exit code."""
        return self._chosen().logs(follow=follow, lines=lines, show=show)

    def stop(self, *, checkpoint: bool = False, wait_seconds: float = 120.0) -> str:
        return self._chosen().stop(wait_seconds=wait_seconds)

    def _chosen(self) -> BucketPlace:
        """The slice or group with a job; of two, the one whose job is not over."""
        candidates = [place for place in places(self.location) if read_spec(place.folder) is not None]
        if len(candidates) > 1:
            candidates = [place for place in candidates if not read_report(place.folder, "", 0).over]
            if len(candidates) != 1:
                fix = "name it: `maskwright stop gs://…-jobs/slice/job.json`"
                raise InputError("has a job on its slice and one on its group", where=self.location, fix=fix)
        if not candidates:
            fix = typed(["submit", "env", self.location, "CONFIG", "--run", "NAME"])
            raise InputError("nothing was submitted yet", where=self.location, fix=fix)
        return BucketPlace(f"{candidates[0].jobs}/job.json")


def places(location: str) -> list[JobHosts]:
    environment = read_environment(location)
    return [JobHosts(location, environment, kind) for kind in environment.hosts]


def _watched_job(place: JobHosts) -> WatchedJob:
    job = read_report(place.folder, f"{place.environment.name} {place.kind}", place.hosts.hosts)
    history = place.folder.get_json(HISTORY) or {}
    if history.get("submission") != job.submission:
        history = {}
    phase, why = str(history.get("phase", "")), str(history.get("why", ""))
    return WatchedJob(place.environment.name, place.kind, job, phase, why, history.get("hours"), history.get("usd"))


def end_jobs(location: str, parts: Collection[str]) -> None:
    """End the jobs of hosts that are to be deleted: those of `parts`, or all if it is empty. Otherwise a watcher would
    create the hosts again, and the next `env up` would start an old job. The same command continues the run from its
    last checkpoint."""
    for place in places(location):
        spec = read_spec(place.folder) if not parts or place.kind in parts else None
        result = JobResult(StoppedEarly.exit_code, "env down deleted its hosts", hosts_taken=True)
        if spec and put_result(place.folder, spec.submission, result):
            say(f"this stops the job on its {place.kind} (submission {spec.submission}), which is told to save")
