"""The verdict as Markdown, for a paper, a pull request or a model card: what the page says, without its plots."""

from __future__ import annotations

import re

from maskwright.core import storage
from maskwright.verdict import tables, wording
from maskwright.verdict.judge import Report
from maskwright.verdict.results import Results


def write_markdown(path: str, results: Results, report: Report) -> None:
    with storage.atomic_writer(path) as file:
        file.write(markdown(results, report).encode())


def title(results: Results) -> str:
    """Of the page too."""
    base, *others = [arm.name for arm in results.arms]
    tasks = wording.listed([task.name for task in results.tasks])
    return f"Did it help? {wording.listed(others)} against {base} on {tasks}"


def markdown(results: Results, report: Report) -> str:
    parts = [f"# {_text(title(results))}"]
    for found in report.comparisons:
        answer = wording.explanation(found, results, report)
        parts.append(f"**{_text(wording.headline(found))}** {_text(answer)}")
    parts += ["## The question", _text(wording.question(report)), "## Differences", _table(tables.differences(report))]
    parts += ["## Scores", _table(tables.scores(results, report))]
    parts += [_table(tables.every_seed(results, report, task)) for task in results.tasks]
    if found_classes := [table for table in map(tables.classes, report.comparisons) if table]:
        parts += ["## Changes by class", *map(_table, found_classes)]
    parts += ["## Costs", _table(tables.costs(results))]
    parts += ["## Runs that learned nothing", _text(wording.degenerate_summary(results, report))]
    parts += [_table(tables.degenerate(report))]
    terms = [f"- **{_text(term)}**: {_text(text)}" for term, text in tables.protocol(results, report)]
    parts += ["## Protocol", "\n".join(terms), _table(tables.rates(results))]
    parts += [f"**Note.** {_text(text)}" for text in wording.warnings(results)]
    parts += ["## Method and sources", "\n".join(_notes(results, report))]
    return "\n\n".join(part for part in parts if part) + "\n"


def _notes(results: Results, report: Report) -> list[str]:
    notes = []
    for number, (text, source, address) in enumerate(wording.method(results, report), 1):
        cited = f" {_text(source)}{f', <{address}>' if address else ''}." if source else ""
        notes.append(f"{number}. {_text(text)}{cited}")
    return notes


def _table(table: tables.Table | None) -> str:
    if table is None:
        return ""
    rule = "|".join(" --- " if place < table.words else " ---: " for place in range(len(table.header)))
    rows = [f"| {' | '.join(map(_text, row))} |" for row in (table.header, *table.rows)]
    return "\n".join([f"{_text(table.caption)}:", "", rows[0], f"|{rule}|", *rows[1:]])


def _text(words: str) -> str:
    """On one line, every character that Markdown or HTML would take for markup escaped."""
    return re.sub(r"([\\`*_\[\]<>|#&~$])", r"\\\1", " ".join(words.split()))
