"""All places to run: the single list of their names, and the single parser of a run's address there.

A place is imported when it is chosen. Nothing here knows typer, so a program may use it as the command line does.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import TYPE_CHECKING

from maskwright.core.errors import InputError
from maskwright.launch.target import Place, RunTarget, TargetReport

if TYPE_CHECKING:
    from maskwright.launch.schedulers.kubernetes.kubectl import Access

PLACES = {
    "ray": "Train on a Ray cluster, over its job API.",
    "slurm": "Train on a SLURM cluster, by sbatch.",
    "kubernetes": "Train on a Kubernetes cluster, by kubectl.",
    "slice": "Train on all hosts of a Cloud TPU VM slice over ssh, while you watch.",
    "vertex": "Train on Vertex AI, as a custom job.",
}


def place(name: str) -> type[Place]:
    """The class of a place, whose fields are its options. Raises `InputError` for an unknown name."""
    match name:
        case "ray":
            from maskwright.launch.ray.submit import Ray

            return Ray
        case "slurm":
            from maskwright.launch.schedulers.slurm import Slurm

            return Slurm
        case "kubernetes":
            from maskwright.cloud.kubernetes import OnKubernetes

            return OnKubernetes
        case "slice":
            from maskwright.launch.tpu_vm import TpuSlice

            return TpuSlice
        case "vertex":
            from maskwright.cloud.vertex.request import Vertex

            return Vertex
    near = get_close_matches(name, PLACES, 1)
    fix = f"did you mean {near[0]}?" if near else f"maskwright submit PLACE CONFIG --run RUN; PLACE is {_listed()}"
    raise InputError(f"{name[:40]!r} is no place to run", where="submit", fix=fix)


def _listed() -> str:
    *names, last = PLACES
    return f"{', '.join(names)} or {last}"


def run(location: str, address: str | None = None, *, options: frozenset[str] = frozenset()) -> RunTarget:
    """The run at an address: a run directory, the URL of a copy, ray:ID, kubernetes:NAME or vertex:PROJECT/REGION/ID.
    Raises `InputError` if one of the given `options` means nothing there."""
    target = _run(location, address)
    options_given = options | ({"--address"} if address is not None else set())
    for option in sorted(options_given - target.takes):
        owner = "a Ray job" if option == "--address" else "a run directory"
        raise InputError(f"is for {owner}", where=option, fix="leave it out, or give RUN as one")
    return target


def _run(location: str, address: str | None) -> RunTarget:
    if location.startswith("ray:"):
        from maskwright.launch.ray import jobs

        return jobs.RayJobTarget(jobs.parse_id(location), address)
    if location.startswith("vertex:"):
        from maskwright.cloud.vertex.jobs import VertexJobTarget

        return VertexJobTarget(location)
    if location.startswith("kubernetes:"):
        from maskwright.launch.schedulers.kubernetes.jobs import KubernetesTarget, parse_address

        where, name = parse_address(location)
        return KubernetesTarget(location, name, _cluster(where)[0])
    from maskwright.monitor.run import RunFolder

    return RunFolder(location)


def _cluster(
    where: str, context: str | None = None, namespace: str | None = None
) -> tuple[Access, Callable[[str], str]]:
    """The access to a cluster, and the address of a job there by its name. `where`: the YAML of an environment, or the
    part of an address before the job's name."""
    from maskwright.cloud.kubernetes import OnKubernetes

    if where.endswith((".yaml", ".yml")):
        place = OnKubernetes(env_file=where, context=context, namespace=namespace)
    else:
        before, _, last = where.rpartition("/")
        place = OnKubernetes(context=context or before or None, namespace=namespace or last or None)
    return place.access(), place.address


def jobs(name: str, address: str | None, where: str, context: str | None, namespace: str | None) -> TargetReport:
    """All jobs that were submitted to a place: Ray's head at `address`, or a Kubernetes cluster (`_cluster`). Raises
    `InputError` if the place keeps no list of them."""
    if name == "kubernetes":
        from maskwright.launch.schedulers.kubernetes.jobs import list_jobs as list_in_cluster

        return list_in_cluster(*_cluster(where, context, namespace))
    if name != "ray":
        place(name)
        fix = "maskwright list ray, or maskwright list kubernetes"
        raise InputError(f"{name} keeps no list of jobs", where="list", fix=fix)
    from maskwright.launch.ray.jobs import list_jobs

    return list_jobs(address)
