"""The agent of a host: it waits for jobs that `submit` leaves in a bucket (`job_folder.py`), runs them and reports on
them. The agent of host 0 also leads the job (`leader.py`).

On several hosts the command gets --num-nodes, --node-rank and --rendezvous: host 0's address, with a new port for each
attempt.
"""

from __future__ import annotations

import os
import platform
import shlex
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Literal

from maskwright import __version__
from maskwright.core.console import say, show_line, warn
from maskwright.core.errors import InputError, MaskwrightError, StoppedEarly
from maskwright.core.folder import Folder
from maskwright.core.secrets import redact
from maskwright.launch.attempts import Stop
from maskwright.launch.bucket import job_folder, leader, machine
from maskwright.launch.bucket.claims import Slot, Slots
from maskwright.launch.bucket.leader import Leader
from maskwright.launch.checks import PORT
from maskwright.launch.hosts.supervisor import ShellAttempt
from maskwright.launch.outcome import End, conclude
from maskwright.launch.target import JobSpec, node_words

IMAGE = "MASKWRIGHT_IMAGE"
"""Variable that the host's start-up script sets: the digest of the container's image."""
PORTS = 100
"""Ports that attempts take in turn: a process that dies slowly may still hold that of the last attempt."""
LOG_SECONDS = 15.0
"""Time between two pieces of a log: 5,760 small objects a day and host."""
WAIT_SECONDS = 3600.0
"""How long hosts wait for missing peers before they end, if idle hosts end. Without it, hosts whose peers never come
would bill for ever."""
LOG_BYTES = 4 << 20
"""Size of the log that waits for an unreachable bucket; beyond it the oldest lines are dropped."""


Event = Literal["waits", "begins", "ends", "displaced", "leaves"]


@dataclass(frozen=True)
class AgentEvent:
    """Something that happened to an agent, for the program that started it."""

    time: float
    """Unix seconds."""
    event: Event
    """begins, ends: an attempt; displaced: another machine has taken over this host's index."""
    instance: str
    host: int | None
    """Its index; None for a machine that found no free one."""
    submission: int | None = None
    attempt: int | None = None
    exit_code: int | None = None
    """Of the attempt on this host; with `leaves`, of the submission under --once."""
    why: str = ""


OnEvent = Callable[[AgentEvent], object]


