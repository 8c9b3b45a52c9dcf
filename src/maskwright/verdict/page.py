"""The verdict as one HTML file: a function of the results alone, so the same results give the same bytes."""

from __future__ import annotations

from maskwright.core import storage
from maskwright.report.frame import escaped, page, section, table
from maskwright.verdict import markdown, plots, tables, wording
from maskwright.verdict.judge import VerdictReport
from maskwright.verdict.results import Results


def write_page(path: str, results: Results, report: VerdictReport) -> None:
    """The HTML at `path`; see `markdown.write_markdown` for a paper's form."""
    with storage.atomic_writer(path) as file:
        file.write(html(results, report).encode())


def html(results: Results, report: VerdictReport) -> str:
    sections = [
        _answers(results, report),
        section("The question", f"<p>{escaped(wording.question(report))}</p>"),
        section("Differences", plots.forest(report.comparisons), table(tables.differences(report))),
        section("Scores", _scores(results, report)),
        _classes(report),
        section("Costs", table(tables.costs(results))),
        section("Runs that learned nothing", *_degenerate(results, report)),
        section("Protocol", *_protocol(results, report)),
        section("Method and sources", _method(results, report)),
    ]
    return page(markdown.title(results), sections)


def _answers(results: Results, report: VerdictReport) -> str:
    boxes = []
    for found in report.comparisons:
        boxes.append(
            f'<div class="answer {found.verdict.replace(" ", "-")}"><p class="headline">'
            f'<span aria-hidden="true">{plots.MARKS[found.verdict]}</span> {escaped(wording.headline(found))}</p>'
            f"<p>{escaped(wording.explanation(found, results, report))}</p></div>"
        )
    return "\n".join(boxes)


def _scores(results: Results, report: VerdictReport) -> str:
    paired = report.question == "checkpoints"
    parts = [table(tables.scores(results, report))]
    for task in results.tasks:
        own = [score for score in report.scores if score.task == task.name]
        joined = "Lines join runs with the same seed. " if paired else ""
        what = "seed" if paired else "pretraining run, mean over its seeds"
        parts.append(
            f"<h3>{escaped(task.name)}</h3>{plots.strip(task, own, paired=paired)}"
            f'<p class="faint">Each dot is one {what}. {joined}Upright strokes are means.</p>'
            f"<details><summary>Every seed</summary>{table(tables.every_seed(results, report, task))}</details>"
        )
    return "\n".join(parts)


def _classes(report: VerdictReport) -> str:
    found = [one for one in map(tables.classes, report.comparisons) if one]
    return section("Changes by class", *map(table, found)) if found else ""


def _degenerate(results: Results, report: VerdictReport) -> list[str]:
    return [f"<p>{escaped(wording.degenerate_summary(results, report))}</p>", table(tables.degenerate(report))]


def _protocol(results: Results, report: VerdictReport) -> list[str]:
    terms = "".join(
        f"<dt>{escaped(term)}</dt><dd>{escaped(text)}</dd>" for term, text in tables.protocol(results, report)
    )
    warned = "".join(f"<p><b>Note.</b> {escaped(text)}</p>" for text in wording.warnings(results))
    return [f"<dl>{terms}</dl>", table(tables.rates(results)), warned]


def _method(results: Results, report: VerdictReport) -> str:
    notes = []
    for text, source, address in wording.method(results, report):
        cited = f'<a href="{escaped(address)}" rel="noreferrer">{escaped(source)}</a>' if address else escaped(source)
        notes.append(f"<li>{escaped(text)}{f' <small>{cited}.</small>' if source else ''}</li>")
    return f"<ol>{''.join(notes)}</ol>"
