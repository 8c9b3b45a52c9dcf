"""A pod that trains, as its template: what runs in it, what it may do, what it sees. Small dictionaries, as in YAML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from maskwright.launch.schedulers.kubernetes.place import CONFIG_FOLDER, SCRATCH, Place

Manifest = dict[str, Any]
USER = 1000
"""User and group of the processes, whatever the image says: `runAsNonRoot` wants a number. It owns what it writes to a
claim (`fsGroup`)."""
GPU = "nvidia.com/gpu"
CONTAINER = "node"
"""The name that Kubeflow's trainer looks for."""


def labels(place: Place) -> dict[str, str]:
    return {"app.kubernetes.io/name": "maskwright", "app.kubernetes.io/instance": place.name}


def metadata(place: Place, *, queued: bool = False) -> Manifest:
    """`queued`: Kueue admits the object, all of its pods or none; it suspends what it wants to end."""
    queue = {"kueue.x-k8s.io/queue-name": place.queue} if queued and place.queue else {}
    namespace = {"namespace": place.namespace} if place.namespace else {}
    return {"name": place.name, **namespace, "labels": labels(place) | queue}


def literal(word: str) -> str:
    """Kubernetes replaces `$(NAME)` in the words of a command, and `$$` by a dollar."""
    return word.replace("$", "$$")


def template(place: Place, words: Sequence[str] | None) -> Manifest:
    """The `PodTemplateSpec`. `words`: the command, without a shell in between, so that SIGTERM reaches it; None where
    an operator writes its own."""
    buckets = any(mount.bucket for mount in place.mounts)
    annotations = {"annotations": {"gke-gcsfuse/volumes": "true"}} if buckets else {}
    account = {"serviceAccountName": place.service_account} if place.service_account else {}
    selector = {"nodeSelector": dict(place.node_selector)} if place.node_selector else {}
    return {
        "metadata": {"labels": labels(place), **annotations},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": place.grace_seconds,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            **account,
            **selector,
            **_tolerations(place),
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": USER,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [_container(place, words)],
            "volumes": _volumes(place),
        },
    }


def _container(place: Place, words: Sequence[str] | None) -> Manifest:
    amounts = {"cpu": place.cpus, "memory": place.memory}
    gpus = {GPU: str(place.gpus)} if place.gpus else {}
    command = {"command": [words[0]], "args": list(words[1:])} if words else {}
    return {
        "name": CONTAINER,
        "image": place.image,
        **command,
        "env": environment(place),
        # No limit of cores: a pod that is throttled for a moment holds up all others.
        "resources": {"requests": amounts | gpus, "limits": {"memory": place.memory} | gpus},
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
                {"name": f"data-{number}", "mountPath": mount.folder, **({"readOnly": True} if mount.bucket else {})}
                for number, mount in enumerate(place.mounts)
            ),
        ],
    }


def environment(place: Place) -> list[Manifest]:
    """Values only of what is no secret; the rest from keys of the same names in the Secret."""
    # Caches of torch go to the home folder and are named after the user, which the image need not know by its number.
    known = [{"name": "HOME", "value": SCRATCH}, {"name": "USER", "value": "maskwright"}]
    secret = [{"name": key, "valueFrom": {"secretKeyRef": {"name": name, "key": key}}} for name, key in place.secrets]
    return known + secret


def _volumes(place: Place) -> list[Manifest]:
    volumes: list[Manifest] = [
        {"name": "config", "configMap": {"name": place.config_map}},
        {"name": "scratch", "emptyDir": {}},
        # NCCL and data loaders share memory there; a container has 64 MB otherwise. Counts against the memory limit.
        {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
    ]
    for number, mount in enumerate(place.mounts):
        volume: Manifest = {"persistentVolumeClaim": {"claimName": mount.source}}
        if mount.bucket:
            options = f"implicit-dirs,uid={USER},gid={USER}"
            attributes = {"bucketName": mount.source, "mountOptions": options}
            driver = "gcsfuse.csi.storage.gke.io"
            volume = {"csi": {"driver": driver, "readOnly": True, "volumeAttributes": attributes}}
        volumes.append({"name": f"data-{number}", **volume})
    return volumes


def _tolerations(place: Place) -> Manifest:
    """Pools of GPUs and of spot machines are often tainted with their own labels."""
    wanted = [{"key": key, "operator": "Equal", "value": value} for key, value in place.node_selector]
    if place.gpus:
        wanted.append({"key": GPU, "operator": "Exists"})
    return {"tolerations": wanted} if wanted else {}
