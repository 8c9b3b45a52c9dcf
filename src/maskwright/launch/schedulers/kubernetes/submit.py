"""`submit kubernetes`: prints the objects as YAML, or applies them with kubectl."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any

import yaml

from maskwright.core.console import say, typed, warn
from maskwright.core.errors import CloudError, InputError
from maskwright.launch import checks, target
from maskwright.launch.schedulers.kubernetes import pod
from maskwright.launch.schedulers.kubernetes.gke import CLASS_LABEL, SlicePods, slice_pods
from maskwright.launch.schedulers.kubernetes.jobs import Jobs, follow_to_its_end
from maskwright.launch.schedulers.kubernetes.kinds import manifests
from maskwright.launch.schedulers.kubernetes.kubectl import APPLY, Access
from maskwright.launch.schedulers.kubernetes.pod import SCRATCH, KubernetesJob, Manifest, Mount
from maskwright.launch.schedulers.kubernetes.template import folders as of_template
from maskwright.launch.schedulers.kubernetes.template import part, read_template
from maskwright.launch.target import Env, JobName, OnSubmission, Option, Setup, Submission, Training, show

SAVING_SHARE = 0.1
"""Part of a paid time that is left for saving, where the time is so short that `SAVING_SECONDS` would be most of it."""
GONE_SECONDS = 300.0


@dataclass(frozen=True)
class Kubernetes(target.Place):
    image: Annotated[str | None, Option("Container image that holds maskwright.", "IMAGE")] = None
    mount: Annotated[
        tuple[str, ...],
        Option(
            "PersistentVolumeClaim or gs://BUCKET (GKE) to mount in a folder; CLAIM:PATH:ro only reads.", "NAME:PATH"
        ),
    ] = ()
    num_nodes: Annotated[
        int | None, Option("Pods that train together. Default: the slice's hosts, or 1.", "N", min=1)
    ] = None
    gpus_per_node: Annotated[
        int | None, Option("GPUs to use in each pod; 0, the default, trains on the CPU.", "N", min=0)
    ] = None
    accelerator: Annotated[str | None, Option("TPU slice on GKE, such as v6e:4x4.", "KIND:TOPOLOGY")] = None
    cpus: Annotated[str | None, Option("Cores of each pod. Default: 4 for each GPU or chip.", "N")] = None
    memory: Annotated[str, Option("Memory of each pod, as Kubernetes writes it.", "N")] = "16Gi"
    kind: Annotated[
        pod.Kind | None,
        Option(
            "Object to create; a jobset needs JobSet in the cluster. Default: jobset for a TPU slice of several hosts, "
            "else indexed-job."
        ),
    ] = None
    name: JobName = None
    context: Annotated[str | None, Option("Context of kubectl. Default: the current one.", "NAME")] = None
    namespace: Annotated[str | None, Option("Namespace of the job. Default: kubectl's.", "NAME")] = None
    queue: Annotated[str | None, Option("Kueue queue, which starts all pods or none.", "NAME")] = None
    env: Env = ()
    secret: Annotated[
        tuple[str, ...],
        Option("Pass a key of a Secret to the job as a variable of the key's name, or of another.", "NAME:KEY"),
    ] = ()
    setup: Setup = None
    job_template: Annotated[
        str | None, Option("YAML with parts of a Job to merge into this one, such as tolerations.", "FILE")
    ] = None
    follow: Annotated[bool, Option("Show the log until the job is over, and exit with its code.")] = False
    service_account: str | None = None
    """Of the pods; no option: an environment and `job_template` set it."""
    node_selector: tuple[tuple[str, str], ...] = ()
    """Labels of the nodes, likewise."""
    most_hours: float | None = None
    """Time that the nodes may cost money for."""

    def access(self) -> Access:
        return Access(self.context, self.namespace)

    def address(self, name: str) -> str:
        """The job's address, as `status`, `logs` and `stop` take it."""
        where = f"{self.context}/{self.namespace or ''}" if self.context else self.namespace
        return f"kubernetes:{where}/{name}" if where else f"kubernetes:{name}"

    def submit(self, command: Training, *, dry_run: bool, on_submission: OnSubmission = show) -> None:
        """Applies the objects with kubectl, or with `dry_run` shows them."""
        values = target.values_of(self, self.env)
        job, objects = self.objects(command)
        if dry_run:
            checks.warn_of_trackers(command)
            if values:
                warn(
                    f"the Secret {values_name(job.name)}, with the values of --env, is needed by the job, but not shown"
                )
            on_submission(Submission(False, "kubectl", command.run, shown=to_yaml(objects)))
            return
        jobs, address = Jobs(self.access()), self.address(job.name)
        require_operators(jobs, job)
        replace_job_that_is_over(jobs, job.name, address)
        apply(jobs, job, objects, values)
        follow, end = target.commands_of(address)
        say(f"{address}: submitted; `{follow}` follows it, `{end}` saves and ends it")
        on_submission(Submission(True, "kubectl", command.run, address, follow, end))
        if self.follow:
            follow_to_its_end(jobs, job.name, address)

    def objects(self, command: Training) -> tuple[KubernetesJob, list[Manifest]]:
        """The job and its objects. Raises `InputError` for options that cannot work in a cluster."""
        config, text = checks.read(command)
        if self.image is None:
            raise InputError("is missing", where="--image", fix="name one with maskwright: --image REGISTRY/NAME:TAG")
        # Named by its content, so that another submission under the same name does not change it for a running job.
        digest, name = hashlib.sha256(text.encode()).hexdigest()[:8], checks.name_for(command.run, self.name)
        limit, command = limited(command, self.most_hours)
        same = ("image", "namespace", "queue", "service_account", "memory", "setup")
        pods, gpus = self._slice(), self.gpus_per_node or 0
        template = read_template(self.job_template) if self.job_template else {}
        selected = {**dict(self.node_selector), **part(template, "spec", "template", "spec", "nodeSelector")}
        # A ComputeClass has the topology of its nodes.
        labels = pods.labels if pods and CLASS_LABEL not in selected else {}
        job = KubernetesJob(
            **{field: getattr(self, field) for field in same},
            kind=pods.object_kind(self.kind) if pods else self.kind or "indexed-job",
            name=name,
            mounts=tuple(map(parse_mount, self.mount)),
            num_pods=pods.hosts if pods else self.num_nodes or 1,
            gpus=gpus,
            chips=pods.chips if pods else 0,
            cpus=self.cpus or str(4 * max(1, gpus, pods.chips if pods else 0)),
            secrets=(
                *map(parse_secret, self.secret),
                *((values_name(name), variable, variable) for variable in self.env),
            ),
            node_selector=(*labels.items(), *self.node_selector),
            template=(template, self.job_template or ""),
            run=command.run,
            limit_seconds=limit,
            grace_seconds=checks.grace_seconds(config),
            config_map=f"{name}-{digest}",
        )
        if pods:
            sized = checks.for_tpu(command, config, pods.devices)
        else:
            sized = checks.sized(command, config, job.num_pods, job.gpus)
        made = manifests(job, sized, text)
        check_paths(job, checks.locations(command, config), bool(config.checkpoint.copy_to))
        return job, made

    def _slice(self) -> SlicePods | None:
        if self.accelerator is None:
            return None
        if self.gpus_per_node:
            raise InputError("cannot be given with a TPU slice", where="--gpus-per-node", fix="leave it out")
        return slice_pods(self.accelerator, self.num_nodes)


