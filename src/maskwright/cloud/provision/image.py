"""The image that containers run: for hosts of an environment, whose repository it goes to, or for any other place.

Docker builds it here, or Cloud Build in the user's project. For an environment the source goes to the state bucket,
which hosts cannot write to, since all of them run what is built from it. Build logs are in the same place.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import tarfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from maskwright import __version__
from maskwright.cloud.environment import Environment
from maskwright.cloud.google.rest import Google
from maskwright.cloud.provision.commands import Confirm, EnvironmentSession, apply
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


@dataclass(frozen=True)
class ImageBuild:
    """An image to build in a repository of Artifact Registry."""

    image: str
    """Its name with a tag: REGION-docker.pkg.dev/PROJECT/REPOSITORY/NAME:TAG"""
    region: str
    project: str
    repository: str
    folder: str
    """Folder gs://… for the source and the log."""

    @property
    def path(self) -> str:
        """The repository as the API names it."""
        return f"projects/{self.project}/locations/{self.region}/repositories/{self.repository}"


def order_of(environment: Environment, source: str) -> ImageBuild:
    """`source`: what the tag says of the source besides the version, unless the YAML gives the tag."""
    folder = f"gs://{environment.state}/{environment.prefix}/image"
    image = environment.host.container or f"{environment.built_image}:{__version__}-{source}"
    return ImageBuild(image, environment.region, environment.project, environment.name, folder)


def name_of(content: bytes, arguments: Mapping[str, str]) -> str:
    """The same for the same source, built for the same device."""
    return hashlib.sha256(content + json.dumps(arguments, sort_keys=True).encode()).hexdigest()[:12]


def order(image: str, folder: str) -> ImageBuild:
    """Raises `InputError` where the image is for no repository of Artifact Registry."""
    name = re.fullmatch(r"([a-z0-9-]+)-docker\.pkg\.dev/([a-z0-9:.-]+)/([a-z0-9-]+)/[a-z0-9/._-]+:[\w.-]+", image)
    if name is None:
        fix = "REGION-docker.pkg.dev/PROJECT/REPOSITORY/maskwright:TAG"
        raise InputError(f"{image[:120]!r} is no image of Artifact Registry with a tag", where="IMAGE", fix=fix)
    if not folder.startswith("gs://"):
        raise InputError(f"{folder[:80]!r} is not a bucket", where="--staging", fix="--staging gs://bucket/folder")
    return ImageBuild(image, name[1], name[2], name[3], folder.rstrip("/"))


def docker_words(image: str, folder: str, arguments: Mapping[str, str]) -> list[str]:
    given = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    return [
        "build",
        "-f",
        os.path.join(folder, DOCKERFILE) if folder != "." else DOCKERFILE,
        *given,
        "-t",
        image,
        folder,
    ]


def arguments_of(accelerator: Accelerator, *, libtpu: bool, run_as: str) -> dict[str, str]:
    return {"ACCELERATOR": accelerator, "LIBTPU": "yes" if libtpu else "no", "RUN_AS": run_as}


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
    order: ImageBuild, source: str, arguments: Mapping[str, str], *, service_account: str | None
) -> dict[str, Any]:
    """The body of cloudbuild's builds.create. `source` is the name of the archive in the order's folder."""
    bucket, _, folder = order.folder.removeprefix("gs://").partition("/")
    request: dict[str, Any] = {
        "source": {"storageSource": {"bucket": bucket, "object": f"{folder}/{source}".lstrip("/")}},
        "steps": [{"id": "image", "name": DOCKER, "args": docker_words(order.image, ".", arguments)}],
        "images": [order.image],
        "timeout": f"{BUILD_SECONDS}s",
        "logsBucket": order.folder,
        "options": {"logging": "GCS_ONLY", "machineType": "E2_HIGHCPU_8", "diskSizeGb": "100"},
        "tags": [f"maskwright-{order.repository}"],
    }
    if service_account is not None:
        request["serviceAccount"] = f"projects/{order.project}/serviceAccounts/{service_account}"
    return request


