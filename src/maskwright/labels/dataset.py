"""A run's labelled data: three splits, the labels in the order of their ids, and a report on the files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from maskwright.core import storage
from maskwright.core.errors import ConfigError, InputError
from maskwright.labels.config import LabelledData, Task
from maskwright.labels.example import Example, Reading
from maskwright.labels.names import check_labels, find_labels, tag_scheme
from maskwright.labels.read import read_examples
from maskwright.labels.report import Finding, Report, examine, label_counts
from maskwright.labels.split import hold_out, take_fraction


@dataclass(frozen=True)
class Dataset:
    train: list[Example]
    validation: list[Example]
    test: list[Example]
    """Empty when `data.test` is not set."""
    labels: tuple[str, ...]
    """In the order of their ids; none for regression and questions."""
    report: Report


def read_dataset(data: LabelledData, task: Task, seed: int) -> Dataset:
    """Reads all splits. Labels are those of the whole training split, whatever `data.fraction`.

    Raises `InputError` (exit 2) with file and line for what cannot be used; the report holds what only deserves a
    warning, and nothing is printed.
    """
    locations = {"train": data.train, "validation": data.validation, "test": data.test}
    given = {split: location for split, location in locations.items() if location is not None}
    _refuse_shared_files(given)
    reading = Reading(data, task)
    splits = {split: read_examples(location, reading) for split, location in given.items()}
    if task.fixed_labels:
        check_labels("train", splits["train"], task.fixed_labels, task)
    labels = find_labels(splits["train"], data, task)
    for split, examples in splits.items():
        check_labels(split, examples, labels, task)
    findings = examine(splits, task)
    _refuse_copies(findings, splits, given)
    train, validation = splits["train"], splits.get("validation", [])
    if data.validation is None:
        train, validation = hold_out(train, task, seed, data.validation_fraction)
        reading.note(
            f"{len(validation):,} of {len(splits['train']):,} training examples are held out for validation "
            f"(data.validation_fraction {data.validation_fraction:g})"
        )
    whole = len(train)
    train = take_fraction(train, task, seed, data.fraction)
    if data.fraction < 1.0:
        reading.note(f"{len(train):,} of {whole:,} training examples are used (data.fraction {data.fraction:g})")
    if task.kind == "token_classification":
        reading.note(tag_scheme(splits["train"]))
    used = {"train": train, "validation": validation, "test": splits.get("test", [])}
    counts = {split: label_counts(examples, labels) for split, examples in used.items() if examples}
    report = Report(
        sizes={split: len(examples) for split, examples in used.items() if examples},
        counts=counts,
        findings=tuple(findings),
        skipped=tuple(reading.skipped),
        notes=tuple(reading.notes),
        unused=tuple(name for name, count in counts["train"].items() if not count),
    )
    return Dataset(train, validation, used["test"], labels, report)


def _refuse_shared_files(given: dict[str, str]) -> None:
    """One file, or one found by two globs, in two splits."""
    owner: dict[str, str] = {}
    for split, location in given.items():
        for name in storage.expand([location]):
            path = name if storage.is_url(name) else os.path.realpath(name)
            if owner.get(path, split) != split:
                raise ConfigError(
                    f"is in the {owner[path]} and in the {split} split",
                    where=name,
                    fix=f"name another file under data.{split}" + _or_leave_out(split),
                )
            owner[path] = split


def _refuse_copies(findings: Sequence[Finding], splits: dict[str, list[Example]], given: dict[str, str]) -> None:
    """The same content under another name or in another format."""
    for finding in findings:
        if finding.kind == "leak" and finding.count == len(splits[finding.splits[1]]):
            earlier, later = finding.splits
            raise InputError(
                f"holds no text that is not in the {earlier} split as well ({finding.places[0]})",
                where=given[later],
                fix=f"name another file under data.{later}" + _or_leave_out(later),
            )


def _or_leave_out(split: str) -> str:
    return ", or leave it out: a share of data.train is then held out" if split == "validation" else ", or leave it out"
