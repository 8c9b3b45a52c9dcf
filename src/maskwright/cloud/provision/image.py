"""Build the container image: for the hosts of an environment, into its repository, or for any other place.

Docker builds it here, or Cloud Build in the user's project. For an environment, source and build logs go to the state
bucket, which hosts cannot write to: all of them run what is built from it.
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
from maskwright.cloud import record
from maskwright.cloud.environment import Environment
from maskwright.cloud.google.rest import Google
from maskwright.cloud.provision.commands import Confirm, EnvironmentSession, create_repository
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
SUCCEEDED, UNFINISHED = "SUCCESS", ("PENDING", "QUEUED", "WORKING")


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
        """Path of the repository in the API."""
        return f"projects/{self.project}/locations/{self.region}/repositories/{self.repository}"


def build_of(environment: Environment, source: str) -> ImageBuild:
    """`source`: the tag's part after the version, unless the YAML names the image."""
    folder = f"gs://{environment.state}/{environment.prefix}/image"
    image = environment.image or f"{environment.built_image}:{__version__}-{source}"
    return ImageBuild(image, environment.region, environment.project, environment.name, folder)


def source_tag(content: bytes, arguments: Mapping[str, str]) -> str:
    """Twelve digits that identify the source and the arguments of a build."""
    return hashlib.sha256(content + json.dumps(arguments, sort_keys=True).encode()).hexdigest()[:12]


def parse_build(image: str, folder: str) -> ImageBuild:
    """Raises `InputError` unless the image is for a repository of Artifact Registry."""
    name = re.fullmatch(r"([a-z0-9-]+)-docker\.pkg\.dev/([a-z0-9:.-]+)/([a-z0-9-]+)/[a-z0-9/._-]+:[\w.-]+", image)
    if name is None:
        fix = "REGION-docker.pkg.dev/PROJECT/REPOSITORY/maskwright:TAG"
        raise InputError(f"{image[:120]!r} is not an image of Artifact Registry with a tag", where="IMAGE", fix=fix)
    if not folder.startswith("gs://"):
        raise InputError(f"{folder[:80]!r} is not a bucket", where="--staging", fix="--staging gs://bucket/folder")
    return ImageBuild(image, name[1], name[2], name[3], folder.rstrip("/"))


def docker_arguments(image: str, folder: str, arguments: Mapping[str, str]) -> list[str]:
    build_arguments = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    return [
        "build",
        "-f",
        os.path.join(folder, DOCKERFILE) if folder != "." else DOCKERFILE,
        *build_arguments,
        "-t",
        image,
        folder,
    ]


def arguments_of(accelerator: Accelerator, *, libtpu: bool, run_as: str) -> dict[str, str]:
    return {"ACCELERATOR": accelerator, "LIBTPU": "yes" if libtpu else "no", "RUN_AS": run_as}


def accelerator_of(environment: Environment) -> Accelerator:
    """The device that its hosts compute on: TPUs if there is a slice."""
    if environment.slice is not None:
        return "tpu"
    return "gpu" if environment.group is not None and environment.group.gpus else "cpu"


def pack(folder: str) -> bytes:
    """The source as tar.gz, the same bytes for the same files. Raises `InputError` outside a checkout."""
    missing = [name for name in (DOCKERFILE, *FILES) if not os.path.isfile(os.path.join(folder, name))]
    if missing:
        fix = "run it in a checkout of the repository, or name one: --source FOLDER"
        raise InputError(f"has no {missing[0]}", where=folder, fix=fix)
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
            archive.add(os.path.join(folder, name), arcname=name, recursive=False, filter=_without_owner)
    return content.getvalue()


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.mode & 0o100 else 0o644
    return member


