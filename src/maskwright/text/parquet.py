"""Parquet files to records and back: the only place where tables use pyarrow."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

from maskwright.core import storage
from maskwright.core.errors import SourceError
from maskwright.text.compression import COPY_AGAIN, ByteSpan, Watch, blocks, file_size, guarded, is_packed, open_text
from maskwright.text.document import Column, FaultHandler, Record, Records, place
from maskwright.text.lines import decoded

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST_UNPACKED = 200
"""Largest ratio of unpacked to packed size of a compressed Parquet file. Parquet itself is compressed."""
BATCH_RECORDS = 1024
RECORDS_AT_ONCE = 128
"""Records whose cells are Python values at once: a batch may be a whole file."""


@contextmanager
def seekable(name: str) -> Iterator[Any]:
    """The file, open for random access: a compressed one is first unpacked to a temporary file."""
    with open_text(name) as stream, tempfile.TemporaryFile() as unpacked:
        is_compressed = is_packed(name)
        limit = MOST_UNPACKED * file_size(name) + storage.READ_BYTES
        for block in guarded(name, blocks(stream)) if is_compressed else ():
            if unpacked.tell() > limit:
                what = f"unpacks to over {MOST_UNPACKED} times its size"
                raise SourceError(what, where=name, fix="unpack it first, if that size is right")
            unpacked.write(block)
        unpacked.seek(0)
        yield unpacked if is_compressed else stream


@contextmanager
def open_parquet(name: str) -> Iterator[tuple[Any, Any]]:
    """(`pyarrow.parquet.ParquetFile`, schema). Raises `SourceError` for a file that is not Parquet."""
    import pyarrow
    import pyarrow.parquet

    with seekable(name) as stream:
        try:
            file = pyarrow.parquet.ParquetFile(stream)
            schema = file.schema_arrow
            _ = schema.names
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise SourceError(f"is not Parquet: {short(error)}", where=name, fix=COPY_AGAIN) from None
        yield file, schema


def row_groups(file: Any, span: ByteSpan) -> tuple[list[int], int]:
    """(the row groups that begin in the span, their records) of a `ParquetFile`."""
    groups, records, begin = list[int](), 0, 0
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        pages = [group.column(index) for index in range(group.num_columns)]
        offsets = [page.dictionary_page_offset or page.data_page_offset for page in pages] if number else []
        begin = max(begin, min(offsets, default=begin))  # in rising order, even in a wrong file
        if span.begin <= begin < span.end:
            groups.append(number)
            records += group.num_rows
    return groups, records


def parquet_records(
    name: str, file: Any, columns: list[Column], handle: FaultHandler, watch: Watch, span: ByteSpan | None = None
) -> Records:
    """(number from 1, values of `columns`) of each record, or of those in a span. Raises `SourceError` for a damaged
    file."""
    import pyarrow

    whole = span or ByteSpan(0, file_size(name), 1)
    groups, rows = row_groups(file, whole)
    number = before = whole.first_line - 1
    if watch:
        watch(lambda: whole.begin + (whole.end - whole.begin) * (number - before) // max(rows, 1))
    try:
        for batch in file.iter_batches(batch_size=BATCH_RECORDS, columns=columns, row_groups=groups):
            for record in cells_of(batch, name, number, columns, handle):
                number += 1
                yield number, record
    except (pyarrow.ArrowException, OSError) as error:
        where = place(name, number + 1, "record")
        raise SourceError(f"is damaged: {short(error)}", where=where, fix=COPY_AGAIN) from None


def cells_of(batch: Any, name: str, before: int, columns: list[Column], handle: FaultHandler) -> Iterator[Record]:
    """The values of `columns` in each record of a batch. `before`: records in earlier batches."""
    for first in range(0, batch.num_rows, RECORDS_AT_ONCE):
        some = batch.slice(first, RECORDS_AT_ONCE)
        values = [_values(some.column(column), name, before + first, handle) for column in columns]
        for record in zip(*values, strict=True):
            yield dict(zip(columns, record, strict=True))


def _values(column: Any, name: str, before: int, handle: FaultHandler) -> Iterable[Any]:
    try:
        return column.to_pylist()  # cell by cell takes three times as long
    except UnicodeDecodeError:  # cell by cell, so that faults are handled in the order of the records
        return (_value(cell, name, number, handle) for number, cell in enumerate(column, before + 1))


def _value(scalar: Any, name: str, number: int, handle: FaultHandler) -> Any:
    """The Python value. None for a string that is not UTF-8 and that the handler drops, and for a list with one."""
    try:
        return scalar.as_py()
    except UnicodeDecodeError as error:
        text = decoded(bytes(error.object), place(name, number, "record"), 0, handle)
        return text if str(scalar.type) in ("string", "large_string", "string_view") else None


def write_parquet(file: BinaryIO, records: Sequence[dict[str, Any]], **vectors: NDArray[np.float32]) -> None:
    """Writes records of the same keys, and a column for each of `vectors` ([records, D])."""
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.Table.from_pylist([*records])
    for name, rows in vectors.items():
        table = table.append_column(
            name, pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(rows.ravel()), rows.shape[1])
        )
    pyarrow.parquet.write_table(table, file)


def short(error: BaseException) -> str:
    """The text of pyarrow's error in one line."""
    return " ".join(str(error).split())[:120].rstrip(".")
