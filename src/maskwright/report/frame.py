"""The frame of all pages. Each page is one HTML file without scripts, pictures or anything from elsewhere. It is light
or dark like the reader's system, and fits a phone's width too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class ReportTable:
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1
    """Number of columns of words, on the left; the others are numbers."""


POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Browsers refuse to load anything from the page."""
STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1b1f24; --faint: #59636e; --line: #d1d9e0; --box: #f6f8fa;
  --good: #0a6ab8; --bad: #b3500b; --none: #59636e;
  --third: #7b3fa0; --fourth: #1a7f5a; --fifth: #a8325e; }
@media (prefers-color-scheme: dark) { :root { --back: #12161b; --text: #e6eaef; --faint: #9aa5b1; --line: #39424d;
  --box: #1a2027; --good: #62b0f5; --bad: #f0965a; --none: #9aa5b1; --third: #c59be6; --fourth: #57c79a;
  --fifth: #f08bb0; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 50rem; margin: 0 auto; padding: 1rem; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: .5rem 0; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 .3rem; }
small, .faint, figcaption { color: var(--faint); }
.answer { border-left: 4px solid var(--none); background: var(--box); padding: .6rem .9rem; margin: .8rem 0; }
.answer p { margin: .2rem 0; }
.answer .headline { font-size: 1.1rem; font-weight: 600; }
.answer.helped { border-color: var(--good); } .answer.hurt { border-color: var(--bad); }
.answer.cannot-conclude { border-left-style: dashed; }
svg { display: block; overflow: visible; } :not(svg) > svg { width: 100%; }
svg text { fill: var(--faint); font-size: 13px; paint-order: stroke; stroke: var(--back); stroke-width: 4px; }
  svg text.name { fill: var(--text); }
.zero { stroke: var(--faint); stroke-dasharray: 3 3; } .axis { stroke: var(--line); }
.forest .row p { margin: .5rem 0 0; } .forest b { white-space: nowrap; font-weight: 600; }
span.helped { color: var(--good); } span.hurt { color: var(--bad); }
.bar { stroke: var(--none); stroke-width: 3; stroke-linecap: round; } circle { fill: var(--none); }
.bar.helped { stroke: var(--good); } .bar.hurt { stroke: var(--bad); }
circle.helped { fill: var(--good); } circle.hurt { fill: var(--bad); }
.bar.cannot-conclude { stroke-dasharray: 2 6; }
.pair { stroke-width: 1.5; opacity: .7; } .rise { stroke: var(--good); } .same { stroke: var(--none); }
.fall { stroke: var(--bad); stroke-dasharray: 5 3; }
circle.seed { fill: var(--text); fill-opacity: .75; } .mean { stroke: var(--text); stroke-width: 2; }
.share-right { fill: var(--good); opacity: .3; }
figure { margin: 1rem 0; } figcaption { font-size: .9rem; }
figure div { overflow-x: auto; /* a table that continues has a shadow at that side, which its ends cover */
  background: linear-gradient(to right, var(--back) 40%, transparent) left / 2rem 100% no-repeat local,
    linear-gradient(to left, var(--back) 40%, transparent) right / 2rem 100% no-repeat local,
    linear-gradient(to right, var(--faint), transparent) left / .4rem 100% no-repeat scroll,
    linear-gradient(to left, var(--faint), transparent) right / .4rem 100% no-repeat scroll; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem .3rem 0; text-align: right; vertical-align: top; border-bottom: 1px solid var(--line); }
td.number { white-space: nowrap; }
.word { text-align: left; min-width: 5rem; } td.word { min-width: 7rem; overflow-wrap: anywhere; }
tbody th { font-weight: inherit; }
dt { font-weight: 600; margin-top: .5rem; } dd { margin: 0; }
@media (min-width: 40rem), print { .facts { display: grid; grid-template-columns: 10rem 1fr; gap: .3rem 1rem; }
  .facts dt { margin: 0; } .facts dd { min-width: 0; } }
.glance { display: flex; flex-wrap: wrap; gap: .5rem; margin: 1rem 0; }
.glance div { flex: 1 1 6rem; background: var(--box); border: 1px solid var(--line); border-radius: 6px;
  padding: .5rem .6rem; }
@media (max-width: 30rem) { .glance div { flex-basis: 9rem; } }
.glance dt { font-weight: 400; font-size: .85rem; color: var(--faint); margin: 0; white-space: nowrap; }
.glance b { display: block; font-size: 1.25rem; font-variant-numeric: tabular-nums; line-height: 1.3; }
.glance small { display: block; line-height: 1.3; }
.curves { margin: .6rem 0; } .curves svg.area { overflow: hidden; }
.line { fill: none; stroke: var(--none); stroke-width: 1.2; stroke-linejoin: round; } .line.bold { stroke-width: 2.4; }
.line.light { opacity: .75; }
.s0 { --own: var(--good); } .s1 { --own: var(--bad); } .s2 { --own: var(--third); } .s3 { --own: var(--fourth); }
.s4 { --own: var(--fifth); } .s5 { --own: var(--text); }
.line.s0, .line.s1, .line.s2, .line.s3, .line.s4, .line.s5 { stroke: var(--own); }
circle.s0, circle.s1, circle.s2, circle.s3, circle.s4, circle.s5 { fill: var(--own); }
.line.s2, .line.s5 { stroke-dasharray: 7 3; } .line.s3 { stroke-dasharray: 2 3; }
.line.s4 { stroke-dasharray: 9 3 2 3; }
line.tick { stroke: var(--faint); stroke-width: 1.2; }
line.tick.started { stroke: var(--fourth); stroke-dasharray: 4 3; }
line.tick.spiked { stroke: var(--bad); }
svg text.tick, .legend .tick { font-size: 11px; }
svg text.started, .legend .started { fill: var(--fourth); color: var(--fourth); }
svg text.spiked, .legend .spiked { fill: var(--bad); color: var(--bad); }
line.tick.own { stroke: var(--own); } svg text.tick.own { fill: var(--own); }
.legend { font-size: .9rem; color: var(--faint); } .legend .key { display: inline-block; margin-right: 1.1rem; }
span > svg.swatch { display: inline-block; width: 24px; vertical-align: middle; }
pre { background: var(--box); border: 1px solid var(--line); border-radius: 6px; padding: .7rem; overflow-x: auto;
  font-size: .85rem; line-height: 1.45; } ul { padding-left: 1.2rem; }
summary { cursor: pointer; } a { color: inherit; } li { margin: .3rem 0; }
@media print { :root { color-scheme: light; --back: #fff; --text: #000; --faint: #444; --line: #bbb; --box: #fff; }
  main { max-width: none; padding: 0; } body { font-size: 11pt; } h2 { break-after: avoid; }
  .curves > svg, tr, .glance, .answer, .row { break-inside: avoid; } pre { white-space: pre-wrap; }
  details::details-content { content-visibility: visible; height: auto; } }
"""


def page(title: str, parts: Sequence[str]) -> str:
    """The whole file. `parts` are HTML; empty ones are left out."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f"<title>{escaped(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escaped(title)}</h1>\n" + "\n".join(part for part in parts if part) + "\n</main>\n</body>\n</html>\n"
    )


def escaped(words: str) -> str:
    return escape(words, quote=True)


def section(heading: str, *parts: str) -> str:
    return f"<section>\n<h2>{escaped(heading)}</h2>\n" + "\n".join(part for part in parts if part) + "\n</section>"


def table(content: ReportTable) -> str:
    """The HTML of a table, in a box that scrolls sideways, by keyboard too."""
    head = "".join(
        f'<th scope="col"{_kind(idx, content.words)}>{escaped(name)}</th>' for idx, name in enumerate(content.header)
    )
    rows = "".join(
        f'<tr><th scope="row" class="word">{escaped(first)}</th>'
        + "".join(f"<td{_kind(column, content.words)}>{escaped(cell)}</td>" for column, cell in enumerate(cells, 1))
        + "</tr>"
        for first, *cells in content.rows
    )
    label = escaped(content.caption)
    return (
        f'<figure><figcaption>{label}</figcaption><div role="region" tabindex="0" aria-label="{label}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></figure>"
    )


def _kind(column: int, words: int) -> str:
    return ' class="word"' if column < words else ' class="number"'
