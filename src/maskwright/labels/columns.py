"""Records of a table to examples: the roles of columns, and checks of cells by kind of task."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from maskwright.config.finetuning import TaskKind
from maskwright.core.errors import SourceError
from maskwright.labels.example import Answer, Example, Reading, Unusable
from maskwright.labels.names import INTEGER
from maskwright.labels.vectors import is_one_hot, keys_of, list_in, require_labels, state_of
from maskwright.text.document import Fault
from maskwright.text.names import cell_name, group_name
from maskwright.text.tables import Column, Record, Table, listed, whole_characters

PAIRS: tuple[tuple[str, str | None], ...] = (
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("question", "sentence"),
    ("sentence", None),
    ("text", None),
)
"""Usual names of text columns, as in GLUE, tried in this order."""
LABELS = ("label", "labels", "gold_label", "is_duplicate", "score")
WORDS = ("words", "tokens", "word", "token", "Word", "Token")
TAGS = ("tags", "ner_tags", "labels", "label", "tag", "Tag", "ner", "NER")
KNOWN: dict[TaskKind, tuple[tuple[tuple[str, str | None], ...], tuple[str, ...]]] = {
    "token_classification": (tuple((name, None) for name in WORDS), TAGS),
    "question_answering": ((("question", "context"),), ("answers",)),
}
"""Usual names of columns for the other tasks, as in Hugging Face's data sets."""


@dataclass(frozen=True)
class Roles:
    text: list[Column]
    pair: Column | None
    label: list[Column]
    """Empty when no label is read."""
    key: list[Column]
    """The column `id` of questions, if there is one."""
    class_names: tuple[str, ...] = ()
    """Names of the labels 0, 1, … in the file's schema."""
    where: str = ""
    """Location of the columns' names."""
    group: list[Column] = field(default_factory=list)
    """The column of `data.group`, if it is set and labels are read."""

    @property
    def all(self) -> list[Column]:
        return [*self.text, *([] if self.pair is None else [self.pair]), *self.label, *self.key, *self.group]


def examples_of(table: Table, reading: Reading) -> Iterator[Example]:
    roles = roles_of(table, reading)
    build = {"token_classification": _words, "question_answering": _question}.get(reading.task.kind, _text)
    for number, record in table.rows(roles.all):
        example = Example(table.name, number, counted=table.counted)
        with reading.record(example):
            missing = [column for column in roles.all if column not in record]
            if missing:
                raise Unusable(f"has no '{missing[0]}' (keys: {listed([*record])})", "add it")
            for column in roles.group:
                if not (group := group_name(record[column])):
                    raise Unusable(f"has no group in column {column!r}", "write one, or delete the record")
                example = replace(example, group=group)
            yield build(example, record, roles, reading)


