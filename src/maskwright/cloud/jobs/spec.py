"""Jobs on an environment: `submit --on lab.yaml`. What hosts need is put into the runs bucket, and they fetch it.

    gs://RUNS/jobs/slice/job.json                 the spec that the agents of the slice wait for (`launch/pull.py`)
    gs://RUNS/jobs/slice/configs/SHA256.yaml      the configuration, as it was when it was submitted
    gs://RUNS/runs/NAME/                          copies of the run's checkpoints: where another group goes on from

A slice or group runs one job at a time. `docs/google-cloud-jobs.md` tells the whole.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from maskwright.cloud.environment import Environment, Group, Slice, read_environment
from maskwright.core import storage
from maskwright.core.config import RunConfig, read_config
from maskwright.core.errors import InputError
from maskwright.core.folder import Folder
from maskwright.core.recipes import find_config
from maskwright.core.secrets import redact
from maskwright.launch import cluster
from maskwright.launch.bucket.queue import read_spec
from maskwright.launch.job import JobSpec

RESTARTS = 100
"""When not said otherwise: each preemption is one, and money is what ends too many."""
SEVERAL = (
    'exec "$@" --nodes "$MASKWRIGHT_WORKERS" --node-rank "$MASKWRIGHT_WORKER" --rendezvous "$MASKWRIGHT_RENDEZVOUS"'
)
"""Hosts are told of each other; the agent sets the variables. Slices too: whether JAX would find the hosts of an
instance group by itself could not be tried, and libtpu joins their chips either way."""


@dataclass(frozen=True)
class Place:
    """`location` of the environment's YAML; `kind` is slice or group."""

    location: str
    environment: Environment
    kind: str

    @property
    def hosts(self) -> Slice | Group:
        found = self.environment.hosts_of(self.kind)
        assert found is not None
        return found

    @property
    def jobs(self) -> str:
        return f"gs://{self.environment.runs_bucket}/jobs/{self.kind}"

    @property
    def folder(self) -> Folder:
        return Folder(self.jobs)


def find(location: str, target: str | None) -> Place:
    """Raises `InputError` where there is neither, or both and nobody says which."""
    environment = read_environment(location)
    there = [kind for kind in ("slice", "group") if environment.hosts_of(kind) is not None]
    if not there:
        raise InputError("has neither slice nor group", where=location, fix="write a section `slice:` or `group:`")
    if target is None and len(there) > 1:
        raise InputError("has a slice and a group", where=location, fix="--target slice, or --target group")
    if target is not None and target not in there:
        raise InputError(f"has no {target}", where="--target", fix=f"--target {there[0]}, or write it in {location}")
    return Place(location, environment, target or there[0])


@dataclass(frozen=True)
class Run:
    """What the command on the hosts is made of. `content` is the configuration's file."""

    config: str
    content: bytes
    directory: str
    overrides: tuple[str, ...]
    resolved: RunConfig


def prepare(place: Place, config: str, run: str, overrides: Sequence[str]) -> Run:
    """Checks here what would else be found out on hosts that cost money. Raises `InputError` kinds."""
    with storage.open_binary(find_config(config)) as file:
        content = file.read()
    resolved = read_config(config, list(overrides))
    if redact(text := content.decode("utf-8", "replace")) != text:
        raise InputError("holds a secret", where=config, fix="pass it on by its variable's name: --env NAME")
    _check_engine(place, resolved)
    directory, name = _directory(place, run)
    copies = [f"checkpoint.copy_to=gs://{place.environment.runs_bucket}/runs/{name}"]
    more = copies if resolved.checkpoint.copy_to is None else []
    address = f"{place.jobs}/configs/{hashlib.sha256(content).hexdigest()}.yaml"
    return Run(address, content, directory, (*overrides, *more), resolved)


def _check_engine(place: Place, config: RunConfig) -> None:
    engine, hosts = config.engine, place.hosts
    if isinstance(hosts, Slice):
        if engine.kind != "jax":
            raise InputError("is torch, and TPUs compute with jax", where="engine.kind", fix="--set engine.kind=jax")
        if engine.device not in ("auto", "tpu"):
            fix = "leave engine.device out"
            raise InputError(f"is {engine.device}, on a slice of TPUs", where="engine.device", fix=fix)
        devices = engine.devices or hosts.chips
        if config.batch.virtual_workers % devices:
            raise InputError(
                f"{config.batch.virtual_workers} virtual workers cannot be shared out evenly over {devices} chips",
                where="batch.virtual_workers",
                fix=f"take a multiple of {devices}, with fewer batch.micro_batch_rows for the same batch",
            )
    elif engine.device == "tpu":
        raise InputError("is tpu, on a group without TPUs", where="engine.device", fix="leave engine.device out")


def _directory(place: Place, run: str) -> tuple[str, str]:
    """On the hosts, and the run's name. A bare name lies on NFS where there is one; else on the host's own disk, which
    goes with it: the copies in the bucket are what lasts."""
    name = run.rstrip("/").rpartition("/")[2]
    if storage.is_url(run) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        fix = "a name, as roberta-1, or a folder on the hosts; copies lie in the runs bucket by themselves"
        raise InputError(f"{run[:80]!r} is no run directory on a host", where="--run", fix=fix)
    if "/" in run:
        return run, name
    nfs = place.environment.nfs is not None
    return (f"{place.environment.mount_point}/nfs_share/runs/{name}" if nfs else f"runs/{name}"), name


def spec(place: Place, run: Run, words: Sequence[str], job: JobSpec) -> JobSpec:
    """`job` with the command for all hosts: `words` are those of one machine. Raises `InputError`."""
    cluster.whole_grace_seconds(job, run.resolved)
    hosts = place.hosts
    command = tuple(words)
    if isinstance(hosts, Group):
        command = (*command, *cluster.sizes(run.resolved, hosts.hosts, hosts.gpus))
    if hosts.hosts > 1:
        command = ("sh", "-c", SEVERAL, "maskwright", *command)
    return replace(job, command=command)


def upload(place: Place, run: Run) -> None:
    """Content decides the name, so a configuration that hosts read is never changed."""
    place.folder.put(run.config.removeprefix(f"{place.jobs}/"), run.content)


# ---- looking at a job ----------------------------------------------------------------------------------------------


def require_spec(place: Place) -> JobSpec:
    found = read_spec(place.folder)
    if found is None:
        fix = f"maskwright submit CONFIG --run NAME --on {place.location}"
        raise InputError(f"nothing was submitted to its {place.kind} yet", where=place.location, fix=fix)
    return found
