"""The verdict as a page: a function of the results alone, so the same results give the same bytes."""

from __future__ import annotations

from maskwright.core import output
from maskwright.report import document, markdown, words
from maskwright.report.document import Block, Conclusion, Drawing, Facts, Folded, Notes, Paragraph, ReportSection
from maskwright.verdict import plots, tables, wording
from maskwright.verdict.judge import VerdictReport
from maskwright.verdict.results import Results


def write(path: str, results: Results, report: VerdictReport) -> None:
    """Writes HTML, or Markdown to a `path` in .md, for a paper, a pull request or a model card."""
    form = markdown.page if path.endswith(".md") else document.html
    with output.writer(path) as file:
        file.write(form(title(results), sections(results, report)).encode("utf-8", "replace"))


def title(results: Results) -> str:
    base, *others = [arm.name for arm in results.arms]
    tasks = words.listed([task.name for task in results.tasks])
    return f"Did it help? {words.listed(others)} against {base} on {tasks}"


def sections(results: Results, report: VerdictReport) -> list[ReportSection]:
    differences = (Drawing(plots.forest(report.comparisons)), tables.differences(report))
    degenerate = (Paragraph(wording.degenerate_summary(results, report)), tables.degenerate(report))
    facts = Facts(tuple(tables.protocol(results, report)))
    protocol: list[Block | None] = [facts, tables.rates(results), tables.penalties(results)]
    protocol += [Paragraph(text, lead="Note.") for text in wording.warnings(results)]
    parts: tuple[tuple[str, tuple[Block | None, ...]], ...] = (
        ("", tuple(_answers(results, report))),
        ("The question", (Paragraph(wording.question(report)),)),
        ("Differences", differences),
        ("Scores", tuple(_scores(results, report))),
        ("Changes by class", tuple(map(tables.classes, report.comparisons))),
        ("Costs", (tables.costs(results),)),
        ("Runs that learned nothing", degenerate),
        ("Protocol", tuple(protocol)),
        ("Method and sources", (Notes(tuple(wording.method(results, report))),)),
    )
    all_sections = [ReportSection(heading, tuple(block for block in blocks if block)) for heading, blocks in parts]
    return [section for section in all_sections if section.blocks]


def _answers(results: Results, report: VerdictReport) -> list[Block]:
    return [
        Conclusion(
            wording.headline(comparison),
            wording.explanation(comparison, results, report),
            comparison.verdict.replace(" ", "-"),
            plots.MARKS[comparison.verdict],
        )
        for comparison in report.comparisons
    ]


def _scores(results: Results, report: VerdictReport) -> list[Block]:
    paired = report.question == "checkpoints"
    unit = "seed" if paired else "pretraining run, mean over its seeds"
    note = "Lines join runs with the same seed. " if paired else ""
    blocks: list[Block] = [tables.scores(results, report)]
    for task in results.tasks:
        scores_of_task = [score for score in report.scores if score.task == task.name]
        plot = plots.strip(task, scores_of_task, paired=paired)
        blocks.append(Drawing(plot, f"Each dot is one {unit}. {note}Upright strokes are means.", heading=task.name))
        if others := tables.beside(results, task):
            blocks.append(others)
        blocks.append(Folded("Every seed", (tables.every_seed(results, report, task),)))
    return blocks
