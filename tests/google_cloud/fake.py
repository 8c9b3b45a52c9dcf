"""A Google Cloud of its own on loopback, judged by Google's discovery documents: `with fake_cloud() as cloud`.

What exists is in `cloud.resources` ("compute/projects/p/zones/z/disks/d" -> its JSON) and `cloud.objects`; every call
in `cloud.journal`. Failures come by `fault`, `deny`, `disable_api`, `slow`.

Accepted is what the documents accept (judge.py). What they do not say (what must exist first, what excludes what, which
states follow) is written by hand here, from the public documentation; nothing of it was compared with Google itself.
"""

import itertools
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from google_cloud import services, storage
from google_cloud.judge import Refused, Request

TOKEN = "fake-token-0123456789"
PROJECT, NUMBER = "lab-proj", "123456789012"
SERVICES = ("aiplatform", "artifactregistry", "cloudbuild", "cloudresourcemanager", "container", "file")
SERVICES += ("logging", "serviceusage")
VERBS = {"insert": "create", "batchEnable": "enable"}


class Dropped(Exception):
    """The connection ends without an answer."""


@dataclass
class Fault:
    method: str
    code: int
    status: str
    message: str
    times: int
    lost: bool
    reason: str

    def answer(self) -> None:
        if self.code == 0:
            raise Dropped
        raise Refused(self.message, self.code, self.status, self.reason)


@dataclass
class Operation:
    """`left` polls until it is over; `finish` then makes the effect, and returns the response or raises `Refused`."""

    body: dict[str, Any]
    left: int
    finish: Callable[[], dict[str, Any]]


