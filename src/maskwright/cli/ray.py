"""Ray on the command line: what `submit`, `pretrain` and `stop` hand over, and `list`."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from maskwright.cli.options import Address, AsJson, app, pretrain_words, print_result

if TYPE_CHECKING:
    from maskwright.core.config import RunConfig
    from maskwright.launch.job import JobSpec


class Asked(NamedTuple):
    """The options of `submit` that only Ray has, and those that say how."""

    address: str | None
    job_id: str | None
    working_dir: str | None
    gang: list[str]
    follow: bool
    dry_run: bool


def gang_words(context: typer.Context) -> list[str]:
    """`--num-workers` and `--gpus-per-worker` where they were given; what was not, the cluster decides."""
    names = ("num_workers", "gpus_per_worker")
    sources = {name: context.get_parameter_source(name) for name in names}
    given = [name for name, source in sources.items() if source is not None and source.name != "DEFAULT"]
    return [word for name in given for word in (f"--{name.replace('_', '-')}", str(context.params[name]))]


class Gang(NamedTuple):
    """The options of `pretrain` that say who trains, and for how long."""

    num_workers: int | None
    gpus_per_worker: int | None
    max_hours: float | None
    max_steps: int | None
    profile_steps: int

    def limits(self) -> list[str]:
        named = {"--max-hours": self.max_hours, "--max-steps": self.max_steps}
        named["--profile-steps"] = self.profile_steps or None
        return [word for name, value in named.items() if value is not None for word in (name, str(value))]


def submit(job: JobSpec, config: str, run: str, set_: list[str], values: Mapping[str, str], asked: Asked) -> None:
    from maskwright.core import storage
    from maskwright.core.config import read_config
    from maskwright.core.errors import InputError
    from maskwright.core.recipes import find_config
    from maskwright.launch import cluster
    from maskwright.launch.ray import gang as ray_gang
    from maskwright.launch.ray import submit as ray_submit

    if job.setup is not None:
        fix = "install it in the image of the cluster: a job that installs at run time fails with the network"
        raise InputError("is not for Ray", where="--setup", fix=fix)
    config = find_config(config)
    resolved = read_config(config, set_)
    ray_gang.require_lasting(run, resolved.data.store, resolved.model.init_from, asked.working_dir)
    name = os.path.basename(config)
    with storage.open_binary(config) as file:
        content = file.read()
    cluster.read(job)  # which refuses a file that holds a secret
    submission = ray_submit.Submission(
        arguments=("pretrain", name, *job.command[3:], *asked.gang),
        run=run,
        config_name=name,
        config=content,
        working_dir=asked.working_dir,
        values=values,
        restarts=job.restarts,
        grace_seconds=max(job.grace_seconds, ray_gang.grace_seconds(resolved.checkpoint.grace_seconds)),
        id=asked.job_id,
    )
    if asked.dry_run:
        print(ray_submit.describe(submission, asked.address))
        return
    name = ray_submit.submit(submission, asked.address, follow_it=asked.follow)
    if not asked.follow:
        print(name)


def train_as_a_job(resolved: RunConfig, config: str, run: str, set_: list[str], gang: Gang) -> bool:
    """Whether this is the driver of a Ray job; then the gang has trained."""
    from maskwright.core import storage
    from maskwright.core.errors import InputError
    from maskwright.core.recipes import find_config
    from maskwright.launch.ray import gang as ray_gang

    if ray_gang.job_id() is None:
        if (gang.num_workers, gang.gpus_per_worker) != (None, None):
            fix = "start it with `maskwright submit … --on ray`, or `ray job submit … -- maskwright pretrain …`"
            raise InputError("is for a Ray job, and this is none", where="--num-workers, --gpus-per-worker", fix=fix)
        return False
    ray_gang.require_lasting(run, resolved.data.store, resolved.model.init_from, os.getcwd())
    config = find_config(config)
    name = os.path.basename(config)
    with storage.open_binary(config) as file:
        command = ray_gang.Command(
            arguments=(*pretrain_words(f"{{files}}/{name}", run, set_), *gang.limits()),
            run=run,
            files={name: file.read()},
            grace_seconds=ray_gang.grace_seconds(resolved.checkpoint.grace_seconds),
            one_process=resolved.engine.kind == "jax",
        )
    gpus = gang.gpus_per_worker
    if resolved.engine.device == "cpu":
        if gpus:
            raise InputError(f"is cpu, and --gpus-per-worker is {gpus}", where="engine.device", fix="leave one out")
        gpus = 0
    ray_gang.train(command, gang.num_workers, gpus, resolved.batch.virtual_workers)
    return True


def status(target: str, as_json: bool, address: str | None) -> None:
    from maskwright.launch.ray import jobs as ray_jobs

    found = ray_jobs.status(ray_jobs.parse_id(target), address)
    print_result(ray_jobs.describe_jobs([found]), dataclasses.asdict(found), as_json)


def logs(target: str, follow: bool, lines: int | None, address: str | None) -> None:
    from maskwright.core.errors import InputError
    from maskwright.launch.ray import jobs as ray_jobs

    if lines is not None:
        raise InputError("is for a run directory", where="--lines", fix="leave it out, or give RUN")
    ray_jobs.logs(ray_jobs.parse_id(target), follow_it=follow, address=address)


def stop(target: str, checkpoint: bool, wait_seconds: float, address: str | None) -> None:
    from maskwright.core.errors import InputError
    from maskwright.launch.ray import jobs as ray_jobs

    job = ray_jobs.parse_id(target)
    if checkpoint:
        raise InputError("is for a run directory", where="--checkpoint", fix="give RUN, from a machine that sees it")
    found = ray_jobs.stop(job, address, wait_seconds=wait_seconds)
    print(f"ray:{job}: {found.state}")


@app.command("list")
def list_(
    on: Annotated[str, typer.Option("--on", help="Where: ray.")] = "ray",
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """The jobs that were submitted to a cluster."""
    from maskwright.core.errors import InputError
    from maskwright.launch.ray import jobs as ray_jobs

    if on != "ray":
        raise InputError(f"{on[:40]!r} keeps no list of jobs", where="--on", fix="--on ray")
    jobs = ray_jobs.list_jobs(address)
    if as_json:
        print(json.dumps([dataclasses.asdict(job) for job in jobs], indent=2))
    else:
        print(ray_jobs.describe_jobs(jobs))