def limited(command: Training, most_hours: float | None) -> tuple[int | None, Training]:
    """The seconds after which the server ends the job, and the command, which saves and ends with 76 before: at
    `--stop-after-hours`, and early enough for `most_hours`, which the server's limit then is at most."""
    hours, most, saving = command.stop_after_hours, most_hours or math.inf, checks.SAVING_SECONDS / 3600.0
    if most_hours is not None:
        own = most_hours - min(SAVING_SHARE * most_hours, saving)
        hours = own if hours is None else min(hours, own)
    if hours is None:
        return None, command
    seconds = min(hours + saving, most) * 3600.0
    if not 1.0 <= hours * 3600.0 <= seconds < 2**31:
        raise InputError(f"{hours:g} is no limit", where="--stop-after-hours", fix="give its hours")
    return math.ceil(seconds), replace(command, stop_after_hours=float(f"{hours:.6g}"))


# ---- the objects in the cluster --------------------------------------------------------------------------------------


def require_operators(jobs: Jobs, job: KubernetesJob) -> None:
    """Raises `InputError` without the operator of the job's kind, or without Kueue for a queue, since nothing would
    then hold the job back or end it at its limit."""
    operators = [
        ("--kind jobset", job.kind == "jobset", "jobset.x-k8s.io", "JobSet (jobset.sigs.k8s.io/docs/installation)"),
        ("--queue", job.queue, "kueue.x-k8s.io", "Kueue (kueue.sigs.k8s.io/docs/installation)"),
    ]
    for option, wanted, group, name in operators:
        if wanted and group not in jobs.operators:
            raise InputError(f"the cluster has no {group}", where=option, fix=f"install {name}, or leave it out")


