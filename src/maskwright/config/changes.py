"""Allowed differences in the configuration between two starts of the same run."""

from __future__ import annotations

import os
from typing import Any

from pydantic import BaseModel

from maskwright.config.phases import end_by_step
from maskwright.config.places import READ
from maskwright.config.pretraining import RunConfig
from maskwright.config.schedule import GROWING
from maskwright.config.settings import differences, in_flow, resumable_keys
from maskwright.core.console import typed
from maskwright.core.errors import ConfigError
from maskwright.core.hub import is_hub
from maskwright.core.storage import is_url


def refuse_changes(
    old: dict[str, Any], new: dict[str, Any], where: str, kind: type[BaseModel] = RunConfig
) -> dict[str, str]:
    """Returns the allowed differences between two flat configurations by key, as `key: old -> new`, in YAML.

    A pretraining run may grow (`schedule.steps`) if its schedule has a phase that does not depend on the run's length;
    the caller checks whether the run is still in that phase. Raises `ConfigError` listing the other differences, since
    they would make another run in the same folder.
    """
    listed = differences(old, new)
    refused = [key for key in listed if key not in resumable_keys(kind) and not _is_moved(key, old[key], new[key])]
    fix = "restore the old values, or give --run a new folder"
    others = [key for key in refused if key != "schedule.steps"]
    why = _why_not(old, new, others) if kind is RunConfig else ""
    if kind is RunConfig and len(refused) > len(others) and grows(old, new):
        if not others:
            return listed
        again = " and ".join(f"{key} to {in_flow(old[key])}" for key in others)
        fix = (
            f"restore {again} and raise schedule.steps alone; or begin a new run at its newest checkpoint, "
            f"with its own schedule: {branch_off(where)}"
        )
    elif kind is RunConfig and refused and not others:
        longer = f"or continue from its newest checkpoint in a new run: `{branch_off(where)}`"
        fix = f"restore the old value with --set schedule.steps={old['schedule.steps']}, {longer}"
    elif kind is RunConfig and all(not key.startswith("model.") or key.endswith("dropout") for key in others):
        fix = back_or_branch_off(where, *(["--fresh-optimizer"] if "optimizer.kind" in others else []))
    if refused:
        what = f"the run was started with another configuration ({', '.join(listed[key] for key in refused)})"
        raise ConfigError(what + why, where=where, fix=fix)
    return listed


def _is_moved(key: str, old: Any, new: Any) -> bool:
    """Whether a key's old location is gone, so that the same thing may have moved. Callers compare the contents."""
    return key in READ and _is_path(old) and _is_path(new) and not (os.path.exists(old) and os.path.exists(new))


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and not (is_url(value) or is_hub(value))


def branch_off(begin_from: str, *options: str) -> str:
    """The command for a new run that begins from another one, RUN or RUN@STEP."""
    return typed(["pretrain", "CONFIG", "--run", "NEW", "--from", begin_from, *options])


def back_or_branch_off(run: str, *options: str) -> str:
    """The fix for a change that is allowed in a new run with the old weights."""
    begin = f"begin a new run at this one's newest checkpoint, with its own steps: `{branch_off(run, *options)}`"
    return f"restore the old values; or {begin}; or give --run a new folder, to start over"


def as_begun(config: RunConfig, begun: RunConfig, warmup_share: float | None) -> RunConfig:
    """`config` with the warm-up of the run that it continues, if both give the same share of the steps, since a run
    that gets more steps keeps its warm-up. `begun`: that run's configuration."""
    share = config.schedule.warmup_share
    if share is None or warmup_share != share:
        return config
    known = {"warmup_share": None, "warmup_steps": begun.schedule.warmup_steps}
    return config.model_copy(update={"schedule": config.schedule.model_copy(update=known)})


def grows(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether a run goes from its steps to more of them, with a schedule and phases that do not change the earlier
    steps."""
    longer = new["schedule.steps"] > old["schedule.steps"]
    return longer and old["schedule.kind"] in GROWING and end_by_step(old["phases"], old["schedule.steps"])


def _why_not(old: dict[str, Any], new: dict[str, Any], others: list[str]) -> str:
    """The reason why a run cannot have more steps; empty if no more were requested. `others`: keys that changed
    too."""
    if (new["schedule.steps"] or 0) <= old["schedule.steps"]:
        return ""
    if old["schedule.kind"] not in GROWING:
        return f"; only schedule.kind {' and '.join(GROWING)} can have more steps, {old['schedule.kind']} cannot"
    if not end_by_step(old["phases"], old["schedule.steps"]):
        return "; only phases that end by until_step, before the run does, leave it more steps"
    if others == ["schedule.decay_steps"]:
        return "; schedule.steps may grow, but the length of the decay is fixed when a run is started"
    return f"; schedule.steps may grow, but not together with {' and '.join(others)}" if others else ""