class Agent:
    """The agent of one host of a job. Call `poll` until `over`, `idle_for_good` or `displaced`. While the bucket cannot
    be reached, the job goes on."""

    def __init__(
        self,
        folder: Folder,
        index: int,
        num_hosts: int,
        *,
        once: bool,
        poll_seconds: float,
        instance: str = "",
        slots: Slots | None = None,
        slot: Slot | None = None,
        idle_seconds: float | None = None,
        on_event: OnEvent = lambda event: None,
    ) -> None:
        self._on_event, self._submission, self._number = on_event, 0, 0
        self.folder, self.index, self.num_hosts = folder, index, num_hosts
        self.once, self.poll_seconds = once, poll_seconds
        self.over: job_folder.JobResult | None = None
        """The submission's result, for an agent that runs only one."""
        self.idle_for_good = ""
        """Why it ends, if it had nothing to compute for too long."""
        self.displaced = False
        self._instance, self._slots, self._slot = instance or machine.instance(), slots, slot
        self._idle_seconds, self._busy_at = idle_seconds, time.monotonic()
        self._waits: tuple[int, float] = (0, 0.0)
        """(submission that lacks hosts, since when this host waits for them)."""
        self._leader = Leader(folder, num_hosts, poll_seconds) if index == 0 else None
        self._attempt: ShellAttempt | None = None
        self._place = ""
        self._log: deque[bytes] = deque()
        self._log_bytes = 0
        self._piece, self._logged_at, self._set_up = 0, 0.0, 0
        self._finished_before: int | None = None
        """Submission that was over when this agent first read the folder; 0 if none was."""
        self._error = ""
        software = {"maskwright": __version__, "image": os.environ.get(IMAGE, "")}
        self._beat = job_folder.HostBeat(0, instance=self._instance, host=platform.node(), software=software)

    def poll(self, stop: Stop) -> None:
        """Attends to the job for about `poll_seconds`, then to the bucket."""
        until = time.monotonic() + self.poll_seconds
        if self._attempt is None:
            stop.pause(self.poll_seconds)
        while self._attempt and not self._attempt.over and time.monotonic() < until:
            if stop.asked:
                self._attempt.request_stop()
            self._attempt.poll()
        try:
            self._sync()
            self._error = ""
        except MaskwrightError as error:
            if str(error) != self._error:
                warn(f"{error}; trying again")
            self._error = str(error)
            time.sleep(min(1.0, self.poll_seconds))

    def leave(self, stop: Stop) -> None:
        """Stops a running attempt, and records this in the bucket if it can be reached."""
        if self._attempt is not None:
            self._attempt.request_stop()
            stop.drive(self._attempt)
            self._attempt.close()
        if self.displaced:
            return
        try:
            if self._attempt is not None:
                self._upload()
            self._put_beat(0, gone=True)
        except MaskwrightError as error:
            warn(str(error))

    def _sync(self) -> None:
        if self._slots and self._slot and not self._slots.holds(self._slot):
            self.displaced = True
            return
        if self._attempt is not None:
            self._upload()
        spec = job_folder.read_spec(self.folder)
        self._put_beat(spec.submission if spec else 0)
        result = job_folder.read_result(self.folder, spec.submission) if spec else None
        self._check_idle(spec, waiting=spec is not None and result is None)
        if spec is None:
            return
        if self._finished_before is None:
            self._finished_before = spec.submission if result is not None else 0
        if result is not None:
            if self._attempt is not None:  # the leader has counted this host as lost
                self._attempt.request_stop()
            elif self.once and spec.submission != self._finished_before:
                self.over = result
            return
        known = self._number if self._submission == spec.submission else 0
        number = job_folder.last_attempt(self.folder, spec.submission, known)
        asked = job_folder.is_asked(self.folder, spec.submission)
        if self._leader:
            self._leader.poll(spec, number, asked)
        self._follow(spec, number, asked)

    def _check_idle(self, spec: JobSpec | None, *, waiting: bool) -> None:
        """Ends a host that has been idle for too long. `waiting`: a submission still lacks hosts."""
        now = time.monotonic()
        if self._attempt is not None:
            self._busy_at, self._waits = now, (0, 0.0)
            return
        if waiting and spec is not None:
            if self._waits[0] != spec.submission:
                self._waits = (spec.submission, now)
            if self._idle_seconds is None or now - self._waits[1] < max(WAIT_SECONDS, self._idle_seconds):
                self._busy_at = now
                return
        if self._idle_seconds is not None and now - self._busy_at >= (0.0 if waiting else self._idle_seconds):
            minutes = round((now - self._waits[1]) / 60.0) if waiting else self._idle_seconds / 60.0
            self._end_idle(spec, f"{'no peers' if waiting else 'no job'} for {minutes:g} minutes")

    def _put_beat(self, submission: int, *, gone: bool = False) -> None:
        if not self._beat.address:
            self._beat = replace(self._beat, address=machine.address())
            self.folder.remove(job_folder.idle_name(self._instance))
        number, idle = self._beat.beat + 1, self._attempt is None and not gone
        self._beat = replace(self._beat, beat=number, submission=submission, idle=idle, gone=gone)
        self.folder.put_json(job_folder.beat_name(self.index), asdict(self._beat))

    def _end_idle(self, spec: JobSpec | None, why: str) -> None:
        """Writes the note first: a later submitter sees it, and this agent sees an earlier submission when it reads the
        spec again."""
        _leave_note(self.folder, self._instance, why)
        newest = job_folder.read_spec(self.folder)
        if (newest.submission if newest else 0) == (spec.submission if spec else 0):
            self.idle_for_good = why
        else:
            self.folder.remove(job_folder.idle_name(self._instance))
            say("a job was submitted: staying")

    def _follow(self, spec: JobSpec, number: int, asked: bool) -> None:
        place = f"{job_folder.attempt_folder(spec.submission, number)}/host-{self.index}"
        if self._attempt is not None:
            attempt_place = self._place.rpartition("/")[0]
            if asked or place != self._place or self.folder.head(f"{attempt_place}/end.json", 1) is not None:
                self._attempt.request_stop()
            return
        if not number or self.folder.head(f"{place}/exit.json", 1) is not None:
            return
        self._place, self._piece = place, 0
        self._submission, self._number = spec.submission, number
        if self.folder.head(f"{place}/begun.json", 1) is not None:
            self._put_exit(End(self.index, None, why="the host or its agent was restarted"))
            return
        self.folder.put_json(f"{place}/begun.json", {"time": time.time(), "instance": self._instance})
        missing = [name for name in spec.environment if name not in os.environ]
        if missing:
            self._put_exit(End(self.index, 2, why=f"{missing[0]} is not set for the agent on this host"))
            return
        say(f"{place}: {spec.command}")
        home = shlex.quote(os.path.expanduser("~"))  # a start-up script may have no HOME
        self._attempt = ShellAttempt(
            spec,
            [self.index],
            lambda _, command: ["sh", "-c", f"export HOME={home} && cd && {command}"],
            values={name: os.environ[name] for name in spec.environment},
            job=f"{self.folder.location}#{spec.submission}".replace(" ", "-"),
            setup=self._set_up != spec.submission,
            replace=True,
            more=self._node_words(spec, number),
            line=self._take_line,
        )
        self._set_up = spec.submission
        self._emit("begins")

    def _node_words(self, spec: JobSpec, number: int) -> list[str]:
        """Several hosts meet at the first one. So do those of a slice: whether JAX finds the hosts of an instance group
        by itself could not be tried, and libtpu joins their chips either way."""
        if self.num_hosts == 1:
            return []
        addresses = job_folder.read_start(self.folder, job_folder.attempt_folder(spec.submission, number)).addresses
        first = (addresses[0] if addresses else "") or "127.0.0.1"
        return node_words(self.num_hosts, self.index, f"{first}:{PORT + number % PORTS}")

    def _take_line(self, index: int, line: str) -> None:
        show_line(index, line)
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
            self.folder.put(job_folder.log_piece(self._place, self._piece + 1), content)
            self._piece += 1
            self._log.clear()
            self._log_bytes = 0
        if self._attempt.over:
            self._put_exit(self._attempt.ends[0])
            self._attempt.close()
            self._attempt = None

    def _put_exit(self, end: End) -> None:
        self.folder.put_json(f"{self._place}/exit.json", asdict(end))
        self._emit("ends", end.code, end.why)

    def _emit(self, event: Event, code: int | None = None, why: str = "") -> None:
        attempt = (self._submission, self._number)
        self._on_event(AgentEvent(time.time(), event, self._instance, self.index, *attempt, code, redact(why)))


