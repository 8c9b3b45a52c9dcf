"""A table as text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ReportTable:
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1
    """Number of columns of words, on the left; the others are numbers."""