def build_request(
    wanted: ImageBuild, source: str, arguments: Mapping[str, str], *, service_account: str | None
) -> dict[str, Any]:
    """The body of cloudbuild's builds.create. `source` is the name of the archive in the build's folder."""
    bucket, _, folder = wanted.folder.removeprefix("gs://").partition("/")
    request: dict[str, Any] = {
        "source": {"storageSource": {"bucket": bucket, "object": f"{folder}/{source}".lstrip("/")}},
        "steps": [{"id": "image", "name": DOCKER, "args": docker_arguments(wanted.image, ".", arguments)}],
        "images": [wanted.image],
        "timeout": f"{BUILD_SECONDS}s",
        "logsBucket": wanted.folder,
        "options": {"logging": "GCS_ONLY", "machineType": "E2_HIGHCPU_8", "diskSizeGb": "100"},
        "tags": [f"maskwright-{wanted.repository}"],
    }
    if service_account is not None:
        request["serviceAccount"] = f"projects/{wanted.project}/serviceAccounts/{service_account}"
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
    """Build the image of an environment, which its next jobs run. Without a repository, create that first. With `if_missing`, any image of this version is
    enough, whatever its source."""
    session = EnvironmentSession(location)
    environment, google = session.environment, session.google
    container = environment.image
    registry = f"{environment.region}-docker.pkg.dev/{environment.project}/{environment.name}/"
    if container is not None and (not container.startswith(registry) or "@" in container):
        say(f"{location}: image names one from elsewhere, so there is nothing to build")
        return Image(container, "", False)
    if if_missing and (existing := _existing(session)) is not None:
        say(f"{existing.name} exists: {existing.digest}")
        return existing
    content = pack(folder)
    arguments = arguments_of(accelerator or accelerator_of(environment), libtpu=libtpu, run_as="root")
    wanted = build_of(environment, source_tag(content, arguments))
    if google.find("artifactregistry", wanted.path) is None:
        say("creating the repository first")
        create_repository(session, confirm)
    image = build(google, wanted, content, arguments, service_account=service_account, poll_seconds=poll_seconds)
    session.record = record.read(environment)  # another command may have changed it meanwhile
    session.store(replace(session.record, image=f"{image.name}@{image.digest}"))
    return image


def _existing(session: EnvironmentSession) -> Image | None:
    """The image that was built last, if it has this version and is still in its repository."""
    built, path = session.record.built(session.environment), build_of(session.environment, "").path
    if built is None or session.google.find("artifactregistry", path) is None:
        return None
    images = session.google.pages("artifactregistry", f"{path}/dockerImages", "dockerImages")
    name, _, digest = str(session.record.image).partition("@")
    return Image(name, digest, False) if any(image.get("uri") == built for image in images) else None


def build(
    google: Google,
    wanted: ImageBuild,
    content: bytes,
    arguments: Mapping[str, str],
    *,
    service_account: str | None,
    poll_seconds: float = POLL_SECONDS,
) -> Image:
    """Build `content` (see `pack`) with Cloud Build, and wait. Raises `CloudError` for a build that fails, after the
    end of its log was shown."""
    if google.find("artifactregistry", wanted.path) is None:
        fix = f"gcloud artifacts repositories create {wanted.repository} --repository-format=docker"
        fix += f" --location={wanted.region} --project={wanted.project}"
        raise InputError(f"there is no repository {wanted.repository}", where=wanted.image, fix=fix)
    source = f"{hashlib.sha256(content).hexdigest()}.tar.gz"
    Folder(wanted.folder).put(source, content)
    body = build_request(wanted, source, arguments, service_account=service_account)
    parent = f"projects/{wanted.project}/locations/{wanted.region}"
    operation = google.call("cloudbuild", "POST", f"{parent}/builds", body)
    started = operation["metadata"]["build"]
    say(f"building {wanted.image} for {arguments['ACCELERATOR']}: {started.get('logUrl', started['id'])}")
    done = _wait(google, f"{parent}/builds/{started['id']}", poll_seconds)
    if done["status"] != SUCCEEDED:
        raise _failed(wanted, done)
    images = (done.get("results") or {}).get("images", [])
    digest = next((image["digest"] for image in images if "digest" in image), "")
    return Image(wanted.image, digest, True)


def _wait(google: Google, path: str, poll_seconds: float) -> dict[str, Any]:
    until = time.monotonic() + 2 * BUILD_SECONDS  # it may wait in Google's queue
    while True:
        build = google.call("cloudbuild", "GET", path)
        if build["status"] not in UNFINISHED:
            return build
        if time.monotonic() > until:
            fix = "see it in the console; running the same command again starts another build"
            raise CloudError("the build is still running after two hours", reason="other", where=path, fix=fix)
        time.sleep(poll_seconds)


def _failed(wanted: ImageBuild, done: dict[str, Any]) -> CloudError:
    """Show the end of the log, which has the reason, and return the error."""
    log = Folder(wanted.folder).get(f"log-{done['id']}.txt")
    for line in (log or b"").decode(errors="replace").splitlines()[-LOG_LINES:]:
        say(redact(line))
    detail = (done.get("failureInfo") or {}).get("detail") or done.get("statusDetail") or ""
    what = f"the build ended with {done['status']}{': ' if detail else ''}{detail}"
    fix = "see its log above, or in the console" if log else f"see its log: {done.get('logUrl', 'in the console')}"
    return CloudError(what, reason="other", where=wanted.image, fix=fix)
