"""What can be known before a run: whether configuration, data, model and machine fit together; what it will take."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from maskwright.config.phases import masked_rates
from maskwright.config.pretraining import RunConfig
from maskwright.core import storage
from maskwright.core.console import human_count, say, several, warn
from maskwright.core.errors import ConfigError, InputError, ModelError, StoreError
from maskwright.core.hub import is_hub
from maskwright.data.arrow_store import Judged
from maskwright.data.batch import Batch
from maskwright.data.loader import Loader, validation_batches
from maskwright.data.mixture import Mixture
from maskwright.data.opening import Store, open_held_out, open_store
from maskwright.engines.base import TrainState
from maskwright.engines.choose import choose_device
from maskwright.engines.muon import GROWTH, INITIAL_RMS, LARGE_RMS, UPDATE_RMS
from maskwright.model.config import ModelConfig, config_at, model_config, recorded_config, training_flops
from maskwright.model.hf.config import class_name, dropout_keys, fine_tuning_values, read_hf_config
from maskwright.model.hf.folder import NEW_HEAD, read_encoder, read_hf_parameters, weight_digests
from maskwright.model.hf.names import Parameters, count_parameters
from maskwright.model.initial import initial_parameters
from maskwright.run.directory import RunDirectory
from maskwright.run.lineage import Lineage
from maskwright.run.lineage import describe as describe_lineage
from maskwright.tasks.models.hub import local, pinned
from maskwright.tasks.models.load import special_ids, with_ids
from maskwright.tasks.pretrain import lineage as lineages
from maskwright.tasks.pretrain.phases import reading
from maskwright.tasks.start.capacity import takes
from maskwright.tasks.start.data_card import pretraining_card
from maskwright.tasks.start.prepared import Prepared
from maskwright.text.sources import TEXT_ENDINGS, file_kind
from maskwright.text.tokenizer import copy_tokenizer
from maskwright.text.vocabulary import has_tokenizer, none_is_text, read_vocabulary
from maskwright.training.job import Job
from maskwright.training.masked_lm import MaskedLM
from maskwright.training.replay import write_bundle


@dataclass(frozen=True)
class PretrainRun:
    """See `Prepared`."""

    config: RunConfig
    model: ModelConfig
    store: Store
    loader: Loader
    lineage: Lineage | None = None
    """The checkpoint of another run that this one began from."""
    validation: Mapping[str, Judged] = field(default_factory=dict)
    """The stores of data.validation by name; none where the run is judged by what its own store holds out."""
    base: str | None = None
    """`model.init_from`, with the commit that a model of the Hub had when the run began."""
    label_smoothing, looked_up = 0.0, None

    @property
    def identity(self) -> dict[str, str]:
        store = self.store.location
        return {
            "store": store if storage.is_url(store) else os.path.abspath(store),
            "store_fingerprint": self.store.fingerprint,
            "tokenizer_fingerprint": self.store.vocabulary.fingerprint,
        }

    @property
    def details(self) -> dict[str, Any]:
        fingerprints = {name: held_out.fingerprint for name, held_out in self.validation.items()}
        found: dict[str, Any] = {"validation": fingerprints} if fingerprints else {}
        if self.loader.has_several_shards:
            found["row_planning"] = "by shard"
        return found | ({"none_is_text": True} if none_is_text(self.store.tokenizer_folder) else {})

    @property
    def flops(self) -> float:
        return run_flops(self.config, self.model)

    @property
    def micro_batch_losses(self) -> float:
        return self.loader.micro_batch_losses

    @property
    def begins_from(self) -> str | None:
        return self.base if self.lineage is None else self.lineage["run"]

    def verify(self) -> None:
        for store in (self.store, *self.validation.values()):
            store.verify_at_start()

    def starting_state(self) -> TrainState:
        """That of another run, read from `model.init_from`, or random. Raises `ModelError` or `CheckpointError`."""
        if self.lineage is not None:
            return lineages.starting_state(self.lineage)
        if self.base is None:
            return TrainState(0, initial_parameters(self.model, self.config.seed))
        parameters = starting_weights(self.config, self.model, self.base)
        say(f"continuing from {self.base}")
        return TrainState(0, parameters)

    def base_weights(self) -> dict[str, Any]:
        if self.lineage is not None:
            return {"lineage": self.lineage, **self._fine_tuning(self.lineage.get("fine_tuning", {}))}
        if self.base is None:
            return {}
        commit = {"base": {"location": self.base}} if is_hub(self.base) else {}
        folder = local(self.base)
        values = fine_tuning_values(folder, read_hf_config(folder, head=not self.config.model.new_head))
        return {"base_weights": weight_digests(folder), **commit, **self._fine_tuning(values)}

    def _fine_tuning(self, values: dict[str, Any]) -> dict[str, Any]:
        """For the export's config.json: what the base has there for fine-tuning, and this run did not set itself."""
        names = {"hidden_dropout": "hidden_dropout_prob", "attention_dropout": "attention_probs_dropout_prob"}
        own = [names[key] for key in names if key in self.config.model.model_fields_set]
        given = {key for name in own for key in dropout_keys(self.model.architecture, name)}
        found = {key: value for key, value in values.items() if key not in given}
        return {"fine_tuning": found} if found else {}

    def objective(self) -> MaskedLM:
        return MaskedLM(self.loader, self._validation, self.model.vocab_size, self.config.evaluation.patience)

    @property
    def held_out(self) -> Mapping[str, Judged]:
        """The stores that the run is judged by."""
        own: Mapping[str, Judged] = {}
        if isinstance(self.store, Mixture):
            own = self.store.held_out
        elif _documents_held_out(self.store):
            own = {"": self.store}
        return self.validation or own

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

    def data_card(self) -> dict[str, Any]:
        return pretraining_card(self.store, self._validation, own=not self.validation)

    def write_tokenizer(self, folder: str) -> None:
        copy_tokenizer(self.store.tokenizer_folder, folder)

    def describe(self) -> str:
        return describe(self)

    def warnings(self) -> list[str]:
        stores = self.store.stores if isinstance(self.store, Mixture) else (self.store,)
        found = [f"{store.location}: {finding}" for store in stores for finding in store.manifest.get("findings", [])]
        return [*found, *unusual_settings(self.config, self)]

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
    parent = None
    if begin_from is None and fresh_optimizer:
        raise InputError("--fresh-optimizer goes with --from RUN[@STEP]", fix="give both, or neither")
    if begin_from is not None and before is not None:
        lineages.require_same_parent(begin_from, before, fresh_optimizer=fresh_optimizer)
    elif begin_from is not None:
        parent = lineages.find_parent(begin_from, fresh_optimizer=fresh_optimizer)
    init_from, base = config.model.init_from, None
    if init_from is not None and parent is None and "lineage" not in (before or {}):
        base = pinned(init_from, (before or {}).get("base"))
    # Others have their own; a run that is continued must not need its base any more.
    pregenerated = config.data.format == "pregenerated"
    store = open_store(config.data, _own_tokenizer(base) if pregenerated else None)
    vocabulary = store.vocabulary
    model, lineage = _model(config, store, before, parent, base or "")
    model = with_ids(model, vocabulary, store.tokenizer_folder)
    if model.architecture != "modernbert" and any(phase.rope_theta for phase in config.phases):
        what = f"{class_name(model)} has no rotary positions"
        raise ConfigError(what, where="rope_theta of a phase", fix="leave it out")
    held_out = _validation_stores(config, store)
    loader = Loader(config, store, held_out.values())
    config = loader.config
    loader.require_rows()
    if config.evaluation.patience is not None and not (held_out or _documents_held_out(store)):
        fix = "name a held-out store as data.validation, or leave it out"
        raise ConfigError(f"needs held-out text, and {store.location} has none", where="evaluation.patience", fix=fix)
    return PretrainRun(config, model, store, loader, lineage, held_out, base)


