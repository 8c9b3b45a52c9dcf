"""Every key of a fine-tuning run's configuration, on one page. Sections of pretraining are reused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from maskwright.config.foreign_names import FINETUNING, FOREIGN, VALUES
from maskwright.config.masking import Share
from maskwright.config.pretraining import (
    OF_ONE_RUN,
    CheckpointSection,
    EngineSection,
    Logging,
    Optimizer,
    Shape,
    read_values,
)
from maskwright.config.schedule import ScheduleCurve, rate_at, warmup_of
from maskwright.config.settings import Count, Guide, Refused, Resumable, Section, digest, keys_in, keys_of
from maskwright.core.encodings import codec_name
from maskwright.core.errors import ConfigError

TaskKind = Literal[
    "single_label_classification",
    "multi_label_classification",
    "regression",
    "token_classification",
    "question_answering",
]
LABELLED = ("single_label_classification", "multi_label_classification", "token_classification")
"""Kinds whose outputs have names; the others predict numbers or answers."""
Column = str | Annotated[int, Field(ge=0)]
"""A column's name, or its number from 0 in a file without a header line."""
Name = str | int
"""A label from YAML, where `- 1` is a number but still a label."""


class Task(Section):
    kind: TaskKind = "single_label_classification"
    """What to predict: one class, any number of classes, a number, a tag for each word (at its first piece), or a span
    of the context. The first three names are the problem types of transformers."""
    labels: list[Name] | dict[Name, Name] | None = None
    """All labels in the order of their IDs, or a mapping from the values in the files to names, as in {1: World, 2:
    Sports}. Default: the labels of the training split, in numeric order if all are integers, else sorted."""
    separator: Annotated[str, Field(min_length=1)] = ","
    """Only for multi_label_classification: separator between several labels in one cell. JSON and Parquet can hold
    lists instead."""
    threshold: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    """Only for multi_label_classification: a text gets the labels with a probability above this. Rare labels stay below
    0.5 for long."""
    doc_stride: Annotated[int, Field(ge=0)] = 128
    """Only for question_answering: overlap of neighbouring windows of a long context, in tokens."""
    max_answer_length: Annotated[int, Field(ge=1)] = 30
    """Only for question_answering: maximum tokens in a predicted answer."""

    @field_validator("labels", mode="before")
    @classmethod
    def _true_is_a_name(cls, labels: Any) -> Any:
        """Makes YAML's booleans words, since a file may have a label `true`."""
        words = [*labels, *labels.values()] if isinstance(labels, dict) else labels
        others = [word for word in words if isinstance(word, float | date | None)] if isinstance(words, list) else []
        for other in others:  # YAML read null, 1.5 or a date
            written = "null" if other is None else str(other)
            fix = f"quote it if it is a label: '{written}'" + (", or leave it out" if other is None else "")
            raise Refused(f"{written} without quotes is not a word in YAML", fix=fix)
        if labels is not None and not (isinstance(words, list) and all(isinstance(word, str | int) for word in words)):
            raise Refused(f"{labels!r:.60} is not a list of labels", fix="write [no, yes], or {0: no, 1: yes}")
        if isinstance(labels, dict):
            return {_word(value): _word(name) for value, name in labels.items()}
        return labels and [_word(name) for name in labels]

    @model_validator(mode="after")
    def _labels_are_names(self) -> Task:
        if self.labels is None:
            return self
        if self.kind not in LABELLED:
            raise Refused(f"kind {self.kind} has no labels", fix="leave labels out")
        names = self.fixed_labels or ()
        if len(names) < 2 and self.kind != "multi_label_classification":
            raise Refused(f"labels has {len(names)} entries, which leaves no choice", fix="name at least two")
        if len(names) != len(self.labels):
            raise Refused("labels names one label twice", fix="give each label once")
        return self

    @property
    def fixed_labels(self) -> tuple[str, ...] | None:
        """The names in the order of their ids, if the user fixed them. A repeated name is included once."""
        if self.labels is None:
            return None
        names = self.labels.values() if isinstance(self.labels, dict) else self.labels
        return tuple(dict.fromkeys(map(str, names)))

    @property
    def translation(self) -> dict[str, str]:
        """Value in the files -> name; empty without a mapping."""
        return {str(value): str(name) for value, name in self.labels.items()} if isinstance(self.labels, dict) else {}


