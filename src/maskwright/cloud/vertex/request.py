"""`submit --on vertex`: a custom job of Vertex AI, on CPUs, GPUs or a TPU slice, as the body of its REST request.

Sources, read in 2026: the API's discovery document (aiplatform v1), cloud.google.com/vertex-ai/docs/training/
{configure-compute, distributed-training, training-with-tpu-vm, schedule-jobs-dws, train-nfs-share}. None of it was run
on Google Cloud by us.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from maskwright.cloud import machines
from maskwright.core.config import RunConfig
from maskwright.core.errors import InputError
from maskwright.core.secrets import SECRET_VARIABLE, redact
from maskwright.core.storage import is_url
from maskwright.launch import cluster
from maskwright.launch.job import JobSpec

BUCKETS, NFS, SCRATCH = "/gcs", "/mnt/nfs", "/tmp"
"""In a container: every bucket that the job's account may read (Cloud Storage FUSE), NFS mounts, what goes with it."""
CPU_MACHINE = "n2-standard-8"
TPU_MACHINES = {
    "v5e": {1: "ct5lp-hightpu-1t", 4: "ct5lp-hightpu-4t", 8: "ct5lp-hightpu-8t"},
    "v6e": machines.TPUS["v6e"].machines,
}
"""Kinds that Vertex AI has, by the chips of a machine."""
TPU_TOPOLOGIES = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
"""Of both kinds; all but the first three are of several machines, each with 4 chips."""
LONGEST_HOURS = 168.0
"""Seven days: a job's default, and the most that FLEX_START has."""
SAVING_SECONDS = 1_800
"""Between --max-hours, when a run saves and stops, and Google's timeout: for starting, pulling the image and saving."""
SUBMISSION_LABEL = "maskwright-submission"


@dataclass(frozen=True)
class Nfs:
    server: str
    path: str
    folder: str


@dataclass(frozen=True)
class Place:
    """`num_workers` machines with `gpus` each; `accelerator` and `topology` for a TPU slice, whose machines follow from
    it. `network`: that NFS servers are in, projects/NUMBER/global/networks/NAME. `staging`: gs:// folder for the
    configuration. `wait_hours`: for FLEX_START, in the queue."""

    project: str
    region: str
    name: str
    image: str
    num_workers: int = 1
    gpus: int = 0
    machine_type: str | None = None
    accelerator: str | None = None
    topology: str | None = None
    strategy: str = "STANDARD"
    wait_hours: float | None = None
    nfs: tuple[Nfs, ...] = ()
    network: str | None = None
    service_account: str | None = None
    staging: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def tpu(self) -> bool:
        return self.accelerator in machines.TPUS

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z]+-[a-z]+[0-9]+", self.region):
            raise InputError(f"{self.region[:40]!r} is no region", where="--region", fix="as in us-central1")
        if not re.fullmatch(r"[^\s]+", self.image):
            fix = "--image REGION-docker.pkg.dev/PROJECT/REPOSITORY/maskwright:TAG; `maskwright env image` builds one"
            raise InputError("no image is given", where="--image", fix=fix)
        if self.staging is not None and not self.staging.startswith("gs://"):
            raise InputError(
                f"{self.staging[:80]!r} is no bucket", where="--staging", fix="--staging gs://bucket/folder"
            )
        if self.nfs and self.network is None:
            fix = "--network projects/NUMBER/global/networks/NAME, one that is peered with Vertex AI"
            raise InputError("needs the network that the server is in", where="--nfs", fix=fix)
        if (self.strategy == "FLEX_START") != (self.wait_hours is not None):
            fix = "--strategy FLEX_START --wait-hours 24, both or neither; 0 waits for ever"
            raise InputError("goes with FLEX_START, and it with --wait-hours", where="--wait-hours", fix=fix)
        self._check_tpu()

    def _check_tpu(self) -> None:
        if not self.tpu:
            if self.topology is not None:
                fix = "--accelerator v6e --topology 4x4"
                raise InputError("is of a TPU slice, and --accelerator names none", where="--topology", fix=fix)
            return
        kind = str(self.accelerator)
        if kind not in TPU_MACHINES:
            fix = f"{' or '.join(TPU_MACHINES)} here; for {kind} an environment: docs/google-cloud.md"
            raise InputError(f"Vertex AI has no {kind}", where="--accelerator", fix=fix)
        if self.topology is None:
            raise InputError(
                "a slice needs its topology", where="--topology", fix=f"--accelerator {kind} --topology 4x4"
            )
        if self.topology not in TPU_TOPOLOGIES:
            what, fix = f"{self.topology[:20]!r} is no slice of {kind}", f"one of {', '.join(TPU_TOPOLOGIES)}"
            raise InputError(what, where="--topology", fix=fix)
        if self.num_workers != 1 or self.gpus:
            fix = "leave them out: the topology says how many machines there are"
            raise InputError("do not go with a TPU slice", where="--num-workers, --gpus-per-worker", fix=fix)


