"""Keys of a part's documents, sorted, so that those of a range can be read alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from maskwright.text.parts.columns import ColumnWriter

RANGES = 1_024
"""Into so many ranges of keys each part's are sorted; a search takes one or some of them at a time."""


def write_keys(
    writer: ColumnWriter, name: str, keys: NDArray[np.uint64], second: NDArray[np.uint64] | None = None
) -> None:
    """Sorts the keys that are not 0, and notes where each range of them begins and which document each is of."""
    places = np.flatnonzero(keys)
    places = places[np.argsort(keys[places], kind="stable")]
    keys = keys[places]
    borders = np.arange(1, RANGES, dtype=np.uint64) << np.uint64(64 - RANGES.bit_length() + 1)
    inner = np.searchsorted(keys, borders)
    writer.append(f"{name}.begins", np.concatenate([[0], inner, [len(keys)]]).astype("<u4"))
    writer.append(f"{name}.keys", keys)
    writer.append(f"{name}.places", places.astype("<u4"))
    if second is not None:
        writer.append(f"{name}.second", second[places])