def _own_tokenizer(base: str | None) -> str | None:
    """The tokenizer of the model or the run that is continued; None where it has none."""
    if base is None:
        return None
    folder = local(base)
    folder = RunDirectory(folder).path("tokenizer") if lineages.is_run(folder) else folder
    return folder if has_tokenizer(folder) else None


def _documents_held_out(store: Store) -> int:
    return int(store.manifest["splits"]["valid"]["documents"])


def _validation_stores(config: RunConfig, store: Store) -> dict[str, Judged]:
    found = open_held_out(config.data)
    for held_out in found.values():
        held_out.require_tokenizer(store.vocabulary, store.location)
        if not _documents_held_out(held_out):
            fix = "prepare its text with --valid-fraction 1, which holds all of it out"
            raise StoreError("holds no documents out", where=f"data.validation: {held_out.location}", fix=fix)
    return found


def _model(
    config: RunConfig, store: Store, before: dict[str, Any] | None, parent: lineages.Parent | None, base: str
) -> tuple[ModelConfig, Lineage | None]:
    init_from, words = config.model.init_from, store.vocabulary
    if before is not None and ("lineage" in before or init_from == before["config"].get("model.init_from") is not None):
        return recorded_config(before["model"], "config.resolved.json"), before.get("lineage")
    if parent is not None:
        return lineages.child_model(config, parent[1], parent[0], store), parent[0]
    if init_from is None:
        return model_config(config.model, words.size, config.data.seq_len, **special_ids(words)), None
    if lineages.is_run(init_from):
        if config.model.new_head:
            fix = "leave it out, or continue from the run's export"
            raise ConfigError(f"is for a model folder, and {init_from} is a run", where="model.new_head", fix=fix)
        return _continued(config, store, base), lineages.find_parent(init_from, fresh_optimizer=True)[0]
    return _continued(config, store, base), None


