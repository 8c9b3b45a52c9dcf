"""A job that hosts fetch: the spec lies in a bucket, an agent on each host runs it and leaves what became of it there.

    job.json                              the spec; `submission` counts what was submitted here
    stop.json                             {"submission": 2}: that one is to end
    hosts/worker-3.json                   a host's beat: {"beat": 17, "submission": 2, "idle": true}
    0002/attempt-001/start.json           {"workers": 4}, once all of them are idle
    0002/attempt-001/end.json             one host has ended badly, the others are to end
    0002/attempt-001/worker-3/            begun.json, log-000001.txt …, exit.json
    0002/result.json                      {"code": 0, "report": […]}: the submission is over

Only the agent of worker 0 writes start, end and result, by the rules of `outcome.py`. Nobody else needs to be awake: a
laptop that submitted may go, a host that died and came back is taken in again with the next attempt.
"""

from __future__ import annotations

import os
import platform
import shlex
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from maskwright.core import storage
from maskwright.core.console import say, warn
from maskwright.core.errors import InputError, MaskwrightError, StoppedEarly
from maskwright.core.secrets import redact
from maskwright.launch.folder import Folder
from maskwright.launch.host import OTHERS_SECONDS, Attempt, Stop, show
from maskwright.launch.job import JobSpec, parse_spec
from maskwright.launch.outcome import MOMENTS_SECONDS, End, conclude, judge, report

METADATA = "http://{host}/computeMetadata/v1/instance/attributes/{name}"
LOST_SECONDS = 90.0
"""A host whose beat stands still for so long counts as lost."""
LOG_SECONDS = 15.0
"""Between two pieces of a log: 5,760 small objects a day and host."""
LOG_BYTES = 4 << 20
"""Kept for a bucket that cannot be reached; beyond it the oldest lines are dropped."""


def spec_folder(spec: str) -> Folder:
    folder, _, name = spec.rpartition("/")
    if name != "job.json" or not storage.is_url(spec):
        raise InputError(f"{name!r} is not job.json in a folder", where="--spec", fix="gs://bucket/jobs/NAME/job.json")
    return Folder(folder)


def read_spec(folder: Folder) -> JobSpec | None:
    content = folder.get("job.json")
    return None if content is None else parse_spec(content, f"{folder.location}/job.json")


