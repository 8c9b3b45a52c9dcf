"""`submit vertex`: a custom job of Vertex AI, on CPUs, GPUs or a TPU slice.

Sources, read in 2026: the API's discovery document (aiplatform v1), cloud.google.com/vertex-ai/docs/training/
{configure-compute, distributed-training, training-with-tpu-vm, schedule-jobs-dws}. None of it was run on Google
Cloud by us.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from maskwright.cloud import machines
from maskwright.cloud.google.rest import bucket_folder
from maskwright.cloud.vertex.jobs import SUBMISSION_LABEL, VertexJobTarget, create
from maskwright.config.settings import Refused
from maskwright.core.console import say
from maskwright.core.errors import InputError
from maskwright.core.secrets import redact
from maskwright.launch import checks, target
from maskwright.launch.target import Env, JobName, OnSubmission, Option, Place, Submission, Training, show
from maskwright.machine import tpus
from maskwright.machine.tpus import TPUS

BUCKETS, SCRATCH = "/gcs", "/tmp"
"""Folders in a container: all buckets that the job's account may read (Cloud Storage FUSE), and the container's own
disk, which is deleted with it."""
CPU_MACHINE = "n2-standard-8"
TPU_KINDS = ("v5e", "v6e")
LONGEST_HOURS = 168.0
"""Seven days: a job's default, and the limit of FLEX_START."""
PROJECTS = ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT")


@dataclass(frozen=True)
class Vertex(Place):
    region: Annotated[str, Option("Region of the job, such as us-central1.", "NAME")]
    image: Annotated[str, Option("Container image with maskwright; build one with `maskwright image`.", "IMAGE")]
    project: Annotated[str | None, Option("Project of the job. Default: GOOGLE_CLOUD_PROJECT.", "NAME")] = None
    staging: Annotated[str | None, Option("Folder in a bucket, gs://…, to copy CONFIG to.", "URL")] = None
    num_nodes: Annotated[int, Option("Machines that train together.", "N", min=1)] = 1
    machine_type: Annotated[str | None, Option("Machine type. For a TPU slice, --accelerator decides.", "NAME")] = None
    accelerator: Annotated[
        str | None, Option("TPU slice, such as v6e:4x4, or GPUs of an N1 machine, such as NVIDIA_TESLA_T4:2.", "KIND:N")
    ] = None
    strategy: Annotated[
        Literal["STANDARD", "SPOT", "FLEX_START"], Option("How Google provides machines. SPOT ones may be preempted.")
    ] = "STANDARD"
    wait_hours: Annotated[
        float | None, Option("Maximum hours to wait for FLEX_START machines; 0 waits without a limit.", "N", min=0.0)
    ] = None
    service_account: Annotated[str | None, Option("Service account of the job.", "NAME")] = None
    name: JobName = None
    label: Annotated[tuple[str, ...], Option("Label of the job.", "KEY=VALUE")] = ()
    env: Env = ()

    leaves_out = frozenset({"profile_steps"})
    shown_by: ClassVar[str] = "Vertex AI"
    passing_secrets: ClassVar[str] = "keep it in Secret Manager and read it in the container, as docs/vertex.md shows"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z]+-[a-z]+[0-9]+", self.region):
            raise InputError(f"{self.region[:40]!r} is not a region", where="--region", fix="as in us-central1")
        for option, text in (("--image", self.image), *(("--label", label) for label in self.label)):
            if redact(text) != text:
                fix = "leave it out"
                raise InputError("holds a secret, and everyone who may see jobs can read it", where=option, fix=fix)
        if (self.strategy == "FLEX_START") != (self.wait_hours is not None):
            fix = "give both or neither: --strategy FLEX_START --wait-hours 24 (0 waits without a limit)"
            raise InputError("--wait-hours and FLEX_START need each other", where="--wait-hours", fix=fix)

    def submit(self, command: Training, *, dry_run: bool, on_submission: OnSubmission = show) -> None:
        """Submit the job and follow it. Its exit code is this command's."""
        project = self.project or next((os.environ[name] for name in PROJECTS if os.environ.get(name)), None)
        if project is None:
            raise InputError("is missing", where="--project", fix=f"give --project NAME, or export {PROJECTS[0]}=NAME")
        request, where, text = body(self, command, uuid.uuid4().hex)
        if dry_run:
            checks.warn_of_trackers(command)
            text = json.dumps(request, indent=2, ensure_ascii=False)
            on_submission(Submission(False, f"{project}/{self.region}", command.run, shown=text))
            return
        folder, _, name = where.rpartition("/")
        if self.staging is not None and folder == self.staging.rstrip("/"):
            bucket_folder(folder).put(name, text.encode())
        job = create(project, self.region, request)
        follow, end = target.commands_of(job.target)
        say(f"{job.target}: submitted; `{end}` stops it")
        on_submission(Submission(True, f"{project}/{self.region}", command.run, job.target, follow, end))
        VertexJobTarget(job.target).follow()

    @property
    def slice(self) -> tuple[str, str] | None:
        """Kind and topology of a TPU slice."""
        kind, _, topology = (self.accelerator or "").lower().partition(":")
        return (kind, topology) if kind in TPUS else None


