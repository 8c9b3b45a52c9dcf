"""Spans of texts, as annotation tools write them, to words with B- and I- tags, and back.

Records of doccano, Prodigy, Label Studio, Argilla, spaCy and GLiNER are recognized by the shape of their values, not by
a tool's name.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from maskwright.core.errors import SourceError
from maskwright.labels.columns import TAGS, WORDS, by_class_name, elsewhere, string, with_tags
from maskwright.labels.example import Example, Reading, Skipped, Unusable
from maskwright.labels.spans import OUTSIDE
from maskwright.labels.spans import spans as spans_of_tags
from maskwright.text.tables import Column, Record, Table, first_record, listed

TEXTS = ("text", "sentence")
SPANS = ("spans", "entities", "ents", "ner", "label", "labels", "annotations", "annotation")
"""Usual names of columns of spans. The first of several with a span in the first record counts."""
GLINER = ("tokenized_text", "ner")
START = ("start", "start_offset", "start_char", "begin")
END = ("end", "end_offset", "end_char")
NAME = ("label", "labels", "type", "entity_group", "entity", "tag", "name")
WORDS_ARE = "cut into words at white space and punctuation"
WRITE_SPANS = 'write "label": [[0, 5, "PER"]], or lists of words and of their tags'
INCLUDE_LAST = "write the position after its last character as its end"

Offsets = list[tuple[int, int]]


class Span(NamedTuple):
    start: int
    end: int
    """Position after its last character or word."""
    name: str
    text: str | None = None
    """The covered text, if the tool writes it too."""


@dataclass(frozen=True)
class Layout:
    text: Column
    """In Label Studio's tasks, a key of `data`."""
    spans: Column | None
    """None when no label is read."""
    is_gliner: bool = False
    """Spans are of words, with the last one included."""
    is_label_studio: bool = False
    class_names: tuple[str, ...] = ()
    """Names of the spans' labels 0, 1, … in the file's schema."""


# ---- words of a text ---------------------------------------------------------------------------------------------

UNSPACED = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)
"""Thai, Lao, Tibetan, Burmese, Khmer, kana and Chinese characters. Without spaces between words, each is a word."""
LETTER, ALONE, ATTACHED = 0, 1, 2


@cache
def _kind(character: str) -> int:
    """Punctuation and symbols are words of their own; accents and joiners belong to the character before."""
    category = unicodedata.category(character)
    if category[0] == "M" or category == "Cf":
        return ATTACHED
    return ALONE if category[0] in "PS" or UNSPACED.match(character) else LETTER


def word_offsets(text: str) -> Offsets:
    """[begin, end) of the words between white space and punctuation; each punctuation mark is one."""
    offsets: Offsets = []
    for run in re.finditer(r"\S+", text):
        begin, end = run.span()
        if not (run[0].isascii() and run[0].isalnum()):
            last = ATTACHED
            for index, kind in enumerate(map(_kind, run[0]), begin):
                if index > begin and kind != ATTACHED and ALONE in (kind, last):
                    offsets.append((begin, index))
                    begin = index
                last = last if kind == ATTACHED else kind
        offsets.append((begin, end))
    return offsets


def in_words(example: Example, text: str) -> Example:
    """The example with its text and the words of it, without tags. Raises `Unusable`."""
    words = tuple(text[begin:end] for begin, end in word_offsets(text))
    return replace(with_tags(example, words, (), labelled=False), text=text)


def cut_otherwise(examples: Sequence[Example]) -> str | None:
    """A sentence on words that are several by `word_offsets`, if they are more than a hundredth of those that the user
    has cut."""
    words = [word for example in examples if not example.text for word in example.words]
    several = [word for word in words if len(word_offsets(word)) > 1]
    if len(several) <= len(words) / 100:
        return None
    what = f"{len(several) / len(words):.1%} of the words, such as '{several[0]:.30}', are several where `predict` gets"
    return f"{what} texts, which it cuts at white space and punctuation: give it words that are cut as these"


