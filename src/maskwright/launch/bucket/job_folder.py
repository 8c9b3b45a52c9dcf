"""One job on hosts that fetch it: the spec lies in a bucket, and an agent on each host runs it and reports on it there.

Orders, which hosts only read:
    job.json                              the spec; `submission` counts the submissions to this folder
    stop.json                             {"submission": 2}: an operator asks this one to stop
    submissions/0002.json                 the spec again; created, so of two simultaneous submitters one gets the number

What hosts create, and cannot change later:
    claims/host-3-000001.json             the machine that is host 3, if machines do not know their index (`claims.py`)
    results/0002.json                     {"code": 0, "report": […]}: the submission is over; the first result counts

What hosts write:
    reports/hosts/host-3.json             a host's heartbeat: {"beat": 17, "submission": 2, "idle": true, "address": …}
    reports/health/INSTANCE.json          a step of its start-up, from deploy/terraform/host/startup.sh
    reports/idle/INSTANCE.json            a host that ended because it had no job
    reports/0002/attempt-001/start.json   {"hosts": 4, "addresses": […], …}, once all hosts are idle
    reports/0002/attempt-001/end.json     one host has failed, and the others are to end
    reports/0002/attempt-001/host-3/      begun.json, log-000001.txt …, exit.json

The agent of host 0 writes start, end and result (`leader.py`). The submitter may leave, and a host that died and came
back takes part in the next attempt. This file is the submitter's side; `agent.py` is a host's.

Somebody may have taken over a host, so whatever hosts write is read up to a size, and by the types of its fields: it
stops neither the other hosts' agents nor the watcher that keeps the budget.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace

from maskwright.core import records, storage
from maskwright.core.console import Show, say, several, show_line
from maskwright.core.errors import InputError
from maskwright.core.folder import Folder, each
from maskwright.core.shell import typed
from maskwright.launch.follow import followed, until_over
from maskwright.launch.outcome import End, conclude
from maskwright.launch.target import JobSpec, parse_spec

PIECE = re.compile(r"log-(\d{6,9})\.txt")
BEAT_BYTES, RESULT_BYTES, PIECE_BYTES = 1 << 16, 1 << 24, 1 << 23
"""Largest heartbeat or start, end or result, and piece of a log that is read. Ours are far smaller: the largest end has
20 lines of 64 KiB, and a piece has 4 MiB (`agent.LOG_BYTES`)."""
MOST_HOSTS, MOST_ATTEMPTS = 10_000, 1_000_000
"""Bounds for what hosts say; no slice and no group has as many."""
PIECES = 10
"""Pieces of each host's log that a follower reads at once: two and a half minutes of it (`agent.LOG_SECONDS`)."""


@dataclass(frozen=True)
class HostBeat:
    """A host's heartbeat."""

    beat: int
    """Counted up."""
    submission: int = 0
    """The newest one that it has seen."""
    idle: bool = False
    gone: bool = False
    """Whether its agent has ended."""
    instance: str = ""
    host: str = ""
    """The machine's name for itself."""
    address: str = ""
    software: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class StartUpStep:
    """The last step of a host's start-up script, or its note that it powered off."""

    step: str = ""
    ok: bool = True
    what: str = ""
    final: bool = False
    """Whether the script retries nothing."""


@dataclass(frozen=True)
class AttemptStart:
    hosts: int = 0
    addresses: tuple[str, ...] = ()
    """By host."""


@dataclass(frozen=True)
class JobResult:
    code: int
    """Exit code."""
    cause: str = ""
    reason: str = ""
    """Of a 75."""
    report: tuple[str, ...] = ()
    hosts_taken: bool = False
    """Whether `env down` ended the job."""
    time: float = field(default_factory=time.time)


def spec_folder(spec: str) -> Folder:
    folder, _, name = spec.rpartition("/")
    if name != "job.json" or not storage.is_url(spec):
        raise InputError("is not job.json in a folder", where=spec, fix="write it as gs://bucket/jobs/NAME/job.json")
    return Folder(folder)


def read_spec(folder: Folder) -> JobSpec | None:
    content = folder.get("job.json")
    return None if content is None else parse_spec(content, f"{folder.location}/job.json")


