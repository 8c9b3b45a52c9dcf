"""The template of a pod that trains: its command, its permissions and its folders."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from maskwright.core.errors import InputError
from maskwright.launch.checks import inside

Manifest = dict[str, Any]
USER = 1000
"""User and group of the processes, which replace the image's, since `runAsNonRoot` needs a number. The group owns the
files that are written to a claim (`fsGroup`)."""
GPU, TPU = "nvidia.com/gpu", "google.com/tpu"
CONTAINER = "node"
PRODUCT, INSTANCE, RUN = "app.kubernetes.io/name", "app.kubernetes.io/instance", "maskwright/run"
"""The label of all objects of a job, whose value is its name, and the annotation with its run directory."""
QUEUE, MOST_SECONDS = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/max-exec-time-seconds"
"""Labels of Kueue. It adds up the time of a job over all of its admissions, and deactivates the job at the limit:
kueue.sigs.k8s.io/docs/concepts/workload (maximumExecutionTimeSeconds)"""
SETUP_FOLDER = "/tmp/setup"
"""pip installs there in `--setup`, and Python looks there first: the image's own folders are read-only."""
Kind = Literal["indexed-job", "jobset"]
SCRATCH = "/tmp"
"""The only writable folder of a container, apart from claims; it is deleted with the pod."""
CONFIG_FOLDER = "/etc/maskwright"
CONFIG = f"{CONFIG_FOLDER}/run.yaml"
NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
CPUS, MEMORY = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?m?"), re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?[MGT]i?")


@dataclass(frozen=True)
class Mount:
    """A claim (PVC) or a Cloud Storage bucket, at `folder` of each pod."""

    source: str
    folder: str
    bucket: bool
    read_only: bool


@dataclass(frozen=True)
class KubernetesJob:
    kind: Kind
    name: str
    image: str
    mounts: tuple[Mount, ...]
    cpus: str
    memory: str
    grace_seconds: int
    config_map: str
    """Name of the object with the configuration."""
    num_pods: int = 1
    gpus: int = 0
    """Number of GPUs of each pod."""
    chips: int = 0
    """Number of TPU chips of each pod."""
    namespace: str | None = None
    queue: str | None = None
    service_account: str | None = None
    secrets: tuple[tuple[str, str, str], ...] = ()
    """(Secret of the cluster, key in it, variable of the job)"""
    node_selector: tuple[tuple[str, str], ...] = ()
    setup: str | None = None
    run: str = ""
    limit_seconds: int | None = None
    """Seconds after which the server ends the job."""
    template: tuple[Manifest, str] = ({}, "")
    """Parts of a Job that are merged into it, and their file."""

    def __post_init__(self) -> None:
        names = {"--namespace": self.namespace, "--queue": self.queue}
        for option, name in names.items():
            if name is not None and not NAME.fullmatch(name):
                fix = "use small letters, digits and -"
                raise InputError(f"{name[:80]!r} is not a valid name", where=option, fix=fix)
        amounts = (("--cpus", self.cpus, CPUS, "4 or 500m"), ("--memory", self.memory, MEMORY, "16Gi"))
        for option, amount, form, example in amounts:
            if not form.fullmatch(amount):
                raise InputError(f"{amount[:40]!r} is not a quantity", where=option, fix=f"write {example}")
        if not re.fullmatch(r"[^\s]+", self.image):
            raise InputError(f"{self.image!r} is not an image", where="--image", fix="give REGISTRY/NAME:TAG")
        folders = [mount.folder for mount in self.mounts]
        for folder in folders:
            others = [SCRATCH, CONFIG_FOLDER, "/dev/shm"]
            if folders.count(folder) > 1 or any(inside(folder, other) for other in others):
                raise InputError(f"{folder} is mounted already", where="--mount", fix="choose another folder")

    @property
    def devices(self) -> dict[str, str]:
        """The extended resources of each pod. Kubernetes refuses a request for them that differs from the limit."""
        return {name: str(count) for name, count in ((GPU, self.gpus), (TPU, self.chips)) if count}


def manifest(version: str, kind: str, metadata: Manifest, **more: Any) -> Manifest:
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **more}


def labels(name: str) -> dict[str, str]:
    return {PRODUCT: "maskwright", INSTANCE: name}


def metadata(job: KubernetesJob) -> Manifest:
    namespace = {"namespace": job.namespace} if job.namespace else {}
    return {"name": job.name, **namespace, "labels": labels(job.name)}


