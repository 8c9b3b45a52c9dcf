"""The verdict as one HTML file without scripts, pictures or anything from elsewhere; light or dark as the reader's
system is, and made for a phone's width too. It is a function of the results alone: the same results, the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from maskwright.core import storage
from maskwright.verdict import markdown, plots, tables, wording
from maskwright.verdict.judge import Report
from maskwright.verdict.results import Results

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""A browser refuses whatever the page would load."""
STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1b1f24; --faint: #59636e; --line: #d1d9e0; --box: #f6f8fa;
  --good: #0a6ab8; --bad: #b3500b; --none: #59636e; }
@media (prefers-color-scheme: dark) { :root { --back: #12161b; --text: #e6eaef; --faint: #9aa5b1; --line: #39424d;
  --box: #1a2027; --good: #62b0f5; --bad: #f0965a; --none: #9aa5b1; } }
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
svg { display: block; width: 100%; overflow: visible; }
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
figure { margin: 1rem 0; } figcaption { font-size: .9rem; } figure div { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem .3rem 0; text-align: right; vertical-align: top; border-bottom: 1px solid var(--line); }
thead th, td.number { white-space: nowrap; }
.word { text-align: left; min-width: 5rem; } td.word { min-width: 7rem; } tbody th { font-weight: inherit; }
dt { font-weight: 600; margin-top: .5rem; } dd { margin: 0; }
summary { cursor: pointer; } a { color: inherit; } li { margin: .3rem 0; }
"""


def write_page(path: str, results: Results, report: Report) -> None:
    """The HTML at `path`; see `markdown.write_markdown` for a paper's form."""
    with storage.atomic_writer(path) as file:
        file.write(html(results, report).encode())


def html(results: Results, report: Report) -> str:
    title = markdown.title(results)
    sections = [
        _answers(results, report),
        _section("The question", f"<p>{_text(wording.question(report))}</p>"),
        _section("Differences", plots.forest(report.comparisons), _table(tables.differences(report))),
        _section("Scores", _scores(results, report)),
        _classes(report),
        _section("Costs", _table(tables.costs(results))),
        _section("Runs that learned nothing", *_degenerate(results, report)),
        _section("Protocol", *_protocol(results, report)),
        _section("Method and sources", _method(results, report)),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f"<title>{_text(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{_text(title)}</h1>\n" + "\n".join(part for part in sections if part) + "\n</main>\n</body>\n</html>\n"
    )


def _text(words: str) -> str:
    return escape(words, quote=True)


def _section(heading: str, *parts: str) -> str:
    return f"<section>\n<h2>{_text(heading)}</h2>\n" + "\n".join(part for part in parts if part) + "\n</section>"


def _answers(results: Results, report: Report) -> str:
    boxes = []
    for found in report.comparisons:
        boxes.append(
            f'<div class="answer {found.verdict.replace(" ", "-")}"><p class="headline">'
            f'<span aria-hidden="true">{plots.MARKS[found.verdict]}</span> {_text(wording.headline(found))}</p>'
            f"<p>{_text(wording.explanation(found, results, report))}</p></div>"
        )
    return "\n".join(boxes)


def _table(table: tables.Table | None) -> str:
    """In a box of its own that scrolls sideways, by keyboard too."""
    if table is None:
        return ""
    head = "".join(
        f'<th scope="col"{_kind(place, table.words)}>{_text(name)}</th>' for place, name in enumerate(table.header)
    )
    rows = "".join(f"<tr>{_row(row, table.words)}</tr>" for row in table.rows)
    label = _text(table.caption)
    return (
        f'<figure><figcaption>{label}</figcaption><div role="region" tabindex="0" aria-label="{label}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></figure>"
    )


def _row(row: Sequence[str], words: int) -> str:
    first = f'<th scope="row" class="word">{_text(row[0])}</th>'
    return first + "".join(
        f"<td{_kind(place, words)}>{_text(cell)}</td>" for place, cell in enumerate(row) if place > 0
    )


def _kind(place: int, words: int) -> str:
    return ' class="word"' if place < words else ' class="number"'


def _scores(results: Results, report: Report) -> str:
    paired = report.question == "checkpoints"
    parts = [_table(tables.scores(results, report))]
    for task in results.tasks:
        own = [score for score in report.scores if score.task == task.name]
        joined = "Lines join runs with the same seed. " if paired else ""
        what = "seed" if paired else "pretraining run, mean over its seeds"
        parts.append(
            f"<h3>{_text(task.name)}</h3>{plots.strip(task, own, paired=paired)}"
            f'<p class="faint">Each dot is one {what}. {joined}Upright strokes are means.</p>'
            f"<details><summary>Every seed</summary>{_table(tables.every_seed(results, report, task))}</details>"
        )
    return "\n".join(parts)


def _classes(report: Report) -> str:
    found = [table for table in map(tables.classes, report.comparisons) if table]
    return _section("Changes by class", *map(_table, found)) if found else ""


def _degenerate(results: Results, report: Report) -> list[str]:
    return [f"<p>{_text(wording.degenerate_summary(results, report))}</p>", _table(tables.degenerate(report))]


def _protocol(results: Results, report: Report) -> list[str]:
    terms = "".join(f"<dt>{_text(term)}</dt><dd>{_text(text)}</dd>" for term, text in tables.protocol(results, report))
    warned = "".join(f"<p><b>Note.</b> {_text(text)}</p>" for text in wording.warnings(results))
    return [f"<dl>{terms}</dl>", _table(tables.rates(results)), warned]


def _method(results: Results, report: Report) -> str:
    notes = []
    for text, source, address in wording.method(results, report):
        cited = f'<a href="{_text(address)}" rel="noreferrer">{_text(source)}</a>' if address else _text(source)
        notes.append(f"<li>{_text(text)}{f' <small>{cited}.</small>' if source else ''}</li>")
    return f"<ol>{''.join(notes)}</ol>"