def machine_spec(place: Vertex) -> tuple[dict[str, Any], int]:
    """The machineSpec of each machine, and its number of GPUs. Accelerator-optimised machines have theirs built in; N1
    machines get the GPUs of --accelerator."""
    if place.slice is not None:
        return _slice_spec(place, *place.slice), 0
    machine = place.machine_type or CPU_MACHINE
    name, count = machines.GPUS.get(machine, ("", 0))
    if place.accelerator is not None:
        if name:
            fix = "leave it out, or use an N1 machine"
            raise InputError(f"{machine} has {count} {name} built in", where="--accelerator", fix=fix)
        given, _, number = place.accelerator.partition(":")
        name = given.lower().replace("_", "-")
        count = int(number) if number.isdecimal() else 1
        if place.machine_type is None or number not in ("", str(count)) or count not in machines.ATTACHED.get(name, ()):
            known = ", ".join(f"{_name(gpu)}:{max(counts)}" for gpu, counts in machines.ATTACHED.items())
            fix = f"use --machine-type n1-standard-8 --accelerator with up to {known}, or a TPU slice such as v6e:4x4"
            what = f"{place.accelerator[:40]!r} cannot be attached to {place.machine_type or 'the default machine'}"
            raise InputError(what, where="--accelerator", fix=fix)
    gpus = {"acceleratorType": _name(name), "acceleratorCount": count} if count else {}
    return {"machineType": machine, **gpus}, count


def _name(gpu: str) -> str:
    """Vertex AI's name for a kind of GPU of Compute Engine."""
    return gpu.upper().replace("-", "_")


def _slice_spec(place: Vertex, kind: str, topology: str) -> dict[str, Any]:
    if kind not in TPU_KINDS:
        elsewhere = "submit kubernetes" if TPUS[kind].gke_label else "submit slice"
        what = f"Vertex AI documents JAX only for {' and '.join(TPU_KINDS)}, not for {kind}"
        raise InputError(what, where="--accelerator", fix=f"use one of these, or `maskwright {elsewhere}`")
    checks.tpu_slice(f"{kind}:{topology}", TPU_KINDS)
    if place.num_nodes != 1:
        fix = "leave it out, since the topology gives the number of machines"
        raise InputError("cannot be given with a TPU slice", where="--num-nodes", fix=fix)
    try:
        size = machines.chips_per_host(kind, topology, place.machine_type)
    except Refused as error:
        raise InputError(str(error), where="--machine-type", fix=error.fix) from None
    return {"machineType": TPUS[kind].machines[size], "tpuTopology": topology}


def scheduling(place: Vertex, hours: float | None) -> dict[str, Any]:
    """The request's scheduling: Google restarts the whole job after losing a machine, without a limit."""
    if place.strategy == "FLEX_START" and place.machine_type not in machines.GPUS:
        fix = "give a --machine-type such as g2-standard-12, or --strategy SPOT"
        raise InputError("is only for L4, A100, H100, H200 and B200", where="--strategy FLEX_START", fix=fix)
    if hours is None and place.strategy == "FLEX_START":
        fix = f"--stop-after-hours N, up to {LONGEST_HOURS - checks.SAVING_SECONDS / 3600:g}"
        raise InputError("is required by FLEX_START", where="--stop-after-hours", fix=fix)
    if hours is not None and hours * 3600 + checks.SAVING_SECONDS > LONGEST_HOURS * 3600:
        fix = f"up to {LONGEST_HOURS - checks.SAVING_SECONDS / 3600:g}; the same command continues the run"
        raise InputError(f"{hours:g} h is more than Vertex AI allows", where="--stop-after-hours", fix=fix)
    made: dict[str, Any] = {"strategy": place.strategy, "restartJobOnWorkerRestart": True}
    if hours is not None:
        made["timeout"] = f"{hours * 3600 + checks.SAVING_SECONDS:.0f}s"
    if place.wait_hours is not None:
        made["maxWaitDuration"] = f"{place.wait_hours * 3600:.0f}s"
    return made


