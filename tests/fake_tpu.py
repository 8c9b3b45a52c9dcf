"""A TPU slice of its own on loopback: the few calls of Google's TPU and Compute APIs that `gcloud compute tpus` makes,
and a stub `ssh` that runs what it is given with the local shell.

The real `gcloud` is the client. Hosts are told apart by their address; each has a home folder of its own.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from loopback import Handler, serving

PROJECT, ZONE, NAME = "lab", "us-central2-b", "pod"

STUB_SSH = """#!{python}
import os, subprocess, sys, threading
words = sys.argv[1:]
host = next(word for word in words if "@" in word and "=" not in word).split("@")[1]
worker = host.rsplit(".", 1)[1]
home = os.path.join(os.environ["STUB_HOSTS"], "host-" + worker)
os.makedirs(home, exist_ok=True)
with open(os.path.join(home, "ssh.log"), "a") as log:
    log.write(repr(words) + chr(10))
environment = dict(HOME=home, PATH=os.environ["STUB_PATH"], WORKER=worker, LANG="C.UTF-8")
# As with sshd, what runs there does not end with the connection: only its input does.
pipe = subprocess.PIPE
shell = subprocess.Popen(
    ["/bin/sh", "-c", " ".join(words[words.index("--") + 1 :])],
    cwd=home, env=environment, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, start_new_session=True,
)

def relay(source, target):
    while data := os.read(source, 65536):
        os.write(target, data)
    if target != 1:
        os.close(target)

threading.Thread(target=relay, args=(0, shell.stdin.fileno()), daemon=True).start()
output = threading.Thread(target=relay, args=(shell.stdout.fileno(), 1), daemon=True)
output.start()
shell.wait()
output.join(5)
sys.exit(shell.returncode)
"""


class FakeCloud:
    """`node` is what the TPU API says of the slice; `calls` are the requests that came. A slice of a
    queued resource takes its name and type."""

    def __init__(self, workers: int) -> None:
        self.calls: list[str] = []
        self.url = ""
        self.node: dict[str, Any] = {
            "name": f"projects/{PROJECT}/locations/{ZONE}/nodes/{NAME}",
            "acceleratorType": "v4-32",
            "apiVersion": "V2",
            "id": "4711",
            "health": "HEALTHY",
            "networkEndpoints": [
                {"ipAddress": f"10.0.0.{n}", "port": 8470, "accessConfig": {"externalIp": f"192.0.2.{n}"}}
                for n in range(workers)
            ],
        }

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.calls.append(f"{method} {path}")
        if path == f"/tpu/v2/{self.node['name']}":
            if method == "PATCH":
                self.node["metadata"] = body["metadata"]
                return 200, {"name": f"projects/{PROJECT}/locations/{ZONE}/operations/1", "done": True}
            return 200, {**self.node, "state": "READY"}
        if path == f"/tpu/v2/projects/{PROJECT}/locations/{ZONE}/operations/1":
            return 200, {"name": path.removeprefix("/tpu/v2/"), "done": True, "response": self.node}
        if "/queuedResources" in path:
            return self._queue(method, path, body)
        if path == f"/compute/v1/projects/{PROJECT}":
            return 200, {"name": PROJECT, "kind": "compute#project", "commonInstanceMetadata": {"items": []}}
        return 404, {"error": {"code": 404, "status": "NOT_FOUND", "message": f"Resource '{path}' was not found"}}

    def _queue(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        done = {"name": f"projects/{PROJECT}/locations/{ZONE}/operations/1", "done": True, "response": {}}
        if method == "POST":
            [spec] = body["tpu"]["nodeSpec"]
            assert spec["node"]["runtimeVersion"] and spec["parent"] == f"projects/{PROJECT}/locations/{ZONE}"
            name = f"{spec['parent']}/nodes/{spec['nodeId']}"
            self.node |= {"name": name, "acceleratorType": spec["node"]["acceleratorType"]}
        elif method == "GET":
            return 200, {"name": path.removeprefix("/tpu/v2/"), "state": {"state": "ACTIVE"}}
        else:
            self.node["name"] = "deleted"
        return 200, done


@contextmanager
def fake_cloud(workers: int) -> Iterator[FakeCloud]:
    cloud = FakeCloud(workers)

    class OfCloud(Handler):
        def do_GET(self) -> None:
            self.reply(*cloud.answer(self.command, self.path.partition("?")[0], json.loads(self.body() or b"{}")))

        do_POST = do_PATCH = do_DELETE = do_GET

    with serving(OfCloud) as cloud.url:
        yield cloud


def gcloud_environment(cloud: FakeCloud, folder: Path, path: str, own_path: str = os.environ["PATH"]) -> dict[str, str]:
    """For a `gcloud` that talks to `cloud` only, with a home of its own in `folder` and the stub as `ssh`. `path`: the
    PATH of hosts."""
    home, tools = folder / "home", folder / "tools"
    home.mkdir(exist_ok=True)
    tools.mkdir()
    (tools / "ssh").write_text(STUB_SSH.format(python=sys.executable))
    (tools / "ssh").chmod(0o755)
    kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
    return kept | {
        "HOME": str(home),
        "PATH": f"{tools}:{own_path}",
        "STUB_HOSTS": str(folder / "hosts"),
        "STUB_PATH": path,
        "CLOUDSDK_CONFIG": str(home / "gcloud"),
        "CLOUDSDK_CORE_PROJECT": PROJECT,
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
        "CLOUDSDK_CORE_CHECK_GCE_METADATA": "0",
        "CLOUDSDK_AUTH_ACCESS_TOKEN": "made-up-token",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"{cloud.url}/tpu/",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{cloud.url}/compute/v1/",
        # An API that is not overridden must not be reached: this proxy is a closed port.
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "NO_PROXY": "127.0.0.1,localhost",
    }


class Hosts:
    """Home folders of hosts on this machine. What `maskwright` does on a host is the shell text of its plan, in which
    `$n` is the number of the attempt there."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder, self.workers = folder, range(workers)
        (folder / "bin").mkdir(parents=True)
        command = folder / "bin" / "maskwright"
        command.write_text(
            "#!/bin/sh\n[ $1 = --version ] && exit\nn=$(($(cat n 2>/dev/null || echo 0) + 1))\necho $n > n\n. ./plan\n"
        )
        command.chmod(0o755)
        self.path = f"{folder / 'bin'}:/usr/bin:/bin"
        for worker in self.workers:
            (self.home(worker) / "maskwright").mkdir(parents=True)
            self.plan(worker, "exit 0")

    def home(self, worker: int) -> Path:
        return self.folder / f"host-{worker}"

    def file(self, worker: int, name: str) -> Path:
        """In the folder where the job runs."""
        return self.home(worker) / "maskwright" / name

    def plan(self, worker: int, text: str) -> None:
        self.file(worker, "plan").write_text(text + "\n")

    def argv(self, worker: int, command: str) -> list[str]:
        """Runs `command` on a host without gcloud and ssh."""
        return ["env", "-i", f"HOME={self.home(worker)}", f"PATH={self.path}", "sh", "-c", f"cd && {command}"]

    def left_over(self) -> list[str]:
        """Command lines of processes that run in a host's folder and go on doing so."""
        until = time.monotonic() + 60.0
        while (found := self.running()) and time.monotonic() < until:
            time.sleep(0.05)
        return [*found.values()]

    def running(self) -> dict[int, str]:
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                inside = (process / "cwd").readlink().is_relative_to(self.folder)
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if inside and words:
                found[int(process.name)] = words
        return found

    def end(self) -> None:
        """Ends what a failed test has left."""
        for pid in self.running():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
