"""The image that hosts run. Cloud Build builds it in the user's project, for the environment's own repository.

The source goes to the state bucket, which hosts cannot write to, since all of them run what is built from it. Build
logs are in the same place.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import time
from dataclasses import dataclass
from typing import Any, Literal

from maskwright.cloud.environment import Environment
from maskwright.cloud.google.rest import Google
from maskwright.cloud.provision.commands import Confirm, Desk, apply
from maskwright.cloud.provision.variables import only
from maskwright.core.console import say
from maskwright.core.errors import CloudError, InputError
from maskwright.core.folder import Folder
from maskwright.core.secrets import redact

Accelerator = Literal["cpu", "gpu", "tpu"]
DOCKERFILE = "deploy/Dockerfile"
FILES = ("pyproject.toml", "README.md", "LICENSE", ".dockerignore")
FOLDERS = ("src", "deploy", "recipes", "requirements")
LEFT_OUT = ("__pycache__", ".terraform", ".egg-info", ".tfstate", ".tfvars.json")
DOCKER = "gcr.io/cloud-builders/docker"
"""Google's own builder: github.com/GoogleCloudPlatform/cloud-builders"""
BUILD_SECONDS = 3600
POLL_SECONDS = 10.0
LOG_LINES = 40
GOOD, GOING_ON = "SUCCESS", ("PENDING", "QUEUED", "WORKING")


@dataclass(frozen=True)
class Image:
    name: str
    digest: str
    built: bool


def accelerator_of(environment: Environment) -> Accelerator:
    """The device that its hosts compute on: TPUs where there is a slice."""
    if environment.slice is not None:
        return "tpu"
    return "gpu" if environment.group is not None and environment.group.gpus else "cpu"


def pack(folder: str) -> bytes:
    """The source as tar.gz, the same bytes for the same files. Raises `InputError` outside a checkout."""
    absent = [name for name in (DOCKERFILE, *FILES) if not os.path.isfile(os.path.join(folder, name))]
    if absent:
        fix = "run it in a checkout of the repository, or name one: --source FOLDER"
        raise InputError(f"has no {absent[0]}", where=folder, fix=fix)
    names = list(FILES)
    for top in FOLDERS:
        for path, folders, files in os.walk(os.path.join(folder, top)):
            links = [name for name in folders if os.path.islink(os.path.join(path, name))]
            folders[:] = sorted(name for name in folders if not name.endswith(LEFT_OUT) and name not in links)
            kept = [name for name in [*files, *links] if not name.endswith(LEFT_OUT)]
            names += [os.path.relpath(os.path.join(path, name), folder) for name in kept]
    content = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=content, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for name in sorted(names):
            archive.add(os.path.join(folder, name), arcname=name, recursive=False, filter=_of_nobody)
    return content.getvalue()


def _of_nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.mode & 0o100 else 0o644
    return member


def build_request(
    environment: Environment, source: str, accelerator: Accelerator, *, libtpu: bool, service_account: str | None
) -> dict[str, Any]:
    """The body of cloudbuild's builds.create. `source` is the name of the archive in the state bucket."""
    image = environment.container
    arguments = {"ACCELERATOR": accelerator, "LIBTPU": "yes" if libtpu else "no", "RUN_AS": "root"}
    words = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    request: dict[str, Any] = {
        "source": {"storageSource": {"bucket": environment.state, "object": source}},
        "steps": [{"id": "image", "name": DOCKER, "args": ["build", "-f", DOCKERFILE, *words, "-t", image, "."]}],
        "images": [image],
        "timeout": f"{BUILD_SECONDS}s",
        "logsBucket": f"gs://{environment.state}/{_folder(environment)}",
        "options": {"logging": "GCS_ONLY", "machineType": "E2_HIGHCPU_8", "diskSizeGb": "100"},
        "tags": [f"maskwright-{environment.name}"],
    }
    if service_account is not None:
        request["serviceAccount"] = f"projects/{environment.project}/serviceAccounts/{service_account}"
    return request


