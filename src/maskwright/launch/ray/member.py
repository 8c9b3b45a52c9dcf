"""One node of a gang: it runs the training command as a process of its machine, and reports its lines and end.

A shell that is not a child of the actor runs the command. Ray sends SIGKILL to an actor's children when the actor or
the job's driver ends (2.60, seen for `ray.kill` and a killed driver), and to the driver 3 seconds after `ray job stop`,
while a run still saves. The end of the actor closes the shell's input, and the shell then gives the command SIGTERM,
the grace period and SIGKILL.

The command holds a file lock, as in `hosts/script.py`: the next start of the run on this machine waits for it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import queue
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

from maskwright.core.errors import MaskwrightError, StoppedEarly
from maskwright.launch.hosts.script import SUPERVISE
from maskwright.processes.child import python_module

LONGEST_LINE = 1 << 16
LINES_AT_ONCE = 1000
CLOSED_SECONDS = 2.0
"""Longest time between the command's end and the end of its output, which a process of its own may keep open."""
SHELL = """
exec 3<&0 4>&2 2>&1 </dev/null
(
  setsid "$@" 3<&- 4>&- &
  mw_leader=$!
{SUPERVISE}
  rm -rf "$mw_files"
  echo "$mw_code" >&4
) &
""".replace("{SUPERVISE}", SUPERVISE.strip("\n"))
"""File 3 is the shell's input; file 4 takes the exit code."""


class Member:
    """The actor; Ray calls its methods from several threads at once."""

    def __init__(self) -> None:
        self._lines: queue.Queue[str] = queue.Queue(10_000)
        self._changing, self._stop_requested = threading.Lock(), False
        self._input: IO[bytes] | None = None
        self._code: int | None = None
        self._ended, self._closed = threading.Event(), threading.Event()
        self._ended_at = 0.0

    def prepare(self, run: str, host: str, seconds: float) -> tuple[int, bool]:
        """Waits up to `seconds` until no process of an earlier attempt at `run` is left on this machine. Returns a free
        port of `host`, and whether none is left."""
        deadline, free = time.monotonic() + seconds, False
        with _lock_of(run) as file:
            while True:
                with suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    free = True
                if free or self._stop_requested or time.monotonic() > deadline:
                    break
                time.sleep(0.1)
        with socket.socket() as probe:
            probe.bind((host, 0))
            return int(probe.getsockname()[1]), free

    def start(
        self,
        arguments: Sequence[str],
        run: str,
        files: Mapping[str, bytes],
        environment: Mapping[str, str],
        grace_seconds: float,
    ) -> None:
        """Starts `maskwright` with `arguments`, in which `{files}` stands for a folder with `files`, and `environment`
        added to the actor's. `poll` reports its end, or that it could not start."""
        with self._changing:
            if self._stop_requested:
                return self._not_started(StoppedEarly.exit_code)
            try:
                folder = tempfile.mkdtemp(prefix="maskwright-")
                for name, content in files.items():
                    with open(os.path.join(folder, name), "wb") as file:
                        file.write(content)
                words = python_module("maskwright", *(word.replace("{files}", folder) for word in arguments))
                variables = {"PYTHONUNBUFFERED": "1", "mw_grace": f"{grace_seconds:g}", "mw_files": folder}
                with _lock_of(run) as lock:
                    fcntl.flock(lock, fcntl.LOCK_SH)
                    shell = subprocess.Popen(
                        ["sh", "-c", SHELL, "sh", *words],
                        env={**_without_ray(os.environ), **environment, **variables},
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        start_new_session=True,
                        pass_fds=(lock.fileno(),),
                    )
            except OSError as error:
                self._lines.put(f"{error.filename or 'sh'}: cannot be started: {error.strerror}")
                return self._not_started(MaskwrightError.exit_code)
            assert shell.stdin and shell.stdout and shell.stderr
            self._input = shell.stdin
        shell.wait()  # it has started another shell in the background
        for stream, read in ((shell.stdout, self._read), (shell.stderr, self._wait)):
            threading.Thread(target=read, args=(stream,), daemon=True).start()

    def _not_started(self, code: int) -> None:
        self._set_end(code)
        self._closed.set()

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            for raw in iter(lambda: stream.readline(LONGEST_LINE), b""):
                self._lines.put(raw.decode(errors="replace").rstrip("\r\n"))
        self._closed.set()

    def _wait(self, stream: IO[bytes]) -> None:
        with stream:
            code = stream.read().decode(errors="replace").strip()
        self._set_end(int(code) if code.isdigit() else None)
        self._close_input()

    def _set_end(self, code: int | None) -> None:
        self._code, self._ended_at = code, time.monotonic()
        self._ended.set()

    def poll(self, seconds: float) -> tuple[list[str], bool, int | None]:
        """(new lines of the command, whether it is over, its exit code or None if unknown). Waits up to `seconds` for a
        line."""
        lines: list[str] = []
        with suppress(queue.Empty):
            over = self._ended.is_set() and self._lines.empty()
            lines.append(self._lines.get(timeout=min(seconds, 0.1) if over else seconds))
            while len(lines) < LINES_AT_ONCE:
                lines.append(self._lines.get_nowait())
        closed = self._closed.is_set() or time.monotonic() - self._ended_at > CLOSED_SECONDS
        return lines, self._ended.is_set() and closed and self._lines.empty(), self._code

    def request_stop(self) -> None:
        """Asks the command to save and end; one that has not started does not start."""
        with self._changing:
            self._stop_requested = True
        self._close_input()

    def _close_input(self) -> None:
        with self._changing, suppress(BrokenPipeError):
            if self._input is not None:
                self._input.close()


def _lock_of(run: str) -> IO[bytes]:
    name = f"maskwright-{os.getuid()}-{hashlib.sha256(run.encode()).hexdigest()[:16]}.lock"
    path = os.path.join(tempfile.gettempdir(), name)
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+b")


def _without_ray(environment: Mapping[str, str]) -> dict[str, str]:
    """Drops OMP_NUM_THREADS, which Ray sets to the CPUs that an actor reserves (`engine.threads` of the run decides);
    TPU_VISIBLE_CHIPS, which it sets to a part of a host's chips (a member has all); and MEGASCALE_*, the coordinator of
    several slices (the gang is on one, and libtpu would wait for the others)."""
    rays = ("OMP_NUM_THREADS", "TPU_VISIBLE_CHIPS")
    return {name: value for name, value in environment.items() if name not in rays and name[:10] != "MEGASCALE_"}
