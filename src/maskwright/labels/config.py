"""Two sections of a fine-tuning run's YAML: what the labels mean (`task:`) and where the examples lie (`data:`)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from maskwright.core.config import Share
from maskwright.core.settings import Refused, Section

TaskKind = Literal[
    "single_label_classification",
    "multi_label_classification",
    "regression",
    "token_classification",
    "question_answering",
]
Column = str | Annotated[int, Field(ge=0)]
"""A column's name, or its number from 0 in a file without a header line."""
Name = str | int
"""A label as YAML has it: `- 1` is a number there, and a label all the same."""


class Task(Section):
    kind: TaskKind = "single_label_classification"
    """What is predicted: one class, any number of classes, a number, a tag for each word (first piece), or a span of
    the context. The first three names are the problem types of transformers."""
    labels: list[Name] | dict[Name, Name] | None = None
    """All labels in the order of their ids; or a mapping from what the files say to the names, as in {1: World, 2:
    Sports}. When not set, they are those of the training split: in numeric order when all are integers, else sorted."""
    separator: Annotated[str, Field(min_length=1)] = ","
    """Only for multi_label_classification: what stands between several labels in one cell. JSON and Parquet can hold
    lists instead."""
    doc_stride: Annotated[int, Field(ge=0)] = 128
    """Only for question_answering: tokens that two neighbouring windows of a long context share."""
    max_answer_length: Annotated[int, Field(ge=1)] = 30
    """Only for question_answering: tokens in the longest answer that is predicted."""

    @field_validator("labels", mode="before")
    @classmethod
    def _true_is_a_name(cls, labels: Any) -> Any:
        """Files that say `true` have a label of that name, which YAML takes for more than a word."""
        given = [*labels, *labels.values()] if isinstance(labels, dict) else labels
        if labels is not None and not (isinstance(given, list) and all(isinstance(one, str | int) for one in given)):
            raise Refused(f"{labels!r:.60} is no list of labels", fix="write [no, yes], or {0: no, 1: yes}")
        if isinstance(labels, dict):
            return {_word(said): _word(name) for said, name in labels.items()}
        return labels and [_word(name) for name in labels]

    @model_validator(mode="after")
    def _labels_are_names(self) -> Task:
        if self.labels is None:
            return self
        if self.kind in ("regression", "question_answering"):
            raise Refused(f"kind {self.kind} has no labels", fix="leave labels out")
        names = self.fixed_labels or ()
        if len(names) < 2 and self.kind != "multi_label_classification":
            raise Refused(f"labels has {len(names)} entries: there is nothing to tell apart", fix="name at least two")
        if len(names) != len(self.labels):
            raise Refused("labels names one label twice", fix="give each label once")
        return self

    @property
    def fixed_labels(self) -> tuple[str, ...] | None:
        """The names in the order of their ids, when the user fixed them. A name that is given twice is there once."""
        if self.labels is None:
            return None
        names = self.labels.values() if isinstance(self.labels, dict) else self.labels
        return tuple(dict.fromkeys(map(str, names)))

    @property
    def translation(self) -> dict[str, str]:
        """What the files say -> the name; empty without a mapping."""
        return {str(said): str(name) for said, name in self.labels.items()} if isinstance(self.labels, dict) else {}


class LabelledData(Section):
    train: str
    """File or glob of the training split: .csv, .tsv, .jsonl, .json, .parquet, CoNLL columns (.conll, .txt, .tsv, …)
    for words, SQuAD's .json for questions; each also .gz or .zst."""
    validation: str | None = None
    """File or glob that a run is judged by. When not set, a share of `train` is held out."""
    test: str | None = None
    """File or glob that is read once, at the end."""
    text: Column | list[Column] | None = None
    """Column of the text (for words, of the words; for questions, of the question); several are joined by a space. A
    number counts from 0 and means that no file has a header line. When not set, GLUE's names are looked for."""
    text_pair: Column | None = None
    """Column of a pair's second text; for questions, of the context."""
    label: Column | list[Column] | None = None
    """Column of the label, of the tags or of the answers. For multi_label_classification it may be a list: one column
    of 0 and 1 for each label. When not set, GLUE's names are looked for."""
    fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Share of the training examples to train on, of each class alike. For one seed, a smaller share lies inside every
    larger one."""
    validation_fraction: Share = 0.1
    """Share of `train` to hold out when there is no `validation`. Texts that are equal stay on one side."""
    max_seq_len: Annotated[int, Field(ge=8)] | None = None
    """Longest row in tokens, specials included; longer texts are cut, and counted. 128 when not set, 384 for questions,
    as in run_glue.py and run_qa.py."""
    on_bad_input: Literal["error", "skip"] = "error"
    """What to do with a record that cannot be read or whose text is empty: stop, or leave it out and name it."""

    @field_validator("text", "text_pair", "label", mode="before")
    @classmethod
    def _is_a_column(cls, given: Any) -> Any:
        listed = given if isinstance(given, list) and given else [given]
        for column in listed:
            if given is not None and not (isinstance(column, str) or (type(column) is int and column >= 0)):
                raise Refused(f"{given!r:.60} is no column", fix="give a column's name, or its number from 0")
        return given

    @model_validator(mode="after")
    def _columns_agree(self) -> LabelledData:
        if self.text_pair is not None and self.text is None:
            raise Refused("text_pair is set without text", fix="name both columns, or neither")
        given = [*_listed(self.text), *_listed(self.text_pair), *_listed(self.label)]
        if len({type(column) for column in given}) > 1:
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
        return not any(isinstance(column, int) for column in [*self.text_columns, *self.label_columns])


def _word(name: str | int) -> str:
    return str(name).lower() if isinstance(name, bool) else str(name)


def _listed(column: int | str | list[int | str] | None) -> list[int | str]:
    if column is None:
        return []
    return column if isinstance(column, list) else [column]


def longest_row(data: LabelledData, task: Task) -> int:
    """`data.max_seq_len`, or what Hugging Face's example for the kind of task takes."""
    return data.max_seq_len or (384 if task.kind == "question_answering" else 128)
