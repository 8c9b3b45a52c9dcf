"""`maskwright status|logs|stop lab.yaml`: the jobs of an environment, read from its runs bucket and nothing else."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from maskwright.cloud.environment import read_environment
from maskwright.cloud.jobs import spec as jobs
from maskwright.cloud.jobs.spec import Place
from maskwright.cloud.jobs.watcher import HISTORY
from maskwright.core.console import human_seconds, say
from maskwright.core.errors import InputError, StoppedEarly
from maskwright.launch.bucket import queue
from maskwright.launch.bucket.queue import attempt_folder, last_attempt, read_spec
from maskwright.launch.ssh.host import show

TAKEN_AWAY = "env down took its hosts away"
"""Cause of such a job's end."""


@dataclass(frozen=True)
class Found:
    """Of one slice or group. `code`: None while the job goes on. `hours` and `usd`: None where nobody has counted."""

    environment: str
    kind: str
    submission: int
    attempt: int
    hosts: int
    workers: list[str]
    code: int | None
    cause: str
    phase: str
    why: str
    hours: float | None
    usd: float | None

    def report(self) -> str:
        if not self.submission:
            return f"{self.environment} {self.kind}: nothing was submitted yet"
        state = "going on" if self.code is None else f"over, exit {self.code}"
        state += f" ({self.cause})" if self.cause else ""
        lines = [f"{self.environment} {self.kind}: submission {self.submission}, attempt {self.attempt}, {state}"]
        lines += [f"  {text}" for text in self.workers]
        if self.hours is not None:
            cost = f", {self.usd:,.2f} USD by the price table" if self.usd else ""
            lines.append(f"  hosts have existed for {human_seconds(3600 * self.hours)}{cost}")
            lines.append(f"  last decision: {self.phase}{f' ({self.why})' if self.why else ''}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def places(location: str) -> Iterator[Place]:
    environment = read_environment(location)
    for kind in ("slice", "group"):
        if environment.hosts_of(kind) is not None:
            yield Place(location, environment, kind)


def look_all(location: str) -> list[Found]:
    return [_look(place) for place in places(location)]


def _look(place: Place) -> Found:
    folder, spec = place.folder, read_spec(place.folder)
    number = spec.submission if spec else 0
    result = (folder.get_json(f"{number:04d}/result.json") if number else None) or {}
    history = folder.get_json(HISTORY) or {}
    if history.get("submission") != number:
        history = {}
    attempt = last_attempt(folder, number) if number else 0
    workers = []
    for worker in range(place.hosts.hosts if number else 0):
        beat = folder.get_json(f"hosts/worker-{worker}.json")
        said = folder.get_json(f"{attempt_folder(number, attempt)}/worker-{worker}/exit.json") if attempt else None
        workers.append(f"worker {worker}: {_worker(beat, said, number)}")
    return Found(
        place.environment.name,
        place.kind,
        number,
        attempt,
        place.hosts.hosts,
        workers,
        result.get("code"),
        str(result.get("cause", "")),
        str(history.get("phase", "")),
        str(history.get("why", "")),
        history.get("hours"),
        history.get("usd"),
    )


def _worker(beat: dict[str, Any] | None, said: dict[str, Any] | None, submission: int) -> str:
    if beat is None:
        return "no agent has spoken yet"
    name = beat.get("instance") or beat.get("host") or "a host"
    if beat.get("gone"):
        return f"{name} has gone"
    if said is not None:
        return f"{name}, attempt ended with {said['code'] if said['code'] is not None else 'the host'}"
    if beat.get("submission") != submission:
        return f"{name} has not seen this submission yet"
    return f"{name} {'waits' if beat.get('idle') else 'computes'}, by its last beat"


def _chosen(location: str) -> Place:
    """The one with a job; of two, the one whose job goes on."""
    found = [place for place in places(location) if read_spec(place.folder) is not None]
    if len(found) > 1:
        found = [p for p in found if p.folder.get_json(f"{jobs.require_spec(p).submission:04d}/result.json") is None]
        if len(found) != 1:
            fix = "name it: `maskwright stop gs://…/jobs/slice/job.json`"
            raise InputError("has a job on its slice and one on its group", where=location, fix=fix)
    if not found:
        fix = f"maskwright submit CONFIG --run NAME --on {location}"
        raise InputError("nothing was submitted yet", where=location, fix=fix)
    return found[0]


def logs(location: str, follow: bool, lines: int | None) -> None:
    """With `follow`, raises what gives the job's exit code."""
    place = _chosen(location)
    folder, number = place.folder, jobs.require_spec(place).submission
    if follow:
        return queue.follow(folder, number, 2.0)
    attempt = last_attempt(folder, number)
    if not attempt:
        return say(f"{place.jobs}: submission {number} has not begun yet")
    for worker in range(place.hosts.hosts):
        at = f"{attempt_folder(number, attempt)}/worker-{worker}"
        names = [name for name in folder.names(at) if name.startswith("log-")]
        text = b"".join(folder.get(f"{at}/{name}") or b"" for name in sorted(names)).decode(errors="replace")
        whole = text.splitlines()
        for line in whole if lines is None else whole[max(0, len(whole) - lines) :]:
            show(worker, queue.plain(line))


def stop(location: str) -> None:
    queue.stop_spec(f"{_chosen(location).jobs}/job.json")


def end_jobs(location: str, parts: Collection[str]) -> None:
    """Of hosts that somebody takes away, all where `parts` names none. Else a watcher would make them again, and the
    next `env up` would begin an old job. The run goes on from its last checkpoint with the same command."""
    for place in places(location):
        spec = read_spec(place.folder) if not parts or place.kind in parts else None
        if spec is None or place.folder.get_json(f"{spec.submission:04d}/result.json") is not None:
            continue
        say(f"this ends the job that runs on its {place.kind} (submission {spec.submission}); it is told to save")
        result = {"code": StoppedEarly.exit_code, "cause": TAKEN_AWAY, "report": [TAKEN_AWAY], "time": time.time()}
        place.folder.put_json(f"{spec.submission:04d}/result.json", result)
