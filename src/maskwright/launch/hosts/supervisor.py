"""One attempt at a job: a process for each host (ssh to it, or a shell on this one), their lines with a prefix, their
ends in the order in which they came. `script.py` says what is spoken on the way."""

from __future__ import annotations

import os
import queue
import secrets
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO

from maskwright.core.console import show_line
from maskwright.core.errors import InputError, StopReason
from maskwright.core.secrets import redact
from maskwright.launch.hosts.script import first_command, script_for
from maskwright.launch.outcome import MOMENTS_SECONDS, End
from maskwright.launch.target import JobSpec
from maskwright.processes.parent import as_reason

TAIL_LINES = 20
LONGEST_LINE = 1 << 16
"""Bytes; a longer one is shown in pieces, so that one host without newlines cannot fill the memory."""
OTHERS_SECONDS = 10.0
"""After one host has ended badly the others have so long to find out for themselves."""
ANSWER_SECONDS = 15.0
"""For a host to say how it ended, beyond the grace period that it gives to the job."""
CLOSED_SECONDS = 2.0
"""Between the end of what a connection prints and that of what it complains of."""
RETRYING = "Retrying: SSH command error"
"""gcloud (528, `AttemptRunWithRetries`) says so on stderr each time that ssh itself fails, and runs the command again
after 5 seconds, 10 times in all. Good before the host has greeted; afterwards it would start the job twice."""


@dataclass
class _HostProcess:
    """`process` leads a process group of its own: a Ctrl-C in the terminal must not reach ssh before the job has had
    its grace period."""

    index: int
    process: subprocess.Popen[bytes]
    readers: list[threading.Thread] = field(default_factory=list)
    greeted: bool = False
    ready: bool = False
    blank_lines: int = 0
    stop_requested_at: float | None = None
    closed: set[str] = field(default_factory=set)
    closed_at: float | None = None
    end: End | None = None
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    complaints: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))

    def complaint(self, otherwise: str) -> str:
        """What ssh or gcloud said last of why it does not work."""
        said = [line for line in self.complaints if line.startswith(("ERROR", "ssh: ", "Permission denied"))]
        return " ".join(said[-1].split()) if said else otherwise

    def send(self, text: str) -> None:
        assert self.process.stdin
        with suppress(BrokenPipeError):
            self.process.stdin.write(text.encode())
            self.process.stdin.flush()

    def request_stop(self) -> None:
        """The end of its input is the wish that it ends."""
        if self.stop_requested_at is None and self.end is None:
            self.stop_requested_at = time.monotonic()
            self._close()

    def _close(self) -> None:
        assert self.process.stdin
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def drop(self) -> None:
        """Ends the connection, whatever is on the other side."""
        self._close()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


