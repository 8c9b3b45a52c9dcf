"""Where on Kubernetes a job runs and what it sees there, from the options of `submit kubernetes`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from maskwright.core.config import RunConfig
from maskwright.core.errors import InputError
from maskwright.core.storage import is_url
from maskwright.launch.target import VARIABLE

Kind = Literal["indexed-job", "jobset", "trainjob", "rayjob"]
SCRATCH = "/tmp"
"""The one writable folder in a container that is not a claim's; it goes with the pod."""
CONFIG_FOLDER = "/etc/maskwright"
NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?")


@dataclass(frozen=True)
class Mount:
    """A claim (PVC) or, read-only, a Cloud Storage bucket, at `folder` of each pod."""

    source: str
    folder: str
    bucket: bool


@dataclass(frozen=True)
class Place:
    kind: Kind
    name: str
    image: str
    mounts: tuple[Mount, ...]
    num_pods: int
    gpus: int
    """Of each pod."""
    namespace: str | None
    queue: str | None
    service_account: str | None
    secrets: tuple[tuple[str, str], ...]
    """Secrets of the cluster, and the key in each that is a variable of the job."""
    cpus: str
    memory: str
    node_selector: tuple[tuple[str, str], ...]
    restarts: int
    grace_seconds: int
    config_map: str
    """Name of the object with the configuration."""

    def __post_init__(self) -> None:
        names = {"--namespace": self.namespace, "--queue": self.queue, "--service-account": self.service_account}
        for option, name in names.items():
            if name is not None and not NAME.fullmatch(name):
                raise InputError(f"{name[:80]!r} is no name of an object", where=option, fix="small letters, digits, -")
        for option, quantity in (("--cpus", self.cpus), ("--memory", self.memory)):
            if not QUANTITY.fullmatch(quantity):
                raise InputError(f"{quantity[:40]!r} is no quantity", where=option, fix="as in 4, 500m or 16Gi")
        if not re.fullmatch(r"[^\s]+", self.image):
            raise InputError(f"{self.image!r} is no image", where="--image", fix="--image REGISTRY/NAME:TAG")
        folders = [mount.folder for mount in self.mounts]
        for folder in folders:
            others = [SCRATCH, CONFIG_FOLDER, "/dev/shm"]
            if folders.count(folder) > 1 or any(inside(folder, other) for other in others):
                raise InputError(f"{folder} is mounted already", where="--mount", fix="choose another folder")


def parse_mount(text: str) -> Mount:
    """`CLAIM:/folder` or `gs://BUCKET:/folder`."""
    bucket = text.startswith("gs://")
    name, _, folder = text.removeprefix("gs://").partition(":")
    tidy = re.fullmatch(r"(/[A-Za-z0-9._-]+)+", folder) and not {".", ".."} & set(folder.split("/"))
    if not re.fullmatch(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?", name) or not tidy:
        fix = "--mount my-claim:/data, or --mount gs://my-bucket:/data"
        raise InputError(f"{text[:80]!r} is not NAME:/folder", where="--mount", fix=fix)
    return Mount(name, folder, bucket)


def parse_secret(text: str) -> tuple[str, str]:
    """`SECRET:KEY`, whose key is the name of the variable."""
    name, _, key = text.partition(":")
    if not NAME.fullmatch(name) or not VARIABLE.fullmatch(key):
        fix = "--secret hugging-face:HF_TOKEN, the Secret and the key in it that is the variable's name"
        raise InputError(f"{text[:80]!r} is not NAME:KEY", where="--secret", fix=fix)
    return name, key


def parse_selector(text: str) -> tuple[str, str]:
    """`KEY=VALUE`, as of labels."""
    key, _, value = text.partition("=")
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9./_-]*[A-Za-z0-9])?", key) or not re.fullmatch(r"[\w.-]+", value):
        fix = "--node-selector cloud.google.com/gke-accelerator=nvidia-h100-80gb"
        raise InputError(f"{text[:80]!r} is not KEY=VALUE", where="--node-selector", fix=fix)
    return key, value


def inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def check_paths(place: Place, config: RunConfig, run: str) -> None:
    """Raises `InputError` when the run or its data would not be there in a pod, or gone with it."""
    claims = [mount.folder for mount in place.mounts if not mount.bucket]
    kept = [*claims, *([SCRATCH] if config.checkpoint.copy_to else [])]
    if not any(run.startswith(folder + "/") for folder in kept):
        fix = "a folder inside a --mount CLAIM:/folder; or inside /tmp with checkpoint.copy_to, from where it continues"
        raise InputError(f"{run} would be lost with its pod", where="--run", fix=fix)
    if ".." in run.split("/"):
        raise InputError(f"{run} leaves its folder", where="--run", fix="write it without ..")
    seen = [mount.folder for mount in place.mounts]
    for key, path in (("data.store", config.data.store), ("model.init_from", config.model.init_from)):
        if path and not is_url(path) and not any(inside(path, folder) for folder in seen):
            fix = f"mount it with --mount NAME:/folder, and --set {key}=/folder/…"
            raise InputError(f"{path} is not in a pod", where=key, fix=fix)
