"""The commands that start a job on other machines. The job is the very command that a person would type there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from maskwright.cli import env_jobs, vertex
from maskwright.cli import schedulers as cluster
from maskwright.cli.options import (
    Address,
    BSize,
    Config,
    Datapath,
    JobId,
    StopAfterHours,
    StopAfterSteps,
    ProfileSteps,
    Set,
    SimulatedGpus,
    all_overrides,
    app,
    pretrain_words,
)

if TYPE_CHECKING:
    from maskwright.launch.job import JobSpec

Run = Annotated[str, typer.Option("--run", help="Run directory, as on the hosts; an existing one is continued.")]
On = Annotated[
    str | None,
    typer.Option(
        "--on",
        help="Where: lab.yaml (an environment), slice:NAME (TPU VMs), kubernetes, slurm, skypilot, vertex or ray.",
    ),
]
Spec = Annotated[
    str | None, typer.Option("--spec", help="gs://bucket/folder/job.json instead: agents on the hosts fetch it.")
]
Workdir = Annotated[str, typer.Option(help="Folder on the hosts to run in; its .venv is used.")]
Setup = Annotated[str | None, typer.Option(help="Shell command for each host, before the first attempt.")]
Env = Annotated[list[str] | None, typer.Option("--env", help="Name of a variable that the job gets too.")]
Restarts = Annotated[int, typer.Option(help="How often to begin again after a host was lost.", min=0)]
GraceSeconds = Annotated[float, typer.Option(help="Between SIGTERM and SIGKILL.", min=1.0)]
NumWorkers = Annotated[int, typer.Option(help="Machines (pods, nodes, Ray workers) that train together.", min=1)]
GpusPerWorker = Annotated[int, typer.Option(help="Of each; a process computes on each one. 0: on the CPU.", min=0)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done or written, start nothing.")]

# Only for slice:NAME.
Zone = Annotated[str | None, typer.Option(help="Of the slice; gcloud's own when not given.")]
Project = Annotated[str | None, typer.Option(help="Of the slice or the Vertex AI job; gcloud's own when not given.")]
Via = Annotated[Literal["external", "internal", "iap"], typer.Option(help="How to reach the hosts of a slice.")]
ConnectSeconds = Annotated[float, typer.Option(help="For a host of a slice to answer.", min=1.0)]
RestartWaitSeconds = Annotated[float, typer.Option(help="Before an attempt after the first.", min=0.0)]
Replace = Annotated[bool, typer.Option("--replace", help="End another job that holds a host of the slice.")]

# Only for ray.
Follow = Annotated[bool, typer.Option("--follow", help="Show the log until the job is over; its exit code.")]
WorkingDir = Annotated[str | None, typer.Option(help="Folder to upload beside CONFIG, below 100 MiB.")]


@app.command("submit")
def submit(
    context: typer.Context,
    config: Config,
    run: Run,
    on: On = None,
    spec: Spec = None,
    set_: Set = None,
    simulated_gpus: SimulatedGpus = None,
    b_size: BSize = None,
    datapath: Datapath = None,
    stop_after_hours: StopAfterHours = None,
    stop_after_steps: StopAfterSteps = None,
    profile_steps: ProfileSteps = 0,
    num_workers: NumWorkers = 1,
    gpus_per_worker: GpusPerWorker = 0,
    workdir: Workdir = "maskwright",
    setup: Setup = None,
    env: Env = None,
    restarts: Restarts = 3,
    grace_seconds: GraceSeconds = 30.0,
    dry_run: DryRun = False,
    zone: Zone = None,
    project: Project = None,
    via: Via = "external",
    connect_seconds: ConnectSeconds = 300.0,
    restart_wait_seconds: RestartWaitSeconds = 10.0,
    replace: Replace = False,
    address: Address = None,
    job_id: JobId = None,
    working_dir: WorkingDir = None,
    follow: Follow = False,
    name: cluster.Name = None,
    kind: cluster.Kind = "indexed-job",
    image: cluster.Image = "",
    namespace: cluster.Namespace = None,
    claim: cluster.Claim = None,
    bucket: cluster.Bucket = None,
    queue: cluster.Queue = None,
    service_account: cluster.ServiceAccount = None,
    secret: cluster.Secret = None,
    cpus: cluster.Cpus = None,
    memory: cluster.Memory = "16Gi",
    gpu_resource: cluster.GpuResource = "nvidia.com/gpu",
    node_selector: cluster.NodeSelector = None,
    ray_version: cluster.RayVersion = "2.60.0",
    sbatch: cluster.Sbatch = None,
    accelerator: cluster.Accelerator = None,
    spot: cluster.Spot = False,
    region: vertex.Region = None,
    machine_type: vertex.MachineType = None,
    topology: vertex.Topology = None,
    strategy: vertex.Strategy = None,
    wait_hours: vertex.WaitHours = None,
    nfs: vertex.NfsMounts = None,
    network: vertex.PeeredNetwork = None,
    staging: vertex.Staging = None,
    label: vertex.Labels = None,
    target: env_jobs.Target = None,
    up: env_jobs.Up = False,
    detach: env_jobs.Detach = False,
    max_cost: env_jobs.MaxCost = None,
    down_when_done: env_jobs.DownWhenDone = False,
    prices: env_jobs.Prices = None,
) -> None:
    """Run `maskwright pretrain` on other machines, with their logs here and one exit code."""
    set_ = all_overrides(set_, simulated_gpus, b_size, datapath)
    where, name_there = _place(on, spec)
    if where == "environment":
        return env_jobs.start(name_there, set_, context)
    cluster.refuse_others(where, context)
    _start(where, name_there, _job(context.params, set_), set_, context)


def _place(on: str | None, spec: str | None) -> tuple[str, str]:
    from maskwright.core.errors import InputError
    from maskwright.launch.job import parse_target

    if (on is None) == (spec is None):
        raise InputError("give --on or --spec, one of the two", where="submit", fix="--on slice:NAME")
    return parse_target(on) if on is not None else ("spec", "")


def _job(options: dict[str, Any], overrides: list[str]) -> JobSpec:
    from maskwright.launch.job import JobSpec

    limits = (options["stop_after_hours"], options["stop_after_steps"], options["profile_steps"])
    words = pretrain_words(options["config"], options["run"], overrides, *limits)
    rest = (options["workdir"], options["setup"], options["restarts"], options["grace_seconds"])
    return JobSpec(("maskwright", *words), tuple(options["env"] or ()), *rest)


def _start(where: str, target: str, job: JobSpec, overrides: list[str], context: typer.Context) -> None:
    from maskwright.cli import ray
    from maskwright.launch.bucket import queue as pull
    from maskwright.launch.job import NAMELESS

    options = context.params
    if where == "spec":
        return print(job.to_json(), end="") if options["dry_run"] else pull.submit_spec(options["spec"], job)
    if where == "ray":
        gang = ray.gang_words(context)
        taken = {key: options[key] for key in ("address", "job_id", "working_dir", "follow", "dry_run")}
        asked = ray.Asked(gang=gang, **taken)
        return ray.submit(job, options["config"], options["run"], overrides, _values(job.environment), asked)
    if where in NAMELESS:
        return cluster.start(where, job, context)
    _on_slice(target, job, options)


def _on_slice(name: str, job: JobSpec, options: dict[str, Any]) -> None:
    from maskwright.launch.ssh import slice

    place = slice.Slice(name, options["zone"], options["project"], options["via"])
    values = _values(job.environment)
    if options["dry_run"]:
        return print(slice.dry_run(place, job))
    taken = {key: options[key] for key in ("replace", "connect_seconds", "restart_wait_seconds")}
    slice.submit(place, job, values, **taken)


def _values(names: tuple[str, ...]) -> dict[str, str]:
    from maskwright.core.errors import InputError

    if missing := [name for name in names if name not in os.environ]:
        raise InputError("is not set here", where=f"--env {missing[0]}", fix=f"export {missing[0]}=…")
    return {name: os.environ[name] for name in names}


@app.command("agent")
def agent(
    spec: Annotated[str, typer.Option("--spec", help="gs://bucket/folder/job.json that `submit --spec` writes.")],
    worker: Annotated[
        int | None,
        typer.Option(help="Number of this host, from 0; a TPU VM knows, others take a free one.", min=0),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Number of hosts; a TPU VM knows.", min=1)] = None,
    instance: Annotated[str | None, typer.Option(help="Name of this host; its own when not given.")] = None,
    idle_minutes: Annotated[
        float | None, typer.Option(help="End with 0 when there was no job for so long, and say so there.", min=0.0)
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End with the first submission, by its exit code.")] = False,
    poll_seconds: Annotated[float, typer.Option(help="How often to look.", min=0.1)] = 5.0,
) -> None:
    """Wait on a host for jobs that `submit --spec` leaves in a bucket, and run them. For a host's start-up script."""
    from maskwright.launch.bucket.agent import run_agent

    run_agent(spec, worker, workers, once=once, poll_seconds=poll_seconds, instance=instance, idle_minutes=idle_minutes)
