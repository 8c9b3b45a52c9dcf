"""`submit --on skypilot --dry-run`: a task for `sky jobs launch`. Only written: SkyPilot is the one to start it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

import yaml

from maskwright.core.errors import InputError
from maskwright.launch import cluster
from maskwright.launch.job import JobSpec

CONFIG = "~/maskwright-run.yaml"


@dataclass(frozen=True)
class Place:
    """`accelerator` as SkyPilot calls it (`sky show-gpus`). `mounts`: buckets as (URL, folder)."""

    name: str
    num_workers: int = 1
    gpus: int = 0
    accelerator: str | None = None
    spot: bool = False
    cpus: str | None = None
    buckets: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if (self.accelerator is None) != (self.gpus == 0):
            fix = "--accelerator H100 --gpus-per-worker 8, or neither"
            raise InputError("an accelerator and how many go together", where="--accelerator", fix=fix)


def task(place: Place, spec: JobSpec) -> dict[str, Any]:
    """Raises `InputError` where the run would be lost with its machines."""
    config, _ = cluster.read(spec)
    cluster.whole_grace_seconds(spec, config)
    again = "every end with 75 begins the job again. Set schedule.steps, or `sky jobs cancel`"
    cluster.refuse(spec, "skypilot", {"--stop-after-steps": again, "--stop-after-hours": again})
    if config.checkpoint.copy_to is None:
        fix = "--set checkpoint.copy_to=gs://… : new machines continue from there"
        raise InputError("is not set, and machines go with what is on them", where="checkpoint.copy_to", fix=fix)
    sizes = cluster.sizes(config, place.num_workers, place.gpus)
    words = ["maskwright", "pretrain", CONFIG, *spec.command[3:], *sizes]
    line = " ".join(word if word == CONFIG else shlex.quote(word) for word in words)
    if place.num_workers > 1:
        line += ' --nodes "$SKYPILOT_NUM_NODES" --node-rank "$SKYPILOT_NODE_RANK"'
        line += f' --rendezvous "$(echo "$SKYPILOT_NODE_IPS" | head -n 1):{cluster.PORT}"'
    resources: dict[str, Any] = {
        **({"accelerators": f"{place.accelerator}:{place.gpus}"} if place.gpus else {}),
        **({"cpus": f"{place.cpus}+"} if place.cpus else {}),
        "use_spot": place.spot,
        # Machines that were taken away are always replaced. `recover_on_exit_codes: 75` would hide an error: it begins
        # again, without end, when any node ends with 75, though another one's 3 was the cause (SkyPilot 0.14).
        "job_recovery": {"max_restarts_on_errors": spec.restarts},
    }
    mounts = {folder: {"source": url, "mode": "MOUNT"} for url, folder in place.buckets}
    return {
        "name": place.name,
        "resources": resources,
        "num_nodes": place.num_workers,
        "file_mounts": {CONFIG: spec.command[2], **mounts},
        **({"secrets": dict.fromkeys(spec.environment)} if spec.environment else {}),
        **({"setup": spec.setup + "\n"} if spec.setup else {}),
        # exec: SIGTERM goes to the command itself.
        "run": f"exec {line}\n",
    }


def submit(place: Place, spec: JobSpec, *, dry_run: bool) -> None:
    if not dry_run:
        fix = "submit … --dry-run > task.yaml, then `sky jobs launch task.yaml`"
        raise InputError("is never called from here", where="SkyPilot", fix=fix)
    print(yaml.safe_dump(task(place, spec), sort_keys=False, allow_unicode=True, width=1000), end="")
