"""Hosts that fetch their job from a bucket, as a place to train; and the report on such a job."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar

from maskwright.core.console import Show, say
from maskwright.core.errors import InputError, StoppedEarly
from maskwright.core.folder import Folder, each
from maskwright.launch.bucket import job_folder, leader
from maskwright.launch.bucket.claims import Pulse
from maskwright.launch.follow import wait_until_over
from maskwright.launch.outcome import End
from maskwright.launch.target import (
    Env,
    GraceSeconds,
    JobSpec,
    OnSubmission,
    Option,
    Place,
    Restarts,
    Setup,
    Submission,
    Training,
    Workdir,
    commands_of,
    show,
)

POLL_SECONDS = 2.0
BEAT = re.compile(r"host-(\d{1,4})\.json")


@dataclass(frozen=True)
class BucketPlace(Place):
    spec: Annotated[str, Option("Location of the job that the agents wait for: a job.json.", "URL", argument=True)]
    env: Env = ()
    workdir: Workdir = "maskwright"
    setup: Setup = None
    restarts: Restarts = 3
    grace_seconds: GraceSeconds = 30.0

    takes: ClassVar[frozenset[str]] = frozenset({"--lines"})

    def submit(self, command: Training, *, dry_run: bool, on_submission: OnSubmission = show) -> None:
        """Submits the job and follows it to its end. A job that already runs is only followed."""
        folder = job_folder.spec_folder(self.spec)
        job = JobSpec(command, self.env, self.workdir, self.setup, self.restarts, self.grace_seconds)
        if dry_run:
            on_submission(Submission(False, self.spec, command.run, shown=job.to_json()))
            return
        submission = job_folder.put_spec(folder, job)
        on_submission(Submission(True, self.spec, command.run, self.spec, *commands_of(self.spec)))
        job_folder.follow(folder, submission, POLL_SECONDS)

    def status(self) -> JobReport:
        return read_report(job_folder.spec_folder(self.spec), self.spec)

    def logs(self, *, follow: bool, lines: int | None, show: Show) -> int:
        folder, submission = self._find()
        if follow:
            job_folder.follow(folder, submission, POLL_SECONDS, show=show)
        else:
            show_log(folder, submission, lines, show)
        return 0

    def stop(self, *, checkpoint: bool = False, wait_seconds: float = 120.0) -> str:
        """Asks the hosts to save and end the job. Raises `MaskwrightError` if it is not over after `wait_seconds`. Once
        no host has given a sign of life for `leader.LOST_SECONDS`, the end is recorded here."""
        folder, submission = self._find()
        if not self.status().over:
            folder.put_json("stop.json", {"submission": submission})
        pulse = Pulse()

        def poll() -> JobReport:
            beats = job_folder.read_beats(folder, _hosts(folder))
            silent = [pulse.still(host, beat) for host, beat in enumerate(beats) if beat and not beat.gone]
            if min([pulse.still("this process", None), *silent]) >= leader.LOST_SECONDS:
                result = job_folder.JobResult(StoppedEarly.exit_code, "stopped while no host was there", "asked")
                job_folder.put_result(folder, submission, result)
            return self.status()

        return wait_until_over(poll, self.spec, POLL_SECONDS, wait_seconds).report().splitlines()[0]

    def _find(self) -> tuple[Folder, int]:
        folder = job_folder.spec_folder(self.spec)
        spec = job_folder.read_spec(folder)
        if spec is None:
            raise InputError("no such job", where=self.spec, fix="check the address")
        return folder, spec.submission


@dataclass(frozen=True)
class JobReport:
    name: str
    submission: int
    """0 if nothing was submitted yet."""
    attempt: int
    hosts: list[str]
    """A line for each host."""
    code: int | None
    """None while the job goes on."""
    cause: str

    @property
    def over(self) -> bool:
        return self.code is not None

    def report(self) -> str:
        if not self.submission:
            return f"{self.name}: nothing was submitted yet"
        state = "going on" if self.code is None else f"over, exit {self.code}"
        state += f" ({self.cause})" if self.cause else ""
        lines = [f"{self.name}: submission {self.submission}, attempt {self.attempt}, {state}"]
        return "\n".join([*lines, *(f"  {text}" for text in self.hosts)])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def read_report(folder: Folder, name: str, num_hosts: int | None = None) -> JobReport:
    """`num_hosts`: as many as have written a heartbeat, if not given."""
    spec = job_folder.read_spec(folder)
    if spec is None:
        return JobReport(name, 0, 0, [], None, "")
    number = spec.submission
    result = job_folder.read_result(folder, number)
    attempt = job_folder.last_attempt(folder, number)
    beats = job_folder.read_beats(folder, _hosts(folder) if num_hosts is None else num_hosts)
    ends = job_folder.read_ends(folder, job_folder.attempt_folder(number, attempt), len(beats))
    pairs = enumerate(zip(beats, ends, strict=True))
    hosts = [f"host {host}: {_host(beat, end, number)}" for host, (beat, end) in pairs]
    return JobReport(name, number, attempt, hosts, result.code if result else None, result.cause if result else "")


def _hosts(folder: Folder) -> int:
    names = folder.names("reports/hosts")
    return max((int(match[1]) + 1 for name in names if (match := BEAT.fullmatch(name))), default=0)


def _host(beat: job_folder.HostBeat | None, end: End | None, submission: int) -> str:
    if beat is None:
        return "no heartbeat yet"
    name = beat.instance or beat.host or "a host"
    if beat.gone:
        return f"{name} has stopped"
    if end is not None:
        return f"{name}, {'lost in this attempt' if end.code is None else f'attempt ended with {end.code}'}"
    if beat.submission != submission:
        return f"{name} has not seen this submission yet"
    return f"{name} {'waits' if beat.idle else 'computes'}, by its last heartbeat"


def show_log(folder: Folder, submission: int, lines: int | None, show: Show) -> None:
    """Shows the last `lines` of each host's log in the last attempt, or all if None."""
    attempt = job_folder.last_attempt(folder, submission)
    if not attempt:
        return say(f"{folder.location}: submission {submission} has not begun yet")
    for host in range(job_folder.read_start(folder, job_folder.attempt_folder(submission, attempt)).hosts):
        for line in _last_lines(folder, f"{job_folder.attempt_folder(submission, attempt)}/host-{host}", lines):
            show(host, line)


def _last_lines(folder: Folder, place: str, count: int | None) -> list[str]:
    """The last `count` lines of a host's log, or all if None."""
    numbers = job_folder.log_pieces(folder, place)
    if count is None:
        texts = each(lambda number: job_folder.read_piece(folder, place, number) or [], numbers)
        return [line for lines in texts for line in lines]
    last: list[str] = []
    while numbers and len(last) < count:
        last = (job_folder.read_piece(folder, place, numbers.pop()) or []) + last
    return last[max(0, len(last) - count) :]
