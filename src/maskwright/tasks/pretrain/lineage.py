"""A run that begins from another run's checkpoint: which one, whether the two fit together, and what is recorded.

The record is the child's `lineage`: where the parent was, its step, what identifies weights, text and configuration,
and the parent's own lineage. With its first checkpoint, the child no longer needs the parent.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import asdict, replace
from typing import Any

from maskwright.config.pretraining import RunConfig
from maskwright.core import storage
from maskwright.core.errors import CheckpointError, ConfigError, InputError, ModelError, StoreError
from maskwright.data.opening import Store
from maskwright.engines.base import TrainState
from maskwright.model.config import ModelConfig, config_at, model_config, recorded_config
from maskwright.model.hf.config import class_name
from maskwright.run.directory import MANIFEST, RunDirectory, step_folder, whole_steps
from maskwright.run.lineage import Lineage, parse
from maskwright.tasks.models.load import special_ids
from maskwright.training import checkpoint

NOT_THE_SHAPE = {"vocab_size", "max_position_embeddings", "hidden_dropout_prob", "attention_probs_dropout_prob"}
NOT_THE_SHAPE |= {"rope_theta"}
"""Fields of a model in which a child may differ, that are compared in another way, or that no key of `model:` sets."""


def is_run(location: str | None) -> bool:
    return location is not None and os.path.isdir(location) and RunDirectory(location).exists()


Parent = tuple[Lineage, dict[str, Any]]
"""The lineage of a child, and its parent's record."""


def find_parent(begin_from: str, *, fresh_optimizer: bool) -> Parent:
    """The lineage of a child of `begin_from`, RUN or RUN@STEP, and the parent's record. Raises `InputError` where there
    is no such checkpoint, `ModelError` if it is of a fine-tuned model."""
    location, wanted = parse(begin_from)
    directory = RunDirectory(location)
    record = directory.read_config()
    if recorded_config(record["model"], directory.config).task != "masked_lm":
        fix = "begin from the run that it was fine-tuned from"
        raise ModelError("is a fine-tuned model, without a masked-LM head", where=location, fix=fix)
    steps = whole_steps(directory.checkpoints)
    if not steps:
        raise InputError("has no checkpoint yet", where=location, fix="let it save one first")
    if wanted is not None and wanted not in steps:
        fix = f"take one of its steps: {', '.join(map(str, steps[-8:]))}"
        raise InputError(f"has no checkpoint of step {wanted:,}", where=location, fix=fix)
    step = steps[-1] if wanted is None else wanted
    folder = os.path.join(directory.checkpoints, step_folder(step))
    state = storage.read_json(os.path.join(folder, "state.json"))
    lineage = {
        "run": directory.location,
        "step": step,
        "optimizer": "fresh" if fresh_optimizer else "kept",
        "weights_sha256": _weights_sha256(folder),
        "store_fingerprint": record["store_fingerprint"],
        "digest": record["digest"],
        "seed": record["config"]["seed"],
        "seq_len": record["config"]["data.seq_len"],
        "tokens": state["counters"]["tokens"],
        "init_from": record["config"].get("model.init_from"),
        "base": record.get("base"),
        "base_weights": record.get("base_weights"),
        "fine_tuning": record.get("fine_tuning"),
        "lineage": record.get("lineage"),
    }
    return {key: value for key, value in lineage.items() if value is not None}, record


def _weights_sha256(folder: str) -> str:
    return str(storage.read_json(os.path.join(folder, MANIFEST))["files"]["model.safetensors"]["sha256"])


def starting_state(lineage: Lineage) -> TrainState:
    """The state of the child's step 0. Raises `CheckpointError` if the parent's checkpoint is gone, damaged or
    another."""
    folder = os.path.join(lineage["run"], "checkpoints", step_folder(lineage["step"]))
    state, _ = checkpoint.load(folder)
    if _weights_sha256(folder) != lineage["weights_sha256"]:
        raise CheckpointError("is not the one that this run began from", where=folder, fix="give --run a new folder")
    if lineage["optimizer"] == "fresh":
        return TrainState(0, state.parameters)
    return TrainState(0, state.parameters, state.moments, state.remembered_updates)


