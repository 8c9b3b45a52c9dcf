"""`submit kubernetes --env-file lab.yaml`: an environment fills in the options of `submit kubernetes`."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from maskwright.cloud import cluster, record
from maskwright.cloud.environment import Environment, Group, Slice, read_environment, region_of
from maskwright.cloud.prices import hourly_offers
from maskwright.cloud.provision import objects
from maskwright.cloud.record import EnvironmentRecord
from maskwright.core import storage
from maskwright.core.console import say, typed
from maskwright.core.errors import InputError
from maskwright.launch import checks
from maskwright.launch.schedulers.kubernetes.gke import CLASS_LABEL
from maskwright.launch.schedulers.kubernetes.kubectl import Access
from maskwright.launch.schedulers.kubernetes.pod import SCRATCH
from maskwright.launch.schedulers.kubernetes.submit import Kubernetes
from maskwright.launch.target import OnSubmission, Option, Training, show


@dataclass(frozen=True)
class OnKubernetes(Kubernetes):
    env_file: Annotated[
        str | None,
        Option("YAML of an environment, to use its cluster, queue, volumes, image, account and nodes.", "PATH"),
    ] = None
    target: Annotated[
        Literal["slice", "group"] | None, Option("Nodes to use, if the environment has both a slice and a group.")
    ] = None
    max_cost: Annotated[
        float | None, Option("End the job when its nodes have cost this many USD. Needs --env-file.", "N", min=0.01)
    ] = None

    def access(self) -> Access:
        if self.env_file is None or self.context is not None:
            return super().access()
        return cluster.access(read_environment(self.env_file))

    def address(self, name: str) -> str:
        outside = self.env_file is None or self.context is not None
        return super().address(name) if outside else f"kubernetes:{self.env_file}/{name}"

    def submit(self, command: Training, *, dry_run: bool, on_submission: OnSubmission = show) -> None:
        if self.env_file is None:
            for option, given in (("--target", self.target), ("--max-cost", self.max_cost)):
                if given is not None:
                    raise InputError("is about an environment", where=option, fix="add --env-file, or leave it out")
            return super().submit(command, dry_run=dry_run, on_submission=on_submission)
        if self.namespace is not None and self.context is None:
            fix = "leave it out, or name the cluster with --context"
            raise InputError(f"jobs of an environment are in {cluster.NAMESPACE}", where="--namespace", fix=fix)
        environment = read_environment(self.env_file)
        nodes = find_nodes(environment, self.env_file, self.target)
        known = record.read(environment)
        command = in_environment(environment, command)
        if environment.disk is not None and known.seeded is None:
            require_no_volume(environment, command, self.env_file)
        require_fitting(self, nodes)
        filled = filled_in(self, environment, nodes, known)
        if self.max_cost is not None:
            hours = self.max_cost / usd_per_hour_of(environment, nodes, filled.num_nodes or nodes.hosts)
            say(f"--max-cost {self.max_cost:g}: ends after {hours:.2f} hours on these nodes")
            filled = replace(filled, most_hours=hours)
        return super(OnKubernetes, filled).submit(command, dry_run=dry_run, on_submission=on_submission)


def find_nodes(environment: Environment, location: str, target: str | None) -> Slice | Group:
    """The slice or the group. Raises `InputError` if there is neither, or both and no `target`."""
    kinds = [*environment.hosts]
    if not kinds:
        raise InputError("has neither slice nor group", where=location, fix="add a section `slice:` or `group:`")
    if target is None and len(kinds) > 1:
        raise InputError("has a slice and a group", where=location, fix="add --target slice or --target group")
    if target is not None and target not in kinds:
        raise InputError(f"has no {target}", where="--target", fix=f"give --target {kinds[0]}, or add it to {location}")
    return environment.hosts[target or kinds[0]]


def filled_in(
    place: OnKubernetes, environment: Environment, nodes: Slice | Group, made: EnvironmentRecord
) -> OnKubernetes:
    """The place with the environment's values. Given options stay."""
    mount = environment.mount_point
    mounts = [f"{objects.NFS_CLAIM}:{mount}/nfs_share"] if environment.nfs else []
    mounts += [f"{objects.DISK_CLAIM}:{mount}/shared_pd:ro"] if environment.disk and made.seeded else []
    known: dict[str, Any] = {
        "image": made.container(environment, nodes.computes_on),
        "queue": objects.QUEUE,
        "service_account": objects.ACCOUNT,
        "namespace": cluster.NAMESPACE,
        "num_nodes": nodes.hosts,
    }
    if isinstance(nodes, Slice):
        known["accelerator"] = f"{nodes.accelerator}:{nodes.topology}"
    else:
        known["gpus_per_node"] = nodes.gpus
    missing = {name: value for name, value in known.items() if getattr(place, name) is None}
    return replace(place, **missing, mount=(*place.mount, *mounts), node_selector=((CLASS_LABEL, nodes.kind),))


