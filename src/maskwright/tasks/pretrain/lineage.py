"""A run that begins from another run's checkpoint: finding it, checking that the two fit together, and recording it.

With its first checkpoint, the child no longer needs the parent.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import asdict, replace
from typing import Any

from maskwright.config.places import absolute
from maskwright.config.pretraining import RunConfig
from maskwright.core.errors import CheckpointError, ConfigError, InputError, ModelError, StoreError
from maskwright.core.hub import as_pinned
from maskwright.data.opening import Store
from maskwright.engines.base import TrainState
from maskwright.model.config import ModelConfig, model_config
from maskwright.model.hf.config import class_name
from maskwright.run.directory import RunDirectory, step_folder, whole_steps
from maskwright.run.record import BeganFrom, FromRun, RunRecord, Via, parse_origin
from maskwright.tasks.models.load import special_ids
from maskwright.tasks.models.runs import from_run, model_at, weights_sha256, without_checkpoint
from maskwright.training import checkpoint

NOT_THE_SHAPE = {"vocab_size", "max_position_embeddings", "hidden_dropout_prob", "attention_probs_dropout_prob"}
NOT_THE_SHAPE |= {"rope_theta"}
"""Fields of a model in which a child may differ, which are compared in another way, or which no key of `model:`
sets."""


def is_run(location: str | None) -> bool:
    return location is not None and os.path.isdir(location) and RunDirectory(location).exists()


def find_parent(begin_from: str, *, fresh_optimizer: bool, via: Via = "--from") -> tuple[FromRun, RunRecord]:
    """The checkpoint that `begin_from`, RUN or RUN@STEP, names, and its run's record. Raises `InputError` if there is
    no such checkpoint, `ModelError` if it holds a fine-tuned model."""
    location, wanted = parse_origin(begin_from)
    directory = RunDirectory(location)
    record = directory.read_record()
    if record.kind != "pretrain":
        fix = "begin from the run that it was fine-tuned from"
        raise ModelError("is a fine-tuned model, without a masked-LM head", where=location, fix=fix)
    steps = whole_steps(directory.checkpoints)
    if not steps:
        raise without_checkpoint(location)
    if wanted is not None and wanted not in steps:
        fix = f"choose one of its steps: {', '.join(map(str, steps[-8:]))}"
        raise InputError(f"has no checkpoint of step {wanted:,}", where=location, fix=fix)
    newest = steps[-1] if via == "--from" else directory.chosen(record) or steps[-1]
    step = newest if wanted is None else wanted
    return from_run(directory, record, step, via, "fresh" if fresh_optimizer else "kept"), record


def starting_state(parent: FromRun) -> TrainState:
    """The state of the child's step 0. Raises `CheckpointError` if the parent's checkpoint is gone, damaged or has
    changed."""
    folder = os.path.join(parent.run, "checkpoints", step_folder(parent.step))
    state, _ = checkpoint.load(folder)
    if weights_sha256(folder) != parent.weights_sha256:
        raise CheckpointError("is not where this run began", where=folder, fix="give --run a new folder")
    if parent.optimizer == "fresh":
        return TrainState(0, state.parameters)
    return TrainState(0, state.parameters, state.moments, state.remembered_updates)


def require_same_parent(begin_from: str, before: RunRecord, *, fresh_optimizer: bool) -> None:
    """Raises `ConfigError` unless the continued run began from `begin_from`. The parent may be gone."""
    location, step = parse_origin(begin_from)
    parent = before.began_from
    if isinstance(parent, FromRun):
        given = os.path.abspath(location), parent.step if step is None else step, fresh_optimizer
        if given == (parent.run, parent.step, parent.optimizer == "fresh"):
            return
    began = f"began from {parent.named()}" if isinstance(parent, FromRun) else "did not begin from another run"
    fix = "leave --from out to continue it, or give --run a new folder"
    raise ConfigError(f"the run {began}", where=f"--from {begin_from}", fix=fix)


# ---- whether parent and child fit ------------------------------------------------------------------------------------


def child_model(config: RunConfig, record: RunRecord, parent: FromRun, store: Store) -> ModelConfig:
    """The parent's shape with the child's dropout and, if positions are rotary, its longer rows. Raises `StoreError`
    for text of another tokenizer, `ConfigError` for a key whose value differs from the parent's."""
    where, theirs = parent.run, record.pretraining
    shape = model_at(record, parent.step, where)
    if store.vocabulary.fingerprint != record.tokenizer_fingerprint:
        what = f"was made with another tokenizer than {where}"
        fix = f"prepare the text with --tokenizer {shlex.quote(f'{where}/tokenizer')}"
        raise StoreError(what, where=store.location, fix=fix)
    kinds = theirs.optimizer.kind, config.optimizer.kind
    if parent.optimizer == "kept" and kinds[0] != kinds[1]:
        what = f"is {kinds[1]}, but {where} holds the state of {kinds[0]}"
        raise ConfigError(what, where="optimizer.kind", fix=f"set it to {kinds[0]}, or add --fresh-optimizer")
    words = store.vocabulary
    configured = model_config(config.model, words.size, config.data.seq_len, **special_ids(words))
    base, given = theirs.model.init_from, absolute(config).model.init_from
    if given is None:
        _require_shape(asdict(configured), asdict(shape), where, base)
    elif (as_pinned(given, base) or given) != base:
        fix = f"set it to {base}, whose shape {where} has" if base else "leave it out, since --from gives the weights"
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
            fix = f"set model.init_from to {base}, as there" if base else f"copy the model: section of {where}"
            raise ConfigError(f"is {value}, but {parent_shape[name]} in {where}", where=f"model.{name}", fix=fix)


def warnings(began_from: BeganFrom, config: RunConfig, text: str) -> list[str]:
    """`text`: the store's fingerprint."""
    if not isinstance(began_from, FromRun):
        return []
    then = began_from.seed, began_from.seq_len, began_from.text
    if then != (config.seed, config.data.seq_len, text):
        return []
    return [
        f"the run reads the same rows in the same order as {began_from.run} did from its beginning; "
        f"--set seed={config.seed + 1} changes the order"
    ]