def spans_in(text: str, tags: Sequence[str]) -> list[dict[str, Any]]:
    """The spans that the tags of a text's words mark, by characters."""
    offsets = word_offsets(text)
    places = [(offsets[first][0], offsets[stop - 1][1], name) for first, stop, name in spans_of_tags(tags)]
    return [{"start": start, "end": end, "label": name, "text": text[start:end]} for start, end, name in places]


# ---- which columns -----------------------------------------------------------------------------------------------


def find_layout(table: Table, reading: Reading) -> Layout | None:
    """The columns of the texts and their spans; None for lists of words and tags. Raises `SourceError`."""
    texts, labels = reading.data.text_columns, reading.data.label_columns if reading.labelled else []
    known = {*texts, *labels, *TEXTS, *SPANS, *GLINER, *WORDS, *TAGS, "data", "completions", "answer"}
    first = first_record(table, known)
    if isinstance(first.get("data"), dict) and not (texts and {*texts} <= {*first}):
        return _in_data(first["data"], table, reading)
    if len(texts) > 1 or len(labels) > 1 or not {*texts, *labels} <= {*first}:
        return None
    if (texts or GLINER)[0] == GLINER[0] and _are_words(first.get(GLINER[0])):
        reading.note(f"the words are column '{GLINER[0]}', as of GLiNER")
        return Layout(GLINER[0], (labels or [GLINER[1]])[0] if reading.labelled else None, is_gliner=True)
    words = [name for name in texts or WORDS if _are_words(first.get(name))]
    tags = [name for name in labels or TAGS if name in first and not _is_span(_item(first[name]))]
    if words and (tags or not reading.labelled):
        return None
    text = next((name for name in texts or TEXTS if isinstance(first.get(name), str)), None)
    if text is not None:
        spans = _column_of_spans(first, labels, table) if reading.labelled else None
        chosen = "" if spans is None else f"; their spans are column '{spans}'"
        reading.note(f"the texts of column '{text}' are {WORDS_ARE}{chosen}")
        return Layout(text, spans, class_names=table.class_names.get(spans or "", ()))
    if words and any(_is_span(_item(first.get(name))) for name in labels or SPANS):
        what = f"has words in '{words[0]}' and spans of them, which may end at the last word or after it"
        fix = f"write a tag for each word, or name the columns {' and '.join(GLINER)}, with the last word included"
        raise SourceError(what, where=table.header, fix=fix)
    return None


def _in_data(data: dict[Column, Any], table: Table, reading: Reading) -> Layout | None:
    """The layout of Label Studio's tasks, which have the text in `data`."""
    key = next((name for name in ("annotations", "completions") if name in table.columns), None)
    if reading.labelled and key is None:
        return None
    texts = reading.data.text_columns or [name for name, value in data.items() if isinstance(value, str)]
    if len(texts) != 1:
        texts = [name for name in texts if name in TEXTS]
    if not texts or texts[0] not in data:
        what = f"has no text with a usual name in 'data' (keys: {listed([*data])})"
        raise SourceError(what, where=table.header, fix="name it as data.text")
    spans = f"; their spans are in '{key}'" if reading.labelled else ""
    reading.note(f"the texts '{texts[0]}' of 'data' are {WORDS_ARE}{spans}")
    return Layout(texts[0], key if reading.labelled else None, is_label_studio=True)


def _column_of_spans(first: Record, named: Sequence[Column], table: Table) -> Column:
    names = [name for name in named or SPANS if name in first]
    filled = [name for name in names if _is_span(_item(first[name]))]
    empty = [name for name in names if first[name] is None or _records(first[name]) == []]
    if not filled and not empty and "answer" in first:  # Prodigy leaves an empty list out
        return "spans"
    if not filled and not empty:
        what = f"has texts, but no column with their spans (columns: {listed(table.columns)})"
        raise SourceError(what, where=table.header, fix=WRITE_SPANS)
    return [*filled, *empty][0]


