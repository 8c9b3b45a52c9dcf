"""The folder of a comparison, with a record of the settings that decide its numbers, so that the same command continues
it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

from maskwright.config.finetuning import OF_A_COMPARISON
from maskwright.config.settings import differences, flat
from maskwright.core import storage
from maskwright.core.errors import InputError
from maskwright.model.hf.config import to_hf_config
from maskwright.model.initial import initial_parameters
from maskwright.tasks.compare import linear, retrieval
from maskwright.tasks.compare.arms import BM25, RANDOM, ArmStart
from maskwright.tasks.compare.plan import ComparisonPlan
from maskwright.text.tokenizer import copy_tokenizer
from maskwright.training.tensor_file import write_tensors

FORMAT = 1


@contextmanager
def opened(plan: ComparisonPlan) -> Iterator[ComparisonPlan]:
    """Holds the folder. Yields the plan to make there (see `_with_draws`). Raises `InputError` if the folder holds
    something else."""
    storage.make_folder(plan.folder)
    with storage.locked(os.path.join(plan.folder, "lock"), remove=True):
        begin_or_check(os.path.join(plan.folder, "compare.json"), _record(plan), "comparison", "--to")
        yield _with_draws(plan)


def _record(plan: ComparisonPlan) -> dict[str, Any]:
    """The settings that decide the numbers of a comparison, under dotted names."""
    record: dict[str, Any] = {"format": FORMAT, "base": plan.starts[0].name, **plan.budget.record()}
    for start in plan.starts:
        record[f"{start.name}.locations"] = list(start.locations)
        record[f"{start.name}.random"] = start.random
        record[f"{start.name}.weights"] = [model.sha256 for model in plan.models[start.name]]
        if start.fitted:
            settings = retrieval.SETTINGS if start.name == BM25 else linear.SETTINGS
            record |= {f"{start.name}.{key}": value for key, value in settings.items()}
    for task in plan.tasks:
        record[f"{task.name}.examples"] = task.fingerprint
        record |= {
            f"{task.name}.{key}": value for key, value in flat(task.config).items() if key not in OF_A_COMPARISON
        }
    return cast(dict[str, Any], json.loads(json.dumps(record)))


def begin_or_check(path: str, now: dict[str, Any], what: str, option: str) -> None:
    """Writes `now`, the settings that decide numbers, to `path` in a new folder. In a folder that was begun, raises
    `InputError` with the difference. `what`: the folder's content in words; `option`: the option that names the
    folder."""
    folder, fix = os.path.dirname(path), f"give {option} a new folder"
    if os.path.exists(path):
        if changed := differences(storage.read_json(path), now).values():
            fix = f"restore the old values, or {fix}"
            raise InputError(f"holds another {what}: {'; '.join(changed)}", where=folder, fix=fix)
    elif others := [name for name in sorted(os.listdir(folder)) if name != "lock" and not storage.is_temporary(name)]:
        raise InputError(f"holds {others[0]}, which does not belong to a {what}", where=folder, fix=fix)
    else:
        storage.write_json(path, now)


def _with_draws(plan: ComparisonPlan) -> ComparisonPlan:
    """When recipes are compared, random weights have as many draws as other arms have pretraining runs, each in a model
    folder. When checkpoints are compared, each seed draws its own."""
    random = next((start for start in plan.starts if start.random and len(start.locations) > 1), None)
    if random is None:
        return plan
    folders = []
    for number, arm in enumerate(plan.models[random.name]):
        model, folder = arm.model, os.path.join(plan.folder, RANDOM, f"{number + 1}")
        folders.append(folder)
        if not os.path.exists(os.path.join(folder, "config.json")):  # which is written last
            storage.make_folder(folder)
            weights = initial_parameters(model.config, number)
            write_tensors(os.path.join(folder, "model.safetensors"), weights, {"format": "pt"})
            copy_tokenizer(model.tokenizer_folder, folder)
            storage.write_json(os.path.join(folder, "config.json"), to_hf_config(model.config, model.labels))
    drawn = ArmStart(RANDOM, tuple(folders))
    return replace(plan, starts=tuple(drawn if start is random else start for start in plan.starts))
