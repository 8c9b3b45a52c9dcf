"""What pages share in Markdown."""

from __future__ import annotations

import re

from maskwright.report.tables import Table


def table(found: Table | None) -> str:
    if found is None:
        return ""
    rule = "|".join(" --- " if place < found.words else " ---: " for place in range(len(found.header)))
    rows = [f"| {' | '.join(map(literal, row))} |" for row in (found.header, *found.rows)]
    return "\n".join([f"{literal(found.caption)}:", "", rows[0], f"|{rule}|", *rows[1:]])


def literal(words: str) -> str:
    """On one line, every character that Markdown or HTML would take for markup escaped."""
    return re.sub(r"([\\`*_\[\]<>|#&~$])", r"\\\1", " ".join(words.split()))