def metadata(name: str) -> str:
    """An attribute of this machine, from the server that TPU hosts ask. GCE_METADATA_HOST is Google's own variable."""
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    request = urllib.request.Request(METADATA.format(host=host, name=name), headers={"Metadata-Flavor": "Google"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=10) as answer:
            return str(answer.read().decode())
    except (OSError, ValueError) as error:
        fix = "run it on a TPU VM, or say --worker and --workers"
        raise InputError(f"does not tell {name} ({error})", where="the metadata server", fix=fix) from None


def attempt_folder(submission: int, attempt: int) -> str:
    return f"{submission:04d}/attempt-{attempt:03d}"


def last_attempt(folder: Folder, submission: int) -> int:
    """0 before the first. Its start is the first thing in an attempt's folder."""
    names = folder.names(f"{submission:04d}")
    return max((int(name[8:]) for name in names if name.startswith("attempt-")), default=0)


# ---- the agent of a host -------------------------------------------------------------------------------------------


class Agent:
    """`turn` until `over`. Trouble with the bucket is waited out: the job goes on meanwhile."""

    def __init__(self, folder: Folder, worker: int, workers: int, *, once: bool, poll_seconds: float) -> None:
        self.folder, self.worker, self.workers = folder, worker, workers
        self.once, self.poll_seconds = once, poll_seconds
        self.over: dict[str, Any] | None = None
        """The result after which an agent that runs one submission ends."""
        self._attempt: Attempt | None = None
        self._place = ""
        self._log: deque[bytes] = deque()
        self._log_bytes = 0
        self._segment, self._logged_at, self._beat, self._set_up = 0, 0.0, 0, 0
        self._before: int | None = None
        self._seen: dict[int, tuple[Any, float, bool]] = {}
        self._failed_at, self._trouble = 0.0, ""

    def turn(self, stop: Stop) -> None:
        """For about `poll_seconds` the job's, then the bucket's."""
        until = time.monotonic() + self.poll_seconds
        while time.monotonic() < until and not (stop.asked and self._attempt is None):
            if self._attempt is None:
                time.sleep(min(0.2, self.poll_seconds))
                continue
            if stop.asked:
                self._attempt.tell_all()
            self._attempt.turn()
            if self._attempt.over:
                break
        try:
            self._speak_with_the_bucket()
            self._trouble = ""
        except MaskwrightError as error:
            if str(error) != self._trouble:
                warn(f"{error}; trying again")
            self._trouble = str(error)
            time.sleep(min(1.0, self.poll_seconds))

    def leave(self, stop: Stop) -> None:
        """Ends what runs, and says so in the bucket as well as it can."""
        if self._attempt is None:
            return
        self._attempt.tell_all()
        while not self._attempt.over and not stop.urgent:
            self._attempt.turn()
        self._attempt.close()
        try:
            self._upload()
        except MaskwrightError as error:
            warn(str(error))

    def _speak_with_the_bucket(self) -> None:
        if self._attempt is not None:
            self._upload()
        spec = read_spec(self.folder)
        self._beat += 1
        beat = {"beat": self._beat, "submission": spec.submission if spec else 0, "idle": self._attempt is None}
        self.folder.put_json(f"hosts/worker-{self.worker}.json", {**beat, "host": platform.node()})
        if spec is None:
            return
        result = self.folder.get_json(f"{spec.submission:04d}/result.json")
        if self._before is None:
            self._before = spec.submission if result is not None else 0
        if result is not None:
            if self._attempt is not None:  # counted as lost meanwhile
                self._attempt.tell_all()
            elif self.once and spec.submission != self._before:
                self.over = result
            return
        number = last_attempt(self.folder, spec.submission)
        wished = self.folder.get_json("stop.json") or {}
        asked = wished.get("submission") == spec.submission
        if self.worker == 0:
            self._lead(spec, number, asked)
        self._follow(spec, number, asked)

    def _follow(self, spec: JobSpec, number: int, asked: bool) -> None:
        place = f"{attempt_folder(spec.submission, number)}/worker-{self.worker}"
        if self._attempt is not None:
            attempt_place = self._place.rpartition("/")[0]
            if asked or place != self._place or self.folder.get(f"{attempt_place}/end.json") is not None:
                self._attempt.tell_all()
            return
        if not number or self.folder.get(f"{place}/exit.json") is not None:
            return
        self._place, self._segment = place, 0
        if self.folder.get(f"{place}/begun.json") is not None:
            self._put_exit(End(self.worker, None, reason="the host, or its agent, was started again"))
            return
        self.folder.put_json(f"{place}/begun.json", {"time": time.time()})
        missing = [name for name in spec.environment if name not in os.environ]
        if missing:
            self._put_exit(End(self.worker, 2, reason=f"{missing[0]} is not set for the agent on this host"))
            return
        say(f"{place}: {' '.join(spec.command)}")
        home = shlex.quote(os.path.expanduser("~"))  # a start-up script may have no HOME
        self._attempt = Attempt(
            spec,
            [self.worker],
            lambda _, command: ["sh", "-c", f"export HOME={home} && cd && {command}"],
            values={name: os.environ[name] for name in spec.environment},
            job=f"{self.folder.location}#{spec.submission}".replace(" ", "-"),
            setup=self._set_up != spec.submission,
            replace=True,
            line=self._take_line,
        )
        self._set_up = spec.submission

    def _take_line(self, worker: int, line: str) -> None:
        show(worker, line)
        self._log.append(redact(line).encode() + b"\n")
        self._log_bytes += len(self._log[-1])
        while self._log_bytes > LOG_BYTES:
            self._log_bytes -= len(self._log.popleft())

    def _upload(self) -> None:
        assert self._attempt is not None
        now, every = time.monotonic(), min(LOG_SECONDS, 3 * self.poll_seconds)
        if self._log and (self._attempt.over or now - self._logged_at >= every):
            self._logged_at = now
            content = b"".join(self._log)
            self.folder.put(f"{self._place}/log-{self._segment + 1:06d}.txt", content)
            self._segment += 1
            self._log.clear()
            self._log_bytes = 0
        if self._attempt.over:
            self._put_exit(self._attempt.ends[0])
            self._attempt.close()
            self._attempt = None

    def _put_exit(self, end: End) -> None:
        self.folder.put_json(f"{self._place}/exit.json", asdict(end))

    # ---- what worker 0 does besides ------------------------------------------------------------------------------

    def _lead(self, spec: JobSpec, number: int, asked: bool) -> None:
        beats = {worker: self._look_at(worker) for worker in range(self.workers)}
        idle = all(
            beat and beat["idle"] and beat["submission"] == spec.submission and self._seen[worker][2]
            for worker, beat in beats.items()
        )
        place = attempt_folder(spec.submission, number)
        ends = self._ends(place, beats) if number else []
        if number and len(ends) < self.workers:
            if not any(end.code != 0 for end in ends):
                self._failed_at = 0.0
                return
            self._failed_at = self._failed_at or time.monotonic()
            others = max(MOMENTS_SECONDS, min(OTHERS_SECONDS, 4 * self.poll_seconds))
            if time.monotonic() - self._failed_at > others:
                self.folder.put_json(f"{place}/end.json", {"time": time.time()})
            return
        verdict = judge(ends, self.workers, asked=asked)
        again = not number or (verdict.restart and number <= spec.restarts)
        if asked and not number:
            self._conclude(spec, 75, "", ["stopped before it began"])
        elif not again:
            cause = verdict.cause.describe() if verdict.cause else ""
            self._conclude(spec, verdict.code, cause, report(ends, verdict) if verdict.code else [])
        elif idle:  # else it waits for hosts to come, or to come back
            self._failed_at = 0.0
            start = f"{attempt_folder(spec.submission, number + 1)}/start.json"
            self.folder.put_json(start, {"workers": self.workers, "time": time.time()})

    def _conclude(self, spec: JobSpec, code: int, cause: str, lines: list[str]) -> None:
        for line in lines:
            say(line)
        result = {"code": code, "cause": cause, "report": lines, "time": time.time()}
        self.folder.put_json(f"{spec.submission:04d}/result.json", result)

    def _look_at(self, worker: int) -> dict[str, Any] | None:
        """A host's beat, None when it stands still. Seen by this machine's clock: others may be wrong."""
        beat, now = self.folder.get_json(f"hosts/worker-{worker}.json"), time.monotonic()
        if worker not in self._seen:
            self._seen[worker] = (beat, now, False)  # it may be an old one: a host is there once its beat has moved
        if beat != self._seen[worker][0]:
            self._seen[worker] = (beat, now, True)
        return beat if now - self._seen[worker][1] < LOST_SECONDS else None

    def _ends(self, place: str, beats: Mapping[int, Any]) -> list[End]:
        """Of the hosts that have ended, and that are lost, by the time at which they did."""
        ends = []
        for worker, beat in beats.items():
            said = self.folder.get_json(f"{place}/worker-{worker}/exit.json")
            if said is not None:
                tail = tuple(said["tail"])
                ends.append(End(worker, said["code"], said["told"], said["reason"], tail, said["time"]))
            elif beat is None:
                ends.append(End(worker, None, reason=f"no sign of life for {LOST_SECONDS:.0f} s"))
        return sorted(ends, key=lambda end: end.time)


def run_agent(spec: str, worker: int | None, workers: int | None, *, once: bool, poll_seconds: float) -> None:
    folder = spec_folder(spec)
    worker = int(metadata("agent-worker-number")) if worker is None else worker
    workers = len(metadata("worker-network-endpoints").split(",")) if workers is None else workers
    if not 0 <= worker < workers:
        raise InputError(f"{worker} is not in 0 … {workers - 1}", where="--worker", fix="count hosts from 0")
    agent = Agent(folder, worker, workers, once=once, poll_seconds=poll_seconds)
    say(f"agent: worker {worker} of {workers}, waiting for {spec}")
    with Stop().on_signals() as stop:
        try:
            while agent.over is None and not stop.asked:
                agent.turn(stop)
        finally:
            agent.leave(stop)
    if agent.over is None:
        raise StoppedEarly("the agent was told to end; started again, it waits for the next attempt")
    conclude(int(agent.over["code"]), str(agent.over["cause"]), spec)


# ---- who submits ---------------------------------------------------------------------------------------------------


def submit_spec(location: str, spec: JobSpec, *, poll_seconds: float = 2.0) -> None:
    """Writes the spec and follows the job to its end. The same spec again, while it runs, is followed only."""
    folder = spec_folder(location)
    follow(folder, put_spec(folder, spec), poll_seconds)


def put_spec(folder: Folder, spec: JobSpec, first: Callable[[int], None] = lambda submission: None) -> int:
    """Writes the spec and returns the number of the submission, for which `first` is called before hosts see it. The
    same spec again, while it runs, is not another submission."""
    location, before = f"{folder.location}/job.json", read_spec(folder)
    if before is not None and folder.get_json(f"{before.submission:04d}/result.json") is None:
        if replace(before, submission=spec.submission) != spec:
            fix = f"wait for it, end it with `maskwright stop {location}`, or use another folder"
            raise InputError("another job is not over yet", where=location, fix=fix)
        first(before.submission)
        say(f"{location}: submitted before, following it")
        return before.submission
    spec = replace(spec, submission=before.submission + 1 if before else 1)
    first(spec.submission)
    folder.put("job.json", spec.to_json().encode())
    say(f"{location}: submission {spec.submission}, waiting for the hosts")
    return spec.submission


def stop_spec(location: str, *, poll_seconds: float = 2.0) -> None:
    """Asks the hosts to end the job and waits until they have."""
    folder = spec_folder(location)
    spec = read_spec(folder)
    if spec is None:
        raise InputError("no such job", where=location, fix="check the address")
    folder.put_json("stop.json", {"submission": spec.submission})
    follow(folder, spec.submission, poll_seconds)


def follow(
    folder: Folder, submission: int, poll_seconds: float, meanwhile: Callable[[], object] = lambda: None
) -> None:
    """Shows what hosts log. Ctrl-C ends the following; the job goes on. `meanwhile` is called in each round."""
    begun: dict[int, list[int]] = {}
    """Of each attempt, how many pieces of each host's log were shown."""
    with Stop().on_signals() as stop:
        while not stop.asked:
            result = folder.get_json(f"{submission:04d}/result.json")  # before the logs, so that none is missed
            for number in range(len(begun) + 1, last_attempt(folder, submission) + 1):
                start = folder.get_json(f"{attempt_folder(submission, number)}/start.json") or {"workers": 0}
                begun[number] = [0] * int(start["workers"])
                say(f"attempt {number} begins on {start['workers']} hosts")
            for number in sorted(begun)[-2:]:
                _show_logs(folder, attempt_folder(submission, number), begun[number])
            if result is not None:
                for line in result["report"]:
                    say(str(line))
                conclude(int(result["code"]), str(result["cause"]), folder.location)
                return
            meanwhile()
            until = time.monotonic() + poll_seconds
            while time.monotonic() < until and not stop.asked:
                time.sleep(min(0.2, poll_seconds))
    raise StoppedEarly(
        "no longer followed; the job goes on, and the same command follows it again", where=folder.location
    )


def _show_logs(folder: Folder, place: str, shown: list[int]) -> None:
    for worker in range(len(shown)):
        while (content := folder.get(f"{place}/worker-{worker}/log-{shown[worker] + 1:06d}.txt")) is not None:
            shown[worker] += 1
            for line in content.decode(errors="replace").splitlines():
                show(worker, line)
