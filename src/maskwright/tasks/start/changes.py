"""The changes of a run from one start to the next, and whether a run that got more steps can continue as if it had had
them from its beginning."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from maskwright.config.changes import back_or_branch_off, branch_off, grows, refuse_changes
from maskwright.config.finetuning import FinetuneConfig
from maskwright.config.places import PLACES
from maskwright.config.pretraining import RunConfig
from maskwright.config.schedule import Schedule, decay_begins
from maskwright.config.settings import keys_of
from maskwright.core.errors import CheckpointError, ConfigError
from maskwright.model.config import recorded_config
from maskwright.run.directory import RunDirectory, whole_steps
from maskwright.run.record import RecordedChange, RunRecord

HELD_OUT = "held-out text"


def require_before_decay(old: dict[str, Any], new: dict[str, Any], directory: RunDirectory, step: int) -> None:
    """Raises `ConfigError` if the run gets more steps (`old` and `new` are flat configurations), and `step`, its newest
    checkpoint, lies behind the beginning of the earlier decay."""
    if not grows(old, new):
        return
    values = {name: old[f"schedule.{name}"] for name in keys_of(Schedule)}
    begins = decay_begins(Schedule(**values), values["steps"], values["warmup_steps"])
    if step <= begins:
        return
    kept = [saved for saved in whole_steps(directory.checkpoints) if saved <= begins]
    back = f"restore the old value with --set schedule.steps={values['steps']}"
    fix = f"{back}; in another run, set checkpoint.keep_every_steps"
    if kept:
        remaining = f"--set schedule.steps={new['schedule.steps'] - kept[-1]} --set schedule.warmup_steps=0"
        command = f"{branch_off(f'{directory.location}@{kept[-1]}')} {remaining}"
        fix = f"branch off before it: {command}"
        phases = old["phases"]
        if any(phase["until_step"] > kept[-1] for phase in phases):
            which = f"which lists the remaining phases, each ending {kept[-1]:,} steps earlier"
            fix = f"branch off before it, with a file {which}: {command}"
        elif phases:  # the new run counts its steps from 0, so it would repeat them
            fix += " --set 'phases=[]'"
    raise ConfigError(
        f"schedule.steps cannot grow to {new['schedule.steps']:,}: the run has reached step {step:,}, and its decay "
        f"began after step {begins:,}" + ("" if kept else "; no earlier checkpoint is kept"),
        where=directory.location,
        fix=fix,
    )


def require_same_run(before: RunRecord, now: RunRecord, directory: RunDirectory) -> dict[str, str]:
    """The differences between two starts of a run that are allowed, in words, by the key that was changed. `now`: the
    record of a start that continues the run. Raises `ConfigError` for other differences, and `CheckpointError` if the
    run's checkpoints are gone."""
    pretrains = before.kind == "pretrain"
    changes = refuse_changes(before.keys, now.keys, directory.location, RunConfig if pretrains else FinetuneConfig)
    for name, then, found in (
        ("token store" if pretrains else "set of examples", before.train.fingerprint, now.train.fingerprint),
        ("tokenizer", before.tokenizer_fingerprint, now.tokenizer_fingerprint),
        ("mask or other special token of the tokenizer", before.roles_sha256, now.roles_sha256),
        ("precision", before.dtype, now.dtype),
        ("model shape", asdict(recorded_config(before.model, directory.config)), now.model),
        ("order of rows", before.rows, now.rows),
    ):
        if then != found:
            what = f"the run was started with another {name} ({_short(then)}, now {_short(found)})"
            fix = "restore it, or give --run a new folder"
            if pretrains and name in ("token store", "precision", "order of rows"):
                fix = back_or_branch_off(directory.location)
            raise ConfigError(what, where=directory.location, fix=fix)
    if pretrains:
        require_before_decay(before.keys, now.keys, directory, directory.newest_step())
    _require_checkpoints(directory)
    then, found = ({name: text.fingerprint[:12] for name, text in one.held_out.items()} for one in (before, now))
    if then != found:
        changes[HELD_OUT] = f"held-out text: {_listed(then)} -> {_listed(found)}"
    return changes


def _listed(fingerprints: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {fingerprint}".strip() for name, fingerprint in fingerprints.items()) or "none"


def _require_checkpoints(directory: RunDirectory) -> None:
    status = directory.read_status()
    if status and status.saved and not whole_steps(directory.checkpoints):
        what = "its checkpoints are gone (its status.json counts some)"
        fix = "restore them with their manifests, or give --run a new folder"
        raise CheckpointError(what, where=directory.checkpoints, fix=fix)


def _short(value: Any) -> str:
    return str(value)[:12] if isinstance(value, str) else str(value)


def noted(changes: Mapping[str, str], step: int) -> list[RecordedChange]:
    """What a start notes in the record about its changes. Number of steps, location of the text, saving and logging are
    left out, since the run continues as if it had been started with them."""
    decides = any(
        key not in PLACES and key != "schedule.steps" and not key.startswith(("checkpoint.", "logging."))
        for key in changes
    )
    return [RecordedChange(step, round(time.time(), 3), tuple(changes.values()), decides)] if changes else []