class ShellAttempt:
    """Starts `spec` on all hosts: `argv(index, command)` are the words that run the shell line `command` there. It
    begins nowhere before each host is ready. Call `poll` until `over`; `ends` come in the order of time."""

    def __init__(
        self,
        spec: JobSpec,
        indices: Sequence[int],
        argv: Callable[[int, str], list[str]],
        *,
        values: Mapping[str, str],
        job: str,
        setup: bool,
        replace: bool = False,
        connect_seconds: float = 300.0,
        more: Sequence[str] = (),
        line: Callable[[int, str], object] = show_line,
    ) -> None:
        self.spec, self._argv, self._line = spec, argv, line
        self.ends: list[End] = []
        self._mark = f"maskwright-{secrets.token_hex(8)}"  # so that no line of a job is taken for one of ours
        self._script = script_for(spec, values, mark=self._mark, job=job, setup=setup, replace=replace, more=more)
        self._events: queue.Queue[tuple[_HostProcess, str, str]] = queue.Queue(10_000)
        self._connect_seconds, self._connect_by, self._going, self._failed_at = connect_seconds, 0.0, False, 0.0
        self._waiting, self.size = list(indices), len(indices)
        self.hosts: list[_HostProcess] = []
        # One alone at first: gcloud makes the user's ssh key when there is none, and two at once would make two.
        self._start(1)

    @property
    def over(self) -> bool:
        return not self._waiting and len(self.ends) == len(self.hosts)

    def _start(self, count: int) -> None:
        self._connect_by = time.monotonic() + self._connect_seconds
        for index in [self._waiting.pop(0) for _ in range(min(count, len(self._waiting)))]:
            words = self._argv(index, first_command(self._mark))
            pipe = subprocess.PIPE
            try:
                process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
            except OSError as error:
                for host in self.hosts:
                    host.drop()
                fix = "check that it is installed and on the path"
                raise InputError(f"cannot be started: {error.strerror}", where=words[0], fix=fix) from None
            host = _HostProcess(index, process)
            self.hosts.append(host)
            assert process.stdout and process.stderr
            for stream, name in ((process.stdout, "out"), (process.stderr, "err")):
                thread = threading.Thread(target=self._read, args=(host, stream, name), daemon=True)
                host.readers.append(thread)
                thread.start()

    def _read(self, host: _HostProcess, stream: IO[bytes], name: str) -> None:
        with stream:
            for raw in iter(lambda: stream.readline(LONGEST_LINE), b""):
                self._events.put((host, name, raw.decode(errors="replace").rstrip("\r\n")))
        self._events.put((host, f"{name} closed", ""))

    # ---- what comes in -----------------------------------------------------------------------------------------

    def poll(self, seconds: float = 0.2) -> None:
        """Works through what has come, and waits at most so long for something."""
        with suppress(queue.Empty):
            self._take(*self._events.get(timeout=seconds))
            while True:
                self._take(*self._events.get_nowait())
        self._check_deadlines()

    def _take(self, host: _HostProcess, kind: str, text: str) -> None:
        if host.end is not None:
            return
        if kind == "out":
            self._hear(host, text)
        elif kind == "err":
            if RETRYING in text and host.greeted:
                self._ended(host, None, "the connection was lost")
                return
            if RETRYING in text and RETRYING not in "".join(host.complaints):
                self._line(host.index, f"({host.complaint('cannot be reached')}; gcloud tries again)")
            host.complaints.append(redact(text))
        else:
            host.closed.add(kind)
            host.closed_at = host.closed_at or time.monotonic()
            if len(host.closed) == 2:
                self._ended(host, None, host.complaint("the connection ended"))

    def _hear(self, host: _HostProcess, text: str) -> None:
        if text.startswith(self._mark):
            word, _, rest = text[len(self._mark) + 1 :].partition(" ")
            if word == "hello" and host.greeted:
                self._ended(host, None, "the connection was lost")
            elif word == "hello":
                host.greeted = True
                host.send(self._script)
                self._start(len(self._waiting))
            elif word == "note":
                self._line(host.index, f"({rest})")
            elif word == "ready":
                host.ready = True
                if not self._waiting and all(host.ready and host.end is None for host in self.hosts):
                    self._going = True
                    for each in self.hosts:
                        each.send("go\n")
            elif word == "exit":
                code, _, reason = rest.partition(" ")
                self._ended(host, int(code), "", as_reason(reason))
            elif word == "refused":
                code, _, why = rest.partition(" ")
                odd = int(code) > 125 and int(code) != 127  # of --setup: not of the job
                self._ended(host, 1 if odd else int(code), why)
        elif not text:  # one comes before each exit, in case that the job ended in the middle of a line
            host.blank_lines += 1
        elif host.greeted:
            for line in [*[""] * host.blank_lines, text]:
                host.tail.append(redact(line))
                self._line(host.index, line)
            host.blank_lines = 0

    def _ended(self, host: _HostProcess, code: int | None, why: str, reason: StopReason = "") -> None:
        host.end = End(host.index, code, host.stop_requested_at is not None, reason, redact(why), tuple(host.tail))
        self.ends.append(host.end)
        if code is None:
            host.drop()
        if (code != 0 or not self._going) and not self._failed_at:
            self._failed_at = time.monotonic()

    # ---- what time brings --------------------------------------------------------------------------------------

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        if self._failed_at and (not self._going or now - self._failed_at > max(OTHERS_SECONDS, MOMENTS_SECONDS)):
            self.request_stop()
        for host in self.hosts:
            if host.end is None and host.closed_at is not None and now - host.closed_at > CLOSED_SECONDS:
                self._ended(host, None, host.complaint("the connection ended"))
            if host.end is None and not host.greeted and now > self._connect_by:
                self._ended(host, None, host.complaint("cannot be reached"))
            if host.end is None and host.stop_requested_at is not None:
                limit = ANSWER_SECONDS if host.greeted else 0.0
                limit += self.spec.grace_seconds if host.ready else 0.0
                if now - host.stop_requested_at > limit:
                    self._ended(host, None, "did not answer")

    def request_stop(self) -> None:
        """Every host that still runs the job is to end it; what has not begun does not begin."""
        self._waiting.clear()
        for host in self.hosts:
            host.request_stop()

    def close(self) -> None:
        """Drops what is left, and waits for the processes, so that none is left behind here."""
        for host in self.hosts:
            if host.end is None or host.end.code is None:
                host.drop()
            else:
                host._close()
            try:
                host.process.wait(5.0)
            except subprocess.TimeoutExpired:
                host.drop()
                host.process.wait()
            with suppress(queue.Empty):  # a reader may wait for room
                while True:
                    self._events.get_nowait()
            for thread in host.readers:
                thread.join(1.0)  # not for ever: what runs on this very host may hold the other end