def starting_weights(config: RunConfig, model: ModelConfig, base: str) -> Parameters:
    """Those of the model that the run continues, with a head of its own if it says so."""
    folder = local(base)
    if not config.model.new_head:
        return read_hf_parameters(folder, model)
    return initial_parameters(model, config.seed) | read_encoder(folder, model)


def _continued(config: RunConfig, store: Store, base: str) -> ModelConfig:
    folder, model = local(base), continued_model(config, base)
    if (tokenizer := _own_tokenizer(base)) is not None:
        store.require_tokenizer(read_vocabulary(tokenizer), tokenizer)
    else:
        warn(
            f"{folder}: has no tokenizer.json, so nothing shows whether the text was prepared with the model's own one"
        )
    if store.vocabulary.size > model.vocab_size:
        what = f"its tokenizer has {store.vocabulary.size:,} tokens, the model in {folder} only {model.vocab_size:,}"
        raise StoreError(what, where=store.location, fix="prepare the text with that model's own tokenizer")
    return model


def continued_model(config: RunConfig, folder: str) -> ModelConfig:
    """The model of `folder`, or of the run there, with this run's dropout."""
    run = RunDirectory(folder) if lineages.is_run(folder) else None
    head = not config.model.new_head
    model = (
        config_at(run.read_config(), run.newest_step(), run.config) if run else read_hf_config(local(folder), head=head)
    )
    if model.task != "masked_lm":
        fix = f"continue from the masked-LM model that it was fine-tuned from{NEW_HEAD}"
        raise ModelError(f"is a {class_name(model)}, without a masked-LM head", where=folder, fix=fix)
    if config.longest_row > model.max_seq_len:
        what = f"{config.longest_row} is above the {model.max_seq_len} tokens that {folder} can take"
        where = "data.seq_len" if config.data.seq_len == config.longest_row else "seq_len of a phase"
        raise ConfigError(what, where=where, fix=f"set it to {model.max_seq_len}")
    own = config.model
    return replace(model, hidden_dropout_prob=own.hidden_dropout, attention_probs_dropout_prob=own.attention_dropout)


MOST_EPOCHS = 40
"""BERT saw its text so often (arXiv:1810.04805, A.2). At RoBERTa's rate a token was then predicted six times."""
LEAST_HELD_OUT_DOCUMENTS = 100
"""A share of right predictions lies in 0 … 1, so its spread between documents is 0.5 at most. The error of its mean
over so many documents is then 5 points at most."""
MOST_HELD_OUT = 0.3
"""The largest share of a text that is proposed."""


