"""A trained model from a run directory (its newest good checkpoint) or from a Hugging Face folder."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from maskwright.config.finetuning import LABELLED, Task, tokens_of_row
from maskwright.core import storage
from maskwright.core.errors import CheckpointError, InputError
from maskwright.core.hub import is_hub
from maskwright.engines.base import TrainState
from maskwright.model.config import ModelConfig
from maskwright.model.hf.config import class_name, read_hf_config, read_labels, read_use
from maskwright.model.hf.folder import read_model_folder
from maskwright.model.hf.names import Parameters
from maskwright.model.initial import with_outputs
from maskwright.run.directory import RunDirectory, step_folder
from maskwright.run.record import RESTORE, RunRecord
from maskwright.tasks.models.hub import local, pinned
from maskwright.tasks.models.modules import longest_text
from maskwright.tasks.models.runs import model_at, without_checkpoint
from maskwright.text.tokenizer_faults import NEW_WORDS
from maskwright.text.vocabulary import Vocabulary, read_vocabulary
from maskwright.training import checkpoint
from maskwright.training.copies import TOKENIZER, Copies


@dataclass(frozen=True)
class TrainedModel:
    """A model with its tokenizer, labels and task. `run` is the run's record and `step` its updates; both are None for
    a folder."""

    location: str
    config: ModelConfig
    parameters: Parameters
    tokenizer_folder: str
    vocabulary: Vocabulary
    run: RunRecord | None = None
    step: int | None = None
    labels: tuple[str, ...] = ()
    """Names of a classifier's outputs."""
    task: Task | None = None
    """The task of a fine-tuned model; None for masked-LM models."""
    max_seq_len: int | None = None
    """Tokens of a row in fine-tuning, or of a text by the files of a folder of other tools; None if unknown."""
    may_be_none: bool | None = None
    """Only for questions: whether some of the training questions have no answer; None if unknown."""
    pairs: bool | None = None
    """Whether it was trained on pairs of texts; None if unknown, and for words and questions."""
    fetched_to: str | None = None
    """The folder on this machine, for a run in a bucket."""

    @property
    def folder(self) -> str:
        return self.fetched_to or self.location

    def require_masked_lm(self) -> None:
        if self.task is not None:
            fix = "use the model that it was fine-tuned from, or `maskwright predict` for this one"
            raise InputError(f"is a {class_name(self.config)}, without a masked-LM head", where=self.location, fix=fix)

    def require_task(self) -> Task:
        if self.task is None:
            fix = "fine-tune it first with `maskwright finetune`"
            raise InputError(f"is a {class_name(self.config)}, which has learned no task", where=self.location, fix=fix)
        return self.task

    def with_threshold(self, threshold: float) -> TrainedModel:
        """The model that gives a text the labels with a probability above `threshold`. Raises `InputError` for a model
        that gives each text one answer."""
        task = self.require_task()
        if task.kind != "multi_label_classification":
            what = f"is a {class_name(self.config)} for {task.kind}, which has no threshold"
            raise InputError(what, where=self.location, fix="use the label with the highest probability, as it does")
        return replace(self, task=task.model_copy(update={"threshold": threshold}))


def load_model(location: str, *, bare: bool = False) -> TrainedModel:
    """`location`: a run directory, a run's copies in a bucket, a model folder, or a model on the Hub
    (`hf://OWNER/NAME@REVISION`). `bare`: an encoder without a head suffices; its `parameters` then have none.

    Raises `InputError`, `ModelError` or `CheckpointError` if there is no usable model."""
    if is_hub(location):
        location = pinned(location)
        return replace(load_model(local(location), bare=bare), location=location)
    if storage.is_url(location):
        folder = fetched(location)
        return replace(load_model(folder, bare=bare), location=location, fetched_to=folder)
    directory = RunDirectory(location)
    if directory.exists():
        record = directory.read_record()
        loaded = load_chosen(directory, record)
        if loaded is None:
            raise without_checkpoint(location)
        parameters, step = loaded.parameters, loaded.step
        if record.unit is not None:
            mean, deviation = record.unit
            parameters = with_outputs(parameters, deviation, mean)
        config, tokenizer = model_at(record, step, directory.config), directory.path("tokenizer")
        labels = _labels(record, config, directory.config)
        model = TrainedModel(location, config, parameters, tokenizer, read_vocabulary(tokenizer), record, step, labels)
        if record.kind == "pretrain":
            return model
        task = record.finetuning.task
        longest = tokens_of_row(record.finetuning.data, task, config.max_seq_len)
        return replace(model, task=task, max_seq_len=longest, may_be_none=record.may_be_none, pairs=record.pairs)
    config, parameters = read_model_folder(location, bare=bare)
    vocabulary = read_vocabulary(location)
    if vocabulary.size > config.vocab_size:
        what = f"its tokenizer has {vocabulary.size:,} tokens, but the model only {config.vocab_size:,}"
        fix = f"put the model's own tokenizer into its folder; {NEW_WORDS}"
        raise InputError(what, where=location, fix=fix)
    config = with_ids(config, vocabulary, location)
    model = TrainedModel(location, config, parameters, location, vocabulary, labels=read_labels(location, config))
    limit = None if config.task == "question_answering" else longest_text(location, config)
    if config.task == "masked_lm":
        return replace(model, max_seq_len=limit)
    use = read_use(location, config)
    names = {"threshold": "threshold", "doc_stride": "doc_stride", "max_answer_length": "max_answer_len"}
    known = {key: use[name] for key, name in names.items() if name in use}
    task = Task(kind=config.task).model_copy(update=known)
    none, pairs = (None if name not in use else use[name] > 0 for name in ("handle_impossible_answer", "pairs"))
    return replace(model, task=task, max_seq_len=use.get("max_seq_len", limit), may_be_none=none, pairs=pairs)


