"""`submit skypilot`: prints a task for `sky jobs launch`, which starts it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import Annotated, Any

import yaml

from maskwright.config.finetuning import FinetuneConfig
from maskwright.config.pretraining import RunConfig
from maskwright.config.recipes import find_config
from maskwright.core.errors import InputError, StoppedEarly
from maskwright.launch import checks
from maskwright.launch.target import Env, JobName, OnSubmission, Option, Place, Setup, Submission, Training, show
from maskwright.machine import tpus

CONFIG = "~/maskwright-run.yaml"


@dataclass(frozen=True)
class SkyPilot(Place):
    num_nodes: Annotated[int, Option("Number of machines that train together.", "N", min=1)] = 1
    accelerator: Annotated[
        str | None,
        Option("GPUs of each machine, or a TPU slice, as in H100:8 and tpu-v6e-16. Default: the CPU.", "KIND:N"),
    ] = None
    cpus: Annotated[int | None, Option("Least number of cores of each machine.", "N", min=1)] = None
    name: JobName = None
    mount: Annotated[tuple[str, ...], Option("Bucket to mount in a folder, as in gs://data:/data.", "URL:PATH")] = ()
    spot: Annotated[bool, Option("Use machines that may be preempted, for less money.")] = False
    env: Env = ()
    setup: Setup = None

    leaves_out = frozenset({"dry_run"})

    def submit(self, command: Training, *, dry_run: bool = True, on_submission: OnSubmission = show) -> None:
        """Shows the task, and submits nothing."""
        task = yaml.safe_dump(self.task(command), sort_keys=False, allow_unicode=True, width=1000)
        on_submission(Submission(False, "sky jobs launch", command.run, shown=task))

    def task(self, command: Training) -> dict[str, Any]:
        """The task. Raises `InputError` if the run would be lost with its machines."""
        config, _ = checks.read(command)
        if config.checkpoint.copy_to is None:
            fix = "--set checkpoint.copy_to=gs://…, from where new machines continue"
            what = "is not set, and the checkpoints would be lost with their machine"
            raise InputError(what, where="checkpoint.copy_to", fix=fix)
        sized = self._sized(replace(command, config=CONFIG), config)
        line = " ".join(word if word == CONFIG else shlex.quote(word) for word in sized.words())
        if self.num_nodes > 1:
            line += ' --num-nodes "$SKYPILOT_NUM_NODES" --node-rank "$SKYPILOT_NODE_RANK"'
            line += f' --rendezvous "$(echo "$SKYPILOT_NODE_IPS" | head -n 1):{checks.PORT}"'
        resources: dict[str, Any] = {
            **({"accelerators": self.accelerator} if self.accelerator else {}),
            **({"cpus": f"{self.cpus}+"} if self.cpus else {}),
            "use_spot": self.spot,
            # Preempted machines are always replaced. Of several nodes only the code of the first to end counts: the
            # others are killed, and noted with 137 (0.14.1, sky/backends/task_codegen.py).
            "job_recovery": {"recover_on_exit_codes": [StoppedEarly.exit_code]},
        }
        mounts = {folder: {"source": url, "mode": "MOUNT"} for url, folder in map(_url_and_folder, self.mount)}
        return {
            "name": checks.name_for(command.run, self.name),
            "resources": resources,
            "num_nodes": self.num_nodes,
            "file_mounts": {CONFIG: find_config(command.config, command.verb), **mounts},
            **({"secrets": dict.fromkeys(self.env)} if self.env else {}),
            **({"setup": self.setup + "\n"} if self.setup else {}),
            # With exec, SIGTERM reaches the command itself.
            "run": f"exec maskwright {line}\n",
        }

    def _sized(self, command: Training, config: RunConfig | FinetuneConfig) -> Training:
        """The command for the devices of each machine. SkyPilot starts it on every host of a TPU slice, and the hosts
        find each other: docs.skypilot.co/en/stable/reference/tpu.html"""
        if not (self.accelerator or "").startswith("tpu-"):
            return checks.sized(command, config, self.num_nodes, self._gpus())
        name = str(self.accelerator).removeprefix("tpu-").removesuffix(":1")
        if (known := tpus.kind_and_chips(name)) is None:
            what = f"{str(self.accelerator)[:40]!r} is not a TPU slice of SkyPilot"
            raise InputError(what, where="--accelerator", fix="as in tpu-v6e-16; `sky show-gpus -a` lists them")
        if self.num_nodes > 1:
            fix = "leave it out, and take a larger slice"
            raise InputError("a run trains on one TPU slice", where=f"--num-nodes {self.num_nodes}", fix=fix)
        kind, chips = known
        return checks.for_tpu(command, config, chips * tpus.TPUS[kind].devices_per_chip)

    def _gpus(self) -> int:
        if self.accelerator is None:
            return 0
        _, colon, count = self.accelerator.partition(":")
        if colon and not (count.isdecimal() and int(count)):
            what = f"{self.accelerator[:40]!r} is not KIND:N"
            raise InputError(what, where="--accelerator", fix="--accelerator H100:8, or tpu-v6e-16")
        return int(count or 1)


def _url_and_folder(text: str) -> tuple[str, str]:
    url, _, folder = text.rpartition(":")
    if "://" not in url or not folder.startswith("/"):
        raise InputError(f"{text[:80]!r} is not URL:/folder", where="--mount", fix="--mount gs://my-bucket:/data")
    return url, folder
