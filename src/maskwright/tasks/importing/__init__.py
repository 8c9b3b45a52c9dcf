"""`maskwright import`: another trainer's command line as our configuration, with the fate of each flag."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from maskwright.config.finetuning import build_finetune_config
from maskwright.config.pretraining import build_config
from maskwright.config.settings import nested
from maskwright.core.console import several
from maskwright.core.errors import InputError
from maskwright.machine.tpus import TPUS
from maskwright.tasks.importing import fairseq, run_glue, run_mlm, tpu_pretrain
from maskwright.tasks.importing.taken import Taken
from maskwright.tasks.importing.typed import given_variables, read_command

Script = Literal["run_mlm", "run_glue", "fairseq", "tpu_pretrain"]
SCRIPTS = {
    "run_mlm": (run_mlm.SCRIPT, run_mlm.run_mlm),
    "run_glue": (run_glue.SCRIPT, run_glue.run_glue),
    "fairseq": (fairseq.SCRIPT, fairseq.fairseq),
    "tpu_pretrain": (tpu_pretrain.SCRIPT, tpu_pretrain.tpu_pretrain),
}


def imported(
    script: Script, command: str, devices: int | None = None, assignments: Sequence[str] = (), files: Sequence[str] = ()
) -> tuple[Taken, str]:
    """Imports `command`: the fate of its flags, and its YAML, which has been checked. `devices`: the number on all
    machines, if the command does not give it. `assignments`: NAME=VALUE of variables, which override the script's; the
    variables of `files` are set before it.

    Raises `InputError` for a command that cannot be read, and `ConfigError` for values that no run accepts."""
    signature, take = SCRIPTS[script]
    typed = read_command(command, signature, *given_variables(assignments, files))
    if typed.pod and not devices:
        kind, chips = typed.pod
        typed.devices, typed.counted_by = chips * TPUS[kind].devices_per_chip, "TPU_ACCELERATOR_TYPE"
    elif devices and not typed.counted_by:
        typed.devices, typed.counted_by = devices, "--devices"
    taken = take(typed)
    if devices and typed.devices != devices and typed.counted_by:
        what = f"is {devices}, but {typed.counted_by} starts it on {several(typed.devices, 'device')}"
        raise InputError(what, where="--devices", fix="leave it out, or change the number there")
    build = build_config if taken.verb == "pretrain" else build_finetune_config
    build(nested(taken.values), "the imported command")
    return taken, taken.yaml(typed.original)
