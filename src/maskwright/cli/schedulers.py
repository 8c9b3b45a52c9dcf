"""The options of `submit` for clusters with a scheduler of their own, and which of them each takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from maskwright.cli import vertex

if TYPE_CHECKING:
    from maskwright.launch.job import JobSpec

Name = Annotated[str | None, typer.Option(help="Of the job in the cluster; the run's folder's when not given.")]
Kind = Annotated[
    Literal["indexed-job", "jobset", "trainjob", "rayjob"],
    typer.Option(help="kubernetes: the object to make; all but indexed-job need an operator in the cluster."),
]
Image = Annotated[str, typer.Option(help="kubernetes, vertex: container image with maskwright in it.")]
Namespace = Annotated[str | None, typer.Option(help="kubernetes: kubectl's own when not given.")]
Claim = Annotated[list[str] | None, typer.Option(help="kubernetes: NAME:/folder, a PersistentVolumeClaim.")]
Bucket = Annotated[
    list[str] | None,
    typer.Option(help="kubernetes: NAME:/folder, a Cloud Storage bucket (GKE), read-only. skypilot: URL:/folder."),
]
Queue = Annotated[str | None, typer.Option(help="kubernetes: of Kueue, which starts all pods or none.")]
ServiceAccount = Annotated[str | None, typer.Option(help="kubernetes, vertex: that the job runs as.")]
Secret = Annotated[str | None, typer.Option(help="kubernetes: with the values of --env, under the same names.")]
Cpus = Annotated[str | None, typer.Option(help="Of each worker (kubernetes: 4 for each GPU when not given).")]
Memory = Annotated[str, typer.Option(help="kubernetes: of each pod.")]
GpuResource = Annotated[str, typer.Option(help="kubernetes: what GPUs are called there.")]
NodeSelector = Annotated[list[str] | None, typer.Option(help="kubernetes: KEY=VALUE, a label (or taint) of the nodes.")]
RayVersion = Annotated[str, typer.Option(help="kubernetes, rayjob: of the Ray in the image.")]
Sbatch = Annotated[list[str] | None, typer.Option(help="slurm: an option of sbatch, as in --sbatch=--partition=gpu")]
Accelerator = Annotated[
    str | None, typer.Option(help="skypilot: what the GPUs are, as in H100. vertex: NVIDIA_TESLA_T4, v5e or v6e.")
]
Spot = Annotated[bool, typer.Option("--spot", help="skypilot, vertex: on machines that can be taken away, for less.")]


SLICE = {"zone", "project", "via", "connect_seconds", "restart_wait_seconds", "replace"}
RAY = {"address", "job_id", "working_dir", "follow"}
SIZE = {"num_workers", "gpus_per_worker"}
PODS = {"kind", "image", "namespace", "claim", "queue", "service_account", "secret", "memory", "gpu_resource"}
PODS |= {"node_selector", "ray_version"}
TAKES = {
    "slice": SLICE | {"workdir", "setup"},
    "spec": {"workdir", "setup"},
    "ray": RAY | SIZE | {"setup"},  # which it refuses in its own words
    "kubernetes": PODS | SIZE | {"name", "cpus", "bucket"},
    "slurm": SIZE | {"name", "cpus", "sbatch", "workdir", "setup"},
    "skypilot": SIZE | {"name", "cpus", "bucket", "accelerator", "spot", "setup"},
    "vertex": SIZE | vertex.TAKES,
    "environment": {"target", "up", "detach", "max_cost", "down_when_done", "prices", "setup"},
}
"""Options that not every place has. Giving one that says nothing there is a misunderstanding."""


def refuse_others(place: str, context: typer.Context) -> None:
    """Raises `InputError` for an option of another place."""
    from maskwright.core.errors import InputError

    known: set[str] = set().union(*TAKES.values())
    if wrong := sorted(given(context) & known - TAKES[place]):
        on = "an environment" if place == "environment" else place
        raise InputError(
            f"does not go with --{place}" if place == "spec" else f"does not go with --on {on}",
            where=f"--{wrong[0].replace('_', '-')}",
            fix="leave it out: `submit --help` says whose it is",
        )


def given(context: typer.Context) -> set[str]:
    """Options that were typed, not left at their usual values."""
    return {name for name in context.params if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"}


def start(kind: str, spec: JobSpec, context: typer.Context) -> None:
    """`context` is that of `submit`. Raises what the launchers do."""
    from maskwright.launch import cluster
    from maskwright.launch.schedulers import skypilot, slurm

    if "workdir" not in given(context):
        spec = replace(spec, folder=".")
    options = context.params
    common = {
        "name": cluster.name_for(options["run"], options["name"]),
        "num_workers": options["num_workers"],
        "gpus": options["gpus_per_worker"],
        "cpus": options["cpus"],
    }
    dry_run = options["dry_run"]
    if kind == "vertex":
        return vertex.submit(spec, common, options)
    if kind == "kubernetes":
        return _start_kubernetes(spec, common, options)
    if kind == "slurm":
        return slurm.submit(slurm.Place(**common, options=tuple(options["sbatch"] or ())), spec, dry_run=dry_run)
    buckets = tuple(_url_and_folder(text) for text in options["bucket"] or ())
    place = skypilot.Place(**common, accelerator=options["accelerator"], spot=options["spot"], buckets=buckets)
    skypilot.submit(place, spec, dry_run=dry_run)


def _url_and_folder(text: str) -> tuple[str, str]:
    from maskwright.core.errors import InputError

    url, _, folder = text.rpartition(":")
    if "://" not in url or not folder.startswith("/"):
        raise InputError(f"{text[:80]!r} is not URL:/folder", where="--bucket", fix="--bucket gs://my-bucket:/data")
    return url, folder


def _start_kubernetes(spec: JobSpec, common: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    from maskwright.launch.schedulers.kubernetes import apply
    from maskwright.launch.schedulers.kubernetes.place import Place, parse_mount, parse_pair

    mounts = [
        parse_mount(text, option)
        for option, texts in (("--claim", options["claim"]), ("--bucket", options["bucket"]))
        for text in texts or ()
    ]
    same = ("image", "namespace", "queue", "service_account", "secret", "memory", "gpu_resource", "ray_version")
    place = Place(
        **{**common, "cpus": common["cpus"] or str(4 * max(1, common["gpus"]))},
        **{name: options[name] for name in same},
        kind=options["kind"],
        mounts=tuple(mounts),
        node_selector=tuple(parse_pair(text, "--node-selector") for text in options["node_selector"] or ()),
    )
    apply.submit(place, spec, dry_run=options["dry_run"])
