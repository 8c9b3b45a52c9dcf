"""A pretraining run before its first step: whether configuration, data and model fit together, and its work."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from maskwright.config.changes import as_begun
from maskwright.config.places import absolute
from maskwright.config.pretraining import RunConfig
from maskwright.config.settings import flat
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
from maskwright.model.hf.config import class_name, dropout_keys, family_dropout
from maskwright.model.hf.names import count_parameters
from maskwright.model.initial import initial_parameters
from maskwright.run.record import BeganFrom, FromRun, RecordedText, RunRecord
from maskwright.run.record import describe as describe_beginning
from maskwright.tasks.models.hub import pinned
from maskwright.tasks.models.load import with_ids
from maskwright.tasks.planning.cost import Work, pretraining_work, time_here
from maskwright.tasks.pretrain import lineage as lineages
from maskwright.tasks.pretrain.describe import reading
from maskwright.tasks.pretrain.model import Base, model_and_parent, model_without_store
from maskwright.tasks.pretrain.warnings import documents_held_out, unusual_data, unusual_settings, unusual_text
from maskwright.tasks.start.capacity import memory_and_disk
from maskwright.tasks.start.data_card import SAMPLE_DOCUMENTS, SAMPLE_TOKENS, pretraining_card
from maskwright.text.tokenizer import copy_tokenizer
from maskwright.text.unknown import require_known
from maskwright.training.job import Job
from maskwright.training.kept_batch import origins, write_batches
from maskwright.training.masked_lm import MaskedLM, masks_at

VOCABULARY = 50_265
"""Size of the vocabulary of a plan that names none: RoBERTa's."""
SAMPLED_STEPS = 8
"""Steps whose rows are counted to estimate the work of a run."""


