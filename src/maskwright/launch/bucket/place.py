"""Hosts that fetch their job from a bucket, as a place to train; also the job that lies there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from maskwright.core.errors import InputError
from maskwright.core.folder import Folder
from maskwright.launch.bucket import queue, report
from maskwright.launch.target import Env, GraceSeconds, JobSpec, Option, Place, Pretrain, Restarts, Setup, Workdir

POLL_SECONDS = 2.0


@dataclass(frozen=True)
class Bucket(Place):
    spec: Annotated[str, Option("Location of the job that the agents wait for: a job.json.", "URL", argument=True)]
    env: Env = ()
    workdir: Workdir = "maskwright"
    setup: Setup = None
    restarts: Restarts = 3
    grace_seconds: GraceSeconds = 30.0

    takes: ClassVar[frozenset[str]] = frozenset({"--lines"})

    def submit(self, command: Pretrain, *, dry_run: bool) -> None:
        """Follows the job to its end. The same job again, while it runs, is followed only."""
        folder = queue.spec_folder(self.spec)
        job = JobSpec(command, self.env, self.workdir, self.setup, self.restarts, self.grace_seconds)
        if dry_run:
            return print(job.to_json(), end="")
        queue.follow(folder, queue.put_spec(folder, job), POLL_SECONDS)

    def status(self) -> report.JobReport:
        return report.look(queue.spec_folder(self.spec), self.spec)

    def logs(self, *, follow: bool, lines: int | None) -> int:
        folder, submission = self._submitted()
        if follow:
            queue.follow(folder, submission, POLL_SECONDS)
        else:
            report.print_log(folder, submission, lines)
        return 0

    def stop(self, *, checkpoint: bool = False, wait_seconds: float = 0.0) -> str:
        """Asks the hosts to end the job and follows it until they have."""
        folder, submission = self._submitted()
        folder.put_json("stop.json", {"submission": submission})
        queue.follow(folder, submission, POLL_SECONDS)
        return ""

    def _submitted(self) -> tuple[Folder, int]:
        folder = queue.spec_folder(self.spec)
        found = queue.read_spec(folder)
        if found is None:
            raise InputError("no such job", where=self.spec, fix="check the address")
        return folder, found.submission
