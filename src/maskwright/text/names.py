"""Names of labels and groups in the cells of a table."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Any

SEPARATOR = re.compile(r"_|(?<=\w)-(?=\w)")
WHOLE = re.compile(r"(-?)0*([0-9]+)(?:\.0+)?")


def cell_name(cell: Any) -> str:
    """A name: `1` for the number 1 and for pandas' 1.0; empty for a null or NaN."""
    if cell is None or cell != cell:
        return ""
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell).strip()


@lru_cache(maxsize=1 << 14)
def folded_name(name: str) -> str:
    """A name of a label or group without case, invisible characters, zeros before or `.0` after a whole number, and the
    kind of its separators and accents: what spellings of one name share."""
    visible = "".join(one for one in unicodedata.normalize("NFKC", name) if unicodedata.category(one) != "Cf")
    words = " ".join(SEPARATOR.sub(" ", visible.casefold()).split())
    return WHOLE.sub(r"\1\2", words) if WHOLE.fullmatch(words) else words or name


def group_name(cell: Any) -> str:
    """The `folded_name` of a group's cell; empty for none."""
    return folded_name(cell_name(cell))
