"""A run's labelled data: three splits, the labels in the order of their ids, and a report on the files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from maskwright.config.finetuning import LabelledData, Task
from maskwright.core import storage
from maskwright.core.errors import InputError, SourceError
from maskwright.labels.annotations import cut_otherwise
from maskwright.labels.encode import without_long_questions
from maskwright.labels.example import Example, Reading
from maskwright.labels.files import another_file, split_files
from maskwright.labels.names import find_labels, odd_labels, tag_scheme, with_known
from maskwright.labels.read import read_files
from maskwright.labels.report import (
    LabelFinding,
    Report,
    examine,
    groups_of,
    label_counts,
    odd_targets,
    shared_groups,
)
from maskwright.labels.split import hold_out, take_fraction


@dataclass(frozen=True)
class Dataset:
    train: list[Example]
    validation: list[Example]
    test: list[Example]
    """Empty when `data.test` is not set."""
    labels: tuple[str, ...]
    """Names in the order of their ids; none for regression and questions."""
    report: Report
    fingerprint: str
    """sha256 of all used examples, in order, and of the labels. The files' paths do not count, nor do the examples that
    `without_long_questions` leaves out."""
    of_splits: dict[str, str] = field(default_factory=dict)
    """`fingerprint_of` each split."""

    def without_long_questions(self, tokenizer_folder: str, task: Task, max_seq_len: int) -> Dataset:
        """Leaves out examples that do not fit a model's rows (`data.on_bad_input: skip`). Raises `InputError` if a
        split becomes empty."""
        if task.kind != "question_answering":
            return self
        splits = (self.train, self.validation, self.test)
        found = [without_long_questions(examples, tokenizer_folder, task, max_seq_len) for examples in splits]
        train, validation, test = (kept for kept, _ in found)
        left_out = [skipped for _, some in found for skipped in some]
        sizes = {"train": len(train), "validation": len(validation), "test": len(test)}
        sizes = {split: size for split, size in sizes.items() if size}
        report = replace(self.report, sizes=sizes, skipped=(*self.report.skipped, *left_out))
        return replace(self, train=train, validation=validation, test=test, report=report)


def read_dataset(data: LabelledData, task: Task, seed: int) -> Dataset:
    """Reads all splits. Labels come from the whole training split, at any `data.fraction`. Warnings go into the report;
    nothing is printed. Raises `InputError` (exit 2) with file and line."""
    reading = Reading(data, task)
    splits: dict[str, list[Example]] = {}
    labels: tuple[str, ...] = ()
    for split, names in split_files(data, reading).items():
        reading.split = split
        try:
            examples = read_files(names, getattr(data, split), reading)
            _require_as_many_texts(examples, splits.get("train", examples))
            if task.fixed_labels:
                examples = with_known(split, examples, task.fixed_labels, reading)
            if split == "train":
                labels = find_labels(examples, data, task, reading.class_names)
            splits[split] = with_known(split, examples, labels, reading)
        except InputError as error:
            if split == "train" or getattr(data, split) != data.train:
                raise
            fix = f"{error.fix}, or leave these files out with data.{split}: null"
            raise InputError(error.what, where=error.where, fix=fix) from None
    findings = examine(splits, task)
    _require_new_texts(findings, splits, data)
    train, validation = splits["train"], splits.get("validation", [])
    if data.validation is None:
        train, validation = hold_out(train, task, seed, data.validation_fraction)
        held_out, all_groups = len(groups_of(validation)), len(groups_of(splits["train"]))
        of_groups = f", {held_out:,} of the {all_groups:,} groups" * bool(data.group)
        reading.note(
            f"{len(validation):,} of {len(splits['train']):,} training examples are held out for validation "
            f"(data.validation_fraction {data.validation_fraction:g}{of_groups})"
        )
    _note_header(reading, splits["train"], labels)
    train_size = len(train)
    train = take_fraction(train, task, seed, data.fraction)
    if data.fraction < 1.0:
        reading.note(f"{len(train):,} of {train_size:,} training examples are used (data.fraction {data.fraction:g})")
    if task.kind == "token_classification":
        reading.note(tag_scheme(splits["train"]))
        if sentence := cut_otherwise(splits["train"]):
            reading.note(sentence)
    used = {"train": train, "validation": validation, "test": splits.get("test", [])}
    counts = {split: label_counts(examples, labels) for split, examples in used.items() if examples}
    report = Report(
        sizes={split: len(examples) for split, examples in used.items() if examples},
        counts=counts,
        findings=tuple(findings),
        skipped=tuple(reading.skipped),
        notes=tuple(reading.notes),
        unused=tuple(name for name, count in counts["train"].items() if not count),
        odd=(*odd_labels(labels, task, splits["train"]), *odd_targets(splits, task), *shared_groups(used)),
    )
    of_splits = {split: fingerprint_of(examples) for split, examples in used.items()}
    whole = storage.sha256_of([labels, of_splits])
    return Dataset(train, validation, used["test"], labels, report, whole, of_splits)


def fingerprint_of(examples: Iterable[Example]) -> str:
    """sha256 of examples in their order, from any files."""
    digest = hashlib.sha256()
    for example in examples:
        targets = (example.labels, example.value, [*map(tuple, example.answers)])
        content = (example.text, example.text_pair, example.words, *targets)
        digest.update(repr(content).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _note_header(reading: Reading, train: list[Example], labels: tuple[str, ...]) -> None:
    """Notes a likely header line in files that should have none, with CoNLL's or numbered columns, by its unique
    label."""
    first = train[0]
    if first.words and first.labels[0] != "O" and "-" not in first.labels[0]:
        if sum(example.labels.count(first.labels[0]) for example in train) == 1:
            what = f"only the word '{first.words[0]:.30}' ({first.where}) has the tag '{first.labels[0]}'"
            reading.note(f"{what}: if it is a header line, delete it")
        return
    if reading.data.has_header or len(labels) < 3 or len(first.labels) != 1 or first.line != 1:
        return
    if label_counts(train, labels).get(first.labels[0]) == 1:
        reading.note(
            f"only {first.where} has the label '{first.labels[0]}': if it is a header line, give the columns' names "
            "under data:, not their numbers"
        )


def _require_as_many_texts(examples: list[Example], train: list[Example]) -> None:
    """Raises `SourceError` if one example of a split has a pair of texts and another of it or of training has not."""
    first = train[0].text_pair is None
    for example in examples:
        if (example.text_pair is None) is not first:
            numbers = ("a pair of texts", "one text") if first else ("one text", "a pair of texts")
            what = f"has {numbers[0]}, but {train[0].where} has {numbers[1]}"
            raise SourceError(what, where=example.where, fix="name the same columns as data.text and data.text_pair")


def _require_new_texts(findings: list[LabelFinding], splits: dict[str, list[Example]], data: LabelledData) -> None:
    """Raises `InputError` for a split whose texts are all in an earlier one, such as a copy in another format."""
    for finding in findings:
        if finding.kind == "leak" and finding.count - finding.varied == len(splits[finding.splits[1]]):
            earlier, later = finding.splits
            what = f"holds no text that is not in the {earlier} split as well ({finding.places[0]})"
            raise InputError(what, where=getattr(data, later), fix=another_file(later))