@dataclass
class Cloud:
    url: str = ""
    folder: str = ""
    project: str = PROJECT
    polls: int = 1
    """Of an operation until it is done, where `slow` does not say otherwise. 0: done in the first answer."""
    resources: dict[str, dict[str, Any]] = field(default_factory=dict)
    objects: dict[tuple[str, str], storage.Object] = field(default_factory=dict)
    """By bucket and name, in the order of their writing."""
    uploads: dict[str, tuple[Request, bytes]] = field(default_factory=dict)
    """That come in pieces: what began each, and what has come."""
    arrives: Callable[[str, bytes], bytes] = lambda name, content: content
    """What is stored of an object's content."""
    journal: list[dict[str, Any]] = field(default_factory=list)
    logs: list[dict[str, Any]] = field(default_factory=list)
    """Entries of Cloud Logging, in the order of their writing."""
    terraform: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    """(type, id) -> the state of what Terraform has made."""
    operations: dict[str, Operation] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    denied: set[str] = field(default_factory=set)
    disabled: set[str] = field(default_factory=set)
    absent: set[str] = field(default_factory=set)
    """Types of machines and disks that do not exist ("projects/p/zones/z/machineTypes/t"); all others do."""
    scripts: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    delays: list[tuple[str, int]] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1001))

    # ---- for tests -----------------------------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        """Variables for gcloud, Terraform's gcs backend, gcsfs and our own clients. What escapes to other hosts meets a
        proxy that is not there."""
        names = {f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{name.upper()}": f"{self.url}/{name}/" for name in SERVICES}
        names["CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE"] = f"{self.url}/compute/v1/"
        names["CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE"] = f"{self.url}/storage/v1/"
        return names | {
            "GOOGLE_OAUTH_ACCESS_TOKEN": TOKEN,
            "CLOUDSDK_AUTH_ACCESS_TOKEN": TOKEN,
            "CLOUDSDK_CONFIG": f"{self.folder}/gcloud",
            "CLOUDSDK_CORE_PROJECT": self.project,
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
            "CLOUDSDK_CORE_CHECK_GCE_METADATA": "0",
            "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE": f"{self.folder}/certificates.pem",
            "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
            "GOOGLE_BACKEND_STORAGE_CUSTOM_ENDPOINT": f"{self.url}/storage/v1/",
            "STORAGE_EMULATOR_HOST": self.url,
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
            "STANDIN_CLOUD": self.url,
            "NO_GCE_CHECK": "true",
            "HTTPS_PROXY": "http://127.0.0.1:9",
            "HTTP_PROXY": "http://127.0.0.1:9",
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
        }

    def fault(
        self,
        method: str,
        code: int,
        status: str = "",
        message: str = "made to fail",
        times: int = 1,
        *,
        lost: bool = False,
        reason: str = "",
    ) -> None:
        """The next `times` calls whose method id ("compute.disks.insert", "terraform.google_compute_disk.create")
        (or `METHOD NAME`) matches are answered with the error; `code` 0: with nothing. `lost`: it is done anyway."""
        self.faults.append(Fault(method, code, status, message, times, lost, reason))

    def deny(self, *permissions: str) -> None:
        """As if the caller lacked them ("compute.disks.create"); `cloud.denied.clear()` grants all again."""
        self.denied |= set(permissions)

    def disable_api(self, name: str) -> None:
        self.disabled.add(name.removesuffix(".googleapis.com"))

    def slow(self, method: str, polls: int) -> None:
        """Operations of matching methods take so many polls."""
        self.delays.insert(0, (method, polls))

    def script(self, kind: str, states: list[dict[str, Any]]) -> None:
        """What reads of resources made from now on see in turn. Kinds: customJobs, builds."""
        self.scripts[kind] = states

    def calls(self, method: str) -> list[dict[str, Any]]:
        return [one for one in self.journal if re.fullmatch(method, one.get("method", ""))]

    def text(self, location: str) -> str:
        """Of an object, by its gs:// address."""
        bucket, _, name = location.removeprefix("gs://").partition("/")
        return storage.find(self, bucket, name).content.decode()

    def files(self, bucket: str) -> dict[str, bytes]:
        """Name and content of each object."""
        return {name: kept.content for (owner, name), kept in self.objects.items() if owner == bucket}

    def put(self, location: str, content: str | bytes) -> None:
        """An object; its bucket is made where there is none."""
        bucket, _, name = location.removeprefix("gs://").partition("/")
        if f"storage/b/{bucket}" not in self.resources:
            storage.make_bucket(self, {"name": bucket})
        data = content.encode() if isinstance(content, str) else content
        storage.store(self, bucket, {"name": name}, data, {})

    # ---- for the services ----------------------------------------------------------------------------------------

    def now(self) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

    def number(self) -> str:
        return str(next(self.numbers))

    def need(self, key: str) -> dict[str, Any]:
        if key not in self.resources:
            raise Refused(f"Resource '{key.partition('/')[2]}' was not found", 404)
        return self.resources[key]

    def below(self, prefix: str) -> list[tuple[str, dict[str, Any]]]:
        """Direct children of a collection; "-" stands for any one name."""
        pattern = re.escape(prefix).replace("/\\-/", "/[^/]+/") + "/[^/]+"
        return [(key, one) for key, one in sorted(self.resources.items()) if re.fullmatch(pattern, key)]

    def polls_of(self, method: str) -> int:
        return next((polls for pattern, polls in self.delays if re.fullmatch(pattern, method)), self.polls)

    def trip(self, method: str, name: str = "") -> Fault | None:
        """Raises what is scripted for the method; returns the fault whose answer is to be lost."""
        for fault in self.faults:
            if fault.times > 0 and any(re.fullmatch(fault.method, said) for said in (method, f"{method} {name}")):
                fault.times -= 1
                if fault.lost:
                    return fault
                fault.answer()
        return None

    def allow(self, method: str, name: str) -> None:
        """Refuses where the API is off or a permission is missing."""
        service, *parts = method.split(".")
        if service in self.disabled:
            message = f"{service}.googleapis.com has not been used in project {NUMBER} before or it is disabled."
            facts = {"service": f"{service}.googleapis.com", "consumer": f"projects/{NUMBER}"}
            raise Refused(message, 403, reason="accessNotConfigured", details=[error_info("SERVICE_DISABLED", facts)])
        kind, verb = parts[-2:]
        permission = f"{service.replace('cloudresourcemanager', 'resourcemanager')}.{kind}.{VERBS.get(verb, verb)}"
        if permission not in self.denied:
            return
        if service == "compute":
            raise Refused(f"Required '{permission}' permission for '{name}'", 403)
        if service == "storage":
            message = f"someone@example.com does not have {permission} access to the Google Cloud project. "
            raise Refused(message + f"Permission '{permission}' denied on resource (or it may not exist).", 403)
        details = [error_info("IAM_PERMISSION_DENIED", {"permission": permission, "resource": name})]
        message = (
            f"Permission '{permission}' denied on resource '//{service}.googleapis.com/{name}' (or it may not exist)."
        )
        raise Refused(message, 403, details=details)

    def call(self, request: Request) -> Any:
        """A JSON body, None for no content, or a `storage.Content`."""
        return (storage if request.api.name == "storage" else services).call(self, request)


def error_info(reason: str, facts: dict[str, str]) -> dict[str, Any]:
    domain = "googleapis.com"
    return {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "domain": domain, "metadata": facts}


@contextmanager
def fake_cloud(polls: int = 1, project: str = PROJECT) -> Iterator[Cloud]:
    """Serves until the end of the block. `polls`: of an operation until it is done."""
    from google_cloud.server import serve

    folder = tempfile.mkdtemp(prefix="fake-cloud-")
    open(f"{folder}/certificates.pem", "w").close()  # gcloud wants the file to exist, where the variable is set
    cloud = Cloud(folder=folder, polls=polls, project=project)
    server = serve(cloud)
    try:
        yield cloud
    finally:
        server.shutdown()
        server.server_close()
        shutil.rmtree(folder, ignore_errors=True)