class LabelledData(Section):
    train: str
    """File, folder, glob or URL of the training split: .csv, .tsv, .jsonl, .json, .parquet or .arrow; CoNLL columns
    (.conll, .txt, .tsv, …) for tags; SQuAD's .json for questions. Files may be compressed (.gz, .zst, .xz, .bz2). In a
    folder, files named train, validation (valid, dev) and test become those splits."""
    validation: str | None = None
    """The validation split, likewise. Default: the validation files in the folder `train`; without any, or with null, a
    share of `train` is held out."""
    test: str | None = None
    """The test split, likewise, which is read once, at the end. Default: the test files in the folder `train`. null: no
    test split."""
    text: Column | list[Column] | None = None
    """Column of the text, words or question; several are joined by a space. A number counts from 0 and means that the
    files have no header line. Default: the column that GLUE's names identify."""
    text_pair: Column | None = None
    """Column of a pair's second text, or of a question's context."""
    label: Column | list[Column] | None = None
    """Column of the label, the tags or their spans, or the answers. For multi_label_classification, it may be a list of
    columns with 0 and 1, one for each label. Default: the column that GLUE's names identify."""
    group: Column | None = None
    """Column of what some examples share, such as a patient, an author or a document. Examples of one group stay on one
    side of the validation split, and a group in two splits is warned of. Files of validation and test may lack it. Only
    for tables with a text in each row."""
    fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Share of the training examples to train on, the same for each class. With one seed, a smaller share is part of
    every larger one."""
    validation_fraction: Share = 0.1
    """Share of `train` to hold out if there is no `validation`. Equal texts stay on one side."""
    max_seq_len: Annotated[int, Field(ge=8)] | None = None
    """Longest row in tokens, including special tokens. Longer texts are cut and counted. Default: 128, or 384 for
    questions, as in run_glue.py and run_qa.py; the model's maximum if it is smaller."""
    on_bad_input: Literal["error", "skip"] = "error"
    """At a record that cannot be read, an empty text, or a question that does not fit a row: stop, or skip and report
    it."""
    encoding: str = "utf-8"
    """Encoding of text files, such as cp1252 or shift_jis (a name of Python's codecs)."""

    @field_validator("encoding")
    @classmethod
    def _is_an_encoding(cls, name: str) -> str:
        try:
            return codec_name(name)
        except LookupError as error:
            raise Refused(f"{name!r:.40} is no encoding", fix=str(error)) from None

    @field_validator("train", "validation", "test", mode="before")
    @classmethod
    def _is_one_location(cls, value: Any) -> Any:
        if isinstance(value, list):
            fix = "name their folder, or a glob such as reviews-*.csv"
            raise Refused(f"{value!r:.60} is a list, but one location is needed", fix=fix)
        return value

    @field_validator("text", "text_pair", "label", "group", mode="before")
    @classmethod
    def _is_a_column(cls, value: Any) -> Any:
        listed = value if isinstance(value, list) and value else [value]
        for column in listed:
            if value is not None and not (isinstance(column, str) or (type(column) is int and column >= 0)):
                raise Refused(f"{value!r:.60} is not a column", fix="give a column's name, or its number from 0")
        return value

    @model_validator(mode="after")
    def _columns_agree(self) -> LabelledData:
        if self.text_pair is not None and self.text is None:
            raise Refused("text_pair is set without text", fix="name both columns, or neither")
        texts = [*_listed(self.text), *_listed(self.text_pair)]
        if shared := [column for column in texts if column in _listed(self.label)]:
            what = f"text and label are the same column, {shared[0]!r}, so a model would read the label in the text"
            raise Refused(what, fix="name two columns")
        columns = [*texts, *_listed(self.label), *_listed(self.group)]
        if len({type(column) for column in columns}) > 1:
            fix = "give numbers for files without a header line, names for others"
            raise Refused("columns are given partly by number and partly by name", fix=fix)
        return self

    @property
    def text_columns(self) -> list[int | str]:
        return _listed(self.text)

    @property
    def label_columns(self) -> list[int | str]:
        return _listed(self.label)

    @property
    def has_header(self) -> bool:
        """Whether CSV and TSV begin with a line of names."""
        return not any(isinstance(column, int) for column in [*self.text_columns, *self.label_columns, self.group])


def _word(name: str | int) -> str:
    return str(name).lower() if isinstance(name, bool) else str(name)


def _listed(column: int | str | list[int | str] | None) -> list[int | str]:
    if column is None:
        return []
    return column if isinstance(column, list) else [column]


def default_row(task: Task) -> int:
    """The default of `data.max_seq_len`, from Hugging Face's example for the kind of task."""
    return 384 if task.kind == "question_answering" else 128


def tokens_of_row(data: LabelledData, task: Task, most: int) -> int:
    """Tokens of a row, for a model that reads `most`. Raises `ConfigError` for a row of more."""
    if data.max_seq_len is not None and data.max_seq_len > most:
        what = f"data.max_seq_len {data.max_seq_len} is above the {most} tokens that the model can read"
        raise ConfigError(what, where="data.max_seq_len", fix=f"set it to {most} or less")
    return data.max_seq_len or min(default_row(task), most)