def attempt_folder(submission: int, attempt: int) -> str:
    return f"reports/{submission:04d}/attempt-{attempt:03d}"


def last_attempt(folder: Folder, submission: int, known: int = 0) -> int:
    """Number of the last attempt, 0 before the first. `known`: one that has begun.

    Attempts are numbered without gaps, so reads find it by halving: one read if it is `known` itself. A list of names
    would cost more than a read, and the more the more names others write there."""

    def has_begun(number: int) -> bool:
        return folder.head(f"{attempt_folder(submission, number)}/start.json", 1) is not None

    first, step = known, 1
    while first + step <= MOST_ATTEMPTS and has_begun(first + step):
        first, step = first + step, 2 * step
    while step > 1:
        step //= 2
        first += step if first + step <= MOST_ATTEMPTS and has_begun(first + step) else 0
    return first


def read_start(folder: Folder, attempt: str) -> AttemptStart:
    start = records.read(AttemptStart, folder.head(f"{attempt}/start.json", BEAT_BYTES)) or AttemptStart()
    return start if start.hosts <= MOST_HOSTS else AttemptStart()


def read_result(folder: Folder, submission: int) -> JobResult | None:
    """None while the submission goes on."""
    name = f"results/{submission:04d}.json"
    content = folder.head(name, RESULT_BYTES)
    if content is None:
        return None
    result = records.read(JobResult, content)
    if result is None or not 0 <= result.code <= 255:
        return JobResult(1, f"a host wrote something else than a result to {folder.location}/{name}")
    return result


def beat_name(host: int) -> str:
    return f"reports/hosts/host-{host}.json"


def idle_name(instance: str) -> str:
    return f"reports/idle/{instance}.json"


def read_health(folder: Folder, instance: str) -> StartUpStep | None:
    return records.read(StartUpStep, folder.head(f"reports/health/{instance}.json", BEAT_BYTES))


def read_beat(folder: Folder, host: int) -> HostBeat | None:
    """None before the first."""
    return records.read(HostBeat, folder.head(beat_name(host), BEAT_BYTES))


def read_beats(folder: Folder, num_hosts: int) -> list[HostBeat | None]:
    return each(lambda host: read_beat(folder, host), range(num_hosts))


def read_ends(folder: Folder, attempt: str, num_hosts: int) -> list[End | None]:
    """How an attempt ended on each host; None where it goes on or the host was lost."""
    names = [f"{attempt}/host-{host}/exit.json" for host in range(num_hosts)]
    return each(lambda name: records.read(End, folder.head(name, RESULT_BYTES)), names)


def put_result(folder: Folder, submission: int, result: JobResult) -> bool:
    """Writes the result. False if there is one already, which then counts."""
    return folder.create_json(f"results/{submission:04d}.json", asdict(result))


def is_asked(folder: Folder, submission: int) -> bool:
    """Whether an operator asked the submission to stop."""
    return (folder.get_json("stop.json") or {}).get("submission") == submission


def put_spec(folder: Folder, spec: JobSpec, first: Callable[[int], None] = lambda submission: None) -> int:
    """Writes the spec and returns the number of the submission, after calling `first` with it. The same spec again,
    while its job runs or after its submitter was killed, is the same submission."""
    location, previous = f"{folder.location}/job.json", read_spec(folder)
    if previous is not None and read_result(folder, previous.submission) is None:
        if replace(previous, submission=spec.submission) != spec:
            fix = f"wait for it, end it with `{typed(['stop', location])}`, or use another folder"
            raise InputError("another job is not over yet", where=location, fix=fix)
        first(previous.submission)
        say(f"{location}: submitted before, following it")
        return previous.submission
    number = previous.submission + 1 if previous else 1
    while read_result(folder, number) is not None or last_attempt(folder, number):  # what a host wrote in advance
        number += 1
    spec = replace(spec, submission=number)
    claim, content = f"submissions/{spec.submission:04d}.json", spec.to_json().encode()
    if not folder.create(claim, content):
        fix = f"submit again; if that does not help, its submitter was killed: delete {folder.location}/{claim}"
        raise InputError("another job was submitted here at the same moment", where=location, fix=fix)
    first(spec.submission)
    folder.put("job.json", content)
    say(f"{location}: submission {spec.submission}, waiting for the hosts")
    return spec.submission


