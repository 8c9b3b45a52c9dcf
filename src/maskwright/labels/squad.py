"""SQuAD's JSON, versions 1.1 and 2.0."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from maskwright.core.errors import SourceError
from maskwright.labels.columns import answers_of, with_question
from maskwright.labels.example import Example, Reading, Unusable
from maskwright.text.tables import Table


def squad_examples(table: Table, reading: Reading) -> Iterator[Example]:
    """The questions of a table of articles, numbered in order. Raises `SourceError`."""
    number = 0
    for _, article in table.rows(["paragraphs"]):
        for paragraph in _part(article, "paragraphs", table.name):
            for question in _part(paragraph, "qas", table.name):
                number += 1
                example = Example(table.name, number, counted="record")
                with reading.record(example):
                    yield _question(example, question, paragraph, reading)


def _part(holder: Any, key: str, name: str) -> list[Any]:
    part = holder.get(key) if isinstance(holder, dict) else None
    if not isinstance(part, list):
        fix = 'write {"data": [{"paragraphs": [{"context": …, "qas": […]}]}]}, or JSON lines'
        raise SourceError(f"is not SQuAD's JSON: a part without the list '{key}'", where=name, fix=fix)
    return part


def _question(example: Example, question: Any, paragraph: dict[str, Any], reading: Reading) -> Example:
    """A question. As in version 2.0, `is_impossible` overrides answers, and `plausible_answers` do not count."""
    if not isinstance(question, dict):
        raise Unusable("is not an object with 'question' and 'answers'", "repair the record")
    has_answers = reading.labelled and not question.get("is_impossible")
    answers = answers_of(question.get("answers"), "'answers'") if has_answers else []
    texts = [value if isinstance(value, str) else "" for value in (question.get("question"), paragraph.get("context"))]
    return with_question(example, texts[0], texts[1], answers, str(question.get("id", "")))
