"""A pretraining run before its first step: whether configuration, data and model fit together, and what it reads and
computes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from maskwright.config.changes import as_begun
from maskwright.config.pretraining import RunConfig
from maskwright.core import storage
from maskwright.core.console import human_count, say, warn
from maskwright.core.errors import ConfigError, InputError, StoreError
from maskwright.data.batch import Batch
from maskwright.data.loader import Loader, validation_batches
from maskwright.data.mixture import Mixture
from maskwright.data.opening import Store, open_held_out, open_store
from maskwright.data.rows import ROWS
from maskwright.data.store import TokenStore, special_table
from maskwright.engines.base import TrainState
from maskwright.engines.choose import require_family
from maskwright.machine.devices import DeviceCount
from maskwright.model.config import ModelConfig
from maskwright.model.hf.config import class_name, dropout_keys
from maskwright.model.hf.names import count_parameters
from maskwright.model.initial import initial_parameters
from maskwright.run.lineage import Lineage
from maskwright.run.lineage import describe as describe_lineage
from maskwright.tasks.models.hub import pinned
from maskwright.tasks.models.load import with_ids
from maskwright.tasks.planning.cost import Work, pretraining_work, time_here
from maskwright.tasks.pretrain import lineage as lineages
from maskwright.tasks.pretrain.describe import reading
from maskwright.tasks.pretrain.model import Base, model_and_lineage, model_without_store
from maskwright.tasks.pretrain.warnings import documents_held_out, unusual_data, unusual_settings
from maskwright.tasks.start.capacity import memory_and_disk
from maskwright.tasks.start.data_card import SAMPLE_DOCUMENTS, SAMPLE_TOKENS, pretraining_card
from maskwright.text.tokenizer import copy_tokenizer
from maskwright.text.unknown import require_known
from maskwright.training.job import Job
from maskwright.training.masked_lm import MaskedLM
from maskwright.training.replay import write_bundle

SAMPLED_STEPS = 8
"""Steps whose rows are counted to know the work of a run."""


@dataclass(frozen=True)
class PretrainRun:
    """See `Prepared`."""

    config: RunConfig
    model: ModelConfig
    store: Store
    loader: Loader
    lineage: Lineage | None = None
    """The checkpoint of another run that this one began from."""
    validation: Mapping[str, TokenStore] = field(default_factory=dict)
    """The stores of data.validation by name; empty where the run is judged by the held-out part of its own store."""
    base: Base | None = None
    """The base that `model.init_from` names; None where a lineage says what the run began from."""
    warmup_share: float | None = None
    """The share of the steps that the configuration gives the warm-up, which is a number of them in `config`."""
    label_smoothing, looked_up = 0.0, None

    @property
    def identity(self) -> dict[str, str]:
        store = self.store.location
        return {
            "store": store if storage.is_url(store) else os.path.abspath(store),
            "store_fingerprint": self.store.fingerprint,
            "tokenizer_fingerprint": self.store.vocabulary.fingerprint,
            "roles_sha256": self.store.vocabulary.roles_sha256,
        }

    @property
    def details(self) -> dict[str, Any]:
        fingerprints = {name: held_out.fingerprint for name, held_out in self.validation.items()}
        entries: dict[str, Any] = {"rows": ROWS} | ({"validation": fingerprints} if fingerprints else {})
        if self.warmup_share is not None:
            entries["warmup_share"] = self.warmup_share
        return entries

    @property
    def flops(self) -> float:
        """Model FLOPs of the whole run, as if each row were full, and one segment."""
        return self.config.steps * pretraining_work(self.config, self.model).flops

    @property
    def micro_batch_losses(self) -> float:
        return self.loader.micro_batch_losses

    @property
    def begins_from(self) -> str | None:
        if self.lineage is not None:
            return str(self.lineage["run"])
        return self.base.location if self.base else None

    @cached_property
    def work(self) -> Work:
        """Rows are as full as they are. Eight steps, spread over the run, stand for all; in a run with phases, as many
        over all of them, and one of each at least."""
        config, loader = self.config, self.loader
        tokens = predicted = pairs = 0.0
        each = max(1, SAMPLED_STEPS // len(config.stages))
        for stage in config.stages:
            length = stage.end - stage.begin
            sampled = {stage.begin + length * part // each for part in range(each)}
            weight = length / config.steps / len(sampled)
            for step in sampled:
                counted, counted_pairs = loader.work(step)
                tokens += weight * counted
                predicted += weight * counted * stage.config.masking.rate
                pairs += weight * counted_pairs
        limit = config.evaluation.max_rows * config.data.seq_len
        held_out = sum(min(limit, store.split("valid").tokens) for store in self.held_out.values())
        return pretraining_work(config, self.model, (tokens, predicted, pairs), held_out)

    def time_here(self, place: DeviceCount | None, done: int = 0) -> str | None:
        return time_here(self.work, place, done)

    def verify(self) -> None:
        for store in (self.store, *self.validation.values()):
            store.verify_at_start()

    def starting_state(self) -> TrainState:
        """The state of step 0: that of another run, that of `model.init_from`, or random. Raises `ModelError` or
        `CheckpointError`."""
        if self.lineage is not None:
            return lineages.starting_state(self.lineage)
        if self.base is None:
            return TrainState(0, initial_parameters(self.model, self.config.seed))
        parameters = self.base.parameters(self.config, self.model)
        say(f"continuing from {self.base.location}")
        return TrainState(0, parameters)

    def base_weights(self) -> dict[str, Any]:
        if self.lineage is not None:
            return {"lineage": self.lineage, **self._fine_tuning(self.lineage.get("fine_tuning", {}))}
        if self.base is None:
            return {}
        record, values = self.base.record(self.config)
        return record | self._fine_tuning(values)

    def _fine_tuning(self, values: dict[str, Any]) -> dict[str, Any]:
        """Values for the export's config.json: the base's own for fine-tuning, less those that this run has set."""
        names = {"hidden_dropout": "hidden_dropout_prob", "attention_dropout": "attention_probs_dropout_prob"}
        names_set = [names[key] for key in names if key in self.config.model.model_fields_set]
        keys_set = {key for name in names_set for key in dropout_keys(self.model.architecture, name)}
        inherited = {key: value for key, value in values.items() if key not in keys_set}
        return {"fine_tuning": inherited} if inherited else {}

    def objective(self) -> MaskedLM:
        return MaskedLM(self.loader, self._validation, self.model.vocab_size, self.config.evaluation.patience)

    @property
    def held_out(self) -> Mapping[str, TokenStore]:
        """The stores that the run is judged by."""
        stores: Mapping[str, TokenStore] = {}
        if isinstance(self.store, Mixture):
            stores = self.store.held_out
        elif documents_held_out(self.store):
            stores = {"": self.store}
        return self.validation or stores

    @cached_property
    def _validation(self) -> dict[str, list[Batch]]:
        if not self.held_out:
            fix = "data.validation names a token store of held-out text"
            warn(f"{self.store.location}: has no valid documents. This run has no validation; {fix}")
            return {}
        config = self.config
        return {
            name: validation_batches(
                store,
                seq_len=config.data.seq_len,
                packing=config.data.packing,
                max_rows=config.evaluation.max_rows,
                micro_batch_rows=config.batch.micro_batch_rows,
            )
            for name, store in self.held_out.items()
        }

    @property
    def judged_by(self) -> list[Batch]:
        """The batches of an evaluation."""
        return [batch for batches in self._validation.values() for batch in batches]

    def data_card(self) -> dict[str, Any]:
        return pretraining_card(self.store, self._validation, of_store=not self.validation)

    def write_tokenizer(self, folder: str) -> None:
        copy_tokenizer(self.store.tokenizer_folder, folder)

    def describe(self, processes: int | None = None) -> str:
        model = self.model
        shape = (
            f"{model.num_hidden_layers} layers x {model.hidden_size}, {human_count(count_parameters(model))} parameters"
        )
        words = f"vocabulary {model.vocab_size:,}, {model.max_seq_len} tokens"
        lines = [*describe_lineage(self.lineage), f"model: {shape}, {words}", *reading(self.config, self.loader, model)]
        return "\n".join([*lines, memory_and_disk(self, processes)])

    def warnings(self) -> list[str]:
        lines = lineages.warnings(self.lineage, self.config, self.store.fingerprint)
        lines += unusual_data(self.loader.epoch(self.config.steps), self.held_out)
        return lines + unusual_settings(self.config)

    def keep_for_replay(self, job: Job, step: int, details: dict[str, Any]) -> str:
        data = job.rollbacks.data_step(step)
        return write_bundle(job.directory, self.loader, self.store, step=step, data_step=data, details=details)

    def finish(self, job: Job) -> None:
        """The last checkpoint is the result."""


def prepare_run(
    config: RunConfig,
    before: dict[str, Any] | None = None,
    begin_from: str | None = None,
    *,
    fresh_optimizer: bool = False,
) -> PretrainRun:
    """Checks everything that can be checked without a device. Raises `InputError` kinds (exit 2).

    `before`: the record of a run that is continued; what it once began from is then no longer needed. `begin_from`: RUN
    or RUN@STEP, whose checkpoint the run begins or once began with, with its optimizer's state unless
    `fresh_optimizer`.
    """
    parent, warmup_share = None, config.schedule.warmup_share
    config = as_begun(config, before)
    if begin_from is None and fresh_optimizer:
        raise InputError("--fresh-optimizer goes with --from RUN[@STEP]", fix="give both, or neither")
    if begin_from is not None and before is not None:
        lineages.require_same_parent(begin_from, before, fresh_optimizer=fresh_optimizer)
    elif begin_from is not None:
        parent = lineages.find_parent(begin_from, fresh_optimizer=fresh_optimizer)
    init_from, base = config.model.init_from, None
    if init_from is not None and parent is None and "lineage" not in (before or {}):
        base = Base(pinned(init_from, (before or {}).get("base")))
    # Stores of other formats have a tokenizer; a run that is continued must not need its base any more.
    store = open_store(config.data, base.tokenizer if base and config.data.format == "pregenerated" else None)
    model, lineage = model_and_lineage(config, store, before, parent, base)
    _require_text(store)
    require_family(model, config.engine)
    model = with_ids(model, store.vocabulary, store.tokenizer_folder)
    if not model.facts.rotary and any(phase.rope_theta for phase in config.phases):
        what = f"{class_name(model)} has no rotary positions"
        raise ConfigError(what, where="rope_theta of a phase", fix="leave it out")
    held_out = _validation_stores(config, store)
    loader = Loader(config, store)
    if before is not None:
        require_same_rows(before)
    config = loader.config
    loader.require_rows()
    if config.evaluation.patience is not None and not (held_out or documents_held_out(store)):
        fix = "name a held-out store as data.validation, or leave it out"
        raise ConfigError(f"needs held-out text, and {store.location} has none", where="evaluation.patience", fix=fix)
    return PretrainRun(config, model, store, loader, lineage, held_out, base, warmup_share)


def planned(config: RunConfig, vocab_size: int | None, *, here: bool) -> tuple[Work, PretrainRun | None]:
    """(The work of a run, the run to take steps of). With a `vocab_size` and no steps `here`, rows count as full, and
    the store may be absent: else `InputError`."""
    stores = [config.data.store or "", *(source.store for source in (config.data.mixture or {}).values())]
    absent = [store for store in stores if store and not storage.is_url(store) and not os.path.isdir(store)]
    if vocab_size is None or here:
        if absent:
            fix = "prepare it, or give --vocab-size and a device as --on"
            raise InputError("is not here, so the vocabulary and the text are not known", where=absent[0], fix=fix)
        ready = prepare_run(config)
        return ready.work, ready
    if config.schedule.steps is None:
        fix = "give schedule.steps, or prepare the store"
        raise ConfigError("epochs of a store that is not here", where="schedule.epochs", fix=fix)
    return pretraining_work(config, model_without_store(config, vocab_size)), None


def require_same_rows(before: dict[str, Any]) -> None:
    """Raises `ConfigError` for a run of a version that planned its rows otherwise. `before`: its record."""
    if before.get("rows") != ROWS:
        fix = "continue it with the maskwright that began it; or begin a new run at its newest checkpoint: "
        fix += "`maskwright pretrain CONFIG --run NEW --from RUN`"
        raise ConfigError("an earlier version began the run, and planned its rows otherwise", fix=fix)


def _require_text(store: Store) -> None:
    """Raises `StoreError` for a store of which more than half is unknown, or that has no token to mask, by a sample of
    its documents."""
    unknown, special = store.vocabulary.unk, special_table(store.vocabulary)
    for part in store.stores if isinstance(store, Mixture) else [store]:
        side = part.split("train").sampled()
        apart = max(1, side.documents // SAMPLE_DOCUMENTS)
        ids = np.concatenate([np.zeros(0, np.int32), *side.beginnings(SAMPLE_TOKENS, apart)])
        ids = ids[ids < len(special)]  # training refuses others, with their place
        fix = "prepare its text again into another folder: `maskwright data prepare` says why they are unknown"
        require_known(int(np.count_nonzero(ids == unknown)), len(ids), part.location, "", fix)
        if len(ids) and special[ids].all():
            fix = "prepare its text again: special tokens are never masked"
            raise StoreError("holds special tokens alone, so that nothing can be masked", where=part.location, fix=fix)


def _validation_stores(config: RunConfig, store: Store) -> dict[str, TokenStore]:
    stores = open_held_out(config.data)
    for held_out in stores.values():
        held_out.require_tokenizer(store.vocabulary, store.location)
        if not documents_held_out(held_out):
            fix = "prepare its text with --valid-fraction 1, which holds all of it out"
            raise StoreError("holds no documents out", where=f"data.validation: {held_out.location}", fix=fix)
    return stores
