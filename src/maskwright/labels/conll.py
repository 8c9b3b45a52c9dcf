"""Words and tags in columns, with one word on each line and a blank line between sentences (CoNLL, WikiANN, WNUT)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from maskwright.core.console import several
from maskwright.core.errors import SourceError
from maskwright.labels.columns import TAGS, WORDS, with_tags
from maskwright.labels.example import Example, Reading, Unusable
from maskwright.labels.word_rows import is_header, numbers_sentences
from maskwright.text.lines import numbered_lines
from maskwright.text.tables import Column

MARK = re.compile(r"-DOCSTART-|#(begin|end) document\b|# new(doc|par)\b")
"""Lines at which a document or a paragraph begins or ends."""
LANGUAGE = re.compile(r"((?:[a-z]{2,3}|simple)(?:-[a-z]+)*:)(.*)", re.DOTALL)
"""WikiANN puts the language before each word, as in `en:Paris`."""
COMMENT = re.compile(r"#([ \t]|$)")
LONG_SENTENCE_WORDS = 200
CONLL_U_COLUMNS, BETWEEN = 10, re.compile(r"[0-9]+[-.][0-9]+")

Row = tuple[int, list[str]]


def read_conll(name: str, reading: Reading) -> Iterator[Example]:
    """The word is in the first column and the tag in the last, unless the configuration numbers them. Columns are
    separated by tabs if the first line with words has one, else by spaces and tabs. Raises `SourceError`."""
    sentences = _sentences(name, [*numbered_lines(name, reading.encoding)], reading)
    first = next((row for sentence in sentences for row in sentence), None)
    if first is None:
        raise SourceError("holds no sentence", where=name, fix="write a word and its tag on each line")
    word, tag = _columns(name, first, reading)
    if is_header(first[1]):
        reading.note(f"{name}: line {first[0]} names the columns; words are in '{first[1][word]}'")
        sentences = [rest for sentence in sentences if (rest := [row for row in sentence if row is not first])]
        if not sentences:
            raise SourceError("holds no sentence", where=name, fix="write a word and its tag on each line")
        first = sentences[0][0]
    elif not reading.data.text_columns:
        _require_words(name, sentences, reading)
        if not reading.labelled and (width := len(first[1])) > 1:
            reading.note(f"{name}: a word is the first of the {width} columns of a line; the others are not read")
    if len(sentences) == 1 < LONG_SENTENCE_WORDS <= len(sentences[0]):
        reading.note(f"{name}: no blank line splits its {len(sentences[0]):,} words, so they are one sentence")
    languages = _languages(sentences, word)
    if languages:
        reading.note(f"each word begins with {' or '.join(map(repr, languages))}, as in WikiANN: it is removed")
        for _, cells in (row for sentence in sentences for row in sentence):
            cells[word] = cells[word].partition(":")[2]
    translation = reading.task.translation
    width = len(first[1])
    for sentence in sentences:
        start = line = sentence[0][0]
        try:
            for line, cells in sentence:  # noqa: B007 - the line is named when one is refused
                if len(cells) != width:
                    what = f"has {len(cells)} columns, but the first word has {width}"
                    raise Unusable(what, "repair the line: each holds one word")
                if not cells[word].strip() or (reading.labelled and not cells[tag].strip()):
                    raise Unusable("has no word" if not cells[word].strip() else "has no tag", "repair the line")
                if reading.labelled and cells[tag].lstrip('"').startswith(("[{", "[[")):
                    what = f"has a list as its tag, {cells[tag]!r:.40}"
                    raise Unusable(what, "give spans of texts as JSON (.json, .jsonl), as annotation tools export them")
            words = tuple(cells[word] for _, cells in sentence)
            tags = tuple(cells[tag].strip() for _, cells in sentence) if reading.labelled else ()
            tags = tuple(translation.get(tag, tag) for tag in tags)
            yield with_tags(Example(name, start), words, tags, labelled=reading.labelled)
        except Unusable as error:
            reading.fault(f"{name}:{line}", error.what, error.fix)


def has_texts(name: str, reading: Reading) -> bool:
    """Whether a file without tags holds a text on each line: lines of different lengths, none blank between them, or a
    single line."""
    lengths = [len(line.split()) for _, line in numbered_lines(name, reading.encoding)]
    while lengths and not lengths[-1]:
        lengths.pop()
    return 0 not in lengths and (len({*lengths}) > 1 or len(lengths) == 1)


def _sentences(name: str, lines: list[tuple[int, str]], reading: Reading) -> list[list[Row]]:
    """Numbered rows of cells, without CoNLL-U's words `1-2` and `1.1`, which are not words of the text. `-DOCSTART-`
    and comments, such as `# newdoc` and `#end document`, end a sentence as blank lines do."""
    first = next(
        (line for _, line in lines if line.strip(" \t") and not line.startswith("#") and not MARK.match(line)), None
    )
    tabs = "\t" in (first or "".join(line for _, line in lines))
    width = len(_cells(first, tabs)) if first else 0
    sentences: list[list[Row]] = [[]]
    comments = 0
    for line_number, line in lines:
        cells = _cells(line, tabs)
        is_comment = bool((width and _is_comment(line, cells, width, tabs)) or MARK.match(line))
        comments += is_comment and line.startswith("#")
        if is_comment or not line.strip(" \t"):
            sentences += [[]] if sentences[-1] else []
        elif len(cells) != CONLL_U_COLUMNS or not BETWEEN.fullmatch(cells[0]):
            sentences[-1].append((line_number, cells))
    if comments:
        reading.note(f"{name}: {several(comments, 'comment')} left out (from # to the line's end)")
    return [sentence for sentence in sentences if sentence]


def _cells(line: str, tabs: bool) -> list[str]:
    return line.split("\t") if tabs else re.split(r"[ \t]+", line.strip(" \t"))


def _is_comment(line: str, cells: list[str], width: int, tabs: bool) -> bool:
    """Whether the line is a comment. A word may begin with `#` too, so a comment differs in its number of columns, or
    is CoNLL-U's `# key = …`."""
    if not COMMENT.match(line):
        return False
    return len(cells) != width or (not tabs and ("\t" in line or cells[2:3] == ["="]))