def build_for(
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
    """For the hosts of an environment, which get it with the next `env up`. Where there is no repository yet, it first
    makes what every environment has (network, buckets, the repository). With `if_missing` an image of this version is
    enough, whatever its source."""
    session = EnvironmentSession(location)
    environment, google = session.environment, session.google
    given = environment.host.container
    registry = f"{environment.region}-docker.pkg.dev/{environment.project}/{environment.name}/"
    if given is not None and (not given.startswith(registry) or "@" in given):
        say(f"{location}: host.container names an image of its own, so there is nothing to build")
        return Image(given, "", False)
    if if_missing and (there := _there(session)) is not None:
        say(f"{there.name} is there: {there.digest}")
        return there
    content = pack(folder)
    arguments = arguments_of(accelerator or accelerator_of(environment), libtpu=libtpu, run_as="root")
    wanted = order_of(environment, name_of(content, arguments))
    if google.find("artifactregistry", wanted.path) is None:
        say("first the repository, with the network and the buckets")
        with session.terraform.ready():
            apply(session, only(session.wanted, session.asked_for(disk=False), ()), confirm, delete_data=False)
    image = build(google, wanted, content, arguments, service_account=service_account, poll_seconds=poll_seconds)
    session.refresh()  # others may have changed the record while it was built
    session.remember(replace(session.record, image=f"{image.name}@{image.digest}"))
    return image


def _there(session: EnvironmentSession) -> Image | None:
    """The image that was built last, if it is of this version and still in its repository."""
    built, path = session.record.built(session.environment), order_of(session.environment, "").path
    if built is None or session.google.find("artifactregistry", path) is None:
        return None
    found = session.google.pages("artifactregistry", f"{path}/dockerImages", "dockerImages")
    name, _, digest = str(session.record.image).partition("@")
    return Image(name, digest, False) if any(one.get("uri") == built for one in found) else None


def build(
    google: Google,
    order: ImageBuild,
    content: bytes,
    arguments: Mapping[str, str],
    *,
    service_account: str | None,
    poll_seconds: float = POLL_SECONDS,
) -> Image:
    """Builds `content` (see `pack`) by Cloud Build, and waits. Raises `CloudError` for a build that fails, after the
    end of its log was shown."""
    if google.find("artifactregistry", order.path) is None:
        fix = f"gcloud artifacts repositories create {order.repository} --repository-format=docker"
        fix += f" --location={order.region} --project={order.project}"
        raise InputError(f"there is no repository {order.repository}", where=order.image, fix=fix)
    source = f"{hashlib.sha256(content).hexdigest()}.tar.gz"
    Folder(order.folder).put(source, content)
    body = build_request(order, source, arguments, service_account=service_account)
    place = f"projects/{order.project}/locations/{order.region}"
    operation = google.call("cloudbuild", "POST", f"{place}/builds", body)
    made = operation["metadata"]["build"]
    say(f"building {order.image} for {arguments['ACCELERATOR']}: {made.get('logUrl', made['id'])}")
    done = _wait(google, f"{place}/builds/{made['id']}", poll_seconds)
    if done["status"] != GOOD:
        raise _failed(order, done)
    digest = next((one["digest"] for one in (done.get("results") or {}).get("images", []) if "digest" in one), "")
    return Image(order.image, digest, True)


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


def _failed(order: ImageBuild, done: dict[str, Any]) -> CloudError:
    """Shows the end of the log first, which has the reason."""
    log = Folder(order.folder).get(f"log-{done['id']}.txt")
    for line in (log or b"").decode(errors="replace").splitlines()[-LOG_LINES:]:
        say(redact(line))
    detail = (done.get("failureInfo") or {}).get("detail") or done.get("statusDetail") or ""
    what = f"the build ended with {done['status']}{': ' if detail else ''}{detail}"
    fix = "its log is above, or in the console" if log else f"its log: {done.get('logUrl', 'in the console')}"
    return CloudError(what, reason="other", where=order.image, fix=fix)
