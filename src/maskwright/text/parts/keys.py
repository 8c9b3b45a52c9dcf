"""Keys of a part's documents, sorted, so that those of a range can be read alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from maskwright.text.parts.columns import Columns, ColumnWriter

RANGES = 1_024
"""Into so many ranges of keys each run of documents is sorted; a search takes one or some of them at a time."""
RUN_DOCUMENTS = 1_000_000
"""Documents of a part whose keys memory holds at once, up to 200 bytes each."""


def write_keys(
    writer: ColumnWriter,
    name: str,
    first: int,
    keys: NDArray[np.uint64],
    second: NDArray[np.uint64] | None = None,
) -> None:
    """Sorts the keys that are not 0, of a run of documents from number `first` on, and notes where each range of them
    begins and which document each is of. A part has one run or several, in the order of reading."""
    places = np.flatnonzero(keys)
    places = places[np.argsort(keys[places], kind="stable")]
    keys = keys[places]
    borders = np.arange(1, RANGES, dtype=np.uint64) << np.uint64(64 - RANGES.bit_length() + 1)
    begins = np.concatenate([[0], np.searchsorted(keys, borders), [len(keys)]])
    writer.append(f"{name}.begins", (writer.count(f"{name}.keys") + begins).astype("<u8"))
    writer.append(f"{name}.keys", keys)
    writer.append(f"{name}.places", (first + places).astype("<u4"))
    if second is not None:
        writer.append(f"{name}.second", second[places])


def runs_of(file: Columns, name: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Where the keys of the ranges from `begin` to `end` lie in each run, in the order of reading."""
    for run in range(file.count(f"{name}.begins") // (RANGES + 1)):
        begins = file.numbers(f"{name}.begins", run * (RANGES + 1) + begin, run * (RANGES + 1) + end + 1)
        yield int(begins[0]), int(begins[-1])
