"""All places to run: the single list of their names, and the single parser of a run's address there.

A place is imported when it is chosen. Nothing here uses typer, so a program may use it as the command line does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING

from maskwright.core.console import typed
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
    *names, last = (name for name in PLACES if name != "slice")  # as in the help of `submit`
    return f"{', '.join(names)} or {last}"


def run(location: str, address: str | None = None, *, options: frozenset[str] = frozenset()) -> RunTarget:
    """The run at an address: a run directory, the URL of a copy, ray:ID, kubernetes:NAME or vertex:PROJECT/REGION/ID.
    Raises `InputError` if one of the given `options` is unsupported there."""
    target = _run(location, address)
    options_given = options | ({"--address"} if address is not None else set())
    for option in sorted(options_given - target.takes):
        owner = "a Ray job" if option == "--address" else "a run directory or a Kubernetes job"
        together = ", if you --follow" if option == "--lines" else ""
        raise InputError(f"is for {owner}{together}", where=option, fix="leave it out, or give RUN as one")
    return target


def require_folders(locations: Sequence[str]) -> None:
    """Raises `InputError` for the address of a job, for commands that read run directories."""
    for location in locations:
        if location.startswith(("ray:", "kubernetes:", "vertex:")):
            fix = f"`{typed(['status', location, '--watch'])}` shows it; here, name its run directory"
            raise InputError("is a job, not a folder", where=location, fix=fix)


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


def _cluster(where: str) -> tuple[Access, Callable[[str], str]]:
    """The access to a cluster, and the address of a job there by its name. `where`: the YAML of an environment, or the
    part of an address before the job's name."""
    from maskwright.cloud.kubernetes import OnKubernetes

    if where.endswith((".yaml", ".yml")):
        place = OnKubernetes(env_file=where)
    else:
        context, _, namespace = where.rpartition("/")
        place = OnKubernetes(context=context or None, namespace=namespace or None)
    return place.access(), place.address


def jobs(location: str, address: str | None) -> Callable[[], TargetReport] | None:
    """A function that lists all jobs of a cluster, at an address without a job's name: `ray:`, `kubernetes:`,
    `kubernetes:NAMESPACE/`, `kubernetes:CONTEXT/NAMESPACE/` or `kubernetes:ENV.yaml/`. None at any other address."""
    if location == "ray:":
        from maskwright.launch.ray.jobs import list_jobs

        return partial(list_jobs, address)
    where = location.removeprefix("kubernetes:")
    if where == location or (where and not where.endswith("/")):
        return None
    if address is not None:
        raise InputError("is for a Ray job", where="--address", fix="leave it out")
    from maskwright.launch.schedulers.kubernetes.jobs import list_jobs as list_in_cluster

    return partial(list_in_cluster, *_cluster(where.removesuffix("/")))