def _are_words(cell: Any) -> bool:
    return isinstance(cell, list) and all(isinstance(word, str) for word in cell)


def _records(cell: Any) -> Any:
    """The cell; for a record of lists, which Hugging Face writes for a `Sequence` of records, the list of records."""
    lists = [*cell.values()] if isinstance(cell, dict) else []
    if not lists or not all(isinstance(part, list) and len(part) == len(lists[0]) for part in lists):
        return cell
    return [dict(zip(cell, parts, strict=True)) for parts in zip(*lists, strict=True)]


def _item(cell: Any) -> Any:
    records = _records(cell)
    return records[0] if isinstance(records, list) and records else None


def _is_span(item: Any) -> bool:
    if isinstance(item, dict):
        item = item.get("value", item)
        return isinstance(item, dict) and any(key in item for key in START)
    return isinstance(item, list) and len(item) == 3 and [*map(_offset, item)].count(None) == 1


def _offset(value: Any) -> int | None:
    """A number of characters or words, which is text in a Parquet list that also holds the name."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if type(value) is int else None


# ---- one record --------------------------------------------------------------------------------------------------


def annotated_examples(table: Table, layout: Layout, reading: Reading) -> Iterator[Example]:
    """The examples of a table with spans. Raises `SourceError`."""
    columns: list[Column] = ["data" if layout.is_label_studio else layout.text]
    columns += [name for name in (layout.spans, "answer") if name in table.columns and name is not None]
    for number, record in table.rows([*dict.fromkeys(columns)]):
        example = Example(table.name, number, counted=table.counted)
        answer = record.get("answer") if reading.labelled else None
        if answer in ("reject", "ignore"):
            reading.skipped.append(Skipped(example.where, f"has the answer '{answer}' of Prodigy"))
            continue
        with reading.record(example):
            yield _example(example, record, layout, reading)


def _example(example: Example, record: Record, layout: Layout, reading: Reading) -> Example:
    holder = record.get("data") if layout.is_label_studio else record
    if not isinstance(holder, dict) or layout.text not in holder:
        raise Unusable(f"has no '{layout.text}' (keys: {listed([*record])})", "add it")
    content = holder[layout.text]
    if layout.is_gliner:
        if not _are_words(content):
            raise Unusable(f"column {layout.text!r} is {type(content).__name__}, not a list", 'write ["each", "word"]')
        words = tuple(string(word, layout.text) for word in content)
        example, offsets = with_tags(example, words, (), labelled=False), [(at, at + 1) for at in range(len(words))]
    else:
        example = in_words(example, string(content, layout.text))
        offsets = word_offsets(example.text)
    if layout.spans is None:
        return example
    spans = [_span(item, layout) for item in _items(example, record, layout, reading)]
    tags = _tags(example, offsets, sorted(dict.fromkeys(spans), key=lambda span: span[:2]))
    return replace(example, labels=tuple(reading.task.translation.get(tag, tag) for tag in tags))


def _items(example: Example, record: Record, layout: Layout, reading: Reading) -> list[Any]:
    cell = _records(record.get(layout.spans or "", [] if "answer" in record else None))
    if layout.is_label_studio and isinstance(cell, list):
        several = [each for each in cell if isinstance(each, dict) and not each.get("was_cancelled")]
        if len(several) > 1:
            reading.note(f"{example.file}: if several people annotated one text, the first annotation counts")
        cell = several[0].get("result") if several else None
        if isinstance(cell, list):
            values = [each.get("value") for each in cell if isinstance(each, dict)]
            cell = [value for value in values if isinstance(value, dict) and "start" in value]
    if not isinstance(cell, list):
        what = "is not annotated" if layout.is_label_studio else f"has no list of spans in '{layout.spans}'"
        raise Unusable(what, "delete the record, or write an empty list if it holds no span")
    return cell


def _span(item: Any, layout: Layout) -> Span:
    names: list[Any] = []
    ends: list[int | None] = []
    text = None
    if isinstance(item, list):
        names = [part for part in item if _offset(part) is None]
        ends = [_offset(part) for part in item if _offset(part) is not None]
    elif isinstance(item, dict):
        name = next((item[key] for key in NAME if key in item), None)
        names = name if isinstance(name, list) else [name]
        ends = [_offset(next((item[key] for key in keys if key in item), None)) for keys in (START, END)]
        text = item.get("text")
    start, end = ends if len(ends) == 2 else (None, None)
    if start is None or end is None:
        raise Unusable(f"{item!r:.80} is no span with start, end and name", WRITE_SPANS)
    labels = [label for name in names if name is not None and (label := str(name).strip())]
    if layout.class_names:
        labels = [by_class_name(label, layout.class_names) for label in labels]
    if len(labels) != 1:
        what = f"span {start:,} to {end:,} has {len(labels) or 'no'} labels"
        raise Unusable(what, "give it one: a word has one tag")
    return Span(start, end + layout.is_gliner, labels[0], text if isinstance(text, str) else None)


def _tags(example: Example, offsets: Offsets, spans: Sequence[Span]) -> list[str]:
    """The tag of each word. Raises `Unusable` for a span that does not begin and end with a word, or that overlaps
    another."""
    tags = [OUTSIDE] * len(offsets)
    previous, covered = None, 0
    for span in spans:
        first, stop = _covered(example, offsets, span)
        if first < covered and previous:
            what = f"span {_shown(example, span)} overlaps span {_shown(example, previous)}"
            raise Unusable(what, "keep one of them: a word has one tag", "overlapping spans")
        tags[first:stop] = [f"B-{span.name}", *[f"I-{span.name}"] * (stop - first - 1)]
        previous, covered = span, stop
    return tags


def _covered(example: Example, offsets: Offsets, span: Span) -> tuple[int, int]:
    """[first, stop) of the words that a span covers."""
    text, size = example.text, len(example.text) if example.text else len(offsets)
    first, stop = _words_at(offsets, span.start, span.end)
    if not 0 <= span.start <= span.end <= size:
        unit = "characters" if text else "words"
        what, fix = f"is not inside the {size:,} {unit}", f"count {unit} from 0"
    elif span.text is not None and text and span.text.strip() != text[span.start : span.end].strip():
        where = elsewhere(text, span.text, span.start)
        what, fix = f"is not its own text, {span.text!r:.60}: {where}", "count start and end in characters from 0"
    elif first == stop or span.start == span.end:
        what, fix = "holds no word", f"delete it, or {INCLUDE_LAST}"
    else:
        begin, end = offsets[first][0], offsets[stop - 1][1]
        if span.start <= begin and end <= span.end:
            return first, stop
        cut = offsets[first] if begin < span.start else offsets[stop - 1]
        what = f"cuts the word {text[slice(*cut)]!r:.40}"
        fix = f"extend it from {begin:,} to {end:,}, {text[begin:end]!r:.60}, or put a space where the word ends"
    if wide := next((character for character in text[: span.end] if character > "\uffff"), None):
        fix = f"count start and end in characters, if they count {wide} as two, as JavaScript does; else {fix}"
    raise Unusable(f"span {_shown(example, span)} {what}", fix, "misplaced span")


def _words_at(offsets: Offsets, start: int, end: int) -> tuple[int, int]:
    first = bisect_right(offsets, start, key=lambda word: word[1])
    return first, max(first, bisect_left(offsets, end, key=lambda word: word[0]))


def _shown(example: Example, span: Span) -> str:
    passage = example.text[max(span.start, 0) : span.end] or " ".join(example.words[max(span.start, 0) : span.end])
    return f"{span.start:,} to {span.end:,}, {passage!r:.60} ({span.name})"
