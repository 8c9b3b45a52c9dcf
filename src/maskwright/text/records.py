"""Formats in which a document is a record: FASTA, FASTQ, WARC with its plain text (WET), and Parquet."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Literal

from maskwright.core import extras, storage
from maskwright.core.errors import SourceError
from maskwright.text.compression import COMPRESSIONS, blocks, file_size, guarded, open_text
from maskwright.text.tables import require_one

FASTA_ENDINGS = (".fa", ".fasta", ".fna", ".faa", ".ffn")
FASTQ_ENDINGS = (".fq", ".fastq")
SEQUENCE_ENDINGS = (*FASTA_ENDINGS, *FASTQ_ENDINGS)
WARC_ENDINGS = (".wet", ".warc")
Letters = Literal["upper", "keep", "plain"]
"""What becomes of a sequence's letters: capitals, as they are (lower case marks repeats in many genomes), or capitals
and cut wherever a letter is none of A, C, G, T."""
NOT_PLAIN = re.compile("[^ACGT]+")


def fasta(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str | None]]:
    """(line of its header, sequence) of each record; None for lines before the first header."""
    start, parts = 0, list[str]()
    for number, line in lines:
        if line.startswith(">"):
            if start:
                yield start, "".join(parts)
            start, parts = number, []
        elif line and not line.startswith(";"):  # a comment in old files
            if not start:
                yield number, None
                return
            parts.append("".join(line.split()))
    if start:
        yield start, "".join(parts)


def fastq(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str | None]]:
    """The same of records of four lines: @name, sequence, +, one quality a letter. None for one that is not."""
    record: list[str] = []
    start = 1
    for number, line in lines:
        if not record and not line:
            continue
        start = start if record else number
        record.append(line)
        if len(record) == 4:
            good = record[0].startswith("@") and record[2].startswith("+") and len(record[1]) == len(record[3])
            yield start, record[1] if good else None
            if not good:
                return
            record = []
    if record:
        yield start, None


def sequences(sequence: str, letters: Letters) -> list[str]:
    """The documents that a sequence becomes."""
    if letters == "keep":
        return [sequence]
    return NOT_PLAIN.split(sequence.upper()) if letters == "plain" else [sequence.upper()]


def web_texts(name: str, stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """(number of the record, its text) of WET's records, and of plain text in WARC. HTML is left to tools that extract
    its text. Raises `SourceError` where there is HTML and nothing else."""
    extras.require("fastwarc", name)
    from fastwarc.warc import ArchiveIterator, WarcRecordType

    found = pages = 0
    for number, record in enumerate(ArchiveIterator(stream), 1):
        if record.record_type == WarcRecordType.conversion or record.http_content_type == "text/plain":
            found += 1
            yield number, record.reader.read()
        else:
            pages += record.record_type == WarcRecordType.response
    if pages and not found:
        fix = "take the .wet file beside it, or extract the text first (trafilatura, datatrove)"
        raise SourceError(f"has {pages:,} pages and no plain text", where=name, fix=fix)


MOST_UNPACKED = 200
"""Times its size that a compressed Parquet file may unpack to. Parquet is compressed itself."""


def parquet_columns(name: str) -> list[str]:
    """Names of a file's columns. Raises `SourceError` for what is none."""
    with _open_parquet(name) as (_, names):
        return names


def parquet_rows(
    name: str, columns: list[str] | None, watch: Callable[[Callable[[], int]], None] | None = None
) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Numbered rows, from 1, of Arrow's scalars in `columns`; of all where none are named. `watch` gets what tells how
    many of the file's bytes were read, roughly."""
    import pyarrow

    with _open_parquet(name) as (table, names):
        for column in columns or ():
            if column not in names:
                what = f"has no column '{column}' (columns: {', '.join(names)})"
                raise SourceError(what, where=name, fix="name it with --text-column")
            require_one(column, names, name, "rename one of them")
        number, rows, size = 0, max(table.metadata.num_rows, 1), file_size(name)
        if watch:
            watch(lambda: size * number // rows)
        try:
            for batch in table.iter_batches(batch_size=1024, columns=columns):
                cells = [batch.column(column) for column in columns] if columns else batch.columns
                for scalars in zip(*cells, strict=True):
                    number += 1
                    yield number, scalars
        except (pyarrow.ArrowException, OSError) as error:
            fix = "copy it again from its origin"
            raise SourceError(f"is damaged: {_short(error)}", where=f"{name}:{number + 1}", fix=fix) from None


def _short(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".")


@contextmanager
def _open_parquet(name: str) -> Iterator[tuple[Any, list[str]]]:
    """A `pyarrow.parquet.ParquetFile` and the names of its columns. It needs random access, so a compressed file is
    unpacked to a nameless temporary one first. Raises `SourceError` for what is none."""
    import pyarrow
    import pyarrow.parquet

    with open_text(name) as stream, tempfile.TemporaryFile() as unpacked:
        packed = storage.without_query(name).lower().endswith(COMPRESSIONS)
        most = MOST_UNPACKED * file_size(name) + storage.READ_BYTES
        for block in guarded(name, blocks(stream)) if packed else ():
            if unpacked.tell() > most:
                what = f"unpacks to over {MOST_UNPACKED} times its size"
                raise SourceError(what, where=name, fix="unpack it first, if that is right")
            unpacked.write(block)
        unpacked.seek(0)
        try:
            table = pyarrow.parquet.ParquetFile(unpacked if packed else stream)
            names = table.schema_arrow.names
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise SourceError(
                f"is not Parquet: {_short(error)}", where=name, fix="copy it again from its origin"
            ) from None
        yield table, names
