"""Hosts of the fake cloud that really compute: for each instance of a group that runs, an agent in a process of its own
with a home folder of its own. An instance that is taken away takes its processes with it, by SIGKILL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from fake_tpu import serving
from google_cloud.fake import Cloud
from google_cloud.iam import acting_as

AGENT = (
    "import sys; from maskwright.cli.main import main; from maskwright.launch.bucket import leader; "
    "leader.LOST_SECONDS = 8.0; sys.argv[0] = 'maskwright'; main()"
)
"""Hosts count as lost sooner than the 90 seconds of real ones."""


@dataclass
class Boots:
    cloud: Cloud
    folder: Path
    group: str
    spec: str
    hosts: int
    metadata: str
    storage: str
    """Where its callers are the hosts' service account."""
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    booted: list[str] = field(default_factory=list)

    def turn(self) -> None:
        there = {
            key.rsplit("/", 1)[1]
            for key, body in list(self.cloud.resources.items())
            if "/instances/" in key and body.get("status") == "RUNNING" and f"/{self.group}-" in key
        }
        for name in [name for name in self.running if name not in there]:
            kill(self.running.pop(name))
        for name in sorted(there - set(self.running)):
            self.boot(name)

    def boot(self, name: str) -> None:
        home = self.folder / name
        home.mkdir(parents=True)
        words = ["agent", self.spec, "--num-hosts", str(self.hosts), "--instance", name, "--poll-seconds=0.3"]
        environment = {
            **os.environ,
            "HOME": str(home),
            "GCE_METADATA_HOST": self.metadata,
            "STORAGE_EMULATOR_HOST": self.storage,
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
        }
        with (home / "agent.log").open("wb") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-c", AGENT, *words], env=environment, stdout=log, stderr=log, start_new_session=True
            )
        self.booted.append(name)


class Metadata(BaseHTTPRequestHandler):
    """Of a host that is told its address, and not which of the hosts it is."""

    def do_GET(self) -> None:
        known = self.path.endswith("/network-interfaces/0/ip")
        body = b"127.0.0.1" if known else b""
        self.send_response(200 if known else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def kill(process: subprocess.Popen[bytes]) -> None:
    """With all that it started: what a machine runs does not outlive it. The job leads a session of its own."""
    for child in descendants(process.pid):
        try:
            os.kill(child, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait()


def descendants(root: int) -> list[int]:
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = entry.read_text()
        except OSError:
            continue
        parents[int(entry.parent.name)] = int(text.rpartition(")")[2].split()[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


@contextmanager
def booting(
    cloud: Cloud, folder: Path, group: str, spec: str, hosts: int, maskwright: str | None = None
) -> Iterator[Boots]:
    """`maskwright`: a script in the place of that command, where a test is not about training."""
    (folder / "bin").mkdir(parents=True)
    command = folder / "bin" / "maskwright"
    command.write_text(maskwright or f'#!/bin/sh\nexec "{sys.executable}" -m maskwright "$@"\n')
    command.chmod(0o755)
    over = threading.Event()

    def go() -> None:
        while not over.wait(0.1):
            boots.turn()

    account = f"{group.rpartition('-')[0]}-train@{cloud.project}.iam.gserviceaccount.com"
    with serving(Metadata) as url, acting_as(cloud, account) as storage:
        boots = Boots(cloud, folder, group, spec, hosts, url.removeprefix("http://"), storage)
        thread = threading.Thread(target=go, daemon=True)
        thread.start()
        try:
            yield boots
        finally:
            over.set()
            thread.join()
            for process in boots.running.values():
                kill(process)
