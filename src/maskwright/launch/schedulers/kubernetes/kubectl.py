"""kubectl with a cluster: `kubectl` runs one command, `stream` shows the lines of a command as it runs.

Refusals are `CloudError`s whose `reason` follows from the API server's status (its `reason`, which kubectl prints in
parentheses): kubernetes.io/docs/reference/kubernetes-api/common-definitions/status.
"""

from __future__ import annotations

import re
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from subprocess import CompletedProcess
from typing import NamedTuple

import yaml

from maskwright.core.errors import CloudError
from maskwright.core.secrets import redact
from maskwright.launch.checks import ask

SECONDS = 120.0
APPLY = ["apply", "--server-side", "--force-conflicts", "--field-manager=maskwright", "--filename=-"]
"""On the server, since kubectl otherwise keeps the whole object, a Secret's values included, in an annotation of at
most 256 KiB."""
ABSENT = "install it (kubernetes.io/docs/tasks/tools)"
STATUS = re.compile(r"Error from server \((\w+)\)|You must be (logged in) to the server")
"""The reason of an API server's status, as kubectl prints it (StandardErrorMessage of k8s.io/kubectl); for Unauthorized
it prints only that sentence."""
REASONS = {
    "logged in": "credentials",
    "Forbidden": "permission",
    "NotFound": "missing",
    "AlreadyExists": "exists",
    "Conflict": "exists",
    **dict.fromkeys(("InternalError", "ServerTimeout", "ServiceUnavailable", "Timeout", "TooManyRequests"), "failed"),
}
NO_STATUS = re.compile(r"^(?:Error from server: |Unable to connect to the server|The connection to the server )", re.M)
"""Words of kubectl when no status came, because the connection failed or was cut."""


class SignIn(NamedTuple):
    """A cluster's https address, and a token that is valid for some minutes."""

    server: str
    token: str


@dataclass(frozen=True)
class Access:
    """How kubectl reaches a cluster: by its own configuration, or by `sign_in`."""

    context: str | None = None
    """Context of kubectl's configuration. None: the current one."""
    namespace: str | None = None
    """None: the context's."""
    sign_in: Callable[[], SignIn] | None = None
    """Called for each command, since tokens expire."""

    @contextmanager
    def kubectl(self) -> Iterator[list[str]]:
        """The first words of a command. A token is in a temporary file that only this user can read."""
        named = [("--context", self.context), ("--namespace", self.namespace)]
        words = [f"{option}={value}" for option, value in named if value]
        if self.sign_in is None:
            yield ["kubectl", *words]
            return
        with tempfile.NamedTemporaryFile("w", prefix="maskwright-", suffix=".yaml") as file:  # mode 0600
            file.write(_kubeconfig(self.sign_in()))
            file.flush()
            yield ["kubectl", f"--kubeconfig={file.name}", *words]


def kubectl(words: list[str], *, text: str = "", access: Access, seconds: float = SECONDS) -> CompletedProcess[str]:
    """Runs `kubectl WORDS` with `text` on its standard input. Raises `InputError` if there is no kubectl, and
    `CloudError` if it fails or does not answer within `seconds`."""
    with access.kubectl() as first:
        done = ask([*first, *words], text, seconds, absent=ABSENT, silent="check the network")
    if done.returncode:
        raise refusal(words, done.stderr)
    return done


@contextmanager
def stream(words: list[str], access: Access) -> Iterator[subprocess.Popen[str]]:
    """`kubectl WORDS` while it runs; it is ended with the block."""
    with access.kubectl() as first:
        process = subprocess.Popen(
            [*first, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            errors="replace", start_new_session=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()


def refusal(words: list[str], stderr: str) -> CloudError:
    """The error for kubectl's complaint, with the reason from the server's status."""
    status = STATUS.search(stderr)
    reason = "unreached" if NO_STATUS.search(stderr) else "other"
    if status:
        reason = REASONS.get(status[1] or status[2], "other")
    fixes = {
        "credentials": "log in to the cluster again, or choose another --context",
        "permission": "ask the owner of the cluster for the permission that it names",
        "missing": "check the name, --namespace and --context",
        "unreached": "check the network, and `kubectl cluster-info`",
        "failed": "try again; the API server failed",
    }
    what = redact(" ".join(stderr.split())[:600]) or "failed without a message"
    return CloudError(
        what, reason=reason, where=" ".join(["kubectl", *words[:1]]), fix=fixes.get(reason, "follow kubectl's message")
    )


def _kubeconfig(sign_in: SignIn) -> str:
    """kubernetes.io/docs/reference/config-api/kubeconfig.v1"""
    name = "maskwright"
    values = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": sign_in.server}}],
        "users": [{"name": name, "user": {"token": sign_in.token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
    return yaml.safe_dump(values)