def roles_of(table: Table, reading: Reading) -> Roles:
    """The columns that the configuration names, or else columns with usual names, with a note."""
    data, kind = reading.data, reading.task.kind
    texts, labels = KNOWN.get(kind, (PAIRS, LABELS))
    text, pair, label = data.text_columns, data.text_pair, data.label_columns if reading.labelled else []
    if not text:
        free = {*table.columns} - {*label}
        fitting = [names for names in texts if free.issuperset({*names} - {None})]
        if not fitting:
            raise _no_column("text", "data.text", table, reading)
        text, pair = [fitting[0][0]], fitting[0][1]
        if others := [name for name in dict.fromkeys(chain(*fitting)) if name and name not in fitting[0]]:
            what = f"has several columns with a usual name for the text: {listed([*filter(None, fitting[0]), *others])}"
            of_pair = ", or a pair as data.text and data.text_pair" if any(second for _, second in fitting) else ""
            raise SourceError(what, where=table.header, fix=f"name one as data.text{of_pair}")
        reading.note(f"the text is column '{text[0]}'" + (f", its pair '{pair}'" if pair else ""))
    if reading.labelled and not label:
        name = next((column for column in labels if column in table.columns and column not in [*text, pair]), None)
        if name is None:
            raise _no_column("labels", "data.label", table, reading)
        label = [name]
        reading.note(f"the label is column '{name}'")
    if kind == "question_answering" and pair is None:
        raise _no_column("context", "data.text_pair", table, reading)
    key: list[Column] = ["id"] if kind == "question_answering" and "id" in table.columns else []
    class_names = table.class_names.get(label[0], ()) if len(label) == 1 else ()
    needs_group = reading.split == "train" or data.group in table.columns
    group = [data.group] if data.group is not None and reading.labelled and needs_group else []
    roles = Roles(text, pair, label, key, class_names, table.header, group)
    if roles.class_names and not reading.class_names:
        reading.class_names = tuple(renamed(str(number), roles, reading) for number in range(len(roles.class_names)))
        reading.note(f"{table.name} names the labels 0 to {len(roles.class_names) - 1}: {listed(reading.class_names)}")
    pairs = [] if pair is None else [pair]
    for key_name, columns in zip(("text", "text_pair", "label", "group"), (text, pairs, label, group), strict=True):
        for column in columns:
            table.require(column, _name_it("another", f"data.{key_name}", table, reading))
    if not data.has_header and not reading.labelled:  # then a header line raises no error
        names = " and ".join(map(str, [*text, *pairs]))
        reading.note(f"the text is column {names}, and the first line is a text too, since no header line is expected")
    return roles


def _no_column(role: str, key_name: str, table: Table, reading: Reading) -> SourceError:
    what = f"has no column with a usual name for the {role} (columns: {listed(table.columns)})"
    return SourceError(what, where=table.header, fix=_name_it("it", key_name, table, reading))


def _name_it(which: str, key_name: str, table: Table, reading: Reading) -> str:
    if reading.split != "train":
        unlabelled = "; `maskwright predict` takes texts without labels" * (key_name == "data.label")
        return f"name it as in the training split{unlabelled}"
    numbers = ", or give its number from 0 if the files have no header line" if table.delimiter else ""
    return f"name {which} as {key_name}{numbers}"


# ---- one record --------------------------------------------------------------------------------------------------


def _text(example: Example, record: Record, roles: Roles, reading: Reading) -> Example:
    text = " ".join(string(record[column], column) for column in roles.text)
    pair = None if roles.pair is None else string(record[roles.pair], roles.pair)
    for content, column in ((text, roles.text[0]), (pair, roles.pair)):
        if content is not None and not content.strip():
            raise Unusable(f"column {column!r} is empty", "write a text there, or delete the record")
    labels: tuple[str, ...] = ()
    value = 0.0
    if roles.label and reading.task.kind == "regression":
        value = _number(record[roles.label[0]], roles.label[0], reading)
    elif roles.label and reading.task.kind == "multi_label_classification":
        labels = _several(record, roles, reading)
    elif roles.label:
        labels = (_class(record[roles.label[0]], roles, reading),)
    return replace(example, text=text, text_pair=pair, labels=labels, value=value)


def string(cell: Any, column: Column) -> str:
    """The cell as text; empty for a null. Raises `Unusable`."""
    if cell is None:
        return ""
    if not isinstance(cell, str):
        fix = "write it as text"
        if isinstance(cell, list | dict):
            fix += ', a record for each; with pandas: to_json(FILE, orient="records", lines=True)'
        raise Unusable(f"column {column!r} is {type(cell).__name__}, not text", fix)
    return whole_characters(cell, "", _unusable)


def _unusable(fault: Fault) -> bool:
    raise Unusable(fault.what, fault.advice)


