"""Files to documents: plain text in three layouts, JSON lines, Parquet, Arrow, CSV, TSV and MDS, each also compressed.

Reading is strict by default: a byte that does not decode is an error with file, line and column. Documents keep
everything but line ends, a byte-order mark and outer white space.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cached_property
from typing import Any, BinaryIO, Literal

from maskwright.core import storage
from maskwright.core.console import say, several, warn
from maskwright.core.encodings import UTF8
from maskwright.core.errors import InputError, SourceError
from maskwright.text.arrow import without_caches
from maskwright.text.compression import (
    Binary,
    ByteSpan,
    OtherEncoding,
    blocks,
    ending,
    file_size,
    guarded,
    is_empty,
    open_text,
    packed_ending,
    stamp_of,
)
from maskwright.text.document import Document, Fault, FaultHandler, place
from maskwright.text.encodings import Encoding
from maskwright.text.layout import PEEK_BYTES, Layout, LayoutGuess, guess_layout, sampled
from maskwright.text.lines import LONGEST_LINE_BYTES, decoded, in_utf8, line_blocks, lines_of
from maskwright.text.names import group_name
from maskwright.text.notation import OVERLAP, TAIL_CHARACTERS, Noted, beginning_of, notation_of, overlaps
from maskwright.text.records import (
    FASTQ_ENDINGS,
    SEQUENCE_ENDINGS,
    WARC_ENDINGS,
    Letters,
    fasta,
    fastq,
    sequences,
    web_texts,
)
from maskwright.text.tables import COLUMNAR, JSON_LINES, TABLES, Table, listed, open_table, whole_characters

OnBadInput = Literal["error", "replace", "skip"]

PLAIN = ".txt"
"""The kind of all plain text."""
TEXT_ENDINGS = (PLAIN, ".text", ".md", ".rst", ".log", ".tex")
TABLE_ENDINGS = (*(kind for kind in TABLES if kind != ".json"), ".mds")
"""Without .json, which is read whole, and in many folders only describes the text."""
RECORD_ENDINGS = (*TABLE_ENDINGS, *WARC_ENDINGS, *SEQUENCE_ENDINGS)
ENDINGS = (*TEXT_ENDINGS, *RECORD_ENDINGS)
"""Endings of the files that are read in a folder without a `--layout`."""
SPLITTABLE = (*JSON_LINES, PLAIN, ".parquet")
"""Kinds of files that can be read from their middle, since documents end at line ends or in row groups."""
MOST_PLACES = 5
MUCH_WITHOUT_TEXT = 0.1
"""Share of records without text from which on there is a warning."""


def file_kind(location: str) -> str:
    """The ending without compression of a file of records: `a/b.jsonl.zst` -> `.jsonl`; `PLAIN` for any other file."""
    kind = ending(location)
    return kind if kind in RECORD_ENDINGS or kind == ".json" else PLAIN


def _is_text(name: str, encoding: Encoding) -> bool:
    """Whether the file holds text in any encoding, so is neither blank nor binary."""
    try:
        with open_text(name) as stream:
            return any(line.strip() for _, line in lines_of(name, stream, lambda _: True, encoding=encoding))
    except OtherEncoding as error:  # raised again when the file is read
        return not isinstance(error, Binary)


def _by_ending(names: Sequence[str]) -> str:
    """The numbers of files by ending: `10 .py, 2 without an ending`."""
    counts = Counter(ending(name) or "without an ending" for name in names)
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.most_common())


def say_without_text(sources: Sources, documents: int, count: int, place: str) -> None:
    """Notes that `count` records have no text, if there are any. `documents`: how many were read. `place`: of the first
    such record."""
    if count:
        records = any(file_kind(name) in (*TABLE_ENDINGS, ".json") for name in sources.files)
        where = f" in '{sources.text_column}'" if records else ""
        line = f"{count:,} of {count + documents:,} records have no text{where}, such as {place}, and are left out"
        if count > MUCH_WITHOUT_TEXT * (count + documents):
            warn(line + ". If their text has another name, give it as --text-column" * records)
        else:
            say(line)


def joined(words: list[Any]) -> str | list[Any]:
    """The text of a list: words with spaces between them, and lists of words with line ends. Any other list is
    returned."""
    if all(isinstance(word, str) for word in words):
        return " ".join(words)
    lines = [joined(inner) if isinstance(inner, list) else None for inner in words]
    texts = [line for line in lines if isinstance(line, str)]
    return "\n".join(texts) if len(texts) == len(words) else words


class Sources:
    """The documents of some files, in a fixed order: files sorted by name, documents in the files' order.

    `patterns`: paths, folders, globs, URLs. A file with an ending outside `ENDINGS` is plain text if it is named, or if
    it holds text and a glob matches it or a `layout` is given. `text_column`: key (JSON lines), column name (Parquet,
    CSV, MDS), or a 0-based number for a CSV without a header line; `group_column`: likewise, of `Document.group`, which
    each record must have. `on_bad_input`: `error` raises `SourceError`; `replace` puts U+FFFD for bytes that do not
    decode; `skip` drops the faulty line, record or file. `on_fault` gets each fault that does not raise. `letters`: of
    FASTA and FASTQ. `encoding`: of all files but Parquet, Arrow, MDS and WARC, by a name of Python's codecs.
    """

    def __init__(
        self,
        patterns: list[str],
        *,
        layout: Layout = "auto",
        text_column: str = "text",
        group_column: str | None = None,
        on_bad_input: OnBadInput = "error",
        on_fault: Callable[[Fault], object] | None = None,
        letters: Letters = "upper",
        encoding: str = UTF8,
    ) -> None:
        self.files: list[str] = []
        self.ignored_files: list[str] = []
        self.letters, self.encoding = letters, Encoding.named(encoding, "--encoding ")
        self._choose(patterns, layout != "auto")
        self.text_column, self.on_bad_input, self._on_fault = text_column, on_bad_input, on_fault
        self.group_column = group_column
        other = [name for name in self.files if file_kind(name) not in (*TABLE_ENDINGS, ".json")]
        if group_column is not None and other:
            fix = "leave it out, or write the text as JSON lines with that key"
            raise InputError(f"{other[0]} has no columns", where="--group-column", fix=fix)
        self.sizes = [file_size(name) for name in self.files]
        self.stamps = [stamp_of(name) for name in self.files]
        self.guess: LayoutGuess | None = self._guess_layout() if layout == "auto" else None
        self.layout: Layout = self.guess.layout if self.guess else "file" if layout == "auto" else layout
        self.bytes_read = self._faults = 0
        self.documents = 0
        """Documents of the last reading, so far."""
        self.without_text = 0
        """Records without text that the last reading left out: null, blank, or with `skip` without the column."""
        self.places_without_text: list[str] = []
        """The first of them."""
        self.notations: Noted = {}
        """Documents of the last reading that are in the notation of data or markup, or overlap."""
        self.span: ByteSpan | None = None
        """The part to read of the only file; None for all files in full. See `SPLITTABLE`."""

    def _choose(self, patterns: list[str], has_layout: bool) -> None:
        """Sets `files` and `ignored_files`, and `choice`: sentences on files with endings outside `ENDINGS`."""
        names = without_caches(storage.expand_named(patterns))
        has_mds, exact = ".mds" in map(ending, names), {*patterns}
        other: list[str] = []
        as_text: list[str] = []
        for name, pattern in names.items():
            kind = ending(name)
            if kind == ".mds" and packed_ending(name) and name.removesuffix(packed_ending(name)) in names:
                continue  # the unpacked shard is there too
            if kind in ENDINGS or name in exact or kind == ".json" == ending(pattern):
                self.files.append(storage.require_utf8(name))
            elif kind != ".json" and (pattern or has_layout):
                (as_text if _is_text(name, self.encoding) else self.ignored_files).append(storage.require_utf8(name))
            elif not (has_mds and os.path.basename(name) == "index.json"):
                other.append(name)
        self.files = sorted(self.files + as_text)
        left_out, fix = [], f"use {' '.join(ENDINGS)}"
        if other:
            most = Counter(map(ending, other)).most_common(1)[0][0]
            folder = os.path.dirname(next(name for name in other if ending(name) == most))
            fix = f"to read them, name them, as in '{os.path.join(folder, '*')}{most}'"
            left_out.append(f"{several(len(other), 'file')} of another kind ({_by_ending(other)})")
        if self.ignored_files:
            left_out.append(
                f"{several(len(self.ignored_files), 'file')} without text ({_by_ending(self.ignored_files)})"
            )
        if not self.files:
            what = f"holds no readable file, but {' and '.join(left_out)}"
            raise SourceError(what, where=patterns[0], fix=fix)
        self.choice = [f"reading {several(len(as_text), 'file')} as plain text ({_by_ending(as_text)})"] * bool(as_text)
        if left_out:
            self.choice.append(f"leaving out {' and '.join(left_out)}" + (f": {fix}" if other else ""))
        self.ignored_files += other

    def _watch(self, position: Callable[[], int]) -> None:
        self._position = position

    @property
    def has_plain_text(self) -> bool:
        return any(file_kind(name) == PLAIN for name in self.files)

    @property
    def only_plain_text(self) -> bool:
        return all(file_kind(name) == PLAIN for name in self.files)

    @property
    def packages(self) -> list[str]:
        """Packages that the files need to be read."""
        kinds = {file_kind(name) for name in self.files}
        packed = any(packed_ending(name).startswith(".zst") for name in self.files)
        return [
            *(["fastwarc"] if kinds & {*WARC_ENDINGS} else []),
            *(["pyarrow"] if kinds & {*COLUMNAR} else []),
            *(["zstandard"] if packed else []),
        ]

    def _sample(self, kind: str) -> list[str]:
        """A sample of the files of this kind."""
        files = [(name, size) for name, size in zip(self.files, self.sizes, strict=True) if file_kind(name) == kind]
        return [files[index][0] for index in sampled([size for _, size in files])]

    def _guess_layout(self) -> LayoutGuess | None:
        """The guessed layout; None without plain text."""
        beginnings = []
        for name in self._sample(PLAIN):
            with open_text(name) as stream:
                pieces = blocks(stream)
                if not self.encoding.is_utf8:
                    pieces = in_utf8(name, itertools.islice(pieces, 4), self.encoding, "replace")  # 4: UTF-32
                beginnings.append(b"".join(guarded(name, pieces, 1 if self.encoding.is_utf8 else 4))[:PEEK_BYTES])
        return guess_layout(beginnings) if beginnings else None

    @cached_property
    def notes(self) -> list[str]:
        """Sentences on files that are left out, on the guessed layout, and on the first table with each delimiter that
        has a note."""
        by_delimiter: dict[tuple[str, str], str] = {}
        for kind in (".csv", ".tsv"):
            for name in self._sample(kind):
                # An error in the file is reported when it is read.
                with suppress(SourceError), self._open_table(name, lambda _: True) as table:
                    if table.note:
                        by_delimiter.setdefault((kind, table.delimiter), table.note)
        layout = [] if self.guess is None else [str(self.guess)]
        if not self.encoding.is_utf8:
            own = [name for name in self.files if file_kind(name) in (*WARC_ENDINGS, *COLUMNAR, ".mds")]
            layout += [
                f"{name} is read as UTF-8, as all Parquet, Arrow, MDS and WARC is, not as {self.encoding.title}"
                for name in own[:1]
            ]
        return [*self.choice, *layout, *by_delimiter.values()]

    def __iter__(self) -> Iterator[Document]:
        done, before_it = 0, ""
        self.documents = self.without_text = 0
        self.places_without_text, notations = [], dict[str, tuple[int, str]]()
        self.notations = notations
        for name, size in zip(self.files, self.sizes, strict=True):
            if size == 0 and is_empty(name):
                self._handle(Fault("empty_file", name, "is empty", "remove it"))
                continue
            self._position = lambda: 0
            before = self.documents, self._faults
            try:
                for document in self._read(name):
                    self.documents += 1
                    begin = self.span.begin if self.span else 0
                    self.bytes_read = done + min(self._position() - begin, size)
                    text = document.parts[0]
                    for kind in (notation_of(document), OVERLAP if overlaps(before_it, text) else ""):
                        if kind:
                            count, first = notations.get(kind) or (0, beginning_of(f"{name}:{document.line}", text))
                            notations[kind] = count + 1, first
                    before_it = "" if document.has_sentences else text[-TAIL_CHARACTERS:]
                    yield document
                if (self.documents, self._faults) == before and not self.span and file_kind(name) == PLAIN:
                    self._handle(Fault("empty_file", name, "holds no text", "remove it"))
            except OtherEncoding as error:  # raised before the first document
                if self.on_bad_input != "skip":
                    raise
                if not (self.span and self.span.begin):  # it is reported with the file's first part
                    self.report(Fault("other_encoding", error.where or name, error.what, error.fix or ""))
            done += size
            self.bytes_read = done

    def _handle(self, fault: Fault) -> bool:
        """The `FaultHandler` of these files. Only bytes that do not decode can be replaced."""
        replaceable = fault.kind == "encoding"
        if self.on_bad_input == "error" or (self.on_bad_input == "replace" and not replaceable):
            fix = f"{fault.advice}, or --on-bad-input {'replace or skip' if replaceable else 'skip'}"
            raise SourceError(fault.what, where=fault.where, fix=fix)
        self.report(fault)
        return self.on_bad_input == "replace"

    def report(self, fault: Fault) -> None:
        self._faults += 1
        if self._on_fault:
            self._on_fault(fault)

    def _read(self, name: str) -> Iterator[Document]:
        kind = file_kind(name)
        # UTF-16 from its middle on may pass for UTF-8, and so may a binary file.
        if self.span and self.span.begin and kind not in COLUMNAR:
            with open_text(name) as stream:
                next(line_blocks(name, stream, lambda _: True, encoding=self.encoding), None)
        if kind in TABLE_ENDINGS or kind == ".json":
            yield from self._table(name)
            return
        with open_text(name, self._watch, self.span) as stream:
            if kind in WARC_ENDINGS:
                yield from self._web(name, stream)
            elif kind in SEQUENCE_ENDINGS:
                yield from self._sequences(name, kind, stream)
            elif self.layout == "file":
                yield from self._whole_file(name, stream)
            elif self.layout == "sentences":
                yield from self._sentences(name, stream)
            else:
                for line_number, line in lines_of(name, stream, self._handle, self.span, self.encoding):
                    if line.strip():
                        yield Document((line.strip(),), False, name, line_number)

    # ---- plain text ------------------------------------------------------------------------------------------

    def _too_long(self, name: str, line: int) -> None:
        what = f"begins a document of over {LONGEST_LINE_BYTES:,} characters in layout {self.layout}"
        self._handle(Fault("record", f"{name}:{line}", what, "split it, or give another --layout"))

    def _whole_file(self, name: str, stream: BinaryIO) -> Iterator[Document]:
        blocks_of_lines: list[str] = []
        size = 0
        for _, lines in line_blocks(name, stream, self._handle, self.span, self.encoding):
            blocks_of_lines.append("\n".join(lines))
            size += len(blocks_of_lines[-1]) + 1
            if size > LONGEST_LINE_BYTES:
                self._too_long(name, 1)
                return
        text = "\n".join(blocks_of_lines).strip()
        if text:
            yield Document((text,), False, name, 1)

    def _sentences(self, name: str, stream: BinaryIO) -> Iterator[Document]:
        sentences: list[str] = []
        # `size`: characters of the document in earlier blocks. `skipping`: whether its rest is skipped.
        start, size, skipping = 1, 0, False
        for first, lines in line_blocks(name, stream, self._handle, self.span, self.encoding):
            lines = [*map(str.strip, lines), ""]
            begin = 0
            while begin < len(lines):
                end = lines.index("", begin)
                if not sentences:
                    start = first + begin
                sentences += [] if skipping else lines[begin:end]
                if end < len(lines) - 1:
                    if sentences:
                        yield Document(tuple(sentences), True, name, start)
                    sentences, size, skipping = [], 0, False
                elif (size := size + sum(map(len, lines[begin:end]))) > LONGEST_LINE_BYTES and not skipping:
                    self._too_long(name, start)
                    sentences, skipping = [], True
                begin = end + 1
        if sentences:
            yield Document(tuple(sentences), True, name, start)

    # ---- records ---------------------------------------------------------------------------------------------

    @property
    def _is_numbered(self) -> bool:
        """Whether the text column is a number: then CSV and TSV have no header line."""
        return self.text_column.isascii() and self.text_column.isdigit()

    def _open_table(self, name: str, handle: FaultHandler) -> AbstractContextManager[Table]:
        header = not self._is_numbered
        return open_table(name, handle, has_header=header, watch=self._watch, span=self.span, encoding=self.encoding)

    def _table(self, name: str) -> Iterator[Document]:
        with self._open_table(name, self._handle) as table:
            numbered = table.delimiter and self._is_numbered
            column, *grouped = (
                int(name) if numbered and name.isdecimal() else name
                for name in (self.text_column, self.group_column)
                if name is not None
            )
            if not table.is_empty and not table.is_json:
                fix = "name it with --text-column, or give its 0-based number if there is no header line"
                if ending(name) == ".mds":
                    fix = "name it with --text-column, or use `maskwright data convert` for token ids"
                table.require(column, fix)
                for group in grouped:
                    table.require(group, "name it with --group-column")
            for number, record in table.rows([column, *grouped]):
                group = "".join(group_name(record.get(name)) for name in grouped)
                if grouped and not group:
                    fix = (
                        "give it one, or leave --group-column out" if self.documents else "name it with --group-column"
                    )
                    where = place(name, number, table.counted)
                    self._handle(Fault("record", where, f"has no '{self.group_column}'", fix))
                    continue
                if column in record:
                    text = self._text(record[column], table, number)
                    if text:
                        yield Document((text,), False, name, number, group)
                    continue
                what, where = f"has no '{column}' (keys: {listed([*record])})", place(name, number, table.counted)
                if self.on_bad_input == "skip":
                    self._note_without_text(f"{where}, which {what}")
                else:
                    self._handle(Fault("record", where, what, self._fix_of_record("give it one")))

    def _fix_of_record(self, fix: str) -> str:
        """The fix of one record. If others had text, the column is right."""
        return fix if self.documents else "name the text with --text-column"

    def _text(self, value: object, table: Table, number: int) -> str:
        """A record's text; empty without one, and for any value that is not text, which is a fault."""
        value = joined(value) if isinstance(value, list) else value
        text = value.strip().replace("\r\n", "\n") if isinstance(value, str) else ""
        where = place(table.name, number, table.counted)
        if text:
            return text if text.isascii() else whole_characters(text, where, self._handle)
        if isinstance(value, str | None):
            self._note_without_text(where)
        else:
            what = f"'{self.text_column}' is {type(value).__name__}, not text"
            fix = self._fix_of_record("write text, or a list of words")
            inner = value[0] if isinstance(value, list) and value else value
            if isinstance(inner, dict):
                key = max(inner, key=lambda key: len(inner[key]) if isinstance(inner[key], str) else 0, default="KEY")
                path = f'."{self.text_column}"' + (f'."{key}"' if inner is value else f'[]."{key}"')
                path = path if inner is value else f"[{path}]"
                what = f"'{self.text_column}' holds objects with the keys {listed([*inner])}, not text"
                fix = f"write JSON lines with the text alone, such as by jq -c '{{text: {path}}}'"
            elif isinstance(value, list):
                what = f"'{self.text_column}' is a list, but not of words"
                fix = "write words, or use `maskwright data convert` for token ids"
            self._handle(Fault("record", where, what, fix))
        return ""

    def _note_without_text(self, where: str) -> None:
        self.without_text += 1
        if len(self.places_without_text) < MOST_PLACES:
            self.places_without_text.append(where)

    def _web(self, name: str, stream: BinaryIO) -> Iterator[Document]:
        for number, raw in guarded(name, web_texts(name, stream)):
            text = (decoded(raw, f"{name}:{number}", 0, self._handle) or "").strip()
            if text:
                yield Document((text,), False, name, number)
            else:
                self._note_without_text(f"{name}:{number}")

    def _sequences(self, name: str, kind: str, stream: BinaryIO) -> Iterator[Document]:
        lines = lines_of(name, stream, self._handle, encoding=self.encoding)

        def strange(number: int, character: str) -> None:
            what = f"has {character!r}, which is neither a letter nor *, - or a dot"
            self._handle(Fault("record", f"{name}:{number}", what, "correct it"))

        for number, sequence in fastq(lines) if kind in FASTQ_ENDINGS else fasta(lines, strange):
            if sequence is None and kind in FASTQ_ENDINGS:
                what = "is not FASTQ, where a record is @name, letters, +, as many qualities"
                self._handle(Fault("record", f"{name}:{number}", what, "repair it (the rest is not read)"))
                return
            if sequence is None:
                what, fix = "comes before the first header, which begins with >", "give a header, or delete the line"
                self._handle(Fault("record", f"{name}:{number}", what, fix))
                continue
            if not sequence and kind in FASTQ_ENDINGS:  # a read that was trimmed to nothing
                self._note_without_text(f"{name}:{number}")
            elif not sequence:
                what, fix = "begins a record without a sequence", "give its sequence, or delete the line"
                self._handle(Fault("record", f"{name}:{number}", what, fix))
                continue
            for part in sequences(sequence, self.letters):
                if part:
                    yield Document((part,), False, name, number)