@dataclass(frozen=True)
class PretrainRun:
    """See `Prepared`."""

    config: RunConfig
    model: ModelConfig
    store: Store
    loader: Loader
    parent: BeganFrom = None
    """What it began from, if that is another run's checkpoint; for a continued run, also anything else."""
    validation: Mapping[str, TokenStore] = field(default_factory=dict)
    """The stores of data.validation by name; empty if the run is judged by the held-out part of its own store."""
    base: Base | None = None
    """The folder that `model.init_from` names; None if the run began from a run's checkpoint."""
    inherited: Mapping[str, Any] = field(default_factory=dict)
    """`RunRecord.fine_tuning` of the run whose checkpoint it began from."""
    warmup_share: float | None = None
    """The configuration's share of steps for the warm-up, which `config` holds as a number of steps."""
    label_smoothing, looked_up = 0.0, None

    @cached_property
    def texts(self) -> tuple[RecordedText, dict[str, RecordedText]]:
        return _text(self.store), {name: _text(store) for name, store in self.held_out.items()}

    def record(self, given: Any, dtype: Any, before: RunRecord | None) -> RunRecord:
        train, held_out = self.texts
        return RunRecord(
            kind="pretrain",
            keys=flat(absolute(self.config)),
            steps=self.config.steps,
            digest=self.config.digest(),
            model=asdict(self.model),
            dtype=dtype,
            tokenizer_fingerprint=self.store.vocabulary.fingerprint,
            roles_sha256=self.store.vocabulary.roles_sha256,
            train=train,
            held_out=held_out,
            began_from=before.began_from if before else self.began_from(),
            fine_tuning=before.fine_tuning if before else self._fine_tuning(),
            rows=ROWS,
            warmup_share=self.warmup_share,
        )

    @property
    def flops(self) -> float:
        """Model FLOPs of the whole run, as if each row were full, and one segment."""
        return self.config.steps * pretraining_work(self.config, self.model).flops

    @property
    def micro_batch_losses(self) -> float:
        return self.loader.micro_batch_losses

    @property
    def begins_from(self) -> str | None:
        if isinstance(self.parent, FromRun):
            return self.parent.run
        return self.base.location if self.base else None

    @cached_property
    def work(self) -> Work:
        """Counts the tokens of real rows. Eight steps, spread over the run, stand for all; a run with phases has at
        least one in each."""
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
        """The state of step 0: from another run, from `model.init_from`, or random. Raises `ModelError` or
        `CheckpointError`."""
        if isinstance(self.parent, FromRun):
            return lineages.starting_state(self.parent)
        if self.base is None:
            return TrainState(0, initial_parameters(self.model, self.config.seed))
        parameters = self.base.parameters(self.config, self.model)
        say(f"continuing from {self.base.location}")
        return TrainState(0, parameters)

    def began_from(self) -> BeganFrom:
        return self.base.began_from() if self.base else self.parent

    def _fine_tuning(self) -> dict[str, Any]:
        """Values for the export's config.json: the base's for fine-tuning, or the family's, without the keys that this
        run sets."""
        names = {"hidden_dropout": "hidden_dropout_prob", "attention_dropout": "attention_probs_dropout_prob"}
        keys = {name: dropout_keys(self.model.architecture, field) for name, field in names.items()}
        values: Mapping[str, Any] = self.inherited
        if self.base:
            values = self.base.fine_tuning(self.config)
        elif self.parent is None:
            values = {key: family_dropout(self.model) for each in keys.values() for key in each}
        keys_set = {key for name, each in keys.items() if name in self.config.model.model_fields_set for key in each}
        return {key: value for key, value in values.items() if key not in keys_set}

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
            fix = "name a token store of held-out text as data.validation"
            warn(f"{self.store.location}: has no valid documents. This run has no validation. Fix: {fix}")
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
        origin = describe_beginning(self.parent) if isinstance(self.parent, FromRun) else []
        lines = [*origin, f"model: {shape}, {words}", *reading(self.config, self.loader, model)]
        return "\n".join([*lines, memory_and_disk(self, processes)])

    def warnings(self) -> list[str]:
        lines = lineages.warnings(self.parent, self.config, self.store.fingerprint)
        stores = self.store.stores if isinstance(self.store, Mixture) else [self.store]
        lines += unusual_text(self.config, stores, is_random=self.parent is None and self.base is None)
        steps = self.config.steps
        sources = {name: epochs for name, _, epochs in self.loader.sources_read(steps)}
        read = sources or {"": self.loader.epoch(steps)}
        lines += unusual_data(read, self.held_out, self.config.data.seq_len)
        return lines + unusual_settings(self.config)

    def keep_batch(self, job: Job, step: int, details: dict[str, Any]) -> str:
        rows, masks = origins(self.loader, self.store, step), masks_at(self.loader, step)
        record = {"seed": self.config.seed, **masks, **details, "rows": rows}
        return write_batches(job.directory, self.loader.batches(step), step, record)

    def finish(self, job: Job) -> None:
        """The last checkpoint is the result."""


def prepare_run(
    config: RunConfig,
    before: RunRecord | None = None,
    begin_from: str | None = None,
    *,
    fresh_optimizer: bool = False,
) -> PretrainRun:
    """Checks everything that can be checked without a device. Raises `InputError` kinds (exit 2).

    `before`: the record of a run that is continued; its first weights are then no longer needed. `begin_from`: RUN or
    RUN@STEP, whose checkpoint the run begins or once began with, including the optimizer's state unless
    `fresh_optimizer`.
    """
    parent, warmup_share = None, config.schedule.warmup_share
    if before is not None:
        config = as_begun(config, before.pretraining, before.warmup_share)
    if begin_from is None and fresh_optimizer:
        raise InputError("--fresh-optimizer needs --from RUN[@STEP]", fix="give both, or neither")
    if begin_from is not None and before is not None:
        lineages.require_same_parent(begin_from, before, fresh_optimizer=fresh_optimizer)
    elif begin_from is not None:
        parent = lineages.find_parent(begin_from, fresh_optimizer=fresh_optimizer)
    init_from, base = config.model.init_from, None
    recorded = before.began_from if before else None
    if init_from is not None and parent is None and not isinstance(recorded, FromRun):
        base = Base(pinned(init_from, recorded.location if recorded else None))
        section = config.model.model_copy(update={"init_from": base.location})
        config = config.model_copy(update={"model": section})
    # Stores of other formats have a tokenizer. A continued run must not need its base any more.
    store = open_store(config.data, base.tokenizer if base and config.data.format == "pregenerated" else None)
    model, parent = model_and_parent(config, store, before, parent, base)
    _require_text(store)
    require_family(model, config.engine)
    model = with_ids(model, store.vocabulary, store.tokenizer_folder)
    if not model.facts.rotary and any(phase.rope_theta for phase in config.phases):
        what = f"{class_name(model)} has no rotary positions"
        raise ConfigError(what, where="rope_theta of a phase", fix="leave it out")
    held_out = _validation_stores(config, store)
    loader = Loader(config, store)
    config = loader.config
    if config.evaluation.patience is not None and not (held_out or documents_held_out(store)):
        fix = "name a held-out store as data.validation, or leave it out"
        raise ConfigError(f"needs held-out text, and {store.location} has none", where="evaluation.patience", fix=fix)
    began_from, inherited = (parent[0], parent[1].fine_tuning) if parent else (recorded, {})
    folder = None if parent else base
    return PretrainRun(config, model, store, loader, began_from, held_out, folder, inherited, warmup_share)