def _columns(name: str, first: Row, reading: Reading) -> tuple[int, int]:
    """(column of the word, column of its tag)"""
    width, where = len(first[1]), f"{name}:{first[0]}"
    names = [cell.strip() for cell in first[1]] if is_header(first[1]) else []
    if any(map(numbers_sentences, names)):
        what = "is a table with a column that numbers the sentences"
        fix = "call the file .tsv, put a tab between columns, and give the columns' names, not numbers"
        raise SourceError(what, where=where, fix=fix)
    places: dict[Column, int] = {column: place for place, column in enumerate(names)}
    word = (reading.data.text_columns or [column for column in names if column in WORDS] or [0])[0]
    tag = (reading.data.label_columns or [column for column in names if column in TAGS] or [width - 1])[0]
    word, tag = places.get(word, word), places.get(tag, tag)
    for key_name, column in (("data.text", word), ("data.label", tag))[: 1 + reading.labelled]:
        if not isinstance(column, int):
            fix = f"name it as {key_name} by its number from 0, or leave it out"
            raise SourceError(f"has columns without names, so none is {column!r}", where=where, fix=fix)
        if column >= width:
            raise SourceError(
                f"has {width} columns, no column {column}",
                where=where,
                fix=f"name another {key_name}, by its number from 0",
            )
    if reading.labelled and word == tag:
        fix = "write a word and its tag on each line, with a tab between them"
        raise SourceError("has one column, but no tags", where=where, fix=fix)
    return int(word), int(tag)


def _require_words(name: str, sentences: list[list[Row]], reading: Reading) -> None:
    """Raises `SourceError` if the first column counts the words, as in CoNLL-U and GermEval's files."""
    rows = [(number, cells) for sentence in sentences for number, (_, cells) in enumerate(sentence, 1)]
    if max(map(len, sentences)) > 1 and all(cells[0] == str(number) for number, cells in rows):
        names = "words and tags: data.text: 1 and data.label: 3" if reading.labelled else "words: --text-column 1"
        what, where = "has a first column that counts the words of each sentence", f"{name}:{sentences[0][0][0]}"
        raise SourceError(what, where=where, fix=f"name the columns of the {names}, by numbers from 0")


def _languages(sentences: list[list[Row]], word: int) -> list[str]:
    """The languages before the words of the file; none unless all words have one, the same in a sentence."""
    languages: dict[str, None] = {}
    for sentence in sentences:
        found = [LANGUAGE.fullmatch(cells[word]) if word < len(cells) else None for _, cells in sentence]
        if None in found or len(of_sentence := {match[1] for match in found if match}) > 1:
            return []
        languages |= dict.fromkeys(of_sentence)
    return [*languages]
