"""The changes of a run from one start to the next, and whether a run that got more steps goes on as if it had had them
from its beginning."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from maskwright.config.changes import back_or_branch_off, branch_off, grows, refuse_changes
from maskwright.config.finetuning import FinetuneConfig
from maskwright.config.pretraining import RunConfig
from maskwright.config.schedule import Schedule, decay_begins
from maskwright.config.settings import keys_of
from maskwright.core.errors import CheckpointError, ConfigError
from maskwright.model.config import recorded_config
from maskwright.run.directory import RunDirectory, whole_steps


def require_before_decay(old: dict[str, Any], new: dict[str, Any], directory: RunDirectory, step: int) -> None:
    """Raises `ConfigError` if the run gets more steps (`old` and `new` are flat configurations), and `step`, its newest
    checkpoint, lies behind the beginning of the decay that the fewer steps had."""
    if not grows(old, new):
        return
    values = {name: old[f"schedule.{name}"] for name in keys_of(Schedule) if f"schedule.{name}" in old}
    begins = decay_begins(Schedule(**values), values["steps"], values["warmup_steps"])
    if step <= begins:
        return
    kept = [saved for saved in whole_steps(directory.checkpoints) if saved <= begins]
    back = f"put the old value back with --set schedule.steps={values['steps']}"
    fix = f"{back}; checkpoint.keep_every_steps would keep one in another run"
    if kept:
        remaining = f"--set schedule.steps={new['schedule.steps'] - kept[-1]} --set schedule.warmup_steps=0"
        command = f"{branch_off(f'{directory.location}@{kept[-1]}')} {remaining}"
        fix = f"branch off before it: {command}"
        phases = old.get("phases", [])
        if any(phase["until_step"] > kept[-1] for phase in phases):
            which = f"whose phases are those that are left, and end {kept[-1]:,} steps earlier"
            fix = f"branch off before it, with a file {which}: {command}"
        elif phases:  # the new run counts its steps from 0, so they would come again
            fix += " --set 'phases=[]'"
    raise ConfigError(
        f"schedule.steps cannot grow to {new['schedule.steps']:,}: the run has gone to step {step:,}, and its decay "
        f"began after step {begins:,}" + ("" if kept else "; no checkpoint from before that is kept"),
        where=directory.location,
        fix=fix,
    )


def require_same_run(
    before: dict[str, Any], now: dict[str, Any], directory: RunDirectory, given: RunConfig | FinetuneConfig
) -> list[str]:
    """The differences between two starts of a run that are allowed, in words. `before`, `now`: the run's record, and
    that of a start that continues it; `given`: that start's configuration as the command has it. Raises `ConfigError`
    for differences that make another run, and `CheckpointError` where the run's checkpoints are gone."""
    kind = type(given)
    changes = refuse_changes(before["config"], now["config"], directory.location, kind)
    for key, name in (
        ("store_fingerprint", "token store" if kind is RunConfig else "set of examples"),
        ("tokenizer_fingerprint", "tokenizer"),
        ("roles_sha256", "mask or other special token of the tokenizer"),
        ("dtype", "precision"),
        ("model", "model shape"),
    ):
        recorded: Any = before[key] if key != "roles_sha256" else before.get(key, now.get(key))  # older runs have none
        then = asdict(recorded_config(recorded, directory.config)) if key == "model" else recorded
        if then != now.get(key):
            what = f"the run was started with another {name} ({_short(recorded)}, now {_short(now.get(key))})"
            fix = "put it back, or give --run a new folder"
            if kind is RunConfig and name in ("token store", "precision"):
                fix = back_or_branch_off(directory.location)
            raise ConfigError(what, where=directory.location, fix=fix)
    if kind is RunConfig:
        require_before_decay(before["config"], now["config"], directory, directory.newest_step())
    _require_checkpoints(directory)
    if before.get("validation") != now.get("validation"):
        changes.append(f"held-out text: {_short(before.get('validation'))} -> {_short(now.get('validation'))}")
    return changes


def _require_checkpoints(directory: RunDirectory) -> None:
    status = directory.read_status()
    if status and status.saved and not whole_steps(directory.checkpoints):
        what = "its checkpoints are gone (its status.json says that some were saved)"
        fix = "put them back with their manifests, or give --run a new folder"
        raise CheckpointError(what, where=directory.checkpoints, fix=fix)


def _short(value: Any) -> str:
    return str(value)[:12] if isinstance(value, str) else str(value)


def history(before: dict[str, Any], changes: list[str], step: int) -> dict[str, Any]:
    """The `changes` of the run's record: what was changed, at which step and when (Unix seconds), at all starts so
    far."""
    entries = [*before.get("changes", [])]
    if changes:
        entries.append({"step": step, "time": round(time.time(), 3), "keys": changes})
    return {"changes": entries} if entries else {}
