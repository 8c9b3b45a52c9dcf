"""The verdict as Markdown, for a paper, a pull request or a model card: what the page says, without its plots."""

from __future__ import annotations

from maskwright.core import storage
from maskwright.report import words
from maskwright.report.markdown import literal, table
from maskwright.verdict import tables, wording
from maskwright.verdict.judge import VerdictReport
from maskwright.verdict.results import Results


def write_markdown(path: str, results: Results, report: VerdictReport) -> None:
    with storage.atomic_writer(path) as file:
        file.write(markdown(results, report).encode())


def title(results: Results) -> str:
    """Of the page too."""
    base, *others = [arm.name for arm in results.arms]
    tasks = words.listed([task.name for task in results.tasks])
    return f"Did it help? {words.listed(others)} against {base} on {tasks}"


def markdown(results: Results, report: VerdictReport) -> str:
    parts = [f"# {literal(title(results))}"]
    for found in report.comparisons:
        answer = wording.explanation(found, results, report)
        parts.append(f"**{literal(wording.headline(found))}** {literal(answer)}")
    parts += ["## The question", literal(wording.question(report)), "## Differences", table(tables.differences(report))]
    parts += ["## Scores", table(tables.scores(results, report))]
    parts += [table(tables.every_seed(results, report, task)) for task in results.tasks]
    if found_classes := [one for one in map(tables.classes, report.comparisons) if one]:
        parts += ["## Changes by class", *map(table, found_classes)]
    parts += ["## Costs", table(tables.costs(results))]
    parts += ["## Runs that learned nothing", literal(wording.degenerate_summary(results, report))]
    parts += [table(tables.degenerate(report))]
    terms = [f"- **{literal(term)}**: {literal(text)}" for term, text in tables.protocol(results, report)]
    parts += ["## Protocol", "\n".join(terms), table(tables.rates(results))]
    parts += [f"**Note.** {literal(text)}" for text in wording.warnings(results)]
    parts += ["## Method and sources", "\n".join(_notes(results, report))]
    return "\n\n".join(part for part in parts if part) + "\n"


def _notes(results: Results, report: VerdictReport) -> list[str]:
    notes = []
    for number, (text, source, address) in enumerate(wording.method(results, report), 1):
        cited = f" {literal(source)}{f', <{address}>' if address else ''}." if source else ""
        notes.append(f"{number}. {literal(text)}{cited}")
    return notes