def staged(place: Vertex, config_location: str, text: str) -> str:
    """Address gs://… from which containers read the configuration. Its name has a digest of the content, so a running
    job keeps its configuration."""
    if config_location.startswith("gs://"):
        return config_location
    if place.staging is None:
        fix = "add --staging gs://bucket/folder, or give CONFIG as gs://…"
        raise InputError("cannot be read by the containers", where=config_location, fix=fix)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    stem = re.sub(r"[^A-Za-z0-9._-]", "-", os.path.splitext(os.path.basename(config_location))[0])
    return f"{place.staging.rstrip('/')}/{stem}-{digest}.yaml"


def parse_label(text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", key) or not re.fullmatch(r"[a-z0-9_-]{0,63}", value):
        fix = "write it as --label team=nlp, with lower-case letters, digits, _ and -"
        raise InputError(f"{text[:120]!r} is not KEY=VALUE", where="--label", fix=fix)
    return key, value


def check_paths(locations: Mapping[str, str], run: str, copied: bool) -> None:
    """Raises `InputError` if a container cannot read the data, or if the run would be deleted with it. `locations`: see
    `checks.locations`; `copied`: whether checkpoints are copied elsewhere."""
    fix = "inside /tmp with --set checkpoint.copy_to=gs://…, from which it continues"
    checks.require_kept(run, [SCRATCH] if copied else [], "machine", fix)

    def mounted(key: str, path: str) -> str:
        there = path.removeprefix("gs://") if path.startswith("gs://") else "BUCKET/…"
        return f"{checks.setting(key, f'{BUCKETS}/{there}')}, where Vertex AI mounts buckets"

    checks.require_seen(locations, [BUCKETS], "container", mounted)


def body(place: Vertex, command: Training, submission: str) -> tuple[dict[str, Any], str, str]:
    """The request, the address for the configuration, and its text. Raises `InputError` for a job that cannot work."""
    config, text = checks.read(command)
    check_paths(checks.locations(command, config), command.run, bool(config.checkpoint.copy_to))
    where = staged(place, command.config, text)
    machine, gpus = machine_spec(place)
    if place.slice is None:
        sized = checks.sized(command, config, place.num_nodes, gpus)
    else:
        sized = checks.for_tpu(command, config, tpus.devices(*place.slice))
    words = ["maskwright", *replace(sized, config=where).words()]
    if any("$(" in word for word in words):
        fix = "write it in CONFIG instead"
        raise InputError("contains $(, which Vertex AI may replace", where="the command", fix=fix)
    arguments = ["-P", "-m", "maskwright.cloud.vertex.node", *words]
    container: dict[str, Any] = {"imageUri": place.image, "command": ["python"], "args": arguments}
    values = target.values_of(place, place.env)
    if values:  # "$(" would refer to another variable
        container["env"] = [{"name": name, "value": value.replace("$(", "$$(")} for name, value in values.items()]
    pool: dict[str, Any] = {"machineSpec": machine, "replicaCount": "1", "containerSpec": container}
    # The first pool is the machine of the rendezvous. A TPU slice is one replica, however many machines it has.
    pools = [pool, *([{**pool, "replicaCount": str(place.num_nodes - 1)}] if place.num_nodes > 1 else [])]
    job: dict[str, Any] = {"workerPoolSpecs": pools, "scheduling": scheduling(place, command.stop_after_hours)}
    job |= {"serviceAccount": place.service_account} if place.service_account else {}
    labels = {**dict(map(parse_label, place.label)), SUBMISSION_LABEL: submission}
    return {"displayName": checks.name_for(command.run, place.name), "labels": labels, "jobSpec": job}, where, text