class StartingModel(Shape):
    init_from: str | None = None
    """Encoder to start from: a run directory, a Hugging Face folder (safetensors) or hf://OWNER/NAME@REVISION,
    fine-tuned or not. Its shape and tokenizer are used. Default: random weights in the shape of the keys above."""
    weights: Literal["pretrained", "random"] = "pretrained"
    """random: random weights in the shape of init_from, with its tokenizer; the baseline without pretraining."""
    tokenizer: str | None = None
    """Only without init_from: folder with tokenizer.json, or hf://OWNER/NAME@REVISION."""
    hidden_dropout: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    """As in pretraining. Default: as in the published model (0.1 in RoBERTa, 0 in ModernBERT)."""
    attention_dropout: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    """As in pretraining. Default: as in the published model (0.1 in RoBERTa, 0 in ModernBERT)."""
    classifier_dropout: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    """Dropout before the classifier. Default: hidden_dropout."""

    @model_validator(mode="after")
    def _has_a_tokenizer(self) -> StartingModel:
        if (self.init_from is None) == (self.tokenizer is None):
            raise Refused(
                "model has neither init_from nor tokenizer"
                if self.tokenizer is None
                else "model.tokenizer is not used",
                fix="name a run or a model folder as model.init_from; or give model.tokenizer and a size",
            )
        return self


class FinetuningOptimizer(Optimizer):
    learning_rate: Annotated[float, Field(gt=0.0)] = 5e-5
    """Learning rate at the schedule's peak. Large encoders need 1e-5 to 5e-5, encoders of a few layers up to 5e-4."""
    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Only for single_label_classification and token_classification: share of the target that is spread over all
    classes."""
    class_weights: Literal["balanced"] | dict[str, Annotated[float, Field(gt=0.0)]] | None = None
    """Only for single_label_classification and token_classification: weight of each class in the loss. balanced
    (examples / classes / examples of the class, as in scikit-learn), or a number for each label."""

    @field_validator("class_weights", mode="before")
    @classmethod
    def _labels_are_words(cls, weights: Any) -> Any:
        """Makes labels words, as `Task` does: a run's record is JSON, whose keys are words."""
        if weights in (None, "balanced"):
            return weights
        if not isinstance(weights, dict) or not all(
            isinstance(name, str | int) and type(weight) in (int, float) and 0.0 < weight < math.inf
            for name, weight in weights.items()
        ):
            fix = "write balanced, or a number above 0 for each label, as in {no: 1, yes: 2.5}"
            raise Refused(f"{weights!r:.60} does not give labels weights", fix=fix)
        return {_word(name): weight for name, weight in weights.items()}


class FinetuningSchedule(ScheduleCurve):
    warmup_steps: Annotated[int, Field(ge=0)] | None = None
    """Steps in which the learning rate rises to its peak. Default: 0.06 of the run, unless warmup_share is set."""


class FinetuningBatch(Section):
    examples: Count = 32
    """Examples in one update. Short examples are packed into rows."""
    virtual_workers: Count = 1
    """Parts of an update, on any number of devices; must divide `examples`. As in pretraining, any world size that
    divides it gives the same weights."""

    @model_validator(mode="after")
    def _divides(self) -> FinetuningBatch:
        if self.examples % self.virtual_workers:
            raise Refused(
                f"{self.virtual_workers} virtual workers cannot share {self.examples} examples evenly",
                fix="set batch.examples to a multiple of batch.virtual_workers",
            )
        return self


class FinetuningEvaluation(Section):
    every_steps: Annotated[Count | None, Resumable] = None
    """Steps between evaluations on the validation split. Default: one epoch."""
    metric: str | None = None
    """Metric that chooses the best checkpoint; `loss` chooses the lowest. Default: accuracy, f1_micro (several labels),
    mse (numbers) or f1 (tags and questions)."""
    patience: Count | None = None
    """Stop after this many evaluations without a better value (early stopping). Off by default."""


