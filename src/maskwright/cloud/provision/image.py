"""Build the container image from a checkout: with docker here, or with Cloud Build into Artifact Registry.

Only files that git tracks are uploaded, so a `.env`, a `*.tfvars` or an editor's backup never leaves. For an
environment, source and build logs go to the state bucket, to which jobs cannot write, since all jobs run images that
are built from it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import tarfile
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from maskwright import __version__
from maskwright.cloud import record
from maskwright.cloud.environment import Accelerator
from maskwright.cloud.google.rest import Google, bucket_folder
from maskwright.cloud.provision.commands import Confirm, EnvironmentSession, create_repository
from maskwright.core.console import say
from maskwright.core.errors import CloudError, InputError
from maskwright.core.secrets import redact

DOCKERFILE = "deploy/Dockerfile"
FILES = ("pyproject.toml", "README.md", "LICENSE", ".dockerignore")
FOLDERS = ("src", "deploy", "recipes", "requirements")
ENDINGS = (".py", ".typed", ".yaml", ".html", ".js", ".css", ".svg", ".tf", ".hcl", ".sh", ".lock", "Dockerfile")
"""Files that are used without git, as in a build of cloudbuild.yaml."""
REPOSITORY = re.compile(r"([a-z0-9-]+)-docker\.pkg\.dev/([a-z0-9:.-]+)/([a-z0-9-]+)/([a-z0-9/._-]+):([\w.-]+)")
DOCKER = "gcr.io/cloud-builders/docker"
"""Google's own builder: github.com/GoogleCloudPlatform/cloud-builders"""
BUILD_SECONDS = 3600
POLL_SECONDS = 10.0
LOG_LINES = 40


class Image(NamedTuple):
    name: str
    digest: str
    built: bool


# ---- the source ----------------------------------------------------------------------------------------------------


def sources(folder: str) -> list[str]:
    """Files of the checkout from which the image is made. Raises `InputError` for a folder that is not a checkout."""
    missing = [name for name in (DOCKERFILE, *FILES) if not os.path.isfile(os.path.join(folder, name))]
    if missing:
        fix = "run it in a checkout of the repository, or name one: --source FOLDER"
        raise InputError(f"has no {missing[0]}", where=folder, fix=fix)
    if os.path.exists(os.path.join(folder, ".git")):
        command = ["git", "ls-files", "-z", "--", *FILES, *FOLDERS]
        try:
            listed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError) as error:
            fix = "install git, and run it as the owner of the checkout"
            raise InputError("git cannot list its files", where=folder, fix=fix) from error
        return sorted(name for name in listed.split("\0") if name and os.path.lexists(os.path.join(folder, name)))
    names = list(FILES)
    for top in FOLDERS:
        for path, folders, files in os.walk(os.path.join(folder, top)):
            links = [name for name in folders if os.path.islink(os.path.join(path, name))]
            kept = [name for name in files if name.endswith(ENDINGS) and (name[0] != "." or name.endswith(".lock.hcl"))]
            names += [os.path.relpath(os.path.join(path, name), folder) for name in [*kept, *links]]
    return sorted(names)


def pack(folder: str) -> bytes:
    """The source as tar.gz, the same bytes for the same files."""
    content = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=content, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for name in sources(folder):
            archive.add(os.path.join(folder, name), arcname=name, recursive=False, filter=_without_owner)
    return content.getvalue()


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.mode & 0o100 else 0o644
    return member


# ---- the build -----------------------------------------------------------------------------------------------------


def arguments_of(accelerator: Accelerator, *, libtpu: bool, run_as: str = "maskwright") -> dict[str, str]:
    return {"ACCELERATOR": accelerator, "LIBTPU": "yes" if libtpu else "no", "RUN_AS": run_as}


def docker_arguments(image: str, folder: str, arguments: Mapping[str, str]) -> list[str]:
    options = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    return ["build", "-f", os.path.normpath(os.path.join(folder, DOCKERFILE)), *options, "-t", image, folder]


class _Parts(NamedTuple):
    region: str
    project: str
    repository: str
    name: str
    tag: str

    @property
    def path(self) -> str:
        """Path of the repository in Artifact Registry."""
        return f"projects/{self.project}/locations/{self.region}/repositories/{self.repository}"


def _parts_of(image: str) -> _Parts:
    """Raises `InputError` for an image that Cloud Build cannot push."""
    if (match := REPOSITORY.fullmatch(image)) is None:
        fix = "REGION-docker.pkg.dev/PROJECT/REPOSITORY/maskwright:TAG"
        raise InputError(f"{image[:120]!r} is not an image of Artifact Registry with a tag", where="IMAGE", fix=fix)
    return _Parts(*match.groups())


