"""A job that hosts fetch: the spec lies in a bucket, and an agent on each host runs it and reports on it there.

    job.json                              the spec; `submission` counts the submissions to this folder
    stop.json                             {"submission": 2}: an operator asks this one to stop
    hosts/host-3.json                     a host's heartbeat: {"beat": 17, "submission": 2, "idle": true, "address": …}
    hosts/host-3.claim-000001.json        the machine that is host 3, if machines do not know their index (`claims.py`)
    idle/INSTANCE.json                    a host that ended because it had no job
    0002/submitted.json                   the spec again; created, so of two simultaneous submitters one gets the number
    0002/attempt-001/start.json           {"hosts": 4, "addresses": […], …}, once all hosts are idle
    0002/attempt-001/end.json             one host has failed, and the others are to end
    0002/attempt-001/host-3/              begun.json, log-000001.txt …, exit.json
    0002/result.json                      {"code": 0, "report": […]}: the submission is over; created: the first counts

The agent of host 0 writes start, end and result (`leader.py`). The submitter may leave, and a host that died and came
back takes part in the next attempt. This file is the submitter's side; `agent.py` is a host's.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from maskwright.core import records, storage
from maskwright.core.console import Show, say, several, show_line
from maskwright.core.errors import InputError
from maskwright.core.folder import Folder, each
from maskwright.launch.follow import followed, until_over
from maskwright.launch.outcome import End, conclude
from maskwright.launch.target import JobSpec, parse_spec
from maskwright.processes.parent import as_reason

PIECE = re.compile(r"log-(\d+)\.txt")
PIECES = 10
"""Pieces of each host's log that a follower reads at once: two and a half minutes of it (`agent.LOG_SECONDS`)."""


def spec_folder(spec: str) -> Folder:
    folder, _, name = spec.rpartition("/")
    if name != "job.json" or not storage.is_url(spec):
        raise InputError("is not job.json in a folder", where=spec, fix="write it as gs://bucket/jobs/NAME/job.json")
    return Folder(folder)


def read_spec(folder: Folder) -> JobSpec | None:
    content = folder.get("job.json")
    return None if content is None else parse_spec(content, f"{folder.location}/job.json")


def attempt_folder(submission: int, attempt: int) -> str:
    return f"{submission:04d}/attempt-{attempt:03d}"


def last_attempt(folder: Folder, submission: int) -> int:
    """Number of the last attempt, 0 before the first."""
    names = folder.names(f"{submission:04d}")
    return max((int(name[8:]) for name in names if name.startswith("attempt-")), default=0)


def read_result(folder: Folder, submission: int) -> dict[str, Any] | None:
    """None while the submission goes on."""
    return folder.get_json(f"{submission:04d}/result.json")


def read_beats(folder: Folder, num_hosts: int) -> list[dict[str, Any] | None]:
    """The heartbeat of each host, None before its first."""
    return each(folder.get_json, [f"hosts/host-{host}.json" for host in range(num_hosts)])


def read_ends(folder: Folder, attempt: str, num_hosts: int) -> list[End | None]:
    """How an attempt ended on each host; None where it goes on or the host was lost."""
    contents = each(folder.get, [f"{attempt}/host-{host}/exit.json" for host in range(num_hosts)])
    return [records.read(End, content) for content in contents]


def put_result(folder: Folder, submission: int, code: int, cause: str, **more: object) -> bool:
    """Writes the result. False if there is one already, which then counts. The report is the cause unless `more` has a
    report."""
    result = {"code": code, "cause": cause, "report": [cause], "time": time.time(), **more}
    return folder.create_json(f"{submission:04d}/result.json", result)


def is_asked(folder: Folder, submission: int) -> bool:
    """Whether an operator asked the submission to stop."""
    return (folder.get_json("stop.json") or {}).get("submission") == submission


def put_spec(folder: Folder, spec: JobSpec, first: Callable[[int], None] = lambda submission: None) -> int:
    """Writes the spec and returns the number of the submission, after calling `first` with it. The same spec again,
    while its job runs or after its submitter was killed, is the same submission."""
    location, previous = f"{folder.location}/job.json", read_spec(folder)
    if previous is not None and read_result(folder, previous.submission) is None:
        if replace(previous, submission=spec.submission) != spec:
            fix = f"wait for it, end it with `maskwright stop {location}`, or use another folder"
            raise InputError("another job is not over yet", where=location, fix=fix)
        first(previous.submission)
        say(f"{location}: submitted before, following it")
        return previous.submission
    spec = replace(spec, submission=previous.submission + 1 if previous else 1)
    claim, content = f"{spec.submission:04d}/submitted.json", spec.to_json().encode()
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

    def poll() -> dict[str, Any] | None:
        result = read_result(folder, submission)  # before the logs, so that no line is missed
        logs.poll(meanwhile)
        return result

    with followed(where):
        result = poll()  # an error of the first call is not transient
        if result is None:
            meanwhile()
            result = until_over(poll, where, poll_seconds, meanwhile=meanwhile)
    for line in result["report"]:
        say(str(line))
    reason = as_reason(str(result.get("reason")))
    conclude(int(result["code"]), str(result["cause"]), folder.location, reason)


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
        newest, self._left_out = last_attempt(self._folder, self._submission), False
        for number in range(max(1, newest - 1, *(seen + 1 for seen in self._attempts)), newest + 1):
            start = self._folder.get_json(f"{attempt_folder(self._submission, number)}/start.json") or {"hosts": 0}
            self._attempts[number] = int(start["hosts"])
            say(f"attempt {number} begins on {several(start['hosts'], 'host')}")
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
            command = f"`maskwright logs {self._folder.location}/job.json`"
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
    content = folder.get(log_piece(place, number))
    return None if content is None else content.decode(errors="replace").splitlines()
