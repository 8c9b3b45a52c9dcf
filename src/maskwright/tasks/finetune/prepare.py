"""`maskwright finetune`: a head on an encoder, trained on labelled examples, judged, and its best checkpoint kept."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.config.finetuning import FinetuneConfig, default_row, tokens_of_row
from maskwright.config.places import absolute
from maskwright.config.pretraining import ModelSection, Shape
from maskwright.config.settings import flat
from maskwright.core import storage
from maskwright.core.console import human_count, note, say, several, warn
from maskwright.core.errors import ConfigError, InputError
from maskwright.core.hub import is_hub
from maskwright.data.batch import Batch
from maskwright.engines.base import TrainState
from maskwright.engines.choose import require_family
from maskwright.labels.by_label import confusion_matrix, exchanged
from maskwright.labels.dataset import Dataset, read_dataset
from maskwright.labels.encode import SpanTargets, WordTargets, what_is_cut, what_is_decomposed, what_is_unknown
from maskwright.labels.example import Example
from maskwright.labels.files import with_splits
from maskwright.labels.metrics import LOWER_IS_BETTER, Predictions, best_threshold, gold_outcomes
from maskwright.labels.names import shortened
from maskwright.labels.rows import ExampleStream, Packer, prediction_batches
from maskwright.machine.devices import DeviceCount
from maskwright.model.config import OUTPUTS, SEQUENCE_TASKS, ModelConfig, model_config, recorded_config
from maskwright.model.hf.config import class_name, dropout_keys, family_dropout
from maskwright.model.hf.families import FAMILIES
from maskwright.model.hf.folder import weight_digests
from maskwright.model.hf.names import Parameters, count_parameters
from maskwright.model.initial import initial_parameters, with_new_head, with_outputs
from maskwright.run.directory import RESULTS, RunDirectory, step_folder
from maskwright.run.record import BeganFrom, FromFolder, RecordedText, RunRecord
from maskwright.tasks.finetune.objective import (
    EvaluationSplit,
    LabelledObjective,
    chosen_metric,
    encoded_for,
    score_split,
    write_predictions,
)
from maskwright.tasks.models.hub import local, pinned
from maskwright.tasks.models.load import TrainedModel, load_model, load_shape, special_ids
from maskwright.tasks.models.runs import from_run
from maskwright.tasks.planning.cost import Work, finetuning_work, time_here
from maskwright.tasks.start.capacity import memory_and_disk
from maskwright.tasks.start.data_card import labelled_card
from maskwright.tasks.start.opened import looked_at, opened
from maskwright.tasks.start.train import check, train
from maskwright.text.tokenizer import copy_tokenizer
from maskwright.text.tokenizer_faults import faults
from maskwright.text.vocabulary import read_vocabulary
from maskwright.training import checkpoint
from maskwright.training.job import Job
from maskwright.training.kept_batch import write_batches
from maskwright.training.stop import StopRequest

SEEN_STEPS, SEEN_EXAMPLES = 64, 8192
"""Limits of the steps that are counted to estimate the work of a run, spread over it: 64 steps with 8,192 examples, but
at least four steps."""


def finetune(
    config: FinetuneConfig,
    run: str,
    *,
    config_file: str | None = None,
    stop_request: StopRequest | None = None,
) -> None:
    """Begins or continues the run in the folder `run`: trains, evaluates and keeps the best checkpoint. See `opened`
    and `train`."""
    config = with_its_splits(config)
    with opened(config, run, stop_request) as start:
        ready = prepare_finetuning(config, start.directory, start.before)
        train(start, ready, config_file=config_file)


def with_its_splits(config: FinetuneConfig) -> FinetuneConfig:
    """The configuration with the splits from the folder of its training files."""
    return config.model_copy(update={"data": with_splits(config.data)})


def dry_run(config: FinetuneConfig, run: str) -> FinetuneRun:
    """The run that `finetune` would train. Raises the errors of `check`."""
    config = with_its_splits(config)
    start = looked_at(config, run)
    ready = prepare_finetuning(config, start.directory, start.before)
    check(start, ready)
    return ready


@dataclass(frozen=True)
class FinetuneRun:
    """See `Prepared`."""

    config: FinetuneConfig
    """The resolved configuration."""
    model: ModelConfig
    dataset: Dataset
    train: ExampleStream
    start: TrainedModel | None
    """The model that training starts from; None for a random one, and for a run that is continued."""
    base: str | None
    """`model.init_from`; for a model of the Hub, with its commit when the run began."""
    tokenizer_folder: str
    max_seq_len: int
    """Tokens of a row."""
    unit: tuple[float, float] | None
    """See `RunRecord`."""

    @property
    def label_smoothing(self) -> float:
        return self.config.optimizer.label_smoothing

    @property
    def looked_up(self) -> NDArray[np.int64] | None:
        if self.model.token_dropout:  # which recognizes masks by their ids
            return None
        return np.union1d(self.train.packer.encoded.ids, [self.model.pad_token_id]).astype(np.int64)

    @property
    def texts(self) -> tuple[RecordedText, dict[str, RecordedText]]:
        data = absolute(self.config).data
        held_out = RecordedText(data.validation or data.train, self.dataset.of_splits["validation"])
        return RecordedText(data.train, self.dataset.fingerprint), {"": held_out} if self.dataset.validation else {}

    def record(self, given: Any, dtype: Any, before: RunRecord | None) -> RunRecord:
        vocabulary, data = read_vocabulary(self.tokenizer_folder), absolute(self.config).data
        (train, held_out), metric = self.texts, chosen_metric(self.config, self.dataset.labels)
        section = given.model.model_copy(update={"init_from": self.base})
        return RunRecord(
            kind="finetune",
            keys=flat(absolute(given.model_copy(update={"model": section}))),
            steps=self.config.steps,
            digest=given.digest(),
            model=asdict(self.model),
            dtype=dtype,
            tokenizer_fingerprint=vocabulary.fingerprint,
            roles_sha256=vocabulary.roles_sha256,
            train=train,
            held_out=held_out,
            test=RecordedText(data.test or data.train, self.dataset.of_splits["test"]) if self.dataset.test else None,
            began_from=before.began_from if before else self.began_from(),
            metric=metric,
            lower_is_better=metric in LOWER_IS_BETTER,
            labels=self.dataset.labels,
            unit=self.unit,
            may_be_none=self.may_be_none,
            pairs=self.dataset.train[0].text_pair is not None if self.config.task.kind in SEQUENCE_TASKS else None,
        )

    @property
    def may_be_none(self) -> bool | None:
        """Whether a training question has no answer; None for other tasks."""
        asks = self.config.task.kind == "question_answering"
        return not all(example.answers for example in self.dataset.train) if asks else None

    @property
    def flops(self) -> float:
        return self.config.steps * self.work.flops

    @cached_property
    def work(self) -> Work:
        """Rows are counted as they are packed, since padding is computed too."""
        config, train = self.config, self.train
        most = min(SEEN_STEPS, max(4, SEEN_EXAMPLES // train.per_step))
        every = range(config.batch.virtual_workers)
        seen = [
            [batch.input_ids.shape for batch in train.batches(step, every)]
            for step in sorted({config.steps * part // most for part in range(most)})
        ]
        tokens = sum(rows * length for shapes in seen for rows, length in shapes) / len(seen)
        pairs = sum(rows * length**2 for shapes in seen for rows, length in shapes) / len(seen)
        largest = float(max(rows * length for shapes in seen for rows, length in shapes))
        encoded, dataset = train.packer.encoded, self.dataset
        length = train.packer.T if config.task.kind == "question_answering" else len(encoded.ids) / len(encoded)
        each = length * len(encoded) / len(dataset.train)
        judged = len(dataset.validation) * each, len(dataset.test) * each
        return finetuning_work(config, self.model, train.packer.T, judged, (tokens, pairs, largest))

    def time_here(self, place: DeviceCount | None, done: int = 0) -> str | None:
        return time_here(self.work, place, done)

    @property
    def micro_batch_losses(self) -> float:
        return self.train.per_step / self.train.virtual_workers

    @property
    def begins_from(self) -> str | None:
        return self.base

    def verify(self) -> None:
        """Does nothing, since the examples are in memory."""

    def starting_state(self) -> TrainState:
        """The state of step 0: the encoder of the starting model, and a new head. Tensors of that model's head are kept
        if they fit, the matrix of the labels only for the same labels, in any order."""
        if self.config.model.init_from is None or self.config.model.weights == "random":
            parameters = initial_parameters(self.model, self.config.seed)
        else:
            # A run that is continued may have been killed before its first save.
            start = self.start or _start(self.config, self.base)
            mean, deviation = self.unit or (0.0, 1.0)
            trained = with_outputs(start.parameters, 1 / deviation, -mean / deviation)
            theirs, ours = start.labels, self.dataset.labels
            rows = [theirs.index(label) for label in ours] if {*theirs} == {*ours} else None
            parameters = with_new_head(self.model, trained, self.config.seed, rows=rows)
            say(f"starting from {start.location}")
            if rows is None and len(theirs) == len(ours):
                line = f"its labels are {shortened(theirs)}, these {shortened(ours)}, so the head's last matrix is new"
                fix = f"name them alike in task.labels, as in {{{ours[0]}: {theirs[0]}}}"
                note(f"{line}; if they mean the same, {fix}")
        return TrainState(0, parameters)

    def began_from(self) -> BeganFrom:
        if self.base is None or self.config.model.weights == "random":
            return None
        start = self.start or _start(self.config, self.base)
        if start.run is not None and start.step is not None:
            parent = from_run(RunDirectory(start.folder), start.run, start.step, "model.init_from", "fresh")
            return replace(parent, run=start.location) if start.fetched_to else parent
        location = self.base if is_hub(self.base) else os.path.abspath(self.base)
        return FromFolder(location, weight_digests(local(self.base)))

    @cached_property
    def validation(self) -> EvaluationSplit | None:
        return self._split(self.dataset.validation)

    @property
    def judged_by(self) -> list[Batch]:
        """The batches of an evaluation."""
        return [packed.batch for packed in self.validation.packed] if self.validation else []

    def _split(self, examples: Sequence[Example]) -> EvaluationSplit | None:
        if not examples:
            return None
        task, labels = self.config.task, self.dataset.labels
        encoded = encoded_for(self.model, examples, self.tokenizer_folder, task, labels, self.max_seq_len)
        packer = Packer.of(encoded, task.kind, self.model.pad_token_id)
        return EvaluationSplit(examples, packer, prediction_batches(packer), self.unit, self.may_be_none)

    def objective(self) -> LabelledObjective:
        return LabelledObjective(self.config, self.train, self.validation, self.dataset.labels, self.model.num_labels)

    def data_card(self) -> dict[str, Any]:
        return labelled_card(self.dataset, np.diff(self.train.packer.encoded.offsets))

    def write_tokenizer(self, folder: str) -> None:
        copy_tokenizer(self.tokenizer_folder, folder)

    def describe(self, processes: int | None = None) -> str:
        config, model, sizes = self.config, self.model, self.dataset.report.sizes
        parameters = count_parameters(model)
        tokens = len(self.train.packer.encoded.ids)
        splits = ", ".join(f"{count:,} {split}" for split, count in sizes.items())
        labels = f", {len(self.dataset.labels)} labels" if self.dataset.labels else ""
        metric = chosen_metric(config, self.dataset.labels)
        if (config.task.kind, metric) == ("single_label_classification", "f1"):
            metric = f"f1 of '{self.dataset.labels[1]}', the second of task.labels"
        steps = config.steps
        epochs = steps * config.batch.examples / len(self.train.packer.encoded)
        return "\n".join(
            [
                f"model: {class_name(model)}, {model.num_hidden_layers} layers x {model.hidden_size}, "
                f"{human_count(parameters)} parameters",
                f"data: {splits} examples{labels}; {human_count(tokens)} training tokens",
                f"run: {steps:,} steps of {config.batch.examples} examples, {epochs:.2f} epochs; best by {metric}",
                memory_and_disk(self, processes),
            ]
        )

    def warnings(self) -> list[str]:
        for line in self.dataset.report.notes:
            note(line)
        every = [*self.dataset.train, *self.dataset.validation, *self.dataset.test]
        decomposed = filter(None, [what_is_decomposed(self.tokenizer_folder, every)])
        return [*faults(self.tokenizer_folder), *self.dataset.report.warnings(), *self.unread, *decomposed]

    @property
    def unread(self) -> list[str]:
        """Warnings about parts of the training examples that the model does not read."""
        encoded, examples = self.train.packer.encoded, self.dataset.train
        lines = []
        if encoded.cut:
            words = self.config.task.kind == "token_classification"
            line = what_is_cut(encoded.cut, self.max_seq_len, words=words, training=True)
            longer = self.max_seq_len < self.model.max_seq_len
            more = f"; it would with a larger data.max_seq_len, up to {self.model.max_seq_len:,}" if longer else ""
            lines.append(f"{line}{more}")
        if isinstance(encoded.targets, SpanTargets):
            lengths, limit = encoded.targets.end - encoded.targets.start + 1, self.config.task.max_answer_length
            if longer_answers := len({*encoded.example[lengths > limit].tolist()}):
                lines.append(
                    f"{longer_answers:,} of {several(len(examples), 'training example')} have an answer longer than "
                    f"{limit} tokens, which no prediction is; task.max_answer_length: {lengths.max()} allows them all"
                )
        if strange := encoded.examples_with(read_vocabulary(self.tokenizer_folder).unk).tolist():
            found = [examples[index] for index in strange]
            lines.append(what_is_unknown(self.tokenizer_folder, found, len(examples), "training example"))
        return lines

    def keep_batch(self, job: Job, step: int, details: dict[str, Any]) -> str:
        every = range(self.config.batch.virtual_workers)
        rows = self.train.packer.encoded.example[self.train.rows_at(step)]
        places = [self.dataset.train[at].where for at in rows]
        return write_batches(job.directory, self.train.batches(step, every), step, details | {"examples": places})

    def finish(self, job: Job) -> None:
        """Scores the best checkpoint on validation and test, and writes `results.json`."""
        engine, directory = job.engine, job.directory
        done = job.is_rank_0 and os.path.exists(directory.path(RESULTS))
        if engine.processes.broadcast(b"done" if done else b""):
            return
        step = job.objective.best_step
        if step is not None and step != job.step:
            path = directory.path("checkpoints", step_folder(step))
            engine.write(checkpoint.load(path)[0] if job.is_rank_0 else TrainState(0, {}))
        result: dict[str, Any] = {"step": job.step if step is None else step, "labels": list(self.dataset.labels)}
        for name, split in (("validation", self.validation), ("test", self._split(self.dataset.test))):
            if split is None:
                continue
            logits = split.logits(engine, lambda: False)
            assert logits is not None
            predictions, scores = score_split(self.config.task, self.dataset.labels, split, logits)
            result[name] = {"examples": len(split.examples), **scores}
            say(f"{name}, step {result['step']:,}: " + ", ".join(f"{key} {value:.4f}" for key, value in scores.items()))
            if job.is_rank_0:
                self._warn_of_predictions(name, predictions, split.examples, scores)
                write_predictions(directory, name, predictions, split.examples)
        if job.is_rank_0:
            storage.write_json(directory.path(RESULTS), result)

    def _warn_of_predictions(
        self, split: str, predictions: Predictions, examples: Sequence[Example], scores: dict[str, float]
    ) -> None:
        gold = gold_outcomes(self.config.task, self.dataset.labels, examples)
        table = confusion_matrix(self.config.task, self.dataset.labels, examples, predictions)
        if table is not None and (sentence := exchanged(self.dataset.labels, table)):
            warn(f"{split}: {sentence}")
        task, shares = self.config.task, predictions.probabilities
        if len({*gold}) == 1:
            return
        if task.kind == "regression" and scores["mse"] >= (least := float(np.var(gold))):
            warn(
                f"{split}: its numbers are no nearer to the labels than their mean (mse {scores['mse']:.4g}, of the "
                f"mean {least:.4g}), which pearson and spearman do not show. Try more epochs, other learning rates, "
                "or evaluation.metric: mse"
            )
        if task.kind == "regression" or len({*predictions.outcomes}) > 1:
            return
        if task.kind == "multi_label_classification" and shares is not None:
            threshold, score = best_threshold(gold, shares)
            better = f", or set task.threshold: {threshold:g}, with which f1_micro would be {score:.4f} here"
            warn(
                f"{split}: every text gets {'the same labels' if predictions.outcomes[0] else 'no label'}: the "
                f"probabilities are {shares.min():.3f} to {shares.max():.3f}, the task.threshold {task.threshold:g}. "
                "Train longer or with a higher learning rate, and let evaluation.metric: loss choose the checkpoint"
                + better
                * (threshold != task.threshold)
            )
        else:
            warn(
                f"{split}: every prediction is the same, so the model learned nothing. Check that data.max_seq_len "
                "cuts off nothing that matters, then try other learning rates and more epochs"
            )


def prepare_finetuning(
    config: FinetuneConfig,
    directory: RunDirectory,
    before: RunRecord | None = None,
    *,
    start: TrainedModel | None = None,
    dataset: Dataset | None = None,
) -> FinetuneRun:
    """Checks everything that can be checked without a device. Raises `InputError` kinds (exit 2).

    `before`: the record of a run that is continued; its first weights are then no longer needed. `start` and `dataset`:
    the contents of `model.init_from` and `data`, if the caller has read them.
    """
    init_from = config.model.init_from
    recorded = before.finetuning.model.init_from if before else None
    base = start.location if start else None if init_from is None else pinned(init_from, recorded)
    section = config.model
    if before is not None:
        model, tokenizer = recorded_config(before.model, directory.config), directory.path("tokenizer")
        if not os.path.exists(tokenizer):  # this machine has only fetched the checkpoints
            tokenizer = _start(config, base).tokenizer_folder if base else local(section.tokenizer or "", weights=False)
    elif section.init_from is not None:
        start = _start(config, base, start)
        encoder, tokenizer = start.config, start.tokenizer_folder
    else:
        encoder, tokenizer = _random_encoder(config)
    dataset = dataset or read_dataset(config.data, config.task, config.seed)
    if before is None:
        model = _with_head(encoder, config, dataset, published_dropouts(encoder, start))
    require_family(model, config.engine)
    longest = tokens_of_row(config.data, config.task, model.max_seq_len)
    if config.data.on_bad_input == "skip":
        dataset = dataset.without_long_questions(tokenizer, config.task, longest)
    encoded = encoded_for(model, dataset.train, tokenizer, config.task, dataset.labels, longest)
    resolved = config.resolved(len(encoded))
    chosen_metric(resolved, dataset.labels)
    targets: Any = encoded.targets
    numbers = config.task.kind == "regression"
    unit = before.unit if before else (float(targets.mean()), float(targets.std()) or 1.0) if numbers else None
    if unit is not None:
        encoded = replace(encoded, targets=(targets - unit[0]) / unit[1])
    packer = Packer.of(
        encoded,
        config.task.kind,
        model.pad_token_id,
        few_shapes=config.engine.kind == "jax",
        class_weights=class_weights(config, dataset.labels, encoded.targets),
    )
    train = ExampleStream(packer, config.seed, config.batch.examples, config.batch.virtual_workers)
    return FinetuneRun(resolved, model, dataset, train, start, base, tokenizer, longest, unit)


def planned(config: FinetuneConfig, examples: int | None) -> tuple[Work, FinetuneRun | None]:
    """(The work of a run, the run to take steps of), without the weights that it begins from. With `examples`,
    `data.train` counts as that many, each as long as a row, and may be absent; there is no run."""
    train, init_from = config.data.train, config.model.init_from
    if examples is None and not storage.is_url(train) and not glob.glob(train):
        fix = "give --examples N, or fetch it"
        raise InputError("is not here, so the length of its examples is unknown", where=train, fix=fix)
    start = None if init_from is None else load_shape(init_from)
    if examples is None:
        ready = prepare_finetuning(with_its_splits(config), RunDirectory(""), start=start)
        return ready.work, ready
    model = start.config if start else _random_encoder(config)[0]
    row = tokens_of_row(config.data, config.task, model.max_seq_len)
    held_out = 0 if config.data.validation else round(examples * config.data.validation_fraction)
    resolved = config.resolved(examples - held_out)
    return finetuning_work(resolved, replace(model, task=config.task.kind), row, (float(held_out * row), 0.0)), None


def _random_encoder(config: FinetuneConfig) -> tuple[ModelConfig, str]:
    """(shape, folder of the tokenizer) of a model with random weights."""
    section = config.model
    tokenizer = local(section.tokenizer or "", weights=False)
    shape = ModelSection(**{key: getattr(section, key) for key in Shape.model_fields})
    vocabulary, longest = read_vocabulary(tokenizer), config.data.max_seq_len or default_row(config.task)
    return model_config(shape, vocabulary.size, longest, **special_ids(vocabulary)), tokenizer


def _start(config: FinetuneConfig, base: str | None, start: TrainedModel | None = None) -> TrainedModel:
    start = start or load_model(base or "", bare=True)
    kind, wanted = start.config.task, config.task.kind
    alike = kind in ("masked_lm", wanted) or (kind in SEQUENCE_TASKS and wanted in SEQUENCE_TASKS)
    if not alike:
        what = f"is a {class_name(start.config)}, whose head is for {kind}, not for {wanted}"
        raise ConfigError(what, where=start.location, fix="start from the model that it was fine-tuned from")
    return start


def published_dropouts(model: ModelConfig, start: TrainedModel | None) -> tuple[float, float]:
    """Dropouts of hidden states and of attention in fine-tuning: from the model's config.json or, for a run, from its
    record for the export. `start`: None for a shape without weights."""
    if start is None:
        return family_dropout(model), family_dropout(model)
    said = start.run.fine_tuning if start.run else {}

    def of(name: str) -> float:
        keys = dropout_keys(model.architecture, name)
        return float(next((said[key] for key in keys if key in said), getattr(model, name)))

    return of("hidden_dropout_prob"), of("attention_probs_dropout_prob")


def _with_head(
    model: ModelConfig, config: FinetuneConfig, dataset: Dataset, published: tuple[float, float]
) -> ModelConfig:
    """The encoder's shape with the task's head, and the published dropouts unless the run sets its own. Raises
    `ConfigError` for a head that `transformers` lacks for it."""
    if not model.facts.answers_questions and config.task.kind == "question_answering":
        what = f"is question_answering, for which transformers has no class of {FAMILIES[model.architecture].title}"
        raise ConfigError(what, where="task.kind", fix="choose a task of whole texts, or token_classification")
    section = config.model
    hidden = published[0] if section.hidden_dropout is None else section.hidden_dropout
    outputs = OUTPUTS.get(config.task.kind, len(dataset.labels))
    return replace(
        model,
        task=config.task.kind,
        num_labels=outputs,
        hidden_dropout_prob=hidden,
        attention_probs_dropout_prob=published[1] if section.attention_dropout is None else section.attention_dropout,
        classifier_dropout_prob=hidden if section.classifier_dropout is None else section.classifier_dropout,
    )


def class_weights(config: FinetuneConfig, labels: Sequence[str], targets: Any) -> NDArray[np.float32] | None:
    """fp32 [C], or None without weights. `targets`: of the training examples, as in `EncodedRows`. Raises `ConfigError`
    unless every label has its weight."""
    weights = config.optimizer.class_weights
    if weights is None:
        return None
    if weights == "balanced":
        ids = targets.tag if isinstance(targets, WordTargets) else np.asarray(targets)
        counts = np.bincount(ids, minlength=len(labels))
        return (len(ids) / (len(labels) * np.maximum(counts, 1))).astype(np.float32)
    if set(weights) != set(labels):
        odd = sorted(set(weights) ^ set(labels))[0]
        what = f"{odd} is {'not a label' if odd in weights else 'left out'}"
        raise ConfigError(what, where="optimizer.class_weights", fix="give each label a weight, or set it to balanced")
    return np.array([weights[name] for name in labels], np.float32)


def weights_digest(parameters: Parameters) -> str:
    """sha256 of the arrays and their names."""
    digest = hashlib.sha256()
    for name, value in sorted(parameters.items()):
        digest.update(name.encode())
        digest.update(value.tobytes())
    return digest.hexdigest()
