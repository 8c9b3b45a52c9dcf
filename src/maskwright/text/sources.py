"""Files to documents: plain text in three layouts, JSON lines, Parquet, Arrow, CSV and TSV, each also gzip or zstd.

Reading is strict by default: a byte that is not UTF-8 is an error with file, line and column. Documents keep everything
but line ends, a byte-order mark and outer white space.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cached_property
from typing import BinaryIO, Literal

from maskwright.core import storage
from maskwright.core.errors import SourceError
from maskwright.text.arrow import without_caches
from maskwright.text.compression import (
    ByteSpan,
    OtherEncoding,
    blocks,
    ending,
    file_size,
    guarded,
    is_empty,
    open_text,
    stamp_of,
    unreadable,
)
from maskwright.text.document import Document, Fault, FaultHandler, place
from maskwright.text.layout import PEEK_BYTES, Layout, LayoutGuess, guess_layout, sampled
from maskwright.text.lines import LONGEST_LINE_BYTES, decoded, line_blocks, lines_of
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
from maskwright.text.tables import COLUMNAR, JSON_LINES, TABLES, Column, Table, listed, open_table, whole_characters

OnBadInput = Literal["error", "replace", "skip"]

TEXT_ENDINGS = (".txt", ".text", ".md", ".rst")
TABLE_ENDINGS = tuple(kind for kind in TABLES if kind != ".json")
"""Without .json, which is read whole, and describes the text in many folders."""
ENDINGS = (*TEXT_ENDINGS, *TABLE_ENDINGS, *WARC_ENDINGS, *SEQUENCE_ENDINGS)
SPLITTABLE = (*JSON_LINES, *TEXT_ENDINGS)
"""Files whose documents end at line ends, so that reading may begin in the middle."""


def file_kind(location: str) -> str:
    """The ending without compression: `a/b.jsonl.zst` -> `.jsonl`; empty for a kind that cannot be read."""
    kind = ending(location)
    return kind if kind in ENDINGS else ""


class Sources:
    """The documents of some files, in a fixed order: files sorted by name, documents as they come.

    `patterns`: paths, folders, globs, URLs. `text_column`: key (JSON lines), column name (Parquet, CSV), or a 0-based
    number for a CSV without a header line. `on_bad_input`: `error` raises `SourceError`; `replace` puts U+FFFD for
    bytes that are not UTF-8; `skip` drops the faulty line, record or file. `on_fault` gets each fault that does not
    raise. `letters`: of FASTA and FASTQ.
    """

    def __init__(
        self,
        patterns: list[str],
        *,
        layout: Layout = "auto",
        text_column: str = "text",
        on_bad_input: OnBadInput = "error",
        on_fault: Callable[[Fault], None] | None = None,
        letters: Letters = "upper",
    ) -> None:
        names = without_caches(storage.expand(patterns))
        explicit_names = set(patterns)
        self.files = [name for name in names if file_kind(name) or name in explicit_names]
        self.ignored_files = [name for name in names if not file_kind(name) and name not in explicit_names]
        for name in self.files:
            if not file_kind(name):
                raise unreadable(name, ENDINGS)
            storage.require_utf8(name)
        if not self.files:
            raise SourceError("holds no readable file", where=patterns[0], fix=f"use {' '.join(ENDINGS)}")
        self.text_column, self.on_bad_input, self._on_fault = text_column, on_bad_input, on_fault
        self.letters = letters
        self.sizes = [file_size(name) for name in self.files]
        self.stamps = [stamp_of(name) for name in self.files]
        self.guess: LayoutGuess | None = self._guess_layout() if layout == "auto" else None
        self.layout: Layout = self.guess.layout if self.guess else "file" if layout == "auto" else layout
        self.bytes_read = 0
        self.span: ByteSpan | None = None
        """The part to read of the only file; None for all files in full. See `SPLITTABLE`."""

    def _watch(self, position: Callable[[], int]) -> None:
        self._position = position

    @property
    def has_plain_text(self) -> bool:
        return any(file_kind(name) in TEXT_ENDINGS for name in self.files)

    @property
    def only_plain_text(self) -> bool:
        return all(file_kind(name) in TEXT_ENDINGS for name in self.files)

    @property
    def packages(self) -> list[str]:
        """Packages that the files need to be read."""
        kinds = {file_kind(name) for name in self.files}
        packed = any(storage.without_query(name).lower().endswith(".zst") for name in self.files)
        return [
            *(["fastwarc"] if kinds & {*WARC_ENDINGS} else []),
            *(["pyarrow"] if packed or kinds & {*COLUMNAR} else []),
        ]

    def _sample(self, kinds: Sequence[str]) -> list[str]:
        """A sample of the files of these kinds."""
        files = [(name, size) for name, size in zip(self.files, self.sizes, strict=True) if file_kind(name) in kinds]
        return [files[index][0] for index in sampled([size for _, size in files])]

    def _guess_layout(self) -> LayoutGuess | None:
        """The guessed layout; None without plain text."""
        beginnings = []
        for name in self._sample(TEXT_ENDINGS):
            with open_text(name) as stream:
                beginnings.append(b"".join(guarded(name, blocks(stream), 1))[:PEEK_BYTES])
        return guess_layout(beginnings) if beginnings else None

    @cached_property
    def notes(self) -> list[str]:
        """Sentences on the guessed layout, and on each guessed delimiter but the comma, with a file that has it."""
        by_delimiter: dict[str, str] = {}
        for name in self._sample([".csv"]):
            # An error in the file is reported when it is read.
            with suppress(SourceError), self._open_table(name, lambda _: True) as table:
                by_delimiter.setdefault(table.delimiter, table.note)
        layout = [] if self.guess is None else [str(self.guess)]
        return layout + [note for note in by_delimiter.values() if note]

    def __iter__(self) -> Iterator[Document]:
        done = 0
        for name, size in zip(self.files, self.sizes, strict=True):
            if size == 0 and is_empty(name):
                self._handle(Fault("empty_file", name, "is empty", "remove it"))
                continue
            self._position = lambda: 0
            try:
                for document in self._read(name):
                    begin = self.span.begin if self.span else 0
                    self.bytes_read = done + min(self._position() - begin, size)
                    yield document
            except OtherEncoding as error:  # raised before the first document
                if self.on_bad_input != "skip":
                    raise
                if not (self.span and self.span.begin):  # it is reported with the file's first part
                    self.report(Fault("other_encoding", error.where or name, error.what, error.fix or ""))
            done += size
            self.bytes_read = done

    def _handle(self, fault: Fault) -> bool:
        """The `FaultHandler` of these files. Only bytes that are not UTF-8 can be replaced."""
        replaceable = fault.kind == "encoding"
        if self.on_bad_input == "error" or (self.on_bad_input == "replace" and not replaceable):
            fix = f"{fault.fix}, or --on-bad-input {'replace or skip' if replaceable else 'skip'}"
            raise SourceError(fault.what, where=fault.where, fix=fix)
        self.report(fault)
        return self.on_bad_input == "replace"

    def report(self, fault: Fault) -> None:
        if self._on_fault:
            self._on_fault(fault)

    def _read(self, name: str) -> Iterator[Document]:
        kind = file_kind(name)
        if self.span and self.span.begin:  # UTF-16 from its middle on may pass for UTF-8, and so may a binary file
            with open_text(name) as stream:
                next(line_blocks(name, stream, lambda _: True), None)
        if kind in TABLE_ENDINGS:
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
                for line_number, line in lines_of(name, stream, self._handle, self.span):
                    if line.strip():
                        yield Document((line.strip(),), False, name, line_number)

    # ---- plain text ------------------------------------------------------------------------------------------

    def _too_long(self, name: str, line: int) -> None:
        what = f"begins a document of over {LONGEST_LINE_BYTES:,} characters in layout {self.layout}"
        self._handle(Fault("record", f"{name}:{line}", what, "split it, or give another --layout"))

    def _whole_file(self, name: str, stream: BinaryIO) -> Iterator[Document]:
        blocks_of_lines: list[str] = []
        size = 0
        for _, lines in line_blocks(name, stream, self._handle, self.span):
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
        for first, lines in line_blocks(name, stream, self._handle, self.span):
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
        return open_table(name, handle, has_header=not self._is_numbered, watch=self._watch, span=self.span)

    def _table(self, name: str) -> Iterator[Document]:
        with self._open_table(name, self._handle) as table:
            column: Column = int(self.text_column) if table.delimiter and self._is_numbered else self.text_column
            if not table.is_empty and not table.is_json:
                fix = "name it with --text-column, or give its 0-based number where there is no header line"
                table.require(column, fix)
            for number, record in table.rows([column]):
                if column in record:
                    text = self._text(record[column], table, number)
                    if text:
                        yield Document((text,), False, name, number)
                else:
                    what = f"has no '{column}' (keys: {listed([*record])})"
                    self._handle(Fault("record", f"{name}:{number}", what, "name it with --text-column"))

    def _text(self, value: object, table: Table, number: int) -> str:
        """A record's text; empty for a null, and for any other value that is not text, which is a fault."""
        if isinstance(value, str):
            text = value.strip().replace("\r\n", "\n")
            return text if text.isascii() else whole_characters(text, f"{table.name}:{number}", self._handle)
        if value is not None:
            what = f"'{self.text_column}' is {type(value).__name__}, not text"
            where = place(table.name, number, table.counted)
            self._handle(Fault("record", where, what, "name the text with --text-column"))
        return ""

    def _web(self, name: str, stream: BinaryIO) -> Iterator[Document]:
        for number, raw in guarded(name, web_texts(name, stream)):
            text = (decoded(raw, f"{name}:{number}", 0, self._handle) or "").strip()
            if text:
                yield Document((text,), False, name, number)

    def _sequences(self, name: str, kind: str, stream: BinaryIO) -> Iterator[Document]:
        lines = lines_of(name, stream, self._handle)

        def strange(number: int, character: str) -> None:
            what = f"has {character!r}, which is neither a letter nor *, - or a dot"
            self._handle(Fault("record", f"{name}:{number}", what, "correct it"))

        for number, sequence in fastq(lines) if kind in FASTQ_ENDINGS else fasta(lines, strange):
            if sequence is None and kind in FASTQ_ENDINGS:
                what = "is not FASTQ: a record is @name, letters, +, as many qualities"
                self._handle(Fault("record", f"{name}:{number}", what, "repair it (the rest is not read)"))
                return
            if sequence is None:
                what, fix = "comes before the first header, which begins with >", "give a header, or delete the line"
                self._handle(Fault("record", f"{name}:{number}", what, fix))
                continue
            if not sequence and kind not in FASTQ_ENDINGS:  # in FASTQ, a read that was trimmed to nothing
                what, fix = "begins a record without a sequence", "give its sequence, or delete the line"
                self._handle(Fault("record", f"{name}:{number}", what, fix))
                continue
            for part in sequences(sequence, self.letters):
                if part:
                    yield Document((part,), False, name, number)
