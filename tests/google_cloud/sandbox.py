"""A host of Google's in a folder: the scripts of deploy/terraform/host run for real, with a root of their own, tools
that are stubs (`stub_tools.py`), a metadata server and a bucket on loopback."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fake_metadata import TOKEN, FakeMetadata

HOST = Path(__file__).resolve().parents[2] / "deploy" / "terraform" / "host"
STUBS = ("mount", "umount", "mountpoint", "mount.nfs", "blkid", "wipefs", "mkfs.ext4", "docker", "shutdown", "apt-get")
STUBS += ("cos-extensions", "gcloud")
REAL = ("bash", "sh", "curl", "sed", "tr", "cut", "head", "tail", "tee", "cat", "wc", "date", "uname", "mkdir", "chmod")
REAL += ("rm", "mv", "ls", "dirname", "sleep", "sha256sum", "grep", "flock", "sync", "env", "find", "python3")
"""All that the scripts need of a system besides; the stubs of tools that are not named here do not exist."""


def script_text(script: str) -> str:
    """A script of deploy/terraform/host as it is in the metadata of machines."""
    names = [script] if script == "shutdown.sh" else ["common.sh", script]
    return "".join((HOST / name).read_text() for name in names)


class Host:
    """`variables` are those of the "container" besides what `docker run` says."""

    def __init__(self, folder: Path, metadata: FakeMetadata, storage: str, variables: dict[str, str]) -> None:
        self.folder, self.metadata, self.storage = folder, metadata, storage
        self.root, self.bin = folder / "root", folder / "bin"
        self.started: list[subprocess.Popen[str]] = []
        self.bin.mkdir(parents=True)
        (self.root / "dev/disk/by-id").mkdir(parents=True)
        for name in STUBS:
            self.add_tool(name)
        for name in REAL:
            # Not whatever `python3` is on the path: a version manager's is a script that needs tools of its own.
            if path := os.path.realpath(sys.executable) if name == "python3" else shutil.which(name):
                (self.bin / name).symlink_to(path)
        self.write("variables", json.dumps(variables))
        self.write("gcloud", os.path.realpath(shutil.which("gcloud") or ""))

    def add_tool(self, name: str) -> None:
        stub = Path(__file__).with_name("stub_tools.py")
        (self.bin / name).write_text(f'#!/bin/sh\nexec {sys.executable} -I {stub} "$0" "$@"\n')
        (self.bin / name).chmod(0o755)

    def use_real(self, *names: str) -> None:
        for name in names:
            (self.bin / name).unlink()
            (self.bin / name).symlink_to(shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") or name)

    def write(self, name: str, text: str) -> None:
        """Something for the stubs to find."""
        (self.folder / name).write_text(text)

    def disk(self, name: str, label: str | None = "maskwright-data") -> Path:
        """Attaches a disk and says in which folder its files lie."""
        folder = self.folder / "disks" / name
        (folder / "files").mkdir(parents=True)
        if label is not None:
            (folder / "formatted").write_text(label)
        (self.root / f"dev/disk/by-id/google-{name}").write_text(str(folder))
        return folder / "files"

    def _in_metadata(self, script: str) -> str:
        """A file with what Terraform writes for the script."""
        path = self.folder / script
        if not path.exists():  # bash reads a script as it goes
            path.write_text(script_text(script))
        return str(path)

    def start(self, script: str, **more: str) -> subprocess.Popen[str]:
        environment = {
            "PATH": str(self.bin),
            "SANDBOX": str(self.folder),
            "MASKWRIGHT_ROOT": str(self.root),
            "MASKWRIGHT_PATIENCE_SECONDS": "1",
            "MASKWRIGHT_PAUSE_SECONDS": "0.1",
            "GCE_METADATA_HOST": self.metadata.host,
            "STORAGE_EMULATOR_HOST": self.storage,
            "LANG": "C.UTF-8",
            **more,
        }
        with open(self.folder / "output", "a") as output:
            process = subprocess.Popen(
                ["bash", self._in_metadata(script)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                text=True,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def run(self, script: str, *, seconds: float = 240.0, **more: str) -> int:
        process = self.start(script, **more)
        code = process.wait(seconds)
        # What the script says goes through a filter, which may write its last line a moment after the script's end.
        wait_until(lambda: not _is_there(process.pid), 10.0)
        return code

    @property
    def output(self) -> str:
        path = self.folder / "output"
        return path.read_text() if path.exists() else ""

    def journal(self, *tools: str) -> list[list[str]]:
        """Calls of those tools, of all when none is named."""
        path = self.folder / "journal"
        calls = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [call for call in calls if not tools or call[0] in tools]

    def kill(self, process: subprocess.Popen[str]) -> None:
        """The script with all it has started but containers, which belong to docker."""
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()

    def reboot(self) -> None:
        """Nothing runs and nothing is mounted; what is in memory is lost."""
        for process in self.started:
            self.kill(process)
        for folder in (self.folder / "docker").glob("*"):
            end_agent(folder)
        for path in self.root.rglob("*"):
            if path.is_symlink():
                path.unlink()
                path.mkdir()
        shutil.rmtree(self.root / "run", ignore_errors=True)

    def files_with_token(self) -> list[Path]:
        """Everywhere but in what the stubs were told."""
        return [
            path
            for path in self.folder.rglob("*")
            if path.is_file() and not path.is_symlink() and TOKEN.encode() in path.read_bytes()
        ]


def _is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def end_agent(folder: Path) -> None:
    if not (folder / "exit").exists() and (folder / "pid").exists():
        try:
            os.kill(int((folder / "pid").read_text()), signal.SIGKILL)
        except ProcessLookupError:
            pass
        wait_until((folder / "exit").exists)


def wait_until(holds: Callable[[], object], seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "did not come about in time"
        time.sleep(0.05)