def machine_spec(place: Place) -> dict[str, Any]:
    """Of each worker. Accelerator-optimised machines have their GPUs built in; N1 takes what --accelerator names."""
    if place.tpu:
        sizes, chips = TPU_MACHINES[str(place.accelerator)], machines.chips(str(place.topology))
        machine = place.machine_type or sizes.get(chips, sizes[4])
        fitting = [name for size, name in sizes.items() if size == chips or (size == 4 and chips > 4)]
        if machine not in fitting:
            what, fix = (
                f"{machine} makes no {place.accelerator} {place.topology}",
                f"{' or '.join(fitting)}, or leave it out",
            )
            raise InputError(what, where="--machine-type", fix=fix)
        return {"machineType": machine, "tpuTopology": place.topology}
    if not place.gpus:
        if place.accelerator is not None or place.machine_type in machines.GPUS:
            fix = "--gpus-per-worker N, as many as the run computes on"
            raise InputError("asks for GPUs that nothing would compute on", where="--gpus-per-worker", fix=fix)
        return {"machineType": place.machine_type or CPU_MACHINE}
    machine = place.machine_type or ""
    built_in, count = machines.GPUS.get(machine, ("", 0))
    name = (place.accelerator or built_in).upper().replace("-", "_")
    if not machine or not name:
        fix = "--machine-type g2-standard-12, or --machine-type n1-standard-8 --accelerator NVIDIA_TESLA_T4"
        raise InputError("which machine and which GPU?", where="--machine-type", fix=fix)
    if built_in and name != built_in.upper().replace("-", "_"):
        fix = "leave it out, or take an N1 machine"
        raise InputError(f"{machine} has {built_in} built in", where="--accelerator", fix=fix)
    if count and place.gpus != count:
        fix = f"--gpus-per-worker {count}, or another machine type"
        raise InputError(f"{machine} has {count} GPUs", where="--gpus-per-worker", fix=fix)
    return {"machineType": machine, "acceleratorType": name, "acceleratorCount": place.gpus}


def scheduling(place: Place, spec: JobSpec) -> dict[str, Any]:
    """`--restarts 0`: never begun again; else the whole job is, when a machine was lost, as often as Google likes."""
    asked = cluster.words_of(spec.command, "--max-hours")
    hours = float(asked[0]) if asked else None
    if place.strategy == "FLEX_START" and place.machine_type not in machines.GPUS:
        fix = "--machine-type g2-standard-12 and the like with --gpus-per-worker, or --spot"
        raise InputError("is for L4, A100, H100, H200 and B200 alone", where="--strategy FLEX_START", fix=fix)
    if hours is None and place.strategy == "FLEX_START":
        fix = f"--max-hours N, up to {LONGEST_HOURS - SAVING_SECONDS / 3600:g}"
        raise InputError("FLEX_START needs to know for how long", where="--max-hours", fix=fix)
    if hours is not None and hours * 3600 + SAVING_SECONDS > LONGEST_HOURS * 3600:
        fix = f"up to {LONGEST_HOURS - SAVING_SECONDS / 3600:g}; the same command goes on with the run"
        raise InputError(f"{hours:g} h are more than Vertex AI gives a job", where="--max-hours", fix=fix)
    again = {"restartJobOnWorkerRestart": True} if spec.restarts else {"disableRetries": True}
    return {
        "strategy": place.strategy,
        **again,
        **({"timeout": f"{hours * 3600 + SAVING_SECONDS:.0f}s"} if hours is not None else {}),
        **({"maxWaitDuration": f"{place.wait_hours * 3600:.0f}s"} if place.wait_hours is not None else {}),
    }


def variables(names: tuple[str, ...], environ: Mapping[str, str]) -> list[dict[str, str]]:
    """Of --env. The body of a job can be read by whoever may see jobs, so a secret is refused."""
    found = []
    for name in names:
        value = environ[name]
        if SECRET_VARIABLE.search(name) or redact(value) != value:
            fix = "keep it in Secret Manager and read it in the container, as docs/vertex.md shows"
            raise InputError("is a secret, and a job's variables can be read by others", where=f"--env {name}", fix=fix)
        found.append({"name": name, "value": value.replace("$(", "$$(")})  # "$(" names another variable there
    return found