def follow(
    folder: Folder,
    submission: int,
    poll_seconds: float,
    meanwhile: Callable[[], object] = lambda: None,
    *,
    show: Show = show_line,
) -> None:
    """Shows the hosts' logs until the job is over, then raises as `conclude` does. Ctrl-C ends the following; the job
    goes on. `meanwhile` is called in each round, and before each host's log is read."""
    where, logs = f"{folder.location}/job.json", _Logs(folder, submission, show)

    def poll() -> JobResult | None:
        result = read_result(folder, submission)  # before the logs, so that no line is missed
        logs.poll(meanwhile)
        return result

    with followed(where):
        result = poll()  # an error of the first call is not transient
        if result is None:
            meanwhile()
            result = until_over(poll, where, poll_seconds, meanwhile=meanwhile)
    for line in result.report or filter(None, [result.cause]):
        say(line)
    conclude(result.code, result.cause, folder.location)


class _Logs:
    """Shows the hosts' logs as they grow. Of a log that has grown by more than `PIECES` pieces, such as that of a job
    that was not followed, it shows the newest ones: reading a week of a log would take hours."""

    def __init__(self, folder: Folder, submission: int, show: Show) -> None:
        self._folder, self._submission, self._show = folder, submission, show
        self._attempts: dict[int, int] = {}
        """Number of hosts by attempt, of those that have begun."""
        self._shown: dict[str, int] = {}
        """Number of the last piece shown, by the host's folder."""
        self._left_out = False

    def poll(self, meanwhile: Callable[[], object]) -> None:
        """Shows the last two attempts, since hosts may still log the end of one when the next begins."""
        newest = last_attempt(self._folder, self._submission, max(self._attempts, default=0))
        self._left_out = False
        for number in range(max(1, newest - 1, *(seen + 1 for seen in self._attempts)), newest + 1):
            hosts = read_start(self._folder, attempt_folder(self._submission, number)).hosts
            self._attempts[number] = hosts
            say(f"attempt {number} begins on {several(hosts, 'host')}")
        for number in sorted(self._attempts)[-2:]:
            for host in range(self._attempts[number]):
                meanwhile()
                self._catch_up(f"{attempt_folder(self._submission, number)}/host-{host}", host)

    def _catch_up(self, place: str, host: int) -> None:
        behind = place not in self._shown
        for _ in range(2):
            if behind:
                self._skip(place)
            behind = self._show_some(place, host)
            if not behind:
                return

    def _skip(self, place: str) -> None:
        shown = self._shown.get(place, 0)
        self._shown[place] = max(shown, max(log_pieces(self._folder, place), default=0) - PIECES)
        if self._shown[place] > shown and not self._left_out:
            self._left_out = True
            command = f"`{typed(['logs', f'{self._folder.location}/job.json'])}`"
            say(f"older lines of the hosts' logs are left out; {command} shows all of the last attempt")

    def _show_some(self, place: str, host: int) -> bool:
        """Shows up to `PIECES` pieces. Returns whether there may be more."""
        for _ in range(PIECES):
            lines = read_piece(self._folder, place, self._shown[place] + 1)
            if lines is None:
                return False
            self._shown[place] += 1
            for line in lines:
                self._show(host, line)
        return True


def log_piece(place: str, number: int) -> str:
    """Name of a piece of a host's log; pieces count from 1."""
    return f"{place}/log-{number:06d}.txt"


def log_pieces(folder: Folder, place: str) -> list[int]:
    """Numbers of the pieces of a host's log, ascending."""
    return sorted(int(match[1]) for name in folder.names(place) if (match := PIECE.fullmatch(name)))


def read_piece(folder: Folder, place: str, number: int) -> list[str] | None:
    """The piece's lines, all of them whole; None if there is no such piece."""
    content = folder.head(log_piece(place, number), PIECE_BYTES)
    return None if content is None else content.decode(errors="replace").splitlines()
