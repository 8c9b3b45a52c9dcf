"""A page as a list of sections of blocks, which become HTML. Secrets are removed here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from maskwright.core.secrets import redact
from maskwright.report import frame, plots
from maskwright.report.frame import ReportTable


@dataclass(frozen=True)
class Paragraph:
    text: str
    faint: bool = False
    lead: str = ""
    """Words in bold before the text."""
    command: str = ""
    """A command between both, which the text explains."""


@dataclass(frozen=True)
class Drawing:
    """HTML with a legend."""

    html: str
    legend: str = ""
    """HTML."""
    heading: str = ""


@dataclass(frozen=True)
class Bars:
    values: Mapping[str, float]
    unit: str
    """The singular noun, if values are counts."""
    heading: str = ""


@dataclass(frozen=True)
class Conclusion:
    headline: str
    text: str
    kind: str
    """CSS class."""
    mark: str
    """Sign next to its colour."""


@dataclass(frozen=True)
class Strip:
    """Numbers to see at a glance: (name, value, note)."""

    cells: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Facts:
    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Listing:
    items: tuple[str, ...]


@dataclass(frozen=True)
class Notes:
    """Numbered: (text, source, address of the source). Source and address may be empty."""

    items: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Code:
    text: str


@dataclass(frozen=True)
class Folded:
    """Blocks that open by a click and in print."""

    title: str
    blocks: tuple[Block, ...]


Block = Paragraph | Drawing | Bars | Conclusion | Strip | Facts | Listing | Notes | Code | Folded | ReportTable


@dataclass(frozen=True)
class ReportSection:
    heading: str
    """Empty for the first section."""
    blocks: tuple[Block, ...]


def html(title: str, sections: Sequence[ReportSection]) -> str:
    parts = []
    for section in sections:
        blocks = [_html(block) for block in section.blocks]
        parts.append(frame.section(section.heading, *blocks) if section.heading else "\n".join(blocks))
    return frame.page(redact(title), parts)


def _escaped(words: str) -> str:
    return frame.escaped(redact(words))


def _html(block: Block) -> str:
    match block:
        case Paragraph(text, faint, lead, command):
            tag = '<p class="faint">' if faint else "<p>"
            lead_in = f"<b>{_escaped(lead)}</b> " if lead else ""
            lead_in += f"<code>{_escaped(command)}</code> " if command else ""
            return f"{tag}{lead_in}{_escaped(text)}</p>"
        case Drawing(drawing, legend, heading):
            return _heading(heading) + drawing + (f'<p class="legend">{legend}</p>' if legend else "")
        case Bars(values, unit, heading):
            return _heading(heading) + plots.bars({redact(name): value for name, value in values.items()}, unit)
        case Conclusion(headline, text, kind, mark):
            return (
                f'<div class="answer {kind}"><p class="headline"><span aria-hidden="true">{mark}</span> '
                f"{_escaped(headline)}</p><p>{_escaped(text)}</p></div>"
            )
        case Strip(cells):
            cells_html = [
                f"<div><dt>{_escaped(name)}</dt><dd><b>{_escaped(value)}</b> <small>{_escaped(note)}</small></dd></div>"
                for name, value, note in cells
            ]
            return f'<dl class="glance">{"".join(cells_html)}</dl>'
        case Facts(rows):
            return (
                '<dl class="facts">'
                + "".join(f"<dt>{_escaped(a)}</dt><dd>{_escaped(b)}</dd>" for a, b in rows)
                + "</dl>"
            )
        case Listing(items):
            return "<ul>" + "".join(f"<li>{_escaped(item)}</li>" for item in items) + "</ul>"
        case Notes(notes):
            return "<ol>" + "".join(f"<li>{_escaped(text)}{_cited(*by)}</li>" for text, *by in notes) + "</ol>"
        case Code(text):
            return f'<pre tabindex="0"><code>{_escaped(text)}</code></pre>'
        case Folded(title, blocks):
            inner = "".join(map(_html, blocks))
            return f"<details><summary>{_escaped(title)}</summary>{inner}</details>"
        case ReportTable():
            return frame.table(clean(block))


def _heading(words: str) -> str:
    return f"<h3>{_escaped(words)}</h3>" if words else ""


def _cited(source: str, address: str) -> str:
    if not source:
        return ""
    link = f'<a href="{_escaped(address)}" rel="noreferrer">{_escaped(source)}</a>' if address else _escaped(source)
    return f" <small>{link}.</small>"


def clean(table: ReportTable) -> ReportTable:
    rows = tuple(tuple(redact(cell) for cell in row) for row in table.rows)
    return ReportTable(redact(table.caption), tuple(map(redact, table.header)), rows, table.words)