def unusual_settings(config: RunConfig, ready: PretrainRun | None = None) -> list[str]:
    """Warnings about values that are allowed, but most often a slip; with `ready`, also about the run's data."""
    found, rates = _unusual_data(ready) if ready else [], masked_rates(config)
    if max(rates, default=0.0) > 0.5:
        found.append(f"masking.rate {max(rates):g}: rows keep less than half of their tokens, short ones may keep none")
    if config.optimizer.learning_rate > 0.05:
        found.append(
            f"optimizer.learning_rate {config.optimizer.learning_rate:g} is far above what trains: 1e-4 to 1e-2"
        )
    if config.optimizer.kind == "muon" and (rms := muon_rms(config, config.optimizer.weight_decay)) > LARGE_RMS:
        decays = (0.03, 0.1, 0.3, 1.0, 3.0)
        enough = next((decay for decay in decays if muon_rms(config, decay) < 0.75 * LARGE_RMS), 10.0)
        found.append(
            f"optimizer.weight_decay {config.optimizer.weight_decay:g}: Muon's updates make the matrices some "
            f"{rms / INITIAL_RMS:.0f} times as large as they begin, and such a model fine-tunes badly: "
            f"--set optimizer.weight_decay={enough:g}, or a lower optimizer.learning_rate as well"
        )
    if not rates or config.masking.mask_share == 0.0:
        key = "mask_share 0" if rates else "causal_share 1"
        found.append(f"masking.{key}: the model never sees <mask>, so `fill` and most evaluations are out of reach")
    return found


def muon_rms(config: RunConfig, weight_decay: float) -> float:
    """About the root mean square of Muon's matrices at the end of the run: each update adds its square and decay takes
    its share (Kosson et al. 2023, arXiv 2305.17212, have the equilibrium)."""
    steps, square = config.steps, 0.0
    length = max(1, steps // 1000)
    for step in range(0, steps, length):
        rate = config.learning_rate_at(step)
        lost = 2.0 * rate * weight_decay * length
        added = (GROWTH * UPDATE_RMS * rate) ** 2 * length
        square = square * math.exp(-lost) + (added * -math.expm1(-lost) / lost if lost else added)
    return math.sqrt(square)


def _unusual_data(ready: PretrainRun) -> list[str]:
    found = lineages.warnings(ready.lineage, ready.config, ready.store.fingerprint)
    if (epochs := ready.loader.epoch(ready.config.steps)) > MOST_EPOCHS:
        found.append(
            f"the run reads its text {epochs:,.0f} times, and BERT read its own {MOST_EPOCHS} times: "
            "prepare more text, or lower schedule.steps"
        )
    for name, store in ready.held_out.items():
        held_out, of = _documents_held_out(store), f" in {name}" if name else ""
        if 0 < held_out < LEAST_HELD_OUT_DOCUMENTS:
            found.append(
                f"only {several(held_out, 'document')} {'is' if held_out == 1 else 'are'} held out{of}, too few to "
                f"compare runs by: {_more_held_out(store, held_out)}"
            )
    return found


def _more_held_out(store: Judged, held_out: int) -> str:
    """The default share does not grow for a small text: what it holds out stays held out when the text has grown."""
    share = LEAST_HELD_OUT_DOCUMENTS / (held_out + int(store.manifest["splits"]["train"]["documents"]))
    if share > MOST_HELD_OUT:
        plain = any(file_kind(one["location"]) in TEXT_ENDINGS for one in store.manifest.get("sources", []))
        whole = plain and store.manifest["options"].get("layout") == "file"
        return "take more text" + ", or prepare with --layout lines or sentences, where a file has several" * whole
    return f"prepare into another folder with --valid-fraction {math.ceil(100 * share) / 100:g}"


def describe(ready: PretrainRun) -> str:
    """Describes what the run will do, for `--dry-run` and the beginning of each run."""
    config, model = ready.config, ready.model
    parameters = count_parameters(model)
    return "\n".join(
        [
            *describe_lineage(ready.lineage),
            f"model: {model.num_hidden_layers} layers x {model.hidden_size}, "
            f"{human_count(parameters)} parameters, vocabulary {model.vocab_size:,}, {model.max_seq_len} tokens",
            *reading(config, ready.loader),
            takes(ready),
        ]
    )


def compiles(ready: Prepared) -> bool:
    """Whether the run compiles its layers (torch) or all of it (JAX)."""
    engine = ready.config.engine
    if engine.kind == "jax":
        return True
    from maskwright.engines.torch.prepare import choose_compile

    return choose_compile(engine.compile, choose_device(engine), ready.flops)


def run_flops(config: RunConfig, model: ModelConfig) -> float:
    """Model FLOPs of the whole run if each row is full, and one segment."""
    return sum((stage.end - stage.begin) * step_flops(stage.config, model) for stage in config.stages)


def step_flops(config: RunConfig, model: ModelConfig) -> float:
    """Those of an update of a run without phases, or of one of its stages."""
    tokens = float(config.rows_per_step * config.data.seq_len)
    return training_flops(model, tokens, tokens * config.data.seq_len, tokens * config.masking.rate)