def run_agent(
    spec: str,
    index: int | None,
    num_hosts: int | None,
    *,
    once: bool,
    poll_seconds: float,
    instance: str | None = None,
    idle_minutes: float | None = None,
    on_event: OnEvent = lambda event: None,
) -> None:
    """Returns after `idle_minutes` without a job. Raises `StoppedEarly` if it was told to end; with `once`, raises the
    error that gives the process the job's exit code."""
    folder = job_folder.spec_folder(spec)
    if index is None:
        index = machine.assigned_index() if num_hosts else int(machine.attribute("agent-worker-number"))
    num_hosts = num_hosts or len(machine.attribute("worker-network-endpoints").split(","))
    if index is not None and not 0 <= index < num_hosts:
        raise InputError(f"{index} is not in 0 … {num_hosts - 1}", where="--host-index", fix="count hosts from 0")
    name = instance or machine.instance()
    slots = Slots(folder, name, num_hosts, leader.LOST_SECONDS) if index is None else None
    idle_seconds = None if idle_minutes is None else 60.0 * idle_minutes

    def emit(event: Event, host: int | None, why: str = "", code: int | None = None) -> None:
        on_event(AgentEvent(time.time(), event, name, host, exit_code=code, why=redact(why)))

    with Stop(patient=True).on_signals() as stop:
        while True:
            slot = _claim(slots, poll_seconds, stop, idle_seconds) if slots else None
            number = slot.index if slot else index
            if number is None:
                if stop.asked:
                    break
                emit("leaves", None, why := f"no free host number for {idle_minutes:g} minutes")
                return _leave_note(folder, name, why)
            say(f"agent: {name} is host {number} of {num_hosts}, waiting for {spec}")
            emit("waits", number)
            agent = Agent(
                folder,
                number,
                num_hosts,
                once=once,
                poll_seconds=poll_seconds,
                instance=name,
                slots=slots,
                slot=slot,
                idle_seconds=idle_seconds,
                on_event=on_event,
            )
            _run(agent, stop)
            if agent.idle_for_good:
                return emit("leaves", number, agent.idle_for_good)
            if agent.over is not None:
                code, cause = agent.over.code, agent.over.cause
                emit("leaves", number, cause, code)
                return conclude(code, cause, spec)
            if stop.asked:
                break
            emit("displaced", number)
            warn(f"another machine took over as host {number}: this one was silent for too long")
    emit("leaves", number, "told to end")
    raise StoppedEarly("the agent was told to end; started again, it waits for the next attempt")


def _run(agent: Agent, stop: Stop) -> None:
    try:
        while agent.over is None and not (agent.idle_for_good or agent.displaced or stop.asked):
            agent.poll(stop)
    finally:
        agent.leave(stop)


def _leave_note(folder: Folder, instance: str, why: str) -> None:
    """Tells the watcher that this host is not lost."""
    say(f"{why}: ending")
    folder.put_json(job_folder.idle_name(instance), {"what": why, "time": time.time()})


def _claim(slots: Slots, poll_seconds: float, stop: Stop, idle_seconds: float | None) -> Slot | None:
    """Waits for a free host number. None if there was none for `idle_seconds`, or if this agent was told to end."""
    said, began = "", time.monotonic()
    while not stop.asked and (idle_seconds is None or time.monotonic() - began <= idle_seconds):
        try:
            if (slot := slots.claim()) is not None:
                return slot
            text = "all host numbers are taken: waiting until a host falls silent"
        except MaskwrightError as error:
            text = f"{error}; trying again"
        if text != said:
            say(text)
        said = text
        stop.pause(poll_seconds)
    return None
