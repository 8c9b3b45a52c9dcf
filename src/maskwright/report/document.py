"""A page as a list of sections of blocks, from which its HTML and its Markdown are both made. Secrets go out here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from maskwright.core.secrets import redact
from maskwright.report import frame, markdown
from maskwright.report.tables import ReportTable


@dataclass(frozen=True)
class Paragraph:
    """A paragraph."""

    text: str
    faint: bool = False


@dataclass(frozen=True)
class Drawing:
    """`html`, which a legend explains."""

    html: str
    legend: str = ""
    """HTML."""
    numbers: ReportTable | None = None
    """What Markdown has instead."""


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
class Code:
    text: str


@dataclass(frozen=True)
class Folded:
    """Shown when it is asked for, and when it is printed."""

    title: str
    blocks: tuple[Block, ...]


Block = Paragraph | Drawing | Strip | Facts | Listing | Code | Folded | ReportTable


@dataclass(frozen=True)
class ReportSection:
    heading: str
    """Empty for what comes first."""
    blocks: tuple[Block, ...]


def html(title: str, sections: Sequence[ReportSection], head: Sequence[str] = ()) -> str:
    parts = []
    for section in sections:
        blocks = [_html(block) for block in section.blocks]
        parts.append(frame.section(section.heading, *blocks) if section.heading else "\n".join(blocks))
    return frame.page(redact(title), parts, head)


def to_markdown(title: str, sections: Sequence[ReportSection]) -> str:
    parts = [f"# {_literal(title)}"]
    for section in sections:
        blocks = [text for block in section.blocks if (text := _markdown(block))]
        if blocks:
            parts += [f"## {_literal(section.heading)}"] * bool(section.heading) + blocks
    return "\n\n".join(parts) + "\n"


def _escaped(words: str) -> str:
    return frame.escaped(redact(words))


def _literal(words: str) -> str:
    return markdown.literal(redact(words))


def _html(block: Block) -> str:
    match block:
        case Paragraph(text, faint):
            return f'<p class="faint">{_escaped(text)}</p>' if faint else f"<p>{_escaped(text)}</p>"
        case Drawing(drawn, legend, _):
            return drawn + (f'<p class="legend">{legend}</p>' if legend else "")
        case Strip(cells):
            found = [
                f"<div><dt>{_escaped(name)}</dt><dd><b>{_escaped(value)}</b> <small>{_escaped(note)}</small></dd></div>"
                for name, value, note in cells
            ]
            return f'<dl class="glance">{"".join(found)}</dl>'
        case Facts(rows):
            return (
                '<dl class="facts">'
                + "".join(f"<dt>{_escaped(a)}</dt><dd>{_escaped(b)}</dd>" for a, b in rows)
                + "</dl>"
            )
        case Listing(items):
            return "<ul>" + "".join(f"<li>{_escaped(item)}</li>" for item in items) + "</ul>"
        case Code(text):
            return f'<pre tabindex="0"><code>{_escaped(text)}</code></pre>'
        case Folded(title, blocks):
            inside = "".join(map(_html, blocks))
            return f"<details><summary>{_escaped(title)}</summary>{inside}</details>"
        case ReportTable():
            return frame.table(_clean(block))


def _markdown(block: Block) -> str:
    match block:
        case Paragraph(text, _):
            return _literal(text)
        case Drawing(_, _, numbers):
            return "" if numbers is None else markdown.table(_clean(numbers))
        case Strip(cells):
            return "\n".join(
                f"- **{_literal(a)}**: {_literal(b)}{f' ({_literal(c)})' if c else ''}" for a, b, c in cells
            )
        case Facts(rows):
            return "\n".join(f"- **{_literal(a)}**: {_literal(b)}" for a, b in rows)
        case Listing(items):
            return "\n".join(f"- {_literal(item)}" for item in items)
        case Code(text):
            fence = "`" * max(3, 1 + max((len(run) for run in text.split() if set(run) == {"`"}), default=0))
            return f"{fence}text\n{redact(text)}\n{fence}"
        case Folded(title, blocks):
            return "\n\n".join([f"**{_literal(title)}**", *filter(None, map(_markdown, blocks))])
        case ReportTable():
            return markdown.table(_clean(block))


def _clean(table: ReportTable) -> ReportTable:
    rows = tuple(tuple(redact(cell) for cell in row) for row in table.rows)
    return ReportTable(redact(table.caption), tuple(map(redact, table.header)), rows, table.words)
