"""Tables and escaped text in Markdown."""

from __future__ import annotations

import re

from maskwright.core.console import one_line
from maskwright.report.tables import ReportTable


def table(content: ReportTable | None) -> str:
    if content is None:
        return ""
    rule = "|".join(" --- " if column < content.words else " ---: " for column in range(len(content.header)))
    rows = [f"| {' | '.join(map(literal, row))} |" for row in (content.header, *content.rows)]
    return "\n".join([f"{literal(content.caption)}:", "", rows[0], f"|{rule}|", *rows[1:]])


def literal(words: str) -> str:
    """Text of others for our page: on one line, with every character escaped that Markdown or HTML would take
    for markup, also the signs that make a list, a rule or a heading at the begin of a line."""
    escaped = re.sub(r"([\\`*_\[\]<>|#&~$])", r"\\\1", one_line(words))
    return re.sub(r"^(?:(\d{1,9})(?=[.)](?: |$))|(?=[-+](?:[- ]|$)|=+$))", r"\1\\", escaped)


def code(words: str) -> str:
    """The text as code, between more backticks than it has in a row."""
    inside = one_line(words)
    ticks = "`" * (1 + max(map(len, re.findall("`+", inside)), default=0))
    return f"{ticks}{inside}{ticks}" if ticks == "`" else f"{ticks} {inside} {ticks}"