def build(
    image: str, staging: str, content: bytes, arguments: Mapping[str, str], *, service_account: str | None
) -> Image:
    """Build `content` (see `pack`) with Cloud Build, and wait. Raises `CloudError` for a build that fails, after the
    end of its log was shown."""
    parts, staging = _parts_of(image), staging.rstrip("/")
    bucket, _, folder = staging.removeprefix("gs://").partition("/")
    if not staging.startswith("gs://"):
        raise InputError(f"{staging[:80]!r} is not a bucket", where="--staging", fix="--staging gs://bucket/folder")
    google = Google(parts.project)
    if google.find("artifactregistry", parts.path) is None:
        fix = f"gcloud artifacts repositories create {parts.repository} --repository-format=docker"
        fix += f" --location={parts.region} --project={parts.project}"
        raise InputError(f"there is no repository {parts.repository}", where=image, fix=fix)
    source = f"{hashlib.sha256(content).hexdigest()}.tar.gz"
    bucket_folder(staging).put(source, content)
    account = f"projects/{parts.project}/serviceAccounts/{service_account}"
    body = {
        "source": {"storageSource": {"bucket": bucket, "object": f"{folder}/{source}".lstrip("/")}},
        "steps": [{"id": "image", "name": DOCKER, "args": docker_arguments(image, ".", arguments)}],
        "images": [image],
        "timeout": f"{BUILD_SECONDS}s",
        "logsBucket": staging,
        "options": {"logging": "GCS_ONLY", "machineType": "E2_HIGHCPU_8", "diskSizeGb": "100"},
        **({"serviceAccount": account} if service_account is not None else {}),
    }
    path = f"projects/{parts.project}/locations/{parts.region}/builds"
    done = google.call("cloudbuild", "POST", path, body)["metadata"]["build"]
    say(f"building {image} for {arguments['ACCELERATOR']}: {done.get('logUrl', done['id'])}")
    while done["status"] in ("PENDING", "QUEUED", "WORKING"):  # Google ends a build after its timeout
        time.sleep(POLL_SECONDS)
        done = google.call("cloudbuild", "GET", f"{path}/{done['id']}")
    if done["status"] != "SUCCESS":
        raise _failed(image, staging, done)
    digests = [one["digest"] for one in (done.get("results") or {}).get("images", []) if "digest" in one]
    return Image(image, digests[0] if digests else "", True)


def _failed(image: str, staging: str, done: Mapping[str, Any]) -> CloudError:
    """Show the end of the log, which has the reason, and return the error."""
    log = bucket_folder(staging).get(f"log-{done['id']}.txt")
    for line in (log or b"").decode(errors="replace").splitlines()[-LOG_LINES:]:
        say(redact(line))
    detail = (done.get("failureInfo") or {}).get("detail") or done.get("statusDetail") or ""
    what = f"the build ended with {done['status']}{': ' if detail else ''}{detail}"
    fix = "read its log above, or in the console" if log else f"read its log: {done.get('logUrl', 'in the console')}"
    return CloudError(what, reason="other", where=image, fix=fix)


# ---- of an environment ---------------------------------------------------------------------------------------------


def build_for(
    location: str,
    *,
    folder: str,
    accelerator: Accelerator | None = None,
    service_account: str | None = None,
    confirm: Confirm,
) -> list[Image]:
    """Build the images for the next jobs of an environment: one for each of its accelerators, or for the given one,
    unless an image of this source exists. Without a repository, create that first."""
    session = EnvironmentSession(location)
    environment = session.environment
    if environment.image is not None:
        say(f"{location}: `image:` names an image, so there is nothing to build")
        return [Image(environment.image, "", False)]
    content, made = pack(folder), []
    for device in [accelerator] if accelerator else environment.accelerators:
        # An image for TPUs holds libtpu: the repository is the environment's own, and its nodes need not reach PyPI.
        arguments = arguments_of(device, libtpu=device == "tpu")
        digits = hashlib.sha256(content + json.dumps(arguments, sort_keys=True).encode()).hexdigest()[:12]
        image = f"{environment.built_image}:{__version__}-{digits}"
        parts = _parts_of(image)
        found = session.google.find("artifactregistry", f"{parts.path}/packages/{parts.name}/tags/{parts.tag}")
        if found is not None:
            built = Image(image, str(found["version"]).rpartition("/")[2], False)
            say(f"{image} exists: {built.digest}")
        else:
            if session.google.find("artifactregistry", parts.path) is None:
                create_repository(session, confirm)
            staging = f"gs://{environment.state}/{environment.prefix}/image"
            built = build(image, staging, content, arguments, service_account=service_account)
        before = record.read(environment)
        session.store(replace(before, images={**before.images, device: f"{built.name}@{built.digest}"}))
        made.append(built)
    return made