def planned(config: RunConfig, tokens: int | None, vocab_size: int | None) -> tuple[Work, PretrainRun | None]:
    """(The work of a run, the run to take steps of). With the `tokens` of its text, or a `vocab_size`, the store may be
    absent: rows count as full, and there is no run. Raises `InputError` where the store is needed and absent, and
    `ConfigError` where schedule.epochs does not go with `tokens`."""
    stores = [config.data.store or "", *(source.store for source in (config.data.mixture or {}).values())]
    absent = [store for store in stores if store and not storage.is_url(store) and not os.path.isdir(store)]
    if vocab_size is None and tokens is None:
        if absent:
            fix = "prepare it, or give --tokens N, the tokens of your text: about 1 million for 4.3 MB of English"
            raise InputError("is not here, so the vocabulary and the text are unknown", where=absent[0], fix=fix)
        ready = prepare_run(config)
        return ready.work, ready
    epochs = config.schedule.epochs
    if tokens is None and epochs is not None:
        raise ConfigError("epochs of a text of unknown length", where="schedule.epochs", fix="give --tokens N")
    if tokens is not None and epochs is None:
        fix = "add --set schedule.epochs=4 to read the text four times, or leave --tokens out"
        raise ConfigError(f"has no effect: schedule.steps is {config.steps:,}", where="--tokens", fix=fix)
    config = config.resolved((tokens or 0) / config.data.seq_len)
    return pretraining_work(config, model_without_store(config, vocab_size or VOCABULARY)), None


def _text(store: Store) -> RecordedText:
    location = store.location
    return RecordedText(location if storage.is_url(location) else os.path.abspath(location), store.fingerprint)


def _require_text(store: Store) -> None:
    """Raises `StoreError` if more than half of the tokens in a sample of documents are unknown, or none can be
    masked."""
    unknown, special = store.vocabulary.unk, special_table(store.vocabulary)
    for part in store.stores if isinstance(store, Mixture) else [store]:
        side = part.split("train").sampled()
        apart = max(1, side.documents // SAMPLE_DOCUMENTS)
        ids = np.concatenate([np.zeros(0, np.int32), *side.beginnings(SAMPLE_TOKENS, apart)])
        ids = ids[ids < len(special)]  # training refuses others, naming their place
        fix = "prepare its text again into another folder; `maskwright data prepare` prints why they are unknown"
        require_known(int(np.count_nonzero(ids == unknown)), len(ids), part.location, "", fix)
        if len(ids) and special[ids].all():
            fix = "prepare its text again, since special tokens are never masked"
            raise StoreError("holds only special tokens, so no token can be masked", where=part.location, fix=fix)


def _validation_stores(config: RunConfig, store: Store) -> dict[str, TokenStore]:
    stores = open_held_out(config.data)
    for held_out in stores.values():
        held_out.require_tokenizer(store.vocabulary, store.location)
        if not documents_held_out(held_out):
            fix = "prepare its text with --valid-fraction 1, which holds out all of it"
            raise StoreError("holds no documents out", where=f"data.validation: {held_out.location}", fix=fix)
    return stores
