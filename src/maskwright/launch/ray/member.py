"""What one node of a gang does on its machine: the training command as a process of its own, its lines, its end.

Between the Ray actor and the command stands a shell that is no child of the actor. Ray sends SIGKILL to an actor's
children when the actor or the job's driver ends (2.60, seen for `ray.kill` and a killed driver), and to the driver 3
seconds after `ray job stop`: a run would still be saving. The shell sees the end of the actor, however it came, as the
end of its input, and then gives the command its grace period: SIGTERM, wait, SIGKILL.

The command holds a file lock, as in `hosts/script.py`: who starts the same run again on this machine waits for it.
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

from maskwright.core.errors import MaskwrightError, StoppedEarly, StopReason
from maskwright.launch.hosts.script import SUPERVISE
from maskwright.processes.child import python_module
from maskwright.processes.parent import REASON_FILE, as_reason

LONGEST_LINE = 1 << 16
LINES_AT_ONCE = 1000
CLOSED_SECONDS = 2.0
"""Between the end of the command and that of its output, which a process that it left behind may keep open."""
SHELL = """
exec 3<&0 4>&2 2>&1 </dev/null
(
  setsid "$@" 3<&- 4>&- &
  mw_leader=$!
{SUPERVISE}
  mw_reason=$(cat "$MASKWRIGHT_REASON_FILE" 2>/dev/null)
  rm -rf "$mw_files"
  echo "$mw_code $mw_reason" >&4
) &
""".replace("{SUPERVISE}", SUPERVISE.strip("\n"))
"""File 3 is the shell's input; file 4 takes the exit code and the reason."""


class Member:
    """Lives in the actor; its methods are called from several threads at once."""

    def __init__(self) -> None:
        self._lines: queue.Queue[str] = queue.Queue(10_000)
        self._changing, self._told = threading.Lock(), False
        self._input: IO[bytes] | None = None
        self._code: int | None = None
        self._reason: StopReason = ""
        self._ended, self._closed = threading.Event(), threading.Event()
        self._ended_at = 0.0

    def prepare(self, run: str, host: str, seconds: float) -> tuple[int, bool]:
        """A free port of `host`, and whether all that an earlier attempt at `run` left on this machine ended within so
        long."""
        deadline, free = time.monotonic() + seconds, False
        with _lock_of(run) as file:
            while True:
                with suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    free = True
                if free or self._told or time.monotonic() > deadline:
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
        """Begins `maskwright` with `arguments`, in which `{files}` stands for a folder that holds `files`.
        `environment` is added to the actor's own. `poll` tells how it ends, that it could not begin too."""
        with self._changing:
            if self._told:
                return self._not_begun(StoppedEarly.exit_code)
            try:
                folder = tempfile.mkdtemp(prefix="maskwright-")
                for name, content in files.items():
                    with open(os.path.join(folder, name), "wb") as file:
                        file.write(content)
                words = python_module("maskwright", *(word.replace("{files}", folder) for word in arguments))
                ours = {"PYTHONUNBUFFERED": "1", "mw_grace": f"{grace_seconds:g}", "mw_files": folder}
                ours[REASON_FILE] = os.path.join(folder, "reason")
                with _lock_of(run) as lock:
                    fcntl.flock(lock, fcntl.LOCK_SH)
                    shell = subprocess.Popen(
                        ["sh", "-c", SHELL, "sh", *words],
                        env={**_without_ray(os.environ), **environment, **ours},
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        start_new_session=True,
                        pass_fds=(lock.fileno(),),
                    )
            except OSError as error:
                self._lines.put(f"{error.filename or 'sh'}: cannot be started: {error.strerror}")
                return self._not_begun(MaskwrightError.exit_code)
            assert shell.stdin and shell.stdout and shell.stderr
            self._input = shell.stdin
        shell.wait()  # only of the shell that has put the other one into the background
        for stream, read in ((shell.stdout, self._read), (shell.stderr, self._wait)):
            threading.Thread(target=read, args=(stream,), daemon=True).start()

    def _not_begun(self, code: int) -> None:
        self._over(code)
        self._closed.set()

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            for raw in iter(lambda: stream.readline(LONGEST_LINE), b""):
                self._lines.put(raw.decode(errors="replace").rstrip("\r\n"))
        self._closed.set()

    def _wait(self, stream: IO[bytes]) -> None:
        with stream:
            code, _, reason = stream.read().decode(errors="replace").partition(" ")
        self._reason = as_reason(reason)
        self._over(int(code) if code.isdigit() else None)
        self._close_input()

    def _over(self, code: int | None) -> None:
        self._code, self._ended_at = code, time.monotonic()
        self._ended.set()

    def poll(self, seconds: float) -> tuple[list[str], bool, int | None, StopReason]:
        """What the command printed; whether it is over; its exit code, None where nobody knows; why it stopped early.
        Waits at most so long for something."""
        lines: list[str] = []
        with suppress(queue.Empty):
            over = self._ended.is_set() and self._lines.empty()
            lines.append(self._lines.get(timeout=min(seconds, 0.1) if over else seconds))
            while len(lines) < LINES_AT_ONCE:
                lines.append(self._lines.get_nowait())
        silent = self._closed.is_set() or time.monotonic() - self._ended_at > CLOSED_SECONDS
        return lines, self._ended.is_set() and silent and self._lines.empty(), self._code, self._reason

    def request_stop(self) -> None:
        """The command is to save and end; what has not begun does not begin."""
        with self._changing:
            self._told = True
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
    """Ray sets OMP_NUM_THREADS to the CPUs that an actor reserves; the run's own `engine.threads` decides."""
    return {name: value for name, value in environment.items() if name != "OMP_NUM_THREADS"}
