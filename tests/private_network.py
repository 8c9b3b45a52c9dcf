"""A network of one's own, with nothing but loopback, and an end for all that runs in it.

Ray listens on every address that it finds, so what tests start of it must find none. The processes are in a PID
namespace too: when its first one ends, the kernel ends them all.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

FIRST = """
import fcntl, os, signal, socket, struct, sys
with socket.socket() as any_:
    fcntl.ioctl(any_, 0x8914, struct.pack("16sH14x", b"lo", 0x1 | 0x40))  # SIOCSIFFLAGS: up and running
print("up", flush=True)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who loses its parent comes here, and must not stay as a zombie
sys.stdin.read()
"""


@cache
def _flags() -> list[str] | None:
    """Of `unshare`: as root, or as a user who may have a user namespace; None when neither works."""
    for user in ([], ["--user", "--map-root-user"]):
        flags = [*user, "--net", "--pid", "--fork", "--mount-proc"]
        try:
            if subprocess.run(["unshare", *flags, "true"], capture_output=True, check=False).returncode == 0:
                return flags
        except FileNotFoundError:
            return None
    return None


def why_not(*programs: str) -> str | None:
    """Why tests with networks of their own, which use `programs`, cannot run here."""
    if lacking := [program for program in programs if not shutil.which(program)]:
        return f"needs {lacking[0]}"
    return None if _flags() else "`unshare` can make no network namespace here"


class PrivateNetwork:
    def __init__(self) -> None:
        flags = _flags()
        assert flags is not None
        self._holder = subprocess.Popen(
            ["unshare", *flags, "--kill-child", sys.executable, "-c", FIRST],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout and self._holder.stdout.readline() == "up\n"
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text().split()
        user = ["--user", "--preserve-credentials"] if "--user" in flags else []
        self._enter = ["nsenter", "--target", children[0], *user, "--net", "--pid", "--mount"]

    def words(self, *command: str, folder: str | Path | None = None) -> list[str]:
        """The command that runs `command` inside, in `folder`."""
        return [*self._enter, *([f"--wd={folder}"] if folder else []), *command]

    def close(self) -> None:
        with self._holder:
            if self._holder.stdin:
                self._holder.stdin.close()


HOST = """
import socket, subprocess, sys
socket.sethostname(sys.argv[1])
subprocess.run(["mount", "--bind", sys.argv[2], "/etc/hosts"], check=True)
print(open("/proc/self/stat").read().split()[0], flush=True)
sys.stdin.read()
"""


class TwoHosts:
    """node0 and node1, whose own names have an address of loopback, as on Debian, with one cable between them."""

    def __init__(self, folder: Path) -> None:
        self._network, self._holders, self._enter = PrivateNetwork(), list[subprocess.Popen[str]](), list[list[str]]()
        pids = []
        for number in (0, 1):
            hosts = folder / f"hosts{number}"
            hosts.write_text(f"127.0.0.1 localhost\n127.0.1.1 node{number}\n10.9.0.{2 - number} node{1 - number}\n")
            own = ["unshare", "--net", "--uts", "--mount", sys.executable, "-c", HOST, f"node{number}", str(hosts)]
            words, pipe = self._network.words(*own), subprocess.PIPE
            self._holders.append(subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True))
            stdout = self._holders[-1].stdout
            assert stdout
            pids.append(stdout.readline().strip())
            self._enter.append(self._network.words("nsenter", "--target", pids[-1], "--net", "--uts", "--mount"))
        cable = ["link", "add", "cable", "netns", pids[0], "type", "veth", "peer", "name", "cable", "netns", pids[1]]
        subprocess.run(self._network.words("ip", *cable), check=True)
        for number in (0, 1):
            for words in ("link set lo up", f"addr add 10.9.0.{number + 1}/24 dev cable", "link set cable up"):
                subprocess.run([*self._enter[number], "ip", *words.split()], check=True)

    def words(self, number: int, *command: str) -> list[str]:
        """The command that runs `command` on a host."""
        return [*self._enter[number], *command]

    def drop_packets(self) -> None:
        """What one host sends to the other goes to a card that is not there, without an answer, as after a loss of
        power."""
        for number in (0, 1):
            words = f"neigh replace 10.9.0.{2 - number} lladdr 02:00:00:00:00:99 nud permanent dev cable"
            subprocess.run([*self._enter[number], "ip", *words.split()], check=True)

    def close(self) -> None:
        self._network.close()
        for holder in self._holders:
            with holder:
                holder.kill()


def processes(*words: str) -> list[int]:
    """Numbers of the Python processes whose command line holds all these words."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            line = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if "python" in os.path.basename(line[0]) and set(words) <= set(line):
            found.append(int(folder.name))
    return found


def wait_until(holds: Callable[[], T], seconds: float = 240.0) -> T:
    """What `holds` returns once it is true."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, "did not come about in time"
        time.sleep(0.05)
    return found