class FinetuneConfig(Section):
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Random seed for the head's weights, data order, dropout and splits."""
    task: Task = Task()
    data: LabelledData
    model: StartingModel
    optimizer: FinetuningOptimizer = FinetuningOptimizer()
    schedule: FinetuningSchedule = FinetuningSchedule()
    batch: FinetuningBatch = FinetuningBatch()
    engine: EngineSection = EngineSection()
    checkpoint: CheckpointSection = CheckpointSection()
    evaluation: FinetuningEvaluation = FinetuningEvaluation()
    logging: Logging = Logging()

    @model_validator(mode="after")
    def _fits_its_task(self) -> FinetuneConfig:
        one_class = self.task.kind in ("single_label_classification", "token_classification")
        optimizer = self.optimizer
        if not one_class and (optimizer.label_smoothing or optimizer.class_weights):
            key = "label_smoothing" if optimizer.label_smoothing else "class_weights"
            raise Refused(f"optimizer.{key} is for one class of several, not for {self.task.kind}", fix="leave it out")
        if len(self.data.label_columns) > 1 and self.task.kind != "multi_label_classification":
            what = f"data.label lists columns, but {self.task.kind} reads one"
            raise Refused(what, fix="name one, and train a model for each")
        optimizer.require_layers()
        return self

    @property
    def locations(self) -> dict[str, str | None]:
        """Locations that a run reads, by key."""
        splits = {f"data.{name}": getattr(self.data, name) for name in ("train", "validation", "test")}
        return splits | {f"model.{name}": getattr(self.model, name) for name in ("init_from", "tokenizer")}

    def resolved(self, examples: int) -> FinetuneConfig:
        """The configuration with all numbers of steps, which follow from the number of training examples."""
        written = self.schedule
        per_epoch = examples / self.batch.examples
        steps = written.steps or max(1, math.ceil((written.epochs or 3.0) * per_epoch))
        if written.warmup_steps is None and written.warmup_share is None:
            written = written.model_copy(update={"warmup_share": 0.06})
        warmup_steps = min(warmup_of(written, written.warmup_steps or 0, steps), steps - 1)
        schedule = written.model_copy(
            update={"epochs": None, "steps": steps, "warmup_steps": warmup_steps, "warmup_share": None}
        )
        every_steps = self.evaluation.every_steps or max(1, math.ceil(per_epoch))
        evaluation = self.evaluation.model_copy(update={"every_steps": every_steps})
        return self.model_copy(update={"schedule": schedule, "evaluation": evaluation})

    @property
    def steps(self) -> int:
        """Updates in the whole run, of a resolved configuration."""
        assert self.schedule.steps is not None, "epochs are resolved once the examples are known"
        return self.schedule.steps

    def learning_rate_at(self, step: int) -> float:
        """Learning rate of an update, of a resolved configuration: see `RunConfig.learning_rate_at`."""
        warmup_steps = self.schedule.warmup_steps or 0
        return rate_at(self.schedule, self.steps, warmup_steps, self.optimizer.learning_rate, step)

    def digest(self) -> str:
        """sha256 of every key that decides the numbers; resumable keys do not count."""
        return digest(self)


_KEYS = keys_of(FinetuneConfig)
_SAME = {
    name: said
    for name, said in FOREIGN.items()
    if (words := keys_in(said)) and all(word.partition("=")[0] in _KEYS for word in words)
}
OF_A_COMPARISON = ("seed", "model.init_from", "model.weights", "optimizer.learning_rate", *OF_ONE_RUN)
"""Keys that a comparison sets, since they differ between its runs."""
KNOWN = "see the keys in `maskwright schema finetune`"
GUIDE = Guide(FinetuneConfig, "the run", KNOWN, _SAME | FINETUNING, VALUES)


def is_retrieval(values: Mapping[str, Any]) -> bool:
    """Whether this is the YAML of a retrieval task (see `config.retrieval`), which has keys of its own."""
    task = values.get("task")
    return isinstance(task, dict) and task.get("kind") == "retrieval"


def read_finetune_config(location: str, overrides: list[str] | None = None) -> FinetuneConfig:
    """Reads a run's YAML, or the recipe of that name, and applies `--set a.b=value`. Raises `ConfigError` (exit 2)."""
    values, where, keys = read_values(location, overrides, "start with `data:` and `model:`", "finetune")
    return build_finetune_config(values, where, keys)


def build_finetune_config(values: dict[str, Any], where: str, overrides: Mapping[str, str] = {}) -> FinetuneConfig:
    """Validates `values`. `overrides`: dotted keys that are not from the file, and what is blamed for each instead."""
    if is_retrieval(values):
        what = "is a retrieval task, which only `finetune` and `compare` read, on this machine"
        raise ConfigError(what, where=where, fix="name a task with labels")
    if isinstance(data := values.get("data"), dict) and "corpus" in data:
        raise ConfigError("data.corpus belongs to a retrieval task", where=where, fix="add `task: {kind: retrieval}`")
    try:
        return FinetuneConfig.model_validate(values)
    except ValidationError as error:
        raise GUIDE.explain(error, where, overrides) from None


def labelled_data(where: str, **values: Any) -> LabelledData:
    """The section for columns and lengths from options instead of a YAML. Raises `ConfigError`."""
    try:
        return LabelledData(**values)
    except ValidationError as error:
        raise Guide(LabelledData, "the texts", "`maskwright predict --help` lists them").explain(error, where) from None
