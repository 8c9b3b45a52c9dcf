"""The processes of a run on one machine: started together, ended together, begun again when one was lost.

Each gets torch's `env://` variables. They find each other through a socket that this process opens anew for each
attempt and hands to process 0, so that no port can be taken in between, and nothing of an attempt that failed is left
in a store that the next one reads (torchrun's own restart, which keeps its store, failed in 4 of 10 trials with gloo).
None outlives this process: the kernel kills them when it dies.

On several machines each runs this with its own number. Then nothing is begun again here, since all have to begin
together: whoever started the command on all of them does it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from types import FrameType

from maskwright.core.console import say, warn
from maskwright.core.errors import ConfigError, MaskwrightError
from maskwright.core.folder import Folder
from maskwright.core.secrets import redact
from maskwright.launch.attempts import Stop, run
from maskwright.launch.outcome import End
from maskwright.launch.target import Training
from maskwright.launch.topology import WorkerGroup
from maskwright.processes.child import python_module
from maskwright.processes.parent import (
    ERROR_FILE,
    LISTENER,
    PARENT,
    REASON_FILE,
    forget_error,
    pass_error_on,
    read_reason,
)
from maskwright.run.directory import RunDirectory
from maskwright.run.heartbeat import read_beats, states_here
from maskwright.run.liveness import hung, missing, stale_after

COMMAND = python_module("maskwright")
OTHERS_SECONDS = 20.0
"""For the others to notice that one is gone, by their own connections, before they are told."""
ANSWER_SECONDS = 10.0
"""Beyond the grace period: Python and CUDA take a while to end."""
RESTARTS, RESTART_WAIT_SECONDS = 5, 0.5
"""What is lost every time would be lost for ever."""
HANG_POLL_SECONDS, HUNG_SECONDS = 5.0, 60.0
"""How long a process may be seen to hang: someone may have stopped it, and may let it go on."""

# ---- one attempt ----------------------------------------------------------------------------------------------------


@dataclass
class _RankProcess:
    number: int
    process: subprocess.Popen[bytes]
    reader: threading.Thread | None = None
    stop_requested_at: float | None = None
    end: End | None = None

    def send(self, number: int) -> None:
        if self.end is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)

    def request_stop(self) -> None:
        if self.stop_requested_at is None and self.end is None:
            self.stop_requested_at = time.monotonic()
            self.send(signal.SIGTERM)


class _LocalAttempt:
    """All processes of this machine, from their start to their end. Call `poll` until `over`."""

    def __init__(self, command: Training, group: WorkerGroup, run: str, grace_seconds: float) -> None:
        self._grace_seconds, self._failed_at, self.size = grace_seconds, 0.0, group.processes
        self._run, self._looked, self._since, self._hangs = run, time.monotonic(), 0.0, -1
        self._shown: set[str] = set()
        self.ends: list[End] = []
        self.members: list[_RankProcess] = []
        self._reasons = tempfile.TemporaryDirectory(prefix="maskwright-")
        forget_error()
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
            raise ConfigError(what, where="--processes", fix="take fewer") from None
        finally:
            if listener:
                listener.close()

    def _start(
        self, words: list[str], group: WorkerGroup, number: int, port: int, listener: socket.socket | None
    ) -> _RankProcess:
        variables = {**os.environ, **group.variables(number, port), PARENT: str(os.getpid())}
        variables[REASON_FILE] = os.path.join(self._reasons.name, variables["RANK"])
        variables[ERROR_FILE] = f"{variables[REASON_FILE]}.json"
        first, passed = variables["RANK"] == "0", []
        if first and listener and group.takes_listener:
            variables[LISTENER], passed = str(listener.fileno()), [listener.fileno()]
        process = subprocess.Popen(
            [*COMMAND, *words],
            env=variables,
            stdin=subprocess.DEVNULL,
            stderr=None if first else subprocess.PIPE,
            stdout=None if first else subprocess.DEVNULL,
            pass_fds=passed,
            start_new_session=True,  # a Ctrl-C in the terminal is for this process to pass on
        )
        member = _RankProcess(int(variables["RANK"]), process)
        if not first:
            member.reader = threading.Thread(target=self._relay, args=(member,), daemon=True)
            member.reader.start()
        return member

    def _relay(self, member: _RankProcess) -> None:
        """What a process other than 0 says, once where several say the same."""
        assert member.process.stderr
        with member.process.stderr as stream:
            for raw in stream:
                line = redact(raw.decode(errors="replace").rstrip())
                if line and line not in self._shown:
                    self._shown.add(line)
                    say(f"process {member.number} | {line}")

    @property
    def over(self) -> bool:
        return len(self.ends) == len(self.members)

    def poll(self, seconds: float = 0.05) -> None:
        time.sleep(seconds)
        now = time.monotonic()
        for member in self.members:
            if member.end is None and (code := member.process.poll()) is not None:
                if member.reader:
                    member.reader.join(1.0)
                code = 128 - code if code < 0 else code
                reason = read_reason(os.path.join(self._reasons.name, str(member.number)))
                member.end = End(member.number, code, member.stop_requested_at is not None, reason)
                self.ends.append(member.end)
                if code and member.stop_requested_at is None:
                    self._failed_at = self._failed_at or now
                    pass_error_on(os.path.join(self._reasons.name, f"{member.number}.json"))
        if self._failed_at and now - self._failed_at > OTHERS_SECONDS:
            self.request_stop()
        for member in self.members:
            if member.stop_requested_at and now - member.stop_requested_at > self._grace_seconds + ANSWER_SECONDS:
                member.send(signal.SIGKILL)
        self._end_who_hangs(now)

    def _end_who_hangs(self, now: float) -> None:
        """Ends a process that makes no progress while the others wait for it, by the heartbeats in the run directory: a
        hang is then a loss, after which all start again."""
        if now - self._looked < HANG_POLL_SECONDS:
            return
        self._looked = now
        rank = self._hung()
        if rank is None or rank != self._hangs:
            self._hangs, self._since = -1 if rank is None else rank, now
        elif now - self._since >= HUNG_SECONDS:
            for member in self.members:
                if member.number == rank and member.end is None:
                    warn(f"process {rank} hangs: it has made no progress for {HUNG_SECONDS:.0f} s, so it is ended")
                    member.send(signal.SIGKILL)

    def _hung(self) -> int | None:
        own = {member.process.pid for member in self.members}
        try:
            beats = [beat for beat in read_beats(Folder(self._run)) if beat.pid in own]  # others: an earlier attempt's
        except MaskwrightError:  # a heartbeat is only a hint
            return None
        states = states_here(beats)
        rank = hung(beats, time.time(), states)
        if rank is None and beats and all(beat.doing == "waiting" for beat in beats):
            return next(iter(missing(beats)), None)  # it has not come far enough to give a sign
        for beat in beats:
            # One that is neither stopped nor heard may train on, and only its file be kept from the folder.
            if beat.rank == rank and states.get(rank) != "stopped" and time.time() - beat.time > stale_after(beat):
                return None
        return rank

    def request_stop(self) -> None:
        for member in self.members:
            member.request_stop()

    def close(self) -> None:
        for member in self.members:
            member.send(signal.SIGKILL)
            member.process.wait()
        self._reasons.cleanup()


# ---- all attempts ---------------------------------------------------------------------------------------------------


def _what_is_left(command: Training, seconds: float, steps: int) -> Training:
    """Of the limits, which count over all attempts together. The first attempt alone is profiled."""
    hours, limit = command.stop_after_hours, command.stop_after_steps
    return replace(
        command,
        stop_after_hours=None if hours is None else max(0.0, hours - seconds / 3600.0),
        stop_after_steps=None if limit is None else max(1, limit - steps),
        profile_steps=0,
    )


def supervise(command: Training, group: WorkerGroup, grace_seconds: float) -> None:
    """Runs the command in each process until the run is done. Raises `StoppedEarly` (75) when it can be continued,
    `JobError` with the code of the process that failed first."""
    directory, began, clock = RunDirectory(command.run), time.time(), time.monotonic()
    first, running = directory.newest_step(), list[_RankProcess]()
    stop = Stop(quiet=True)

    def begin(number: int) -> _LocalAttempt:
        nonlocal first
        left = command
        if number > 1:
            status = directory.read_status()
            if number == 2 and status and status.heartbeat >= began:
                first = status.began  # a copy of the run may have been fetched
            left = _what_is_left(command, time.monotonic() - clock, directory.newest_step() - first)
        attempt = _LocalAttempt(left, group, directory.location, grace_seconds)
        running[:] = attempt.members
        return attempt

    def save(number: int, frame: FrameType | None) -> None:
        for member in running:
            member.send(number)

    # Of several machines, the launcher of all begins them again.
    restarts = None if group.nodes > 1 else RESTARTS
    with stop.on_signals({signal.SIGUSR1: save}):
        run(
            begin,
            stop,
            f"{group.processes} processes",
            restarts=restarts,
            wait_seconds=RESTART_WAIT_SECONDS,
            saved=directory.newest_step,
            who="process",
        )