def in_environment(environment: Environment, command: Training) -> Training:
    """The command with its run directory in the environment, and copies of its checkpoints in the runs bucket. A bare
    name lies on NFS if there is one, else in the pod, after which only the copies remain. Copies of a path have a
    digest in their name, since other folders may have the same last name."""
    run, name = command.run, command.run.rstrip("/").rpartition("/")[2]
    if storage.is_url(run) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        fix = "give a name such as roberta-1, or a folder in a pod; checkpoints are also copied to the runs bucket"
        raise InputError(f"{run[:80]!r} is not a run directory in a pod", where="--run", fix=fix)
    if "/" in run:
        name = f"{name}-{hashlib.sha256(os.path.normpath(run).encode()).hexdigest()[:8]}"
    else:
        folder = f"{environment.mount_point}/nfs_share" if environment.nfs is not None else SCRATCH
        command = replace(command, run=f"{folder}/runs/{name}")
    config, _ = checks.read(command)
    if config.checkpoint.copy_to is None:
        command = command.setting(f"checkpoint.copy_to=gs://{environment.runs_bucket}/runs/{name}")
    return command


def require_no_volume(environment: Environment, command: Training, location: str) -> None:
    """Raises `InputError` if the command reads the data volume, which is not filled yet."""
    for key, path in checks.locations(command, checks.read(command)[0]).items():
        if checks.inside(path, f"{environment.mount_point}/shared_pd"):
            raise InputError(
                f"{path} is on the data volume, which is not filled yet",
                where=key,
                fix=typed(["env", "seed", location]),
            )


def require_fitting(place: OnKubernetes, nodes: Slice | Group) -> None:
    """Raises `InputError` for options that the environment's nodes never fit, since the job would wait for ever."""
    count, gpus = place.num_nodes or nodes.hosts, place.gpus_per_node or 0
    if isinstance(nodes, Slice):
        what = f"{nodes.accelerator}:{nodes.topology}"
        wrong = {"--accelerator": place.accelerator not in (None, what), "--num-nodes": count != nodes.hosts}
    else:
        what = f"{nodes.size} x {nodes.machine_type}"
        wrong = {"--accelerator": place.accelerator is not None, "--gpus-per-node": gpus > nodes.gpus}
        wrong["--num-nodes"] = count > nodes.hosts
    for option in (name for name, is_wrong in wrong.items() if is_wrong):
        fix = "leave it out, or change the YAML and run `maskwright env up`"
        raise InputError(f"the environment's {nodes.kind} is {what}", where=option, fix=fix)


def usd_per_hour_of(environment: Environment, nodes: Slice | Group, num_nodes: int) -> float:
    """The hourly cost of a job's nodes, in the dearest possible placement. Raises `InputError` if one has no price."""
    what, count = (nodes.accelerator, nodes.chips) if isinstance(nodes, Slice) else (nodes.machine_type, num_nodes)
    costs = []
    for place in nodes.placements(environment.zone):
        model = "SPOT" if place.model == "SPOT" else "STANDARD"
        offers = [one.usd for one in hourly_offers(what, region_of(place.zone), count) if one.model == model]
        if not offers:
            fix = "leave it out, and give --stop-after-hours"
            raise InputError(f"the price table lacks {what} in {region_of(place.zone)}", where="--max-cost", fix=fix)
        costs += offers
    return max(costs)