def staged(place: Place, config_location: str, text: str) -> str:
    """gs:// of the configuration as the containers read it; under a name by its content, so that a job that runs keeps
    what it was started with."""
    if config_location.startswith("gs://"):
        return config_location
    if place.staging is None:
        fix = "--staging gs://bucket/folder, or give CONFIG as gs://…"
        raise InputError("is not where the containers are", where=config_location, fix=fix)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    stem = re.sub(r"[^A-Za-z0-9._-]", "-", os.path.splitext(os.path.basename(config_location))[0])
    return f"{place.staging.rstrip('/')}/{stem}-{digest}.yaml"


def check_paths(place: Place, config: RunConfig, run: str) -> None:
    """Raises `InputError` when the run or its data would not be there in a container, or gone with it."""
    mounts = [mount.folder for mount in place.nfs]
    kept = [*mounts, *([SCRATCH] if config.checkpoint.copy_to else [])]
    if ".." in run.split("/") or not any(run.startswith(folder + "/") for folder in kept):
        fix = "inside a --nfs mount; or inside /tmp with --set checkpoint.copy_to=gs://…, from where it continues"
        raise InputError(f"{run} would be lost with its machine", where="--run", fix=fix)
    for key, path in (("data.store", config.data.store), ("model.init_from", config.model.init_from)):
        if not path:
            continue
        if path.startswith("gs://"):
            fix = f"--set {key}={BUCKETS}/{path.removeprefix('gs://')}, where Vertex AI mounts the bucket"
            raise InputError("is read as a folder there", where=key, fix=fix)
        if is_url(path) or not any(path.startswith(folder + "/") for folder in (BUCKETS, *mounts)):
            fix = f"--set {key}={BUCKETS}/BUCKET/…, or inside a --nfs mount"
            raise InputError(f"{path} is not in a container", where=key, fix=fix)


def sizes(place: Place, config: RunConfig) -> list[str]:
    """Words of `pretrain` that say what each machine computes on."""
    if not place.tpu:
        return cluster.sizes(config, place.num_workers, place.gpus)
    if config.engine.kind != "jax" or config.engine.device not in ("auto", "tpu"):
        raise InputError("a TPU is for jax", where="engine.kind", fix="--set engine.kind=jax, and engine.device auto")
    return ["--set", "engine.device=tpu"]


def body(place: Place, spec: JobSpec, environ: Mapping[str, str], submission: str) -> tuple[dict[str, Any], str, str]:
    """The request; where the configuration has to lie, and its text. Raises `InputError` for what could not work."""
    config, text = cluster.read(spec)
    check_paths(place, config, cluster.words_of(spec.command, "--run")[0])
    where = staged(place, spec.command[2], text)
    words = [spec.command[0], spec.command[1], where, *spec.command[3:], *sizes(place, config)]
    if any("$(" in word for word in (*words, spec.setup or "")):
        raise InputError("holds $(, which Vertex AI may replace", where="the command", fix="write it in CONFIG instead")
    container: dict[str, Any] = {"imageUri": place.image, **_command(place, spec, words)}
    if given := variables(spec.environment, environ):
        container["env"] = given
    pool: dict[str, Any] = {"machineSpec": machine_spec(place), "replicaCount": "1", "containerSpec": container}
    if place.nfs:
        pool["nfsMounts"] = [{"server": one.server, "path": one.path, "mountPoint": one.folder} for one in place.nfs]
    # The first pool is the one machine that the others meet; a TPU slice is one replica, however many machines it has.
    pools = [pool, *([{**pool, "replicaCount": str(place.num_workers - 1)}] if place.num_workers > 1 else [])]
    job: dict[str, Any] = {"workerPoolSpecs": pools, "scheduling": scheduling(place, spec)}
    job |= {"serviceAccount": place.service_account} if place.service_account else {}
    job |= {"network": place.network} if place.network else {}
    shown = {"--label": "\n".join(place.labels.values()), "--image": place.image, "--name": place.name}
    for option, value in shown.items():
        if redact(value) != value:
            fix = "keep it in Secret Manager, as docs/vertex.md shows"
            raise InputError("holds a secret, and whoever may see jobs can read it", where=option, fix=fix)
    labels = {**place.labels, SUBMISSION_LABEL: submission}
    return {"displayName": place.name, "labels": labels, "jobSpec": job}, where, text


def _command(place: Place, spec: JobSpec, words: list[str]) -> dict[str, list[str]]:
    """The hosts of a TPU slice find each other by themselves."""
    node = [] if place.tpu else ["python", "-m", "maskwright.cloud.vertex.node"]
    if spec.setup is None:
        first, *rest = [*node, *words]
        return {"command": [first], "args": rest}
    return {"command": ["sh", "-c", 'sh -c "$0" && exec "$@"', spec.setup], "args": [*node, *words]}