def build(
    location: str,
    *,
    folder: str,
    accelerator: Accelerator | None = None,
    libtpu: bool = False,
    if_missing: bool = False,
    service_account: str | None = None,
    confirm: Confirm,
    poll_seconds: float = POLL_SECONDS,
) -> Image:
    """Builds and waits. Where there is no repository yet, it first makes what every environment has (network, buckets,
    the repository). Raises `CloudError` for a build that fails, after the end of its log was shown."""
    desk = Desk(location)
    environment, google = desk.environment, desk.google
    registry = f"{environment.region}-docker.pkg.dev/{environment.project}/{environment.name}/"
    if not environment.container.startswith(registry):
        say(f"{location}: host.container names an image of its own, so there is nothing to build")
        return Image(environment.container, "", False)
    if if_missing and (digest := find(google, environment)) is not None:
        say(f"{environment.container} is there: {digest}")
        return Image(environment.container, digest, False)
    content = pack(folder)
    if google.find("artifactregistry", _repository(environment)) is None:
        say("first the repository, with the network and the buckets")
        with desk.terraform.ready():
            apply(desk, only(desk.wanted, desk.asked_for(disk=False), ()), confirm, delete_data=False)
    source = f"{_folder(environment)}/{hashlib.sha256(content).hexdigest()}.tar.gz"
    Folder(f"gs://{environment.state}").put(source, content)
    chosen = accelerator or accelerator_of(environment)
    body = build_request(environment, source, chosen, libtpu=libtpu, service_account=service_account)
    place = f"projects/{environment.project}/locations/{environment.region}"
    operation = google.call("cloudbuild", "POST", f"{place}/builds", body)
    made = operation["metadata"]["build"]
    say(f"building {environment.container} for {chosen}: {made.get('logUrl', made['id'])}")
    done = _wait(google, f"{place}/builds/{made['id']}", poll_seconds)
    if done["status"] != GOOD:
        raise _failed(environment, done)
    digest = next((one["digest"] for one in (done.get("results") or {}).get("images", []) if "digest" in one), "")
    return Image(environment.container, digest, True)


def find(google: Google, environment: Environment) -> str | None:
    """Digest of the image under its tag; None when it, or its repository, is not there."""
    path = _repository(environment)
    if google.find("artifactregistry", path) is None:
        return None
    name, _, tag = environment.container.rpartition(":")
    for image in google.pages("artifactregistry", f"{path}/dockerImages", "dockerImages"):
        uri, _, digest = str(image.get("uri", "")).partition("@")
        if uri == name and tag in image.get("tags", []):
            return digest
    return None


def _repository(environment: Environment) -> str:
    return f"projects/{environment.project}/locations/{environment.region}/repositories/{environment.name}"


def _folder(environment: Environment) -> str:
    return f"{environment.prefix}/image"


def _wait(google: Google, path: str, poll_seconds: float) -> dict[str, Any]:
    until = time.monotonic() + 2 * BUILD_SECONDS  # it may wait in Google's queue
    while True:
        found = google.call("cloudbuild", "GET", path)
        if found["status"] not in GOING_ON:
            return found
        if time.monotonic() > until:
            fix = "look at it in the console; the same command begins another"
            raise CloudError("the build is not over after two hours", reason="other", where=path, fix=fix)
        time.sleep(poll_seconds)


def _failed(environment: Environment, done: dict[str, Any]) -> CloudError:
    """Shows the end of the log first, which has the reason."""
    log = Folder(f"gs://{environment.state}/{_folder(environment)}").get(f"log-{done['id']}.txt")
    for line in (log or b"").decode(errors="replace").splitlines()[-LOG_LINES:]:
        say(redact(line))
    detail = (done.get("failureInfo") or {}).get("detail") or done.get("statusDetail") or ""
    what = f"the build ended with {done['status']}{': ' if detail else ''}{detail}"
    fix = "its log is above, or in the console" if log else f"its log: {done.get('logUrl', 'in the console')}"
    return CloudError(what, reason="other", where=environment.container, fix=fix)
