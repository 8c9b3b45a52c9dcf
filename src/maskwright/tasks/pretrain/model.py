"""The model of a run and its first weights: from the configuration, from a model that the run continues, or from
another run."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from maskwright.config.pretraining import RunConfig
from maskwright.core.console import warn
from maskwright.core.errors import ConfigError, ModelError, StoreError
from maskwright.core.hub import is_hub
from maskwright.data.opening import Store
from maskwright.model.config import ModelConfig, model_config, recorded_config
from maskwright.model.hf.config import class_name, fine_tuning_values, read_hf_config
from maskwright.model.hf.folder import NEW_HEAD, read_encoder, read_hf_parameters, weight_digests
from maskwright.model.hf.names import Parameters
from maskwright.model.initial import initial_parameters
from maskwright.run.directory import RunDirectory
from maskwright.run.record import CONFIG, FromFolder, FromRun, RunRecord
from maskwright.tasks.models.hub import local
from maskwright.tasks.models.load import special_ids
from maskwright.tasks.models.modules import warn_of_modules
from maskwright.tasks.models.runs import model_at
from maskwright.tasks.pretrain import lineage as lineages
from maskwright.text.tokenizer_faults import NEW_WORDS
from maskwright.text.vocabulary import has_tokenizer, read_vocabulary

Parent = tuple[FromRun, RunRecord]


@dataclass(frozen=True)
class Base:
    """A model folder or a run: the one that `model.init_from` names."""

    location: str
    """As the configuration gives it; for a model of the Hub, with its commit when the run began."""
    with_weights: bool = True
    """False if only its shape is needed, so that a model of the Hub is not downloaded."""

    @cached_property
    def folder(self) -> str:
        """The folder on this machine. A continued run uses it only if it must."""
        return local(self.location, weights=self.with_weights)

    @cached_property
    def run(self) -> Parent | None:
        """Its checkpoint and record, if it is a run."""
        if not lineages.is_run(self.folder):
            return None
        return lineages.find_parent(self.location, fresh_optimizer=True, via="model.init_from")

    @property
    def tokenizer(self) -> str | None:
        """The folder of its tokenizer; None without one."""
        folder = RunDirectory(self.folder).path("tokenizer") if self.run else self.folder
        return folder if has_tokenizer(folder) else None

    def model(self, config: RunConfig) -> ModelConfig:
        """The base's shape, with the run's dropout. Raises `ModelError` without a masked-LM head, `ConfigError` if the
        run's rows are too long for it."""
        if self.run is not None:
            model = model_at(self.run[1], self.run[0].step, self.location)
        else:
            model = read_hf_config(self.folder, head=not config.model.new_head)
        if model.task != "masked_lm":
            fix = f"continue from the masked-LM model that it was fine-tuned from{NEW_HEAD}"
            raise ModelError(f"is a {class_name(model)}, without a masked-LM head", where=self.location, fix=fix)
        if config.longest_row > model.max_seq_len:
            what = f"{config.longest_row} is above the {model.max_seq_len} tokens that {self.location} can read"
            where = "data.seq_len" if config.data.seq_len == config.longest_row else "seq_len of a phase"
            raise ConfigError(what, where=where, fix=f"set it to {model.max_seq_len}")
        section = config.model
        return replace(
            model, hidden_dropout_prob=section.hidden_dropout, attention_probs_dropout_prob=section.attention_dropout
        )

    def parameters(self, config: RunConfig, model: ModelConfig) -> Parameters:
        """The weights of `model`; with a new head, if the run sets one."""
        if not config.model.new_head:
            return read_hf_parameters(self.folder, model)
        return initial_parameters(model, config.seed) | read_encoder(self.folder, model)

    def began_from(self) -> FromFolder:
        """The record of this folder in a run that begins from it, with the checksums of its weights."""
        location = self.location if is_hub(self.location) else os.path.abspath(self.location)
        return FromFolder(location, weight_digests(self.folder))

    def fine_tuning(self, config: RunConfig) -> dict[str, Any]:
        """The values for fine-tuning alone in its config.json."""
        return fine_tuning_values(self.folder, read_hf_config(self.folder, head=not config.model.new_head))


def model_without_store(config: RunConfig, vocab_size: int) -> ModelConfig:
    """The shape of a run whose token store is not here."""
    if config.model.init_from is not None:
        return Base(config.model.init_from, with_weights=False).model(config)
    return model_config(config.model, vocab_size, config.data.seq_len)


def model_and_parent(
    config: RunConfig, store: Store, before: RunRecord | None, parent: Parent | None, base: Base | None
) -> tuple[ModelConfig, Parent | None]:
    """The model, and the checkpoint of another run that a new run begins from. `before`: the record of a run that is
    continued. `parent`: the record of `--from`."""
    words = store.vocabulary
    if before is not None and before.began_from is not None:
        return recorded_config(before.model, CONFIG), None
    if parent is not None:
        return lineages.child_model(config, parent[1], parent[0], store), parent
    if base is None:
        model = model_config(config.model, words.size, config.data.seq_len, **special_ids(words))
        if model.position_offset > model.max_seq_len:
            unused = f"{model.position_offset:,} of {model.max_position_embeddings:,} positions are never used"
            warn(f"{model.architecture}: {unused}, since it counts them from the padding's id on; give <pad> a low id")
        return model, None
    if base.run and config.model.new_head:
        fix = "leave it out, or continue from the run's export"
        raise ConfigError(f"is for a model folder, and {base.location} is a run", where="model.new_head", fix=fix)
    model = base.model(config)
    _require_its_tokenizer(base, model, store)
    if not base.run:
        warn_of_modules(base.location, base.folder)
    return model, base.run


def _require_its_tokenizer(base: Base, model: ModelConfig, store: Store) -> None:
    if (tokenizer := base.tokenizer) is not None:
        store.require_tokenizer(read_vocabulary(tokenizer), tokenizer)
    else:
        what = "has no tokenizer.json, so nothing shows whether the text was prepared with the model's own one"
        warn(f"{base.folder}: {what}")
    if store.vocabulary.size > model.vocab_size:
        limit = f"but the model in {base.folder} only {model.vocab_size:,}"
        what = f"its tokenizer has {store.vocabulary.size:,} tokens, {limit}"
        raise StoreError(
            what, where=store.location, fix=f"prepare the text with that model's own tokenizer; {NEW_WORDS}"
        )
