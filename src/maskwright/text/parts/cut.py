"""Parts of a text, in the order of reading: runs of whole files, and ranges of a large file, cut where a document
ends. A part holds everything that a worker needs to read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any, BinaryIO

from maskwright.core import storage
from maskwright.core.encodings import UTF8
from maskwright.core.errors import SourceError
from maskwright.processes.runner import Runner
from maskwright.text.compression import (
    ByteSpan,
    blocks,
    changed_while_read,
    file_record,
    is_packed,
    open_text,
    stamp_of,
)
from maskwright.text.document import Fault
from maskwright.text.encodings import Encoding
from maskwright.text.layout import Layout
from maskwright.text.lines import line_feeds
from maskwright.text.parquet import open_parquet, row_groups
from maskwright.text.parts.columns import Note, written
from maskwright.text.parts.phase import compute, paths_of
from maskwright.text.records import Letters
from maskwright.text.sources import PLAIN, SPLITTABLE, OnBadInput, Sources, file_kind

TARGET_PARTS = 512
"""Target number of parts of a large text: several per worker, so that stragglers matter little. Each has shards of its
own, so more parts would mean many small files."""
PART_BYTES = (32_000_000, 512_000_000)
"""Least and most bytes of a part on disk. A larger file is a part of its own."""


@dataclass(frozen=True)
class Part:
    """Some files that follow each other in the order of reading."""

    number: int
    files: tuple[str, ...]
    sizes: tuple[int, ...]
    """Bytes of each file."""
    stamps: tuple[tuple[int, int] | None, ...]
    """The stamp of each file: see `stamp_of`."""
    held_out: bool
    """Whether these are held-out files."""
    layout: Layout
    text_column: str
    on_bad_input: OnBadInput
    letters: Letters
    encoding: str
    group_column: str | None = None
    span: ByteSpan | None = None
    """The byte range of its only file; None for whole files."""

    @property
    def bytes(self) -> int:
        return self.span.end - self.span.begin if self.span else sum(self.sizes)

    def open(self, on_fault: Callable[[Fault], None] | None = None) -> Sources:
        """Its documents. Raises `SourceError` if a file has changed since the text was cut."""
        sources = Sources(
            [*self.files],
            layout=self.layout,
            text_column=self.text_column,
            group_column=self.group_column,
            on_bad_input=self.on_bad_input,
            on_fault=on_fault,
            letters=self.letters,
            encoding=self.encoding,
        )
        sources.span = self.span
        self.require_unchanged()
        return sources

    def require_unchanged(self) -> None:
        for name, stamp in zip(self.files, self.stamps, strict=True):
            if stamp_of(name) != stamp:
                raise changed_while_read(name)

    def records(self) -> list[dict[str, Any]]:
        """Records for the store's manifest of the files that begin in this part."""
        if self.span and self.span.begin:
            return []
        return [file_record(name, size) for name, size in zip(self.files, self.sizes, strict=True)]

    def identity(self) -> list[Any]:
        """JSON values that decide its documents, if they are known without reading the files."""
        files = zip(self.files, self.sizes, self.stamps, strict=True)
        versions = [[name, size, stamp or file_record(name, size)["version"]] for name, size, stamp in files]
        span = [self.span.begin, self.span.end, self.span.first_line] if self.span else None
        reading = [self.layout, self.text_column, self.on_bad_input, self.letters]
        reading += [f"group {self.group_column}"] if self.group_column else []
        return [versions, span, self.held_out, *reading, *([] if self.encoding == UTF8 else [self.encoding])]

    @property
    def splittable(self) -> bool:
        """Whether it is one file that can be read from the middle."""
        if len(self.files) > 1 or storage.is_url(self.files[0]):
            return False
        kind = file_kind(self.files[0])
        if not Encoding(self.encoding).keeps_line_feeds and kind != ".parquet":
            return False
        return kind in SPLITTABLE and (self.layout != "file" or kind != PLAIN) and not is_packed(self.files[0])


def cut(all_sources: Sequence[Sources], held_out: Sources | None = None) -> list[Part]:
    """The parts of all files, in the order of reading, by the files' sizes alone."""
    total = sum(sum(sources.sizes) for sources in all_sources)
    parts: list[Part] = []
    for sources in all_sources:
        for begin, end in runs_of_files(sources.sizes, total):
            parts.append(_part(sources, begin, end, len(parts), held_out=sources is held_out))
    return parts


