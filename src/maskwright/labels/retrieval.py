"""A collection to search: passages, and questions with judgements, as files in the layout of BEIR
(https://arxiv.org/abs/2104.08663). All of it is held in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from maskwright.config.finetuning import Task
from maskwright.config.retrieval import RetrievalData
from maskwright.core import storage
from maskwright.core.console import several
from maskwright.core.errors import InputError, SourceError
from maskwright.labels.example import Example, folded
from maskwright.labels.split import hold_out
from maskwright.text.compression import ending, unreadable
from maskwright.text.document import place, strict
from maskwright.text.tables import JSON_LINES, open_table, whole_characters

QUERY, PASSAGE, SCORE = "query-id", "corpus-id", "score"


@dataclass(frozen=True)
class Query:
    text: str
    grades: dict[int, int]
    """Index of a judged passage -> its score; 0 if it does not answer."""
    where: str
    """File and line of its text."""
    own: int | None = None
    """Index of the unjudged passage with its `_id` that holds its text, as in ArguAna, which is no answer to itself."""

    @property
    def relevant(self) -> dict[int, int]:
        """The passages that answer, with their scores."""
        return {passage: grade for passage, grade in self.grades.items() if grade > 0}


@dataclass(frozen=True)
class Collection:
    passages: list[str]
    """Title and text of each."""
    train: list[Query]
    validation: list[Query]
    test: list[Query]
    """Empty without `data.test`."""
    fingerprint: str
    """sha256 of the passages, and of each split's questions with their judgements."""

    @property
    def pairs(self) -> int:
        """Training pairs of a question and a passage that answers it."""
        return sum(len(query.relevant) for query in self.train)

    def asked_in_training(self) -> int:
        """Validation and test questions that differ from a training question in case, white space and punctuation."""
        asked = {folded(query.text) for query in self.train}
        return sum(folded(query.text) in asked for query in (*self.validation, *self.test))

    def with_repeated_answers(self) -> int:
        """Validation and test questions with an answer whose text another passage repeats that they do not judge, so
        that it counts as wrong."""
        alike: dict[str, set[int]] = {}
        for number, passage in enumerate(self.passages):
            alike.setdefault(passage, set()).add(number)
        asked = [*self.validation, *self.test]
        return sum(any(alike[self.passages[one]] - {*query.grades} for one in query.relevant) for query in asked)


def read_collection(data: RetrievalData, seed: int) -> Collection:
    """Reads all splits. Raises `InputError` (exit 2) with file and line: for an id twice, a judgement of an unknown
    question or passage, a question without a passage that answers it, and a question in two splits."""
    records = enumerate(_records(data.corpus))
    passages = {record["_id"]: (number, _passage(record)) for number, (_, record) in records}
    texts = {record["_id"]: (_question(record, where), where) for where, record in _records(data.queries)}
    files = {"train": data.train, "validation": data.validation, "test": data.test}
    splits: dict[str, list[Query]] = {}
    owners: dict[str, str] = {}
    for split, file in files.items():
        splits[split] = [] if file is None else _read_split(split, file, texts, passages, owners)
    if data.validation is None:
        splits["train"], splits["validation"] = _hold_out(splits["train"], seed, data.validation_fraction)
    in_order = [passage for _, passage in passages.values()]
    return Collection(in_order, **splits, fingerprint=_fingerprint(in_order, splits))


def _passage(record: dict[str, str]) -> str:
    return f"{record['title']} {record['text']}".strip()


def _question(record: dict[str, str], where: str) -> str:
    if not record["text"].strip():
        raise SourceError("this question is empty", where=where, fix="write it, or delete the line")
    return record["text"]


def _records(location: str) -> Iterator[tuple[str, dict[str, str]]]:
    """(file and line, {"_id", "title", "text"}) of each line of the files."""
    seen: dict[str, str] = {}
    for name in storage.expand([location]):
        if ending(name) not in JSON_LINES:
            raise unreadable(name, JSON_LINES)
        with open_table(name) as table:
            for number, record in table.rows():
                where = place(name, number, table.counted)
                values = {key: _text(record, key, where) for key in ("_id", "title", "text")}
                if (before := seen.setdefault(values["_id"], where)) != where:
                    what = f"has the same _id {values['_id']!r:.60} as {before}"
                    raise SourceError(what, where=where, fix="give each line an _id of its own")
                yield where, values
    if not seen:
        raise SourceError("holds no lines", where=location, fix="check the file")