def metadata_of_job(job: KubernetesJob) -> Manifest:
    """With a queue, Kueue admits all of its pods or none, and suspends it to end it."""
    made = metadata(job)
    if job.queue:
        made["labels"] |= {QUEUE: job.queue}
        made["labels"] |= {MOST_SECONDS: str(job.limit_seconds)} if job.limit_seconds else {}
    return made | {"annotations": {RUN: job.run}}


def literal(word: str) -> str:
    """The word escaped for a command, in which Kubernetes replaces `$(NAME)` by a variable and `$$` by a dollar."""
    return word.replace("$", "$$")


def template(job: KubernetesJob, words: Sequence[str]) -> Manifest:
    """The `PodTemplateSpec`. `words`: the command."""
    buckets = any(mount.bucket for mount in job.mounts)
    annotations = {"annotations": {"gke-gcsfuse/volumes": "true"}} if buckets else {}
    account = {"serviceAccountName": job.service_account} if job.service_account else {}
    selector = {"nodeSelector": dict(job.node_selector)} if job.node_selector else {}
    return {
        "metadata": {"labels": labels(job.name), **annotations},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": job.grace_seconds,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            **account,
            **selector,
            **_tolerations(job),
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": USER,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [_container(job, words)],
            "volumes": _volumes(job),
        },
    }


def _container(job: KubernetesJob, words: Sequence[str]) -> Manifest:
    amounts = {"cpu": job.cpus, "memory": job.memory}
    if job.setup:
        # The shell replaces itself by the command, so that SIGTERM reaches it. A setup that fails ends the job.
        words = ["/bin/sh", "-c", literal('sh -ec "$0" || exit 1; exec "$@"'), literal(job.setup), *words]
    return {
        "name": CONTAINER,
        "image": job.image,
        "command": [words[0]],
        "args": [*words[1:]],
        "env": environment(job),
        # No limit of cores, since a throttled pod would delay all others.
        "resources": {"requests": amounts | job.devices, "limits": {"memory": job.memory} | job.devices},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True},
            {"name": "scratch", "mountPath": SCRATCH},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
            *(
                {"name": f"data-{number}", "mountPath": mount.folder, **_read_only(mount)}
                for number, mount in enumerate(job.mounts)
            ),
        ],
    }


def environment(job: KubernetesJob) -> list[Manifest]:
    """Variables; secrets come from keys in a Secret."""
    # torch puts caches into the home folder and names them after the user, whose number the image may lack.
    known = [{"name": "HOME", "value": SCRATCH}, {"name": "USER", "value": "maskwright"}]
    if job.setup:
        known += [{"name": name, "value": SETUP_FOLDER} for name in ("PIP_TARGET", "PYTHONPATH")]
    return known + [
        {"name": variable, "valueFrom": {"secretKeyRef": {"name": name, "key": key}}}
        for name, key, variable in job.secrets
    ]


def _volumes(job: KubernetesJob) -> list[Manifest]:
    volumes: list[Manifest] = [
        {"name": "config", "configMap": {"name": job.config_map}},
        {"name": "scratch", "emptyDir": {}},
        # NCCL and data loaders share memory there; the default is 64 MB. It counts against the memory limit.
        {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
    ]
    for number, mount in enumerate(job.mounts):
        volume: Manifest = {"persistentVolumeClaim": {"claimName": mount.source, **_read_only(mount)}}
        if mount.bucket:
            options = f"implicit-dirs,uid={USER},gid={USER}"
            attributes = {"bucketName": mount.source, "mountOptions": options}
            driver = "gcsfuse.csi.storage.gke.io"
            volume = {"csi": {"driver": driver, "readOnly": True, "volumeAttributes": attributes}}
        volumes.append({"name": f"data-{number}", **volume})
    return volumes


def _read_only(mount: Mount) -> Manifest:
    return {"readOnly": True} if mount.read_only else {}


def _tolerations(job: KubernetesJob) -> Manifest:
    """Tolerates taints by the nodes' own labels and devices, which an environment's nodes and accelerators have."""
    tolerations = [{"key": key, "operator": "Equal", "value": value} for key, value in job.node_selector]
    tolerations += [{"key": key, "operator": "Exists"} for key in job.devices]
    return {"tolerations": tolerations} if tolerations else {}