def replace_job_that_is_over(jobs: Jobs, name: str, address: str) -> None:
    """Deletes a job of the same name that is over. Raises `InputError` if it is not."""
    before = jobs.find(name, address)
    if before is None:
        return
    if not before.over:
        fix = f"run `{typed(['stop', address])}` first, or choose another --name"
        raise InputError(f"a job of this name is {before.state}", where=address, fix=fix)
    say(f"{address}: deleting the earlier job of this name, which is {before.state}")
    jobs.delete(before, GONE_SECONDS)


def values_name(name: str) -> str:
    return f"{name}-env"


def apply(jobs: Jobs, job: KubernetesJob, objects: list[Manifest], values: Mapping[str, str]) -> None:
    """Applies the job, and then the objects and the Secret as its own, so that they are deleted with it whatever
    happens. No pod starts before the last of them, the configuration, is there: the kubelet waits for it."""
    *others, main = objects
    if values:
        made = pod.metadata(job) | {"name": values_name(job.name)}
        others.insert(0, pod.manifest("v1", "Secret", made, stringData=dict(values)))
    done = json.loads(jobs.kubectl([*APPLY, "--output=json"], text=to_yaml([main])).stdout)
    owner = {key: main[key] for key in ("apiVersion", "kind")}
    owner |= {"name": job.name, "uid": done["metadata"]["uid"]}
    for other in others:
        other["metadata"]["ownerReferences"] = [owner]
    try:
        jobs.kubectl(APPLY, text=to_yaml(others))
    except BaseException:  # Ctrl-C too: the pods would wait for their configuration for ever
        with suppress(CloudError):
            jobs.kubectl(["delete", main["kind"].lower(), job.name, "--wait=false", "--ignore-not-found"])
        raise


# ---- options ---------------------------------------------------------------------------------------------------------


def parse_mount(text: str) -> Mount:
    """`CLAIM:/folder`, `CLAIM:/folder:ro` or `gs://BUCKET:/folder`."""
    bucket, read_only = text.startswith("gs://"), text.endswith(":ro")
    name, _, folder = text.removeprefix("gs://").removesuffix(":ro").partition(":")
    tidy = re.fullmatch(r"(/[A-Za-z0-9._-]+)+", folder) and not {".", ".."} & set(folder.split("/"))
    if not re.fullmatch(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?", name) or not tidy:
        fix = "write --mount my-claim:/data, --mount my-claim:/data:ro or --mount gs://my-bucket:/data"
        raise InputError(f"{text[:80]!r} is not NAME:/folder", where="--mount", fix=fix)
    return Mount(name, folder, bucket, bucket or read_only)


def parse_secret(text: str) -> tuple[str, str, str]:
    """Secret, key and variable of `SECRET:KEY` or `SECRET:KEY=VARIABLE`."""
    name, _, rest = text.partition(":")
    key, _, variable = rest.partition("=")
    variable = variable or key
    if (
        not pod.NAME.fullmatch(name)
        or not re.fullmatch(r"[-._a-zA-Z0-9]+", key)
        or not target.VARIABLE.fullmatch(variable)
    ):
        fix = "write --secret hugging-face:HF_TOKEN, or with another key --secret hugging-face:token=HF_TOKEN"
        raise InputError(f"{text[:80]!r} is not NAME:KEY or NAME:KEY=VARIABLE", where="--secret", fix=fix)
    return name, key, variable


def check_paths(job: KubernetesJob, locations: Mapping[str, str], copied: bool) -> None:
    """Raises `InputError` if a pod does not see the data, or if the run would be lost with its pod. `locations`: see
    `checks.locations`; `copied`: whether checkpoints are copied elsewhere."""
    folders = [*((mount.folder, not mount.read_only) for mount in job.mounts), *of_template(job.template[0])]
    kept = [folder for folder, lasts in [*folders, (SCRATCH, copied)] if lasts]
    fix = "give a folder in a --mount CLAIM:/folder; or one in /tmp with checkpoint.copy_to, to continue from there"
    checks.require_kept(job.run, kept, "pod", fix)

    def mounted(key: str, path: str) -> str:
        return f"mount it with --mount NAME:/folder, and {checks.setting(key, '/folder/…')}"

    checks.require_seen(locations, [folder for folder, _ in folders], "pod", mounted)


def to_yaml(objects: list[dict[str, Any]]) -> str:
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True  # an alias such as &id001 is hard to read and to edit

    def text(self, value: str) -> yaml.Node:
        style = "|" if "\n" in value else None
        return self.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _Dumper.text)