def require_same_parent(begin_from: str, before: dict[str, Any], *, fresh_optimizer: bool) -> None:
    """Raises `ConfigError` unless the run that is continued began as `begin_from` says. The parent may be gone."""
    location, step = parse(begin_from)
    recorded: Lineage = before.get("lineage") or {}
    wanted = (os.path.abspath(location), recorded.get("step") if step is None else step, fresh_optimizer)
    if wanted != (recorded.get("run"), recorded.get("step"), recorded.get("optimizer") == "fresh"):
        began = f"began from {named(recorded)}" if recorded else "did not begin from another run"
        fix = "leave --from out to continue it, or give --run a new folder"
        raise ConfigError(f"the run {began}", where=f"--from {begin_from}", fix=fix)


def named(lineage: Lineage) -> str:
    """The parent in words, as in `runs/a@60 with a fresh optimizer`."""
    fresh = " with a fresh optimizer" if lineage.get("optimizer") == "fresh" else ""
    return f"{lineage.get('run')}@{lineage.get('step')}{fresh}"


# ---- whether parent and child fit ------------------------------------------------------------------------------------


def child_model(config: RunConfig, parent: dict[str, Any], lineage: Lineage, store: Store) -> ModelConfig:
    """The parent's shape with the child's dropout and, where positions are rotary, its longer rows. Raises `StoreError`
    for text of another tokenizer, `ConfigError` for a key whose value was another one in the parent."""
    where, shape = lineage["run"], config_at(parent, lineage["step"], lineage["run"])
    if store.vocabulary.fingerprint != parent["tokenizer_fingerprint"]:
        what = f"was made with another tokenizer than {where} has"
        fix = f"prepare the text with --tokenizer {shlex.quote(f'{where}/tokenizer')}"
        raise StoreError(what, where=store.location, fix=fix)
    kinds = parent["config"]["optimizer.kind"], config.optimizer.kind
    if lineage["optimizer"] == "kept" and kinds[0] != kinds[1]:
        what = f"is {kinds[1]}, and the optimizer's state in {where} is that of {kinds[0]}"
        raise ConfigError(what, where="optimizer.kind", fix=f"take {kinds[0]}, or add --fresh-optimizer")
    words = store.vocabulary
    configured = model_config(config.model, words.size, config.data.seq_len, **special_ids(words))
    base = parent["config"].get("model.init_from")
    if config.model.init_from is None:
        _require_shape(asdict(configured), asdict(shape), where, base)
    elif config.model.init_from != base:
        fix = f"set it to {base}, whose shape {where} has" if base else "leave it out: --from says where weights begin"
        raise ConfigError(f"is {config.model.init_from}, but not in {where}", where="model.init_from", fix=fix)
    longest = max(config.model.max_seq_len or 0, config.longest_row)
    if longest > shape.max_seq_len:
        if not shape.facts.rotary:
            key = "model.max_seq_len" if config.longest_row <= shape.max_seq_len else "data.seq_len"
            what = f"{longest} is above the {shape.max_seq_len} positions that a {class_name(shape)} has learned"
            raise ConfigError(what, where=key, fix=f"set it to {shape.max_seq_len}; only rotary positions go further")
        shape = replace(shape, max_position_embeddings=longest)
    return replace(
        shape,
        hidden_dropout_prob=config.model.hidden_dropout,
        attention_probs_dropout_prob=config.model.attention_dropout,
    )


def _require_shape(configured: dict[str, Any], parent_shape: dict[str, Any], where: str, base: str | None) -> None:
    for name, value in configured.items():
        if name not in NOT_THE_SHAPE and value != parent_shape[name]:
            fix = f"set model.init_from to {base}, as there" if base else f"take the model: section of {where}"
            raise ConfigError(f"is {value}, but {parent_shape[name]} in {where}", where=f"model.{name}", fix=fix)


def warnings(lineage: Lineage | None, config: RunConfig, store_fingerprint: str) -> list[str]:
    reading = {"seed": config.seed, "seq_len": config.data.seq_len, "store_fingerprint": store_fingerprint}
    if lineage is None or any(lineage[key] != value for key, value in reading.items()):
        return []
    return [
        f"the run reads the same rows in the same order as {lineage['run']} did from its beginning: "
        f"--set seed={config.seed + 1} gives another order"
    ]
