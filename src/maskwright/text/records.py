"""Records as documents: FASTA, FASTQ, and plain text in WARC (WET)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, Literal

from maskwright.core import extras
from maskwright.core.errors import SourceError

FASTA_ENDINGS = (".fa", ".fasta", ".fna", ".faa", ".ffn")
FASTQ_ENDINGS = (".fq", ".fastq")
SEQUENCE_ENDINGS = (*FASTA_ENDINGS, *FASTQ_ENDINGS)
WARC_ENDINGS = (".wet", ".warc")
Letters = Literal["upper", "keep", "plain"]
"""Treatment of a sequence's letters. `upper`: capitals. `keep`: as they are (lower case marks repeats in many genomes).
`plain`: capitals, and cut at every letter but A, C, G, T."""
NOT_PLAIN = re.compile("[^ACGT]+")
STRANGE = re.compile(r"[^A-Za-z*.\s-]")
"""Characters that are no letter of a sequence, no stop and no gap."""


def fasta(lines: Iterable[tuple[int, str]], strange: Callable[[int, str], None]) -> Iterator[tuple[int, str | None]]:
    """(line of its header, sequence) of each record; (line, None) once for lines before the first header, which are not
    read. `strange` gets the line and the first character that no sequence may contain; its record is left out unless it
    raises."""
    start, parts, is_whole = 0, list[str](), True
    is_headless = False
    for number, line in lines:
        if line.startswith(">"):
            if start and is_whole:
                yield start, "".join(parts)
            start, parts, is_whole = number, [], True
        elif line and not line.startswith(";"):  # a comment in old files
            if not start:
                if not is_headless:
                    yield number, None
                is_headless = True
                continue
            if is_whole and (character := STRANGE.search(line)):
                strange(number, character.group())
                is_whole = False
            parts.append("".join(line.split()))
    if start and is_whole:
        yield start, "".join(parts)


def fastq(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str | None]]:
    """(line of its header, sequence) of each record of four lines: @name, sequence, +, one quality for each letter.
    None for a record of another form, after which reading ends."""
    record: list[str] = []
    start = 1
    for number, line in lines:
        if not record and not line:
            continue
        start = start if record else number
        record.append(line)
        if len(record) == 4:
            is_valid = record[0].startswith("@") and record[2].startswith("+") and len(record[1]) == len(record[3])
            yield start, record[1] if is_valid else None
            if not is_valid:
                return
            record = []
    if record:
        yield start, None


def sequences(sequence: str, letters: Letters) -> list[str]:
    """The sequence's documents."""
    if letters == "keep":
        return [sequence]
    return NOT_PLAIN.split(sequence.upper()) if letters == "plain" else [sequence.upper()]


def web_texts(name: str, stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """(number, text) of each WET record, and of plain text in WARC. Raises `SourceError` for a file of HTML alone."""
    extras.require("fastwarc", name)
    from fastwarc.warc import ArchiveIterator, WarcRecordType

    text_records = pages = 0
    for number, record in enumerate(ArchiveIterator(stream), 1):
        if record.record_type == WarcRecordType.conversion or record.http_content_type == "text/plain":
            text_records += 1
            yield number, record.reader.read()
        else:
            pages += record.record_type == WarcRecordType.response
    if pages and not text_records:
        fix = "use the .wet file next to it, or extract the text first (trafilatura, datatrove)"
        raise SourceError(f"has {pages:,} pages but no plain text", where=name, fix=fix)
