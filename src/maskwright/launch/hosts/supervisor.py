"""One attempt at a job: a process for each host (ssh to it, or a shell on this one). Lines are shown with a prefix, and
ends are kept in the order of time. `script.py` defines the protocol."""

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
from maskwright.core.errors import InputError
from maskwright.core.secrets import redact
from maskwright.launch.hosts.script import first_command, script_for
from maskwright.launch.outcome import MOMENTS_SECONDS, End
from maskwright.launch.target import JobSpec

TAIL_LINES = 20
LONGEST_LINE = 1 << 16
"""Bytes. A longer line is shown in pieces, so that a host without newlines cannot fill the memory."""
OTHERS_SECONDS = 10.0
"""Time in which the other hosts may notice by themselves that one has failed."""
ANSWER_SECONDS = 15.0
"""Time in which a host must report how it ended, beyond the job's grace period."""
CLOSED_SECONDS = 2.0
"""Longest time between the ends of a connection's stdout and stderr."""
RETRYING = "Retrying: SSH command error"
"""gcloud (528, `AttemptRunWithRetries`) writes this to stderr each time that ssh itself fails, and runs the command
again after 5 seconds, 10 times in all. After a host's greeting, that would start the job twice."""


@dataclass
class _HostProcess:
    """`process` leads its own process group: a Ctrl-C in the terminal must not end ssh before the job's grace period is
    over."""

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
        """The last error of ssh or gcloud."""
        errors = [line for line in self.complaints if line.startswith(("ERROR", "ssh: ", "Permission denied"))]
        return " ".join(errors[-1].split()) if errors else otherwise

    def send(self, text: str) -> None:
        assert self.process.stdin
        with suppress(BrokenPipeError):
            self.process.stdin.write(text.encode())
            self.process.stdin.flush()

    def request_stop(self) -> None:
        """Closes its input, which asks the job to stop."""
        if self.stop_requested_at is None and self.end is None:
            self.stop_requested_at = time.monotonic()
            self._close()

    def _close(self) -> None:
        assert self.process.stdin
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def drop(self) -> None:
        """Ends the connection without regard to the job."""
        self._close()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


class ShellAttempt:
    """Runs `spec` on all hosts once all of them are ready: `argv(index, command)` are the words that run the shell line
    `command` on a host. Call `poll` until `over`; `ends` are in the order of time."""

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
        self._mark = f"maskwright-{secrets.token_hex(8)}"  # no line of a job starts with it
        self._script = script_for(spec, values, mark=self._mark, job=job, setup=setup, replace=replace, more=more)
        self._events: queue.Queue[tuple[_HostProcess, str, str]] = queue.Queue(10_000)
        self._connect_seconds, self._connect_by, self._going, self._failed_at = connect_seconds, 0.0, False, 0.0
        self._waiting, self.size = list(indices), len(indices)
        self.hosts: list[_HostProcess] = []
        # Only one at first: gcloud creates the user's ssh key if there is none, and two at once would create two.
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

    # ---- lines of the hosts ------------------------------------------------------------------------------------

    def poll(self, seconds: float = 0.2) -> None:
        """Handles the lines that have come; waits up to `seconds` for the first."""
        with suppress(queue.Empty):
            self._on_event(*self._events.get(timeout=seconds))
            while True:
                self._on_event(*self._events.get_nowait())
        self._check_deadlines()

    def _on_event(self, host: _HostProcess, kind: str, text: str) -> None:
        if host.end is not None:
            return
        if kind == "out":
            self._on_stdout(host, text)
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

    def _on_stdout(self, host: _HostProcess, text: str) -> None:
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
                self._ended(host, int(rest), "")
            elif word == "refused":
                code, _, why = rest.partition(" ")
                of_setup = int(code) > 125 and int(code) != 127  # a kill of --setup is not one of the job
                self._ended(host, 1 if of_setup else int(code), why)
        elif not text:  # the script prints one before `exit`, since the job may end in the middle of a line
            host.blank_lines += 1
        elif host.greeted:
            for line in [*[""] * host.blank_lines, text]:
                host.tail.append(redact(line))
                self._line(host.index, line)
            host.blank_lines = 0

    def _ended(self, host: _HostProcess, code: int | None, why: str) -> None:
        host.end = End(host.index, code, host.stop_requested_at is not None, redact(why), tuple(host.tail))
        self.ends.append(host.end)
        if code is None:
            host.drop()
        if (code != 0 or not self._going) and not self._failed_at:
            self._failed_at = time.monotonic()

    # ---- deadlines ---------------------------------------------------------------------------------------------

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
        """Asks every host that runs the job to end it; no further host starts."""
        self._waiting.clear()
        for host in self.hosts:
            host.request_stop()

    def close(self) -> None:
        """Ends the connections that are left, and waits for their processes."""
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
            with suppress(queue.Empty):  # a reader may wait for room in the queue
                while True:
                    self._events.get_nowait()
            for thread in host.readers:
                thread.join(1.0)  # not for ever: a process on this very host may hold the pipe open
