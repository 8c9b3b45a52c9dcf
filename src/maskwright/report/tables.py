"""A table as text, which HTML and Markdown both draw."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ReportTable:
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1
    """How many columns on the left are words; the others are numbers."""
