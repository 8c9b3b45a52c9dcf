"""One shell for a page, in which `maskwright` is forked from a process that has torch already (see `warm`)."""

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import warm

COMMAND = """#!{python} -IS
import array, json, os, signal, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
request = json.dumps(dict(words={words}, cwd=os.getcwd(), environment=dict(os.environ))).encode()
streams = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))
server.sendmsg([len(request).to_bytes(4, "little")], [streams])
server.sendall(request)
pid = int.from_bytes(server.recv(4, socket.MSG_WAITALL), "little")
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, frame: os.kill(pid, number))
code = int.from_bytes(server.recv(4, socket.MSG_WAITALL), "little", signed=True)
sys.exit(code if code >= 0 else 128 - code)
"""
"""The `maskwright` of the page: it asks this process for a fork, lends it its streams and hands on its exit code."""
PROGRAM = "python-program"
"""The same for a block of Python, on its standard input."""


class Shell:
    """State (variables, the directory, jobs in the background) carries over from command to command."""

    def __init__(self, root: Path, environment: dict[str, str], walks: Path) -> None:
        """`walks`: a folder of all processes of this session, which says where pages that were walked left their
        files."""
        self.root, self.walks = root, walks
        self.folder = root / "home" / "you" / "project"
        self.folder.mkdir(parents=True)
        self.environment = environment | {
            "HOME": str(self.folder.parent),
            "TERM": "dumb",
            # A process with threads cannot be forked: each of `compare`'s took 4 s. scikit-learn brings those of scipy
            # and, where pandas is installed, of pyarrow.
            "TOKENIZERS_PARALLELISM": "false",
            "OPENBLAS_NUM_THREADS": "1",
            "JE_ARROW_MALLOC_CONF": "background_thread:false",
        }
        self.places = {"/home/you": str(self.folder.parent)}
        """Paths of the page, and where they are here."""
        self.enter: list[str] = []
        """The command, if any, that the shell is started by."""
        self._script, self._output = root / "command.sh", root / "output"
        self._process: subprocess.Popen[bytes] | None = None

    def placed(self, text: str) -> str:
        for shown, here in self.places.items():
            text = text.replace(shown, here)
        return text

    def run(self, command: str, seconds: float, *, strict: bool = False) -> tuple[int, str]:
        """Its exit code, and what it printed on both streams. `strict`: it ends with the first command that fails."""
        process, command = self._process or self._start(), self.placed(command)
        self._script.write_text(f"set -e\n{command}\nset +e\n" if strict else f"{command}\n")
        assert process.stdin
        process.stdin.write(
            f". {self._script} > {self._output} 2>&1 < /dev/null; echo $? >&{self._told_there}\n".encode()
        )
        process.stdin.flush()
        if not select.select([self._told], [], [], seconds)[0]:
            raise AssertionError(f"took over {seconds:.0f} s:\n{command}\n{self._output.read_text()}")
        told = os.read(self._told, 100)
        output = self._output.read_text(errors="replace")
        if not told:
            self._process = None
            return process.wait() or 1, output
        return int(told), output

    def _start(self) -> subprocess.Popen[bytes]:
        self._told, self._told_there = os.pipe()
        self._process = subprocess.Popen(
            [*self.enter, "bash", "--norc", "--noprofile"],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.PIPE,
            pass_fds=[self._told_there],
            start_new_session=True,
        )
        os.close(self._told_there)
        return self._process

    def close(self) -> None:
        """Ends the shell and whatever it left in the background."""
        if self._process:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            assert self._process.stdin
            self._process.stdin.close()
            os.close(self._told)


@contextmanager
def commands() -> Iterator[str]:
    """The folder of the page's own `maskwright`, for its PATH."""
    with tempfile.TemporaryDirectory(prefix="page-") as folder, socket.socket(socket.AF_UNIX) as listening:
        address = os.path.join(folder, "socket")
        listening.bind(address)
        listening.listen(64)
        forked = partial(COMMAND.format, python=sys.executable, address=address)
        scripts = {
            "maskwright": forked(words='["-m", "maskwright", *sys.argv[1:]]'),
            PROGRAM: forked(words='["-c", sys.stdin.read()]'),
            "hf": f"#!{sys.executable}\nfrom huggingface_hub.cli.hf import main\nmain()\n",
        }
        for name, script in scripts.items():
            Path(folder, name).write_text(script)
            Path(folder, name).chmod(0o755)
        threading.Thread(target=_accept, args=(listening,), daemon=True).start()
        try:
            yield folder
        finally:
            listening.shutdown(socket.SHUT_RDWR)


def _accept(listening: socket.socket) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        threading.Thread(target=_serve, args=(connection,), daemon=True).start()


def _serve(connection: socket.socket) -> None:
    with connection:
        asked = warm.receive(connection)
        if asked is None:
            return
        request, streams = asked
        process: Any = warm.Popen(
            [sys.executable, *request["words"]],
            cwd=request["cwd"],
            env=request["environment"],
            **dict(zip(("stdin", "stdout", "stderr"), streams, strict=True)),
        )
        for stream in streams:
            os.close(stream)
        connection.sendall(process.pid.to_bytes(4, "little"))
        code = process.wait()
        connection.sendall(int(code).to_bytes(4, "little", signed=True))
