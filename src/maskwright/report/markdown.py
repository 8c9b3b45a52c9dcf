"""A verdict in Markdown, for a paper or a pull request, and escaped text of others."""

from __future__ import annotations

import re
from collections.abc import Sequence

from maskwright.core.console import one_line
from maskwright.core.secrets import redact
from maskwright.report.document import Block, Conclusion, Facts, Folded, Notes, Paragraph, ReportSection, clean
from maskwright.report.frame import ReportTable


def page(title: str, sections: Sequence[ReportSection]) -> str:
    """The whole file. Drawings are left out."""
    parts = [f"# {_literal(title)}"]
    for section in sections:
        parts += [f"## {_literal(section.heading)}"] * bool(section.heading)
        parts += filter(None, map(_block, section.blocks))
    return "\n\n".join(parts) + "\n"


def _literal(words: str) -> str:
    return literal(redact(words))


def _block(block: Block) -> str:
    match block:
        case Paragraph(text, _, lead):
            return (f"**{_literal(lead)}** " if lead else "") + _literal(text)
        case Conclusion(headline, text):
            return f"**{_literal(headline)}** {_literal(text)}"
        case Facts(rows):
            return "\n".join(f"- **{_literal(a)}**: {_literal(b)}" for a, b in rows)
        case Notes(notes):
            lines = []
            for index, (text, source, address) in enumerate(notes, 1):
                citation = f" {_literal(source)}{f', <{address}>' if address else ''}." if source else ""
                lines.append(f"{index}. {_literal(text)}{citation}")
            return "\n".join(lines)
        case Folded(_, blocks):
            return "\n\n".join(filter(None, map(_block, blocks)))
        case ReportTable():
            return _table(clean(block))
        case _:
            return ""


def _table(content: ReportTable) -> str:
    rule = "|".join(" --- " if column < content.words else " ---: " for column in range(len(content.header)))
    rows = [f"| {' | '.join(map(literal, row))} |" for row in (content.header, *content.rows)]
    return "\n".join([f"{literal(content.caption)}:", "", rows[0], f"|{rule}|", *rows[1:]])


def literal(words: str) -> str:
    """Text of others for our page: on one line, with every character escaped that Markdown or HTML would read
    as markup, and the signs that make a list, a rule or a heading at the begin of a line."""
    escaped = re.sub(r"([\\`*_\[\]<>|#&~$])", r"\\\1", one_line(words))
    return re.sub(r"^(?:(\d{1,9})(?=[.)](?: |$))|(?=[-+](?:[- ]|$)|=+$))", r"\1\\", escaped)


def code(words: str) -> str:
    """The text as code, between more backticks than it has in a row."""
    inside = one_line(words)
    ticks = "`" * (1 + max(map(len, re.findall("`+", inside)), default=0))
    return f"{ticks}{inside}{ticks}" if ticks == "`" else f"{ticks} {inside} {ticks}"
