"""`submit kubernetes`: prints the objects as YAML, or applies them with kubectl."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import yaml

from maskwright.core.console import say, warn
from maskwright.core.errors import InputError, MaskwrightError
from maskwright.core.secrets import redact
from maskwright.core.storage import is_url
from maskwright.launch import checks, target
from maskwright.launch.schedulers.kubernetes.gke import SlicePods, slice_pods
from maskwright.launch.schedulers.kubernetes.kinds import manifests
from maskwright.launch.schedulers.kubernetes.pod import (
    NAME,
    SCRATCH,
    Kind,
    KubernetesJob,
    Mount,
    inside,
)
from maskwright.launch.target import VARIABLE, JobName, OnSubmission, Option, Restarts, Submission, Training, show

LARGEST_CONFIG = 200_000
"""Bytes. kubectl writes the whole object into an annotation, and annotations may have 262,144 bytes."""
KUBECTL_SECONDS = 120.0


@dataclass(frozen=True)
class Kubernetes(target.Place):
    image: Annotated[str, Option("Container image with maskwright in it.", "IMAGE")]
    mount: Annotated[
        tuple[str, ...],
        Option(
            "PersistentVolumeClaim or gs://BUCKET (GKE) to mount in a folder; CLAIM:PATH:ro only reads.", "NAME:PATH"
        ),
    ] = ()
    num_nodes: Annotated[
        int | None, Option("Number of pods that train together. Default: the slice's hosts, or 1.", "N", min=1)
    ] = None
    gpus_per_node: Annotated[int, Option("GPUs of each pod that compute; 0 computes on the CPU.", "N", min=0)] = 0
    accelerator: Annotated[str | None, Option("TPU slice on GKE, as in v6e:4x4.", "KIND:TOPOLOGY")] = None
    cpus: Annotated[str | None, Option("Cores of each pod. Default: 4 for each GPU or chip.", "N")] = None
    memory: Annotated[str, Option("Memory of each pod, as Kubernetes writes it.", "N")] = "16Gi"
    kind: Annotated[
        Kind | None,
        Option(
            "Object to create; all but indexed-job need an operator in the cluster. Default: jobset for a TPU slice of "
            "several hosts, else indexed-job."
        ),
    ] = None
    name: JobName = None
    namespace: Annotated[str | None, Option("Namespace of the job. Default: kubectl's.", "NAME")] = None
    queue: Annotated[str | None, Option("Queue of Kueue, which starts all pods or none.", "NAME")] = None
    service_account: Annotated[str | None, Option("Service account that the pods run as.", "NAME")] = None
    secret: Annotated[
        tuple[str, ...], Option("Secret and the key in it that the job gets as a variable.", "NAME:KEY")
    ] = ()
    node_selector: Annotated[tuple[str, ...], Option("Label that the nodes must have.", "KEY=VALUE")] = ()
    restarts: Restarts = 3

    # Pods are restarted after every 75, so a run that is to stop early would go on.
    leaves_out = frozenset({"stop_after_steps", "profile_steps"})

    def submit(self, command: Training, *, dry_run: bool, on_submission: OnSubmission = show) -> None:
        """Applies the objects with kubectl, or with `dry_run` shows them."""
        job, objects = self.objects(command)
        text = to_yaml(objects)
        on_submission(
            Submission(False, "kubectl", command.run, shown=text) if dry_run else _apply(job, text, command.run)
        )

    def objects(self, command: Training) -> tuple[KubernetesJob, list[dict[str, Any]]]:
        """The job and its objects. Raises `InputError` for options that cannot work in a cluster."""
        config, text = checks.read(command)
        if len(text.encode()) > LARGEST_CONFIG:
            what = f"is larger than {LARGEST_CONFIG:,} bytes"
            raise InputError(what, where=command.config, fix="shorten its comments")
        # Named by its content: another submission under the same name does not change it for a running job.
        digest, name = hashlib.sha256(text.encode()).hexdigest()[:8], checks.name_for(command.run, self.name)
        same = ("image", "namespace", "queue", "service_account", "memory", "restarts")
        pods = self._slice()
        job = KubernetesJob(
            **{field: getattr(self, field) for field in same},
            kind=pods.object_kind(self.kind) if pods else self.kind or "indexed-job",
            name=name,
            mounts=tuple(map(parse_mount, self.mount)),
            num_pods=pods.hosts if pods else self.num_nodes or 1,
            gpus=self.gpus_per_node,
            chips=pods.chips if pods else 0,
            cpus=self.cpus or str(4 * max(1, self.gpus_per_node, pods.chips if pods else 0)),
            secrets=tuple(map(parse_secret, self.secret)),
            node_selector=(*(pods.labels.items() if pods else ()), *map(parse_selector, self.node_selector)),
            grace_seconds=checks.grace_seconds(config),
            config_map=f"{name}-{digest}",
        )
        check_paths(job, checks.locations(command, config), command.run, bool(config.checkpoint.copy_to))
        if pods:
            sized = checks.for_tpu(command, config, pods.devices)
        else:
            sized = checks.sized(command, config, job.num_pods, job.gpus)
        # The driver of a RayJob chooses the device of each pod.
        return job, manifests(job, command if job.kind == "rayjob" else sized, text)

    def _slice(self) -> SlicePods | None:
        if self.accelerator is None:
            return None
        if self.gpus_per_node:
            raise InputError("cannot be given with a TPU slice", where="--gpus-per-node", fix="leave it out")
        pods = slice_pods(self.accelerator, self.num_nodes)
        if taken := [key for key, _ in map(parse_selector, self.node_selector) if key in pods.labels]:
            raise InputError(f"{taken[0]} follows from --accelerator", where="--node-selector", fix="leave it out")
        return pods


def parse_mount(text: str) -> Mount:
    """`CLAIM:/folder`, `CLAIM:/folder:ro` or `gs://BUCKET:/folder`."""
    bucket, read_only = text.startswith("gs://"), text.endswith(":ro")
    name, _, folder = text.removeprefix("gs://").removesuffix(":ro").partition(":")
    tidy = re.fullmatch(r"(/[A-Za-z0-9._-]+)+", folder) and not {".", ".."} & set(folder.split("/"))
    if not re.fullmatch(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?", name) or not tidy:
        fix = "--mount my-claim:/data, --mount my-claim:/data:ro, or --mount gs://my-bucket:/data"
        raise InputError(f"{text[:80]!r} is not NAME:/folder", where="--mount", fix=fix)
    return Mount(name, folder, bucket, bucket or read_only)


def parse_secret(text: str) -> tuple[str, str]:
    """`SECRET:KEY`, whose key is the name of the variable."""
    name, _, key = text.partition(":")
    if not NAME.fullmatch(name) or not VARIABLE.fullmatch(key):
        fix = "--secret hugging-face:HF_TOKEN, the Secret and the key in it that is the variable's name"
        raise InputError(f"{text[:80]!r} is not NAME:KEY", where="--secret", fix=fix)
    return name, key


def parse_selector(text: str) -> tuple[str, str]:
    """`KEY=VALUE` of a label."""
    key, _, value = text.partition("=")
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9./_-]*[A-Za-z0-9])?", key) or not re.fullmatch(r"[\w.-]+", value):
        fix = "--node-selector cloud.google.com/gke-accelerator=nvidia-h100-80gb"
        raise InputError(f"{text[:80]!r} is not KEY=VALUE", where="--node-selector", fix=fix)
    return key, value


def check_paths(job: KubernetesJob, locations: Mapping[str, str | None], run: str, copied: bool) -> None:
    """Raises `InputError` if a pod does not see the data, or if the run would be lost with its pod. `locations`: see
    `checks.locations`; `copied`: whether checkpoints are copied elsewhere."""
    claims = [mount.folder for mount in job.mounts if not mount.read_only]
    kept = [*claims, *([SCRATCH] if copied else [])]
    if not any(run.startswith(folder + "/") for folder in kept):
        fix = "give a folder in a --mount CLAIM:/folder; or one in /tmp with checkpoint.copy_to, to continue from there"
        raise InputError(f"{run} would be lost with its pod", where="--run", fix=fix)
    if ".." in run.split("/"):
        raise InputError(f"{run} leaves its folder", where="--run", fix="write it without ..")
    seen = [mount.folder for mount in job.mounts]
    for key, path in locations.items():
        remote = is_url(path or "") and key != "--from"
        if path and not remote and not any(inside(path, folder) for folder in seen):
            fix = f"mount it with --mount NAME:/folder, and {checks.setting(key, '/folder/…')}"
            raise InputError(f"{path} is not in a pod", where=key, fix=fix)


def to_yaml(objects: list[dict[str, Any]]) -> str:
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True  # an alias such as &id001 is hard to read and to edit

    def text(self, value: str) -> yaml.Node:
        style = "|" if "\n" in value else None
        return self.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _Dumper.text)


def _apply(job: KubernetesJob, text: str, run: str) -> Submission:
    words = ["kubectl", "apply", "--filename=-"]
    absent = "install it, or --dry-run and apply the objects from elsewhere"
    done = checks.ask(words, text, KUBECTL_SECONDS, absent=absent, silent="check `kubectl cluster-info`")
    for line in done.stdout.splitlines():
        say(redact(line))
    if done.returncode:
        complaint = " ".join(done.stderr.split())[:600] or f"exit {done.returncode}"
        fix = "as kubectl says; objects that were applied stay"
        raise MaskwrightError(complaint, where="kubectl apply", fix=fix)
    last = done.stdout.strip().rpartition("\n")[2]
    namespace = f" --namespace={job.namespace}" if job.namespace else ""
    name = last.split(" ")[0]
    end = f"kubectl delete{namespace} {name}"
    if last.endswith(("unchanged", "configured")):
        warn(f"{name} existed before; if it is over, `{end}` and submit again")
    # Without these, kubectl refuses more than 5 pods, and shows 10 lines of each. Pods of earlier attempts and those of
    # a RayJob's head and submitter count too.
    most = job.num_pods * (job.restarts + 1) + 2
    follow = f"kubectl logs{namespace} --follow --selector=app.kubernetes.io/instance={job.name} --prefix"
    follow += f" --tail=-1 --max-log-requests={most}"
    say(f"follow it: {follow}")
    say(f"end it, to be continued: {end}")
    return Submission(True, "kubectl", run, name, follow, end)
