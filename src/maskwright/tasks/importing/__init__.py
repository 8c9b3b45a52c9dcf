"""`maskwright import`: another trainer's command line as a configuration of ours, with the fate of each flag."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from maskwright.config.finetuning import build_finetune_config
from maskwright.config.pretraining import build_config
from maskwright.config.settings import nested
from maskwright.machine.tpus import TPUS
from maskwright.tasks.importing import fairseq, run_glue, run_mlm, tpu_pretrain
from maskwright.tasks.importing.taken import Taken
from maskwright.tasks.importing.typed import given_variables, read_command, require_known

Script = Literal["run_mlm", "run_glue", "fairseq", "tpu_pretrain"]
SCRIPTS = {
    "run_mlm": run_mlm.SCRIPT,
    "run_glue": run_glue.SCRIPT,
    "fairseq": fairseq.SCRIPT,
    "tpu_pretrain": tpu_pretrain.SCRIPT,
}


def imported(
    script: Script,
    command: str,
    devices: int | None = None,
    assignments: Sequence[str] = (),
    files: Sequence[str] = (),
) -> tuple[Taken, str]:
    """Imports `command`: the fate of its flags, and its YAML, which has been checked. `devices`: those of all machines,
    where the command does not give their number. `assignments`: NAME=VALUE of variables, whatever the script sets them
    to; the variables of `files` are set before it.

    Raises `InputError` for a command that cannot be read, and `ConfigError` for values that no run accepts."""
    typed = read_command(command, SCRIPTS[script], *given_variables(assignments, files))
    if typed.pod and not devices:
        kind, chips = typed.pod
        devices, typed.counted_by = chips * TPUS[kind].devices_per_chip, "TPU_ACCELERATOR_TYPE"
    elif typed.job and typed.job.devices and not devices and (typed.launcher or typed.unknown_count):
        devices, typed.counted_by = typed.job.devices, "#SBATCH"
    if typed.unknown_count and not devices:
        require_known(typed.unknown_count, "the command")
    if devices and (typed.world_size == 1 or typed.launcher or typed.unknown_count):
        typed.world_size, typed.launcher = devices, ""
    if script == "fairseq":
        taken = fairseq.fairseq(typed, devices)
    elif script == "tpu_pretrain":
        taken = tpu_pretrain.tpu_pretrain(typed, devices)
    else:
        taken = run_mlm.run_mlm(typed) if script == "run_mlm" else run_glue.run_glue(typed)
    build = build_config if taken.verb == "pretrain" else build_finetune_config
    build(nested(taken.values), "the imported command")
    return taken, taken.yaml(typed.original)
