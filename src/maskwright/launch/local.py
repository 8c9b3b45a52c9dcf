"""The processes of a run on one machine. They start together, end together, and are restarted if one was lost.

Each gets torch's `env://` variables. They meet through a socket that this process opens for each attempt and
passes to process 0. So no other program can take the port, and no store of a failed attempt is left for the next one
(torchrun's restart, which keeps its store, failed in 4 of 10 trials with gloo). The kernel kills them when this
process dies.

A single process on a GPU or a TPU is supervised too, and ended if it hangs. On the CPU a single process trains alone.

On several machines, each runs this with its own number. All machines must start together, so nothing is restarted here:
the launcher that started the command on all of them restarts it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import Counter, OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType

from maskwright.core.console import say, warn
from maskwright.core.errors import ConfigError, MaskwrightError
from maskwright.core.folder import Folder
from maskwright.core.secrets import redact
from maskwright.launch.attempts import Attempt, Stop, run
from maskwright.launch.outcome import End
from maskwright.launch.target import Training
from maskwright.launch.topology import WorkerGroup
from maskwright.processes.child import python_module
from maskwright.processes.parent import ERROR_FILE, LISTENER, PARENT, delete_error, pass_error_on
from maskwright.run.directory import RunDirectory
from maskwright.run.heartbeat import Beat, read_beats, states_here
from maskwright.run.liveness import hung, missing, stale_after

COMMAND = python_module("maskwright")
OTHERS_SECONDS = 20.0
"""Time for the other processes to notice the loss of one by their own connections, before they get SIGTERM."""
ANSWER_SECONDS = 10.0
"""Time between the end of the grace period and SIGKILL, since Python and CUDA take a while to end."""
RESTART_WAIT_SECONDS = 0.5
HANG_POLL_SECONDS, HUNG_SECONDS = 5.0, 60.0
"""A process is killed after hanging for this long; an operator may have stopped one for a moment."""
LINES = 100
"""Different lines of the other processes that are compared."""

# ---- one attempt ----------------------------------------------------------------------------------------------------


@dataclass
class _RankProcess:
    number: int
    process: subprocess.Popen[bytes]
    reader: threading.Thread | None = None
    stop_requested_at: float | None = None
    hung_since: float | None = None
    killed: bool = False
    end: End | None = None

    def send(self, number: int) -> None:
        if self.end is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)

    def request_stop(self) -> None:
        if self.stop_requested_at is None and self.end is None:
            self.stop_requested_at = time.monotonic()
            self.send(signal.SIGTERM)


class _Lines:
    """The last lines of processes other than 0. A line that several of them print is shown once, and a line that one of
    them repeats is shown again."""

    def __init__(self) -> None:
        self._counts, self._lock = OrderedDict[str, Counter[int]](), threading.Lock()

    def is_new(self, number: int, line: str) -> bool:
        """Whether no other process has printed the line as often as process `number` now has."""
        with self._lock:
            counts = self._counts.pop(line, Counter())
            others = max(counts[other] for other in (*counts, -1) if other != number)
            counts[number] += 1
            self._counts[line] = counts
            if len(self._counts) > LINES:
                self._counts.popitem(last=False)
            return counts[number] > others


class _LocalAttempt(Attempt):
    """All processes of this machine, from start to end. Call `poll` until `over`."""

    def __init__(self, command: Training, group: WorkerGroup, run: str, grace_seconds: float) -> None:
        self._grace_seconds, self._failed_at, self.size = grace_seconds, 0.0, group.processes
        self._run, self._looked_at, self._hung_pid, self._lines = run, time.monotonic(), -1, _Lines()
        self._began = time.time()
        self.ends: list[End] = []
        self.members: list[_RankProcess] = []
        self._errors = tempfile.TemporaryDirectory(prefix="maskwright-")
        delete_error()
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024) if group.rendezvous is None else None
        port = listener.getsockname()[1] if listener else 0
        if listener and not group.takes_listener:
            listener.close()
        try:
            for number in range(group.processes):
                self.members.append(self._start(command.words(), group, number, port, listener))
        except OSError as error:
            self.close()
            what = f"process {number} cannot be started: {error.strerror}"
            raise ConfigError(what, where="--processes", fix="give fewer") from None
        finally:
            if listener:
                listener.close()

    def _start(
        self, words: list[str], group: WorkerGroup, number: int, port: int, listener: socket.socket | None
    ) -> _RankProcess:
        variables = {**os.environ, **group.variables(number, port), PARENT: str(os.getpid())}
        variables[ERROR_FILE] = os.path.join(self._errors.name, f"{group.rank(number)}.json")
        rank_0, passed = group.rank(number) == 0, []
        if rank_0 and listener and group.takes_listener:
            variables[LISTENER], passed = str(listener.fileno()), [listener.fileno()]
        process = subprocess.Popen(
            [*COMMAND, *words],
            env=variables,
            stdin=subprocess.DEVNULL,
            stderr=None if rank_0 else subprocess.PIPE,
            stdout=None if rank_0 else subprocess.DEVNULL,
            pass_fds=passed,
            start_new_session=True,  # this process passes on a Ctrl-C in the terminal
        )
        member = _RankProcess(group.rank(number), process)
        if not rank_0:
            member.reader = threading.Thread(target=self._relay, args=(member,), daemon=True)
            member.reader.start()
        return member

    def _relay(self, member: _RankProcess) -> None:
        assert member.process.stderr
        with member.process.stderr as stream:
            for raw in stream:
                line = redact(raw.decode(errors="replace").rstrip())
                if line and self._lines.is_new(member.number, line):
                    say(f"process {member.number} | {line}")

    @property
    def over(self) -> bool:
        return len(self.ends) == len(self.members)

    @property
    def counted(self) -> bool:
        """Whether the run has counted this start: rank 0 does so before its first heartbeat. If rank 0 is on another
        machine, that machine's launcher decides."""
        has_rank_0 = self.members[0].number == 0 and os.environ.get("TPU_WORKER_ID", "0") == "0"
        return not has_rank_0 or any(beat.started >= self._began for beat in self._beats())

    def _beats(self) -> list[Beat]:
        pids = {member.process.pid for member in self.members}
        try:
            return [beat for beat in read_beats(Folder(self._run)) if beat.pid in pids]  # not of an earlier attempt
        except MaskwrightError:  # a heartbeat is only a hint
            return []

    def poll(self, seconds: float = 0.05) -> None:
        time.sleep(seconds)
        now = time.monotonic()
        for member in self.members:
            if member.end is None and (code := member.process.poll()) is not None:
                if member.reader:
                    member.reader.join(1.0)
                code = 128 - code if code < 0 else code
                by_us = member.killed or member.stop_requested_at is not None
                guess = "usually memory ran out" if code == 128 + signal.SIGKILL and not by_us else ""
                member.end = End(member.number, code, member.stop_requested_at is not None, guess)
                self.ends.append(member.end)
                if code and member.stop_requested_at is None:
                    self._failed_at = self._failed_at or now
                    pass_error_on(os.path.join(self._errors.name, f"{member.number}.json"))
        if self._failed_at and now - self._failed_at > OTHERS_SECONDS:
            self.request_stop()
        for member in self.members:
            if member.end is None and not member.killed and (why := self._stuck(member, now)):
                warn(f"process {member.number} {why}, so it is killed")
                member.send(signal.SIGKILL)
                member.killed = True

    def _stuck(self, member: _RankProcess, now: float) -> str | None:
        """Why a process must be killed; None if it need not. A hang then counts as a loss, after which all processes
        are restarted."""
        if member.stop_requested_at is not None:
            late = now - member.stop_requested_at > self._grace_seconds + ANSWER_SECONDS
            return "has not ended in its grace period" if late else None
        if now - self._looked_at >= HANG_POLL_SECONDS:
            self._looked_at, self._hung_pid = now, self._find_hung()
        if member.process.pid != self._hung_pid:
            member.hung_since = None
            return None
        member.hung_since = member.hung_since or now
        return f"hangs: no progress for {HUNG_SECONDS:.0f} s" if now - member.hung_since >= HUNG_SECONDS else None

    def _find_hung(self) -> int:
        """The pid of the process for which the others wait, by the heartbeats in the run directory; -1 if none."""
        pids, beats = {member.process.pid: member.number for member in self.members}, self._beats()
        states = states_here(beats)
        rank = hung(beats, time.time(), states)
        if rank is None and beats and all(beat.doing == "waiting" for beat in beats):
            absent = next(iter(missing(beats)), None)  # it hangs before its first heartbeat
            return next((pid for pid, number in pids.items() if number == absent), -1)
        beat = next((beat for beat in beats if beat.rank == rank), None)
        # A process whose file is old, but which is not stopped, may still train and only fail to write its file.
        if beat is None or (states.get(beat.rank) != "stopped" and time.time() - beat.time > stale_after(beat)):
            return -1
        return beat.pid

    def request_stop(self) -> None:
        for member in self.members:
            member.request_stop()

    def close(self) -> None:
        for member in self.members:
            member.send(signal.SIGKILL)
            member.process.wait()
        self._errors.cleanup()


# ---- all attempts ---------------------------------------------------------------------------------------------------


def supervise(command: Training, group: WorkerGroup, grace_seconds: float) -> None:
    """Runs the command in each process until the run is done. Raises `StoppedEarly` (75) if the run can be continued,
    `JobError` with the code of the process that failed first."""
    directory, running, stop = RunDirectory(command.run), list[_RankProcess](), Stop(quiet=True)

    def begin(number: int) -> _LocalAttempt:
        attempt = _LocalAttempt(command, group, directory.location, grace_seconds)
        running[:] = attempt.members
        return attempt

    def save(number: int, frame: FrameType | None) -> None:
        for member in running:
            member.send(number)

    many = "one process" if group.processes == 1 else f"{group.processes} processes"
    # On several machines, the launcher of all of them restarts the run.
    with stop.on_signals({signal.SIGUSR1: save}):
        run(
            begin,
            stop,
            many,
            restarts=group.nodes == 1 and not group.on_tpu,
            wait_seconds=RESTART_WAIT_SECONDS,
            saved=directory.newest_step,
            member="process",
        )
