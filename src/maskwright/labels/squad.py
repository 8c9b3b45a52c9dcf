"""SQuAD's JSON, versions 1.1 and 2.0."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from maskwright.core.errors import SourceError
from maskwright.labels.columns import asked, examples_of
from maskwright.labels.example import Answer, Example, Reading, Unusable
from maskwright.labels.tables import parsed_json, read_table, records_table, whole_text


def read_squad(name: str, reading: Reading) -> Iterator[Example]:
    """Examples are numbered as questions come. A file of flat records ({"data": [{"question": …}]}) is read as well.

    Raises `SourceError`.
    """
    content = _one_object(whole_text(name), name)
    if content is None or "data" not in content:
        yield from examples_of(name, read_table(name, reading), reading)
        return
    articles = content["data"]
    if not isinstance(articles, list) or not articles:
        raise _not_squad("no list under 'data'", name)
    if not isinstance(articles[0], dict) or "paragraphs" not in articles[0]:
        yield from examples_of(name, records_table(name, [*enumerate(articles, 1)], reading, "record"), reading)
        return
    number = 0
    for article in articles:
        for paragraph in _part(article, "paragraphs", name):
            for question in _part(paragraph, "qas", name):
                number += 1
                example = Example(name, number, counted="record")
                try:
                    yield _question(example, question, paragraph, reading)
                except Unusable as error:
                    reading.fault(example.where, error.what, error.fix)


def _one_object(text: str, name: str) -> dict[str, Any] | None:
    """The file's content; None for a list, and for JSON lines, where something follows the first object."""
    text = text.strip()
    content, end = parsed_json(text, name)
    return content if isinstance(content, dict) and end == len(text) else None


def _part(holder: Any, key: str, name: str) -> list[Any]:
    part = holder.get(key) if isinstance(holder, dict) else None
    if not isinstance(part, list):
        raise _not_squad(f"a part without the list '{key}'", name)
    return part


def _not_squad(what: str, name: str) -> SourceError:
    fix = 'write {"data": [{"paragraphs": [{"context": …, "qas": […]}]}]}, or JSON lines'
    return SourceError(f"is not SQuAD's JSON: {what}", where=name, fix=fix)


def _question(example: Example, question: Any, paragraph: dict[str, Any], reading: Reading) -> Example:
    """`is_impossible` decides over answers, as version 2.0 has it; `plausible_answers` are no answers."""
    if not isinstance(question, dict):
        raise Unusable("is not an object with 'question' and 'answers'", "repair the record")
    given = question.get("answers") if reading.labelled and not question.get("is_impossible") else []
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise Unusable("has no list of answers", 'write "answers": [{"text": …, "answer_start": …}]')
    answers = [Answer(one.get("text", ""), one.get("answer_start", -1)) for one in given]
    texts = [value if isinstance(value, str) else "" for value in (question.get("question"), paragraph.get("context"))]
    return asked(example, texts[0], texts[1], answers, str(question.get("id", "")))