def _number(cell: Any, column: Column, reading: Reading) -> float:
    try:
        value = float(cell) if isinstance(cell, str | int | float) and not isinstance(cell, bool) else math.nan
    except (ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        raise Unusable(
            f"label {cell!r:.40} in column {column!r} is not a number",
            "repair it, or name the label's column as data.label",
        )
    return value


def renamed(label: str, roles: Roles, reading: Reading) -> str:
    """The label's name, by the file's schema and the mapping of `task.labels`, whose keys may be either. Raises
    `SourceError` if these two exchange labels."""
    translation, names = reading.task.translation, roles.class_names
    if not names or not INTEGER.fullmatch(label):
        return translation.get(label, label)
    name, ours = by_class_name(label, names), translation.get(label)
    if name not in translation and ours not in (None, name) and ours in names:
        what = f"the label {label} is '{name}' in the file, but '{ours}' in task.labels"
        raise SourceError(what, where=roles.where, fix="leave task.labels out, or correct it")
    return translation.get(name, ours or name)


def by_class_name(label: str, names: Sequence[str]) -> str:
    """The name of a numeric label in the file's schema. Raises `Unusable` for a label without a name."""
    if not INTEGER.fullmatch(label):
        return label
    if not 0 <= int(label) < len(names):
        what = f"has the label {label}, " + ("which means none" if label == "-1" else "which has no name")
        raise Unusable(f"{what} ({len(names)} are named)", "write one, or delete the record")
    return names[int(label)]


def _class(cell: Any, roles: Roles, reading: Reading) -> str:
    column = roles.label[0]
    labels = list_in(cell) if isinstance(cell, str) else cell
    if isinstance(labels, list | dict):
        values = labels.values() if isinstance(labels, dict) else labels
        if any(isinstance(value, float) and not value.is_integer() for value in values):
            raise Unusable(
                f"column {column!r} holds shares of labels, which cannot be learned", "write the likeliest label"
            )
        is_vector = isinstance(labels, list) and is_one_hot(labels)
        what = "a vector of 0 and 1" if is_vector else "list" if isinstance(cell, str) else type(cell).__name__
        one = "the position of its 1, counted from 0" if is_vector else "one label"
        fix = f"write {one}, or set task.kind: multi_label_classification"
        raise Unusable(f"column {column!r} is {what}, not one label", fix)
    name = cell_name(cell)
    if not name:
        raise Unusable(f"column {column!r} has no label", "write one, or delete the record")
    return renamed(name, roles, reading)


def _several(record: Record, roles: Roles, reading: Reading) -> tuple[str, ...]:
    """Any number of labels: from a list, from a cell with a list or a separator, or from a column of 0 and 1 for each
    label. Returns all of them, not yet by name, since they may be a vector (see `named`)."""
    columns = roles.label
    if len(columns) > 1:
        labels = []
        for column in columns:
            if (state := state_of(record[column])) is None:
                raise Unusable(f"column {column!r} is {record[column]!r:.40}, not 0 or 1", "write 0 or 1")
            labels += [str(column)] if state else []
    else:
        labels = _labels_in(record[columns[0]], columns[0], reading)
    return tuple(renamed(name, roles, reading) for name in labels) if roles.class_names else tuple(labels)


def _labels_in(cell: Any, column: Column, reading: Reading) -> list[str]:
    try:
        values = list_in(cell) if isinstance(cell, str) else keys_of(cell) if isinstance(cell, dict) else cell
        if isinstance(values, list):
            require_labels(values)
    except Unusable as error:
        raise Unusable(f"column {column!r} {error.what}", error.fix) from None
    if not isinstance(values, list):
        text = cell_name(cell)
        if text[:1] + text[-1:] in ("[]", "{}"):  # Postgres writes arrays as {a,b}
            fix = f"write its labels with '{reading.task.separator}' between them, or lists in .jsonl"
            raise Unusable(f"column {column!r} holds a list that cannot be read: {text:.40}", fix)
        values = text.split(reading.task.separator)
    return [name for name in map(cell_name, values) if name]


def _words(example: Example, record: Record, roles: Roles, reading: Reading) -> Example:
    for column in (roles.text[0], *roles.label[:1]):
        cell = record[column]
        if not isinstance(cell, list):
            raise Unusable(f"column {column!r} is {type(cell).__name__}, not a list", 'write ["One", "word", "each"]')
    words = tuple(string(word, roles.text[0]) for word in record[roles.text[0]])
    tag_names = [cell_name(tag) for tag in record[roles.label[0]]] if roles.label else []
    tags = tuple(renamed(tag, roles, reading) for tag in tag_names)
    return with_tags(example, words, tags, labelled=bool(roles.label))


def with_tags(example: Example, words: tuple[str, ...], tags: tuple[str, ...], *, labelled: bool) -> Example:
    """The example with words and tags. Raises `Unusable`."""
    if not words:
        raise Unusable("has no words", "delete the record")
    if labelled and len(words) != len(tags):
        raise Unusable(f"has {len(words)} words and {len(tags)} tags", "write one tag for each word")
    for word_number, word in enumerate(words, 1):
        if not word.strip():
            raise Unusable(f"word {word_number} of {len(words)} is empty", "delete it, with its tag")
    for word_number, tag in enumerate(tags, 1):
        if not tag:
            raise Unusable(f"word {word_number} of {len(words)} has no tag", "write one, such as O")
    return replace(example, words=words, labels=tags)


def _question(example: Example, record: Record, roles: Roles, reading: Reading) -> Example:
    answers = answers_of(record[roles.label[0]], repr(roles.label[0])) if roles.label else []
    question = " ".join(string(record[column], column) for column in roles.text)
    context = string(record[roles.pair], roles.pair) if roles.pair is not None else ""
    return with_question(example, question, context, answers, cell_name(record[roles.key[0]]) if roles.key else "")


def answers_of(cell: Any, column: str) -> list[Answer]:
    """Answers as in SQuAD, a list of {"text": …, "answer_start": …}, or as in Hugging Face's data sets, one such object
    with two lists. Raises `Unusable`."""
    if isinstance(cell, dict):
        parts = [cell.get(key) for key in ("text", "answer_start")]
        texts, starts = [part if isinstance(part, list) else [] if part is None else [part] for part in parts]
        if len(texts) == len(starts) > 0 or parts == [[], []]:
            return [Answer(text, start) for text, start in zip(texts, starts, strict=True)]
    elif isinstance(cell, list) and all(isinstance(answer, dict) for answer in cell):
        return [Answer(answer.get("text", ""), answer.get("answer_start", -1)) for answer in cell]
    raise Unusable(f"column {column} holds no answers", 'write [{"text": "…", "answer_start": 0}], or [] for none')


def with_question(example: Example, question: str, context: str, answers: list[Answer], key: str) -> Example:
    for what, content in (("question", question), ("context", context)):
        if not string(content, what).strip():
            raise Unusable(f"the {what} is empty", "write a text there, or delete the record")
    for text, start in answers:
        if not isinstance(text, str) or type(start) is not int or not text:
            raise Unusable(f"answer {text!r:.40} at {start!r:.20} is not a text with its position", "repair the record")
        if start < 0 or context[start : start + len(text)] != text:
            passage, place = context[max(start, 0) :][: len(text)], elsewhere(context, text, start)
            what = f"answer {text!r:.60} is not in its context at character {start}, where {passage!r:.60} is: {place}"
            if text not in context:
                fix = "copy the answer from its context, or give [] as the answers if it has none"
                raise Unusable(what, fix, "answer of another text")
            raise Unusable(what, "count answer_start in characters from 0", "misplaced answer")
    return replace(example, text=question, text_pair=context, answers=tuple(answers), key=key)


def elsewhere(text: str, passage: str, start: int) -> str:
    """Where a `passage` is that is not at `start`, in words."""
    first = max(start, 0)
    places = {text.rfind(passage, 0, first + len(passage)), text.find(passage, first)} - {-1}
    if not places:
        return "it is absent"
    place = min(places, key=lambda place: abs(place - start))
    return f"it is at {place:,}, {abs(place - start):,} {'less' if place < start else 'more'} than written"