def runs_of_files(sizes: Sequence[int], total: int) -> Iterator[tuple[int, int]]:
    """(begin, end) of the files of each part. `sizes`: bytes of each file, of the `total` of all text."""
    part_bytes = _target_bytes(total)
    begin = size = 0
    for end, bytes_ in enumerate(sizes, 1):
        if size and bytes_ > part_bytes:  # a large file is a part of its own
            yield begin, end - 1
            begin, size = end - 1, 0
        size += bytes_
        if size >= part_bytes or end == len(sizes):
            yield begin, end
            begin, size = end, 0


def split(runner: Runner, folder: str, parts: Sequence[Part]) -> list[Part]:
    """The parts, with large files cut into stretches of whole documents where possible. `folder`: of result files."""
    part_bytes = _target_bytes(sum(part.bytes for part in parts))
    stretches: list[Part] = []
    for part in parts:
        count = part.bytes // part_bytes if part.bytes >= 2 * part_bytes and part.splittable else 1
        ends = [part.bytes * index // count for index in range(count + 1)] if count > 1 else []
        stretches += [replace(part, span=ByteSpan(begin, end, 1)) for begin, end in pairwise(ends)]
    paths = paths_of(folder, "cut", [digest_of(part.identity()) for part in stretches])
    notes = compute(runner, borders, [*zip(stretches, paths, strict=True)], "cut", [part.bytes for part in stretches])
    notes_of_part: dict[int, list[Note]] = {}
    for part, note in zip(stretches, notes, strict=True):
        notes_of_part.setdefault(part.number, []).append(note)
    exact = chain.from_iterable(
        _stretches(part, notes_of_part[part.number]) if part.number in notes_of_part else [part] for part in parts
    )
    return [replace(part, number=index) for index, part in enumerate(exact)]


def _target_bytes(total: int) -> int:
    least, most = PART_BYTES
    return min(max(total // TARGET_PARTS, least), most)


def _stretches(part: Part, notes: Sequence[Note]) -> Iterator[Part]:
    line = 1
    for note in notes:
        if note["begin"] < note["end"]:
            yield replace(part, span=ByteSpan(note["begin"], note["end"], line))
        line += note["lines"]


def borders(task: tuple[Part, str]) -> Note:
    """Moves both ends of a stretch to the next end of a document, and counts its lines or records."""
    part, path = task
    assert part.span
    if file_kind(part.files[0]) == ".parquet":
        with written(path) as writer:
            writer.note = _row_groups(part, part.span)
        return writer.note
    ends_blank = part.layout == "sentences" and file_kind(part.files[0]) == PLAIN
    with storage.open_binary(part.files[0]) as file, written(path) as writer:
        begin, end = (_border(file, offset, after_blank_line=ends_blank) for offset in (part.span.begin, part.span.end))
        with open_text(part.files[0], span=ByteSpan(begin, end, 1)) as stream:
            content = blocks(stream) if begin else line_feeds(blocks(stream))
            lines = sum(block.count(b"\n") for block in content)
        writer.note = {"begin": begin, "end": end, "lines": lines}
    return writer.note


def _row_groups(part: Part, span: ByteSpan) -> Note:
    """A stretch of Parquet has the row groups that begin in it."""
    end = span.end
    try:
        with open_parquet(part.files[0]) as (file, _):
            groups, records = row_groups(file, span)
        if span.begin and not groups:
            end = span.begin
    except SourceError:  # raised when the file is read, in its turn
        end, records = (span.begin, 0) if span.begin else (part.sizes[0], 0)
    return {"begin": span.begin, "end": end, "lines": records}


def _border(file: BinaryIO, offset: int, *, after_blank_line: bool) -> int:
    """The first begin of a line from `offset` on, after a blank line if requested; or the file's end. It depends on the
    file and `offset` alone, so a stretch ends where the next one begins."""
    if offset == 0:
        return 0
    file.seek(offset - 1)
    _pass_line(file)
    while after_blank_line and _pass_line(file):
        pass
    return file.tell()


def _pass_line(file: BinaryIO) -> bool:
    """Reads to the end of a line. Returns whether it had more than white space."""
    blank, ended = True, False
    while not ended and (piece := file.readline(storage.READ_BYTES)):
        blank, ended = blank and not piece.strip(), piece.endswith(b"\n")
    return not blank


def _part(sources: Sources, begin: int, end: int, number: int, *, held_out: bool) -> Part:
    return Part(
        number,
        tuple(sources.files[begin:end]),
        tuple(sources.sizes[begin:end]),
        tuple(sources.stamps[begin:end]),
        held_out,
        sources.layout,
        sources.text_column,
        sources.on_bad_input,
        sources.letters,
        sources.encoding.name,
        sources.group_column,
    )


def digest_of(*decided_by: Any) -> str:
    """A short digest of JSON values, for the name of a file that they decide."""
    return storage.sha256_of([*decided_by])[:20]