def _text(record: dict[Any, Any], key: str, where: str) -> str:
    value = record.get(key)
    if key == "title" and value is None:
        return ""
    if key == "_id" and isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or (key == "_id" and not value):
        what = f"has no {key}" if value is None or value == "" else f"{key} is not a text, but {value!r:.40}"
        raise SourceError(what, where=where, fix='write {"_id": "1", "title": "…", "text": "…"}, title or not')
    return whole_characters(value, where, strict)


def _read_split(
    split: str,
    file: str,
    texts: dict[str, tuple[str, str]],
    passages: dict[str, tuple[int, str]],
    owners: dict[str, str],
) -> list[Query]:
    """The questions of one file of judgements, in its order. `passages`: index and text by ID. `owners`: the split of
    each question's text."""
    grades: dict[str, dict[int, int]] = {}
    first: dict[str, str] = {}
    for where, query, passage, grade in _judgements(file):
        if query not in texts:
            raise SourceError(f"there is no question {query!r:.60}", where=where, fix="delete the line")
        if passage not in passages:
            raise SourceError(f"there is no passage {passage!r:.60}", where=where, fix="delete the line")
        of_query, number = grades.setdefault(query, {}), passages[passage][0]
        if number in of_query:
            what = f"judges passage {passage!r:.60} for question {query!r:.60} again"
            raise SourceError(what, where=where, fix="keep one of the two lines")
        of_query[number] = grade
        first.setdefault(query, where)
    if not grades:
        raise SourceError("holds no judgements", where=file, fix="check the file")
    queries = []
    for key, of_query in grades.items():
        text, where = texts[key]
        number, passage = passages.get(key, (-1, ""))
        repeats = number not in of_query and folded(text) in folded(passage)
        queries.append(Query(text, of_query, where, number if repeats else None))
    for judged, where in zip(queries, first.values(), strict=True):
        if not judged.relevant:
            what = "no passage answers this question, since all its scores are 0"
            raise SourceError(what, where=where, fix="delete the question, or judge a passage that answers it")
        owner = owners.setdefault(" ".join(judged.text.split()), split)
        if owner != split:
            what = f"this question is in the {owner} split as well"
            raise SourceError(what, where=where, fix=f"remove it from data.{owner} or of data.{split}")
    return queries


def _judgements(file: str) -> Iterator[tuple[str, str, str, int]]:
    """(file and line, query, passage, score) of each line of a TSV."""
    if ending(file) != ".tsv":
        raise unreadable(file, (".tsv",))
    with open_table(file) as table:
        if table.is_empty:
            return
        columns = [QUERY, PASSAGE, SCORE]
        for column in columns:
            table.require(column, f"begin with the line {'<TAB>'.join(columns)}")
        for number, record in table.rows([*columns]):
            where, (query, passage, grade) = place(file, number, table.counted), (record[key] for key in columns)
            yield where, query, passage, _grade(grade, where)


def _grade(text: str, where: str) -> int:
    with suppress(ValueError):
        if (value := float(text)).is_integer():
            return int(value)
    raise SourceError(f"the score is {text!r:.40}", where=where, fix="give an integer, with 0 for no answer")


def _hold_out(queries: Sequence[Query], seed: int, share: float) -> tuple[list[Query], list[Query]]:
    """(train, validation). See `hold_out`; as examples of one label, the questions leave one to train on."""
    examples = [Example("", 0, query.text, labels=("question",), key=str(at)) for at, query in enumerate(queries)]
    try:
        train, held = ([queries[int(one.key)] for one in part] for part in hold_out(examples, Task(), seed, share))
    except InputError:
        what = f"{several(len(queries), 'question')}: too few different ones to hold out {share:g} for validation"
        fix = "raise it, judge more questions, or name a file under data.validation"
        raise InputError(what, where="data.validation_fraction", fix=fix) from None
    return train, held


def _fingerprint(passages: Sequence[str], splits: dict[str, list[Query]]) -> str:
    digest = hashlib.sha256()
    for passage in passages:
        digest.update(repr(passage).encode())
    for split, queries in splits.items():
        digest.update(f"{split} {len(queries)}".encode())
        for query in queries:
            own = () if query.own is None else (query.own,)
            digest.update(repr((query.text, [*query.grades.items()], *own)).encode())
    return digest.hexdigest()
