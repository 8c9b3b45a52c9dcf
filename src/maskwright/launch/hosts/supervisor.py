"""One attempt at a job: a process for each host (ssh to it). Lines are shown with a prefix, and ends are kept in the
order of time. `script.py` defines the protocol."""

from __future__ import annotations

import os
import queue
import secrets
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from maskwright.core.console import show_line
from maskwright.core.secrets import redact
from maskwright.launch.attempts import Attempt
from maskwright.launch.hosts.script import first_command
from maskwright.launch.outcome import MOMENTS_SECONDS, End

TAIL_LINES = 20
LONGEST_LINE = 1 << 16
"""Bytes. A longer line is shown in pieces, so that a host without newlines cannot fill the memory."""
OTHERS_SECONDS = 10.0
"""Time for the other hosts to notice that one has failed."""
CONNECT_SECONDS = 300.0
"""Time in which a host must greet. gcloud (528) tries 10 times, with 5 seconds in between."""
ANSWER_SECONDS = 15.0
"""Time in which a host must report how it ended, beyond the job's grace period."""
COMPLAINTS = ("ERROR", "ssh: ", "Permission denied")
"""Beginnings of errors of ssh and gcloud."""
DRAIN_SECONDS = 1.0
"""Time for the last lines of a connection that has ended."""


@dataclass
class _Host:
    """`process` leads its own process group, since a Ctrl-C in the terminal must not end ssh before the job's grace
    period is over."""

    index: int
    process: subprocess.Popen[bytes]
    greeted: bool = False
    ready: bool = False
    stop_requested_at: float | None = None
    lost_at: float | None = None
    end: End | None = None
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))

    def complaint(self, otherwise: str) -> str:
        """The last error of ssh or gcloud."""
        errors = [line for line in self.tail if line.startswith(COMPLAINTS)]
        return " ".join(errors[-1].split()) if errors else otherwise

    def send(self, text: str) -> None:
        assert self.process.stdin
        with suppress(BrokenPipeError):
            self.process.stdin.write(text.encode())
            self.process.stdin.flush()

    def request_stop(self) -> None:
        if self.stop_requested_at is None and self.end is None:
            self.stop_requested_at = time.monotonic()
            self.close_input()

    def close_input(self) -> None:
        """Asks the job to stop."""
        assert self.process.stdin
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def drop(self) -> None:
        """Ends the connection, without waiting for the job."""
        self.close_input()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


class ShellAttempt(Attempt):
    """Runs a job on all hosts once all of them are ready: `argv(index, command)` are the words that run the shell line
    `command` on a host, and `script(mark)` is the text for its input. Call `poll` until `over`; `ends` are in the order
    of time."""

    def __init__(
        self, num_hosts: int, argv: Callable[[int, str], list[str]], script: Callable[[str], str], grace_seconds: float
    ) -> None:
        self.size, self._argv, self._script, self._grace_seconds = num_hosts, argv, script, grace_seconds
        self.ends: list[End] = []
        self._mark = f"maskwright-{secrets.token_hex(8)}"  # no line of a job starts with it
        self._lines: queue.Queue[tuple[_Host, str]] = queue.Queue(10_000)
        self._connect_by, self._going, self._failed_at = 0.0, False, 0.0
        self._waiting = list(range(num_hosts))
        self.hosts: list[_Host] = []
        # Only one at first: gcloud creates the user's ssh key if there is none, and two at once would create two.
        self._start(1)

    @property
    def over(self) -> bool:
        return not self._waiting and len(self.ends) == len(self.hosts)

    def _start(self, count: int) -> None:
        self._connect_by = time.monotonic() + CONNECT_SECONDS
        for index in [self._waiting.pop(0) for _ in range(min(count, len(self._waiting)))]:
            words, pipe = self._argv(index, first_command(self._mark)), subprocess.PIPE
            process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, start_new_session=True)
            host = _Host(index, process)
            self.hosts.append(host)
            threading.Thread(target=self._read, args=(host,), daemon=True).start()

    def _read(self, host: _Host) -> None:
        assert host.process.stdout
        with host.process.stdout as stream:
            for raw in iter(lambda: stream.readline(LONGEST_LINE), b""):
                self._lines.put((host, raw.decode(errors="replace").rstrip("\r\n")))

    def poll(self, seconds: float = 0.2) -> None:
        """Handles the lines that have come; waits up to `seconds` for the first."""
        with suppress(queue.Empty):
            self._on_line(*self._lines.get(timeout=seconds))
            for _ in range(1000):  # then check the deadlines, even if a host prints without end
                self._on_line(*self._lines.get_nowait())
        self._check_deadlines()

    def _on_line(self, host: _Host, text: str) -> None:
        if host.end is not None:
            return
        if text.startswith(self._mark):
            word, _, rest = text[len(self._mark) + 1 :].partition(" ")
            self._on_message(host, word, rest)
        else:
            host.tail.append(redact(text))
            if host.greeted or text.startswith((*COMPLAINTS, "Retrying")):  # not how gcloud connects
                show_line(host.index, text)

    def _on_message(self, host: _Host, word: str, rest: str) -> None:
        if word == "hello" and host.greeted:  # gcloud has connected again; this shell gets no script
            self._ended(host, None, host.complaint("the connection was lost"))
        elif word == "hello":
            host.greeted = True
            host.tail.clear()
            host.send(self._script(self._mark))
            self._start(len(self._waiting))
        elif word == "note":
            show_line(host.index, f"({rest})")
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
            self._ended(host, int(code), why)

    def _ended(self, host: _Host, code: int | None, why: str) -> None:
        told = host.stop_requested_at is not None
        host.end = End(host.index, code, told=told, why=redact(why), tail=tuple(host.tail))
        self.ends.append(host.end)
        if code is None:
            host.drop()
        if (code != 0 or not self._going) and not self._failed_at:
            self._failed_at = time.monotonic()

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        if self._failed_at and (not self._going or now - self._failed_at > max(OTHERS_SECONDS, MOMENTS_SECONDS)):
            self.request_stop()
        for host in self.hosts:
            if host.lost_at is None and host.process.poll() is not None:
                host.lost_at = now
            if host.end is None and host.lost_at is not None and now - host.lost_at > DRAIN_SECONDS:
                self._ended(host, None, host.complaint("the connection ended"))
            if host.end is None and not host.greeted and now > self._connect_by:
                self._ended(host, None, host.complaint("cannot be reached"))
            if host.end is None and host.stop_requested_at is not None:
                limit = ANSWER_SECONDS if host.greeted else 0.0
                limit += self._grace_seconds if host.ready else 0.0
                if now - host.stop_requested_at > limit:
                    self._ended(host, None, "did not answer")

    def request_stop(self) -> None:
        """Asks every host that runs the job to end it; no further host starts."""
        self._waiting.clear()
        for host in self.hosts:
            host.request_stop()

    def close(self) -> None:
        for host in self.hosts:
            host.drop()
            host.process.wait()
