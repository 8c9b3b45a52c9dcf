"""Files to documents: plain text in three layouts, JSON lines, Parquet, CSV and TSV, each also gzip or zstd.

Reading is strict unless told otherwise: a byte that is not UTF-8 stops with file, line and column. Nothing in a
document is changed but line ends, a byte-order mark and outer white space.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Literal

from maskwright.core import storage
from maskwright.core.console import several
from maskwright.core.errors import SourceError
from maskwright.text.compression import (
    COMPRESSIONS,
    HEAD_BYTES,
    OtherEncoding,
    Span,
    blocks,
    changed_while_read,
    file_size,
    guarded,
    open_text,
    refuse_utf16,
    stamp_of,
)
from maskwright.text.document import Document, Fault
from maskwright.text.layout import PEEK_BYTES, Guess, Layout, guess_layout, looked_at
from maskwright.text.records import (
    FASTQ_ENDINGS,
    SEQUENCE_ENDINGS,
    WARC_ENDINGS,
    Letters,
    fasta,
    fastq,
    parquet_rows,
    sequences,
    web_texts,
)
from maskwright.text.tables import NotJSON, are_numbers, csv_rows, json_value, other_delimiter, ragged, require_one

OnBadInput = Literal["error", "replace", "skip"]

TEXT_ENDINGS = (".txt", ".text", ".md", ".rst")
ENDINGS = (*TEXT_ENDINGS, ".jsonl", ".ndjson", ".parquet", ".csv", ".tsv", *WARC_ENDINGS, *SEQUENCE_ENDINGS)
LONGEST_LINE_BYTES = 1 << 29
"""More than the longest human chromosome. Memory holds a line, and what is made of it, at once. A document of several
lines may have as many characters."""
SPLITTABLE = (".jsonl", ".ndjson", *TEXT_ENDINGS)
"""Files whose documents end where a line ends, so that one can be read from the middle on."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def file_kind(location: str) -> str:
    """Ending without compression: `a/b.jsonl.zst` -> `.jsonl`. Empty when it is none that can be read."""
    name = storage.without_query(location).lower()
    for compression in COMPRESSIONS:
        name = name.removesuffix(compression)
    ending = os.path.splitext(name)[1]
    return ending if ending in ENDINGS else ""