def load_shape(location: str) -> TrainedModel:
    """A model folder's encoder without its weights, which are neither downloaded nor read; for a run, with its
    weights."""
    folder = local(location, weights=False)
    if storage.is_url(folder) or RunDirectory(folder).exists():
        return load_model(location, bare=True)
    vocabulary = read_vocabulary(folder)
    config = with_ids(read_hf_config(folder, head=False), vocabulary, folder)
    return TrainedModel(location, config, {}, folder, vocabulary)


def special_ids(vocabulary: Vocabulary) -> dict[str, int]:
    return {"bos": vocabulary.bos, "pad": vocabulary.pad, "eos": vocabulary.eos, "mask": vocabulary.mask}


def with_ids(model: ModelConfig, vocabulary: Vocabulary, where: str) -> ModelConfig:
    """The model with its tokenizer's ids for padding, for a row's ends and, with token dropout and in a EuroBERT, for
    masks: `config.json` often lacks them, or holds others.

    Raises `InputError` for a RoBERTa with another id of padding, from which it counts its positions."""
    if model.facts.first_position_after_padding and vocabulary.pad != model.pad_token_id:
        what = f"its tokenizer pads with id {vocabulary.pad}, the model with {model.pad_token_id}"
        raise InputError(what, where=where, fix="use the tokenizer that belongs to the model")
    return replace(
        model,
        bos_token_id=vocabulary.bos,
        pad_token_id=vocabulary.pad,
        eos_token_id=vocabulary.eos,
        mask_token_id=vocabulary.mask if model.token_dropout or model.architecture == "eurobert" else 0,
    )


def fetched(location: str) -> str:
    """Fetches a run whose copies (`checkpoint.copy_to`) lie at `location`: its newest checkpoint and its records.
    Returns its folder in the cache of this machine. Raises `InputError` without copies."""
    copies = Copies(location)
    newest = copies.newest()
    if newest is None:
        fix = "give the folder in the run's checkpoint.copy_to; copy an exported model to a local folder"
        raise InputError("holds no copy of a run's checkpoint", where=location, fix=fix)
    folder = storage.cache_folder("runs", storage.sha256_of([copies.location, *newest])[:32])
    storage.make_folder(folder)

    def fetch() -> bool:
        copies.fetch(RunDirectory(folder), lambda record: None)
        copies.fetch_ended(RunDirectory(folder))
        return True

    storage.made_once(os.path.join(folder, "fetch"), lambda: None, fetch)
    if not os.path.exists(os.path.join(folder, TOKENIZER, "tokenizer.json")):
        fix = "fetch the whole run with its own command and an empty --run folder"
        raise InputError("was copied without its tokenizer, by an earlier version", where=location, fix=fix)
    return folder


def load_chosen(directory: RunDirectory, record: RunRecord) -> TrainState | None:
    """The checkpoint of *the* step of a run (see `RunRecord.chosen`), or the newest good one if that is the newest.
    None if there is none. Raises `CheckpointError` if the best is gone."""
    steps, step = checkpoint.whole_steps(directory.checkpoints), directory.chosen(record)
    if step is None or not record.keeps_best:
        newest = checkpoint.load_newest(directory.checkpoints, set_aside=False)
        return newest and newest[0]
    kept = storage.read_json(directory.path("checkpoints", step_folder(steps[-1]), "state.json")).get("best_step", step)
    if gone := sorted({step, kept} - {*steps}):
        what = f"its best checkpoint, of step {gone[0]:,}, is gone"
        fix = "restore it, or train again in a new folder"
        raise CheckpointError(what, where=directory.checkpoints, fix=fix)
    return checkpoint.load(directory.path("checkpoints", step_folder(step)))[0]


def _labels(record: RunRecord, config: ModelConfig, where: str) -> tuple[str, ...]:
    """Raises `InputError` if they do not belong to the head of the model."""
    wanted = config.num_labels if config.task in LABELLED else 0
    if len(record.labels) != wanted or (record.kind == "finetune" and record.finetuning.task.kind != config.task):
        what = f"its `labels` do not match {wanted} outputs for {config.task}"
        raise InputError(what, where=where, fix=RESTORE)
    return record.labels
