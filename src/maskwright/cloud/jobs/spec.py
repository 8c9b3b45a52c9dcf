"""Jobs on an environment: `submit env lab.yaml` uploads what hosts need.

    gs://JOBS/slice/job.json                      the spec that the agents of the slice wait for (`launch/bucket`)
    gs://JOBS/slice/configs/SHA256.yaml           the configuration at the time of submission
    gs://RUNS/runs/NAME/                          copies of the run's checkpoints, from which other hosts continue

A slice or group runs one job at a time. `docs/google-cloud-jobs.md` has everything else.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, replace

from maskwright.cloud.environment import Environment, Group, Slice, read_environment
from maskwright.cloud.jobs import inputs
from maskwright.config.pretraining import RunConfig
from maskwright.core import storage
from maskwright.core.errors import InputError
from maskwright.core.folder import Folder
from maskwright.launch import checks
from maskwright.launch.target import Training


@dataclass(frozen=True)
class JobHosts:
    """The slice or group that a job runs on."""

    location: str
    """YAML of the environment."""
    environment: Environment
    kind: str
    """slice or group"""

    @property
    def hosts(self) -> Slice | Group:
        return self.environment.hosts[self.kind]

    @property
    def jobs(self) -> str:
        return f"gs://{self.environment.jobs_bucket}/{self.kind}"

    @property
    def folder(self) -> Folder:
        return Folder(self.jobs)


def find(location: str, target: str | None) -> JobHosts:
    """Raises `InputError` if there is neither slice nor group, or both and no `target`."""
    environment = read_environment(location)
    kinds = [*environment.hosts]
    if not kinds:
        raise InputError("has neither slice nor group", where=location, fix="add a section `slice:` or `group:`")
    if target is None and len(kinds) > 1:
        raise InputError("has a slice and a group", where=location, fix="--target slice, or --target group")
    if target is not None and target not in kinds:
        raise InputError(f"has no {target}", where="--target", fix=f"--target {kinds[0]}, or add it to {location}")
    return JobHosts(location, environment, target or kinds[0])


@dataclass(frozen=True)
class PreparedJob:
    """A command for the hosts, and the text of its configuration, which they fetch."""

    command: Training
    text: str
    grace_seconds: float


def prepare(place: JobHosts, command: Training) -> PreparedJob:
    """Check the job before hosts cost money. Raises `InputError` or a subclass."""
    config, text = checks.read(command)
    if isinstance(hosts := place.hosts, Slice):
        command = checks.for_tpu(command, config, hosts.devices)
    else:
        command = checks.sized(command, config, hosts.hosts, hosts.gpus)
    data = config.data.format if isinstance(config, RunConfig) else "labelled"
    inputs.require_there(place.environment, checks.locations(command, config), data)
    directory, name = _directory(place, command.run)
    if config.checkpoint.copy_to is None:
        command = command.setting(f"checkpoint.copy_to=gs://{place.environment.runs_bucket}/runs/{name}")
    # The name is a digest of the content, so a configuration that hosts read never changes.
    address = f"{place.jobs}/configs/{hashlib.sha256(text.encode()).hexdigest()}.yaml"
    # The watcher counts the hours, over all attempts.
    command = replace(command, config=address, run=directory, stop_after_hours=None)
    return PreparedJob(command, text, checks.grace_seconds(config))


def _directory(place: JobHosts, run: str) -> tuple[str, str]:
    """The run directory on the hosts, and the name of its copies. A bare name lies on NFS if there is one, else on the
    host's own disk, which is deleted with its host: then only the copies in the bucket last. Of a path, the copies have
    a digest in their name, since other folders may have the same last name."""
    name = run.rstrip("/").rpartition("/")[2]
    if storage.is_url(run) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        fix = "a name, as roberta-1, or a folder on the hosts; copies go to the runs bucket by themselves"
        raise InputError(f"{run[:80]!r} is not a run directory on a host", where="--run", fix=fix)
    if "/" in run:
        return run, f"{name}-{hashlib.sha256(os.path.normpath(run).encode()).hexdigest()[:8]}"
    nfs = place.environment.nfs is not None
    return (f"{place.environment.mount_point}/nfs_share/runs/{name}" if nfs else f"runs/{name}"), name


def upload(place: JobHosts, prepared: PreparedJob) -> None:
    place.folder.put(prepared.command.config.removeprefix(f"{place.jobs}/"), prepared.text.encode())