class Sources:
    """The documents of some files, in a fixed order: files sorted by name, documents as they come.

    `patterns`: paths, folders, globs, URLs. `text_column`: key (JSON lines), column name (Parquet, CSV), or a 0-based
    number for a CSV without a header line. `on_bad_input`: `error` raises `SourceError`; `replace` puts U+FFFD for
    bytes that are not UTF-8; `skip` leaves the faulty line, record or file out. `on_fault` hears of each one that
    does not raise. `letters`: what becomes of those in FASTA and FASTQ.
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
        found = storage.expand(patterns)
        named = set(patterns)
        self.files = [name for name in found if file_kind(name) or name in named]
        self.ignored_files = [name for name in found if not file_kind(name) and name not in named]
        for name in self.files:
            if not file_kind(name):
                fix = f"use {' '.join(ENDINGS)}, each also .gz or .zst"
                raise SourceError("is of a kind that cannot be read", where=name, fix=fix)
        if not self.files:
            raise SourceError("holds no file that can be read", where=patterns[0], fix=f"use {' '.join(ENDINGS)}")
        self.text_column, self.on_bad_input, self._on_fault = text_column, on_bad_input, on_fault
        self.letters = letters
        self.sizes = [file_size(name) for name in self.files]
        self.stamps = [stamp_of(name) for name in self.files]
        self.guess: Guess | None = self._look() if layout == "auto" else None
        self.layout: Layout = self.guess.layout if self.guess else "file" if layout == "auto" else layout
        self.bytes_read = 0
        self.span: Span | None = None
        """Of the only file, if it is not read in full: see `SPLITTABLE`."""

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
        """Those that read the files with us."""
        kinds = {file_kind(name) for name in self.files}
        packed = any(storage.without_query(name).lower().endswith(".zst") for name in self.files)
        return [
            *(["fastwarc"] if kinds & {*WARC_ENDINGS} else []),
            *(["pyarrow"] if packed or ".parquet" in kinds else []),
        ]

    def _look(self) -> Guess | None:
        """None where there is no plain text to look at."""
        beginnings = []
        plain = [place for place, name in enumerate(self.files) if file_kind(name) in TEXT_ENDINGS]
        for number in looked_at([self.sizes[place] for place in plain]):
            name = self.files[plain[number]]
            with open_text(name) as stream:
                beginnings.append(b"".join(guarded(name, blocks(stream), 1))[:PEEK_BYTES])
        return guess_layout(beginnings) if beginnings else None

    def require_unchanged(self) -> None:
        """Raises `SourceError` if a local file is another than when this began."""
        for name, stamp in zip(self.files, self.stamps, strict=True):
            if stamp_of(name) != stamp:
                raise changed_while_read(name)

    def __iter__(self) -> Iterator[Document]:
        done = 0
        for name, size in zip(self.files, self.sizes, strict=True):
            if size == 0 and self._fault("empty_file", name, "is empty", "remove it, or --on-bad-input skip"):
                continue
            self._position = lambda: 0
            try:
                for document in self._read(name):
                    begin = self.span.begin if self.span else 0
                    self.bytes_read = done + min(self._position() - begin, size)
                    yield document
            except OtherEncoding as error:  # comes before the first document
                if self.on_bad_input != "skip":
                    raise
                if not (self.span and self.span.begin):  # who reads the file's first part tells of it
                    self.tell(Fault("other_encoding", error.where or name, error.what, error.fix or ""))
            done += size
            self.bytes_read = done

    def _fault(self, kind: Literal["encoding", "empty_file", "record"], where: str, what: str, fix: str) -> bool:
        """Raises, or reports and returns True. Only encoding faults can be replaced; others then still raise."""
        fault = Fault(kind, where, what, fix)
        if self.on_bad_input == "error" or (self.on_bad_input == "replace" and kind != "encoding"):
            raise SourceError(what, where=where, fix=fix)
        self.tell(fault)
        return True

    def tell(self, fault: Fault) -> None:
        if self._on_fault:
            self._on_fault(fault)

    def _read(self, name: str) -> Iterator[Document]:
        kind = file_kind(name)
        if kind == ".parquet":
            yield from self._parquet(name)
            return
        if self.span and self.span.begin:  # UTF-16 from its middle on may pass for UTF-8
            with open_text(name) as stream:
                refuse_utf16(name, stream.read(HEAD_BYTES))
        with open_text(name, self._watch, self.span) as stream:
            if kind in (".jsonl", ".ndjson"):
                yield from self._json_lines(name, stream)
            elif kind in WARC_ENDINGS:
                yield from self._web(name, stream)
            elif kind in SEQUENCE_ENDINGS:
                yield from self._sequences(name, kind, stream)
            elif kind in (".csv", ".tsv"):
                yield from self._csv(name, stream, "\t" if kind == ".tsv" else ",")
            elif self.layout == "file":
                yield from self._whole_file(name, stream)
            elif self.layout == "sentences":
                yield from self._sentences(name, stream)
            else:
                for number, line in self._lines(name, stream):
                    if line.strip():
                        yield Document((line.strip(),), False, name, number)

    # ---- plain text ------------------------------------------------------------------------------------------

    def lines(self, name: str) -> Iterator[tuple[int, str]]:
        """The numbered lines of one of the files, whatever its kind."""
        with open_text(name, self._watch) as stream:
            yield from self._lines(name, stream)

    def _lines(self, name: str, stream: BinaryIO) -> Iterator[tuple[int, str]]:
        """Numbered lines without their ends. Raises `SourceError` with file, line and column."""
        for first, lines in self._line_blocks(name, stream):
            for number, line in enumerate(lines, first):
                yield number, line.rstrip("\r")

    def _line_blocks(self, name: str, stream: BinaryIO) -> Iterator[tuple[int, list[str]]]:
        """The number of the first line, and lines without their line feeds: a block at a time, ten times as fast as
        line by line."""
        number, offset = (self.span.first_line, self.span.begin) if self.span else (1, 0)
        rest: list[bytes] = []  # of a line that is longer than a block
        passing = False  # the rest of a line that is too long
        for block in guarded(name, blocks(stream), line=lambda: number):  # noqa: B023 - meant
            if passing:
                passed, feed, block = block.partition(b"\n")
                number, offset, passing = number + len(feed), offset + len(passed) + len(feed), not feed
            whole, feed, tail = block.rpartition(b"\n")
            if feed:
                whole = b"".join([*rest, whole])
                yield from self._decoded(name, whole, number, offset)
                number, offset, rest = number + whole.count(b"\n") + 1, offset + len(whole) + 1, []
            rest.append(tail)
            if (size := sum(map(len, rest))) > LONGEST_LINE_BYTES:
                what = f"has a line of over {LONGEST_LINE_BYTES:,} bytes"
                self._fault("record", f"{name}:{number}", what, "split it; --on-bad-input skip leaves it out")
                passing, rest, offset = True, [], offset + size
        if any(rest):
            yield from self._decoded(name, b"".join(rest), number, offset)

    def _decoded(self, name: str, block: bytes, number: int, offset: int) -> Iterator[tuple[int, list[str]]]:
        """`block`: whole lines without the last one's line feed, from line `number` and byte `offset` on."""
        if offset == 0:
            refuse_utf16(name, block)
            if block.startswith(BYTE_ORDER_MARK):
                block, offset = block.removeprefix(BYTE_ORDER_MARK), len(BYTE_ORDER_MARK)
        try:
            yield number, block.decode("utf-8").split("\n")
        except UnicodeDecodeError:
            if number == 1 and b"\0" in block[:8000]:  # git's sign of a binary file: no conversion makes text of it
                raise SourceError("is binary, not text", where=name, fix="leave the file out") from None
            for line_number, raw in enumerate(block.split(b"\n"), number):
                line = self._decode(raw, f"{name}:{line_number}", offset)
                offset += len(raw) + 1
                if line is not None:
                    yield line_number, [line]

    def _decode(self, raw: bytes, where: str, offset: int) -> str | None:
        """None when the line is to be left out."""
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            self._fault(
                "encoding",
                f"{where}:{len(raw[: error.start].decode()) + 1}",
                f"0x{raw[error.start]:02x}, byte {offset + error.start + 1:,} of the text, is not UTF-8",
                "convert the file (iconv -f latin1 -t utf8), or --on-bad-input replace or skip",
            )
            return None if self.on_bad_input == "skip" else raw.decode("utf-8", errors="replace")

    def _too_long(self, name: str, line: int) -> None:
        what = f"begins a document of over {LONGEST_LINE_BYTES:,} characters in layout {self.layout}"
        fix = "split it, or give another --layout; --on-bad-input skip leaves it out"
        self._fault("record", f"{name}:{line}", what, fix)

    def _whole_file(self, name: str, stream: BinaryIO) -> Iterator[Document]:
        blocks_of_lines: list[str] = []
        size = 0
        for _, lines in self._line_blocks(name, stream):
            blocks_of_lines.append("\n".join([line.rstrip("\r") for line in lines]))
            size += len(blocks_of_lines[-1]) + 1
            if size > LONGEST_LINE_BYTES:
                self._too_long(name, 1)
                return
        text = "\n".join(blocks_of_lines).strip()
        if text:
            yield Document((text,), False, name, 1)

    def _sentences(self, name: str, stream: BinaryIO) -> Iterator[Document]:
        sentences: list[str] = []
        start, size, passing = 1, 0, False  # size: of what earlier blocks have of a document; passing: of one left out
        for first, lines in self._line_blocks(name, stream):
            lines = [*map(str.strip, lines), ""]
            begin = 0
            while begin < len(lines):
                end = lines.index("", begin)
                if not sentences:
                    start = first + begin
                sentences += [] if passing else lines[begin:end]
                if end < len(lines) - 1:
                    if sentences:
                        yield Document(tuple(sentences), True, name, start)
                    sentences, size, passing = [], 0, False
                elif (size := size + sum(map(len, lines[begin:end]))) > LONGEST_LINE_BYTES and not passing:
                    self._too_long(name, start)
                    sentences, passing = [], True
                begin = end + 1
        if sentences:
            yield Document(tuple(sentences), True, name, start)

    # ---- records ---------------------------------------------------------------------------------------------

    def _record(self, text: object, name: str, number: int) -> Iterator[Document]:
        """A null counts as an empty document; anything else that is not text is a fault."""
        if isinstance(text, str):
            text = self._whole_characters(text.strip().replace("\r\n", "\n"), f"{name}:{number}")
            if text:
                yield Document((text,), False, name, number)
        elif text is not None:
            kind = type(text).__name__
            fix = "name the text with --text-column, or --on-bad-input skip"
            self._fault("record", f"{name}:{number}", f"'{self.text_column}' is {kind}, not text", fix)

    def _whole_characters(self, text: str, where: str) -> str:
        """JSON can spell half a surrogate pair (`\\ud800`), which no UTF-8 text can hold."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            code = f"U+{ord(text[error.start]):04X}"
            self._fault(
                "encoding", where, f"{code} is half a surrogate pair", "repair it, or --on-bad-input replace or skip"
            )
            return "" if self.on_bad_input == "skip" else re.sub("[\ud800-\udfff]", "\ufffd", text)
        return text

    def _json_lines(self, name: str, stream: BinaryIO) -> Iterator[Document]:
        for number, line in self._lines(name, stream):
            if not line.strip():
                continue
            where = f"{name}:{number}"
            try:
                record = json_value(line)
            except NotJSON as error:
                self._fault("record", where, str(error), "repair it, or --on-bad-input skip")
                continue
            if isinstance(record, dict) and self.text_column in record:
                yield from self._record(record[self.text_column], name, number)
                continue
            keys = f"keys: {', '.join(map(str, record))}" if isinstance(record, dict) else "not an object"
            self._fault("record", where, f"has no '{self.text_column}' ({keys})", "name it with --text-column")

    def _csv(self, name: str, stream: BinaryIO, delimiter: str) -> Iterator[Document]:
        numbered = self.text_column.isascii() and self.text_column.isdigit()
        column: int | None = None
        width = 0
        for line, row in csv_rows(name, (text for _, text in self._lines(name, stream)), delimiter):
            width = width or len(row)
            if len(row) != width:
                self._fault("record", f"{name}:{line}", *ragged(len(row), width, delimiter))
            elif column is not None:
                yield from self._record(row[column], name, line)
            elif numbered and not are_numbers(row):
                column = self._numbered(width, f"{name}:{line}")
                yield from self._record(row[column], name, line)
            else:
                column = self._column(row, name)

    def _web(self, name: str, stream: BinaryIO) -> Iterator[Document]:
        for number, raw in guarded(name, web_texts(name, stream)):
            text = (self._decode(raw, f"{name}:{number}", 0) or "").strip()
            if text:
                yield Document((text,), False, name, number)

    def _sequences(self, name: str, kind: str, stream: BinaryIO) -> Iterator[Document]:
        read = fastq if kind in FASTQ_ENDINGS else fasta
        for number, sequence in read(self._lines(name, stream)):
            if sequence is None:
                what = "is not FASTQ: a record is @name, letters, +, as many qualities"
                what = what if kind in FASTQ_ENDINGS else "is not FASTA: > and a name come first"
                self._fault("record", f"{name}:{number}", what, "repair it; --on-bad-input skip leaves the rest out")
                return
            for part in sequences(sequence, self.letters):
                if part:
                    yield Document((part,), False, name, number)

    def _numbered(self, width: int, where: str) -> int:
        """The column of files without a header line."""
        column = int(self.text_column)
        if column >= width:
            fix = "--text-column counts from 0"
            raise SourceError(f"has {several(width, 'column')}, no column {column}", where=where, fix=fix)
        return column

    def _column(self, header: list[str], name: str) -> int:
        twice = "give the column's 0-based number, and leave out the header line"
        require_one(self.text_column, header, f"{name}:1", twice)
        if self.text_column not in header:
            what = f"has no column '{self.text_column}' (columns: {', '.join(header)})"
            fix = "name it with --text-column, or give its 0-based number where there is no header line"
            raise SourceError(what, where=f"{name}:1", fix=other_delimiter(header) or fix)
        return header.index(self.text_column)

    def _parquet(self, name: str) -> Iterator[Document]:
        for number, (value,) in self.parquet_rows(name, [self.text_column]):
            yield from self._record(value, name, number)

    def parquet_rows(self, name: str, columns: list[str] | None = None) -> Iterator[tuple[int, list[Any]]]:
        """Numbered rows, from 1, of the values in `columns`; of all where none are named."""
        for number, scalars in parquet_rows(name, columns, self._watch):
            yield number, [self._parquet_value(one, f"{name}:{number}") for one in scalars]

    def _parquet_value(self, scalar: Any, where: str) -> Any:
        """A value as Python's; a string column may hold bytes that are not UTF-8."""
        try:
            return scalar.as_py()
        except UnicodeDecodeError as error:
            return self._decode(bytes(error.object), where, 0) or ""
