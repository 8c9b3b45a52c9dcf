"""`maskwright report`: one run, or several side by side, as one HTML file."""

from __future__ import annotations

from collections.abc import Sequence

from maskwright.core import output
from maskwright.report import background, configuration, document, incidents, training, words
from maskwright.report.document import Block, Folded, Listing, Paragraph, ReportSection
from maskwright.report.run import RecordedRun

MOST_NAMED = 3


def write(path: str, runs: Sequence[RecordedRun], dollars_per_hour: float | None = None) -> None:
    """Writes HTML. Raises `InputError` if the file cannot be written."""
    with output.writer(path) as file:
        file.write(document.html(*contents(runs, dollars_per_hour)).encode("utf-8", "replace"))


def contents(runs: Sequence[RecordedRun], dollars_per_hour: float | None = None) -> tuple[str, list[ReportSection]]:
    """(title, sections)."""
    if len(runs) == 1:
        return runs[0].name, _single(runs[0], dollars_per_hour)
    names_of_runs = f": {words.listed([run.name for run in runs])}" if len(runs) <= MOST_NAMED else ""
    return f"{len(runs)} runs{names_of_runs}", _several(runs, dollars_per_hour)


def _single(run: RecordedRun, dollars_per_hour: float | None) -> list[ReportSection]:
    report = run.report
    state = f"{report.run}: {run.state}" + (f", {report.why}" if report.why else "")
    start: list[Block] = [Paragraph(state, faint=True), training.glance(run, dollars_per_hour)]
    start += [Paragraph(f"To do: {report.fix}.")] if report.fix else []
    start += [Paragraph(f"{line}.") for line in run.damaged]
    sections = [ReportSection("", tuple(start)), ReportSection("Training", tuple(training.curves([run])))]
    for heading, blocks in (
        ("Scores", training.results(run)),
        ("Held-out text", training.by_source([run])),
        ("Events", _events(run)),
        ("Data", background.data(run)),
        ("Configuration", configuration.configuration(run)),
        ("Lineage", background.lineage(run)),
        ("Machine", background.environment(run)),
        ("How to repeat it", configuration.how_to_repeat(run)),
    ):
        if blocks:
            sections.append(ReportSection(heading, tuple(blocks)))
    return sections


def _events(run: RecordedRun) -> list[Block]:
    lines = incidents.in_words(run)
    return [Paragraph(incidents.summary(run)), *([Listing(tuple(lines))] if lines else [])]


def _several(runs: Sequence[RecordedRun], dollars_per_hour: float | None) -> list[ReportSection]:
    sections = [
        ReportSection("", (training.beside(runs),)),
        ReportSection("Training", tuple(training.curves(runs))),
        ReportSection("Differences", tuple(configuration.differences(runs))),
    ]
    for run in runs:
        blocks: list[Block] = [Paragraph(run.location, faint=True), training.glance(run, dollars_per_hour)]
        blocks += [Paragraph(f"{line}.") for line in run.damaged]
        blocks += [*training.results(run), *_events(run)]
        for heading, inner_blocks in (
            ("Data", background.data(run)),
            ("Configuration", configuration.configuration(run)),
            ("Lineage and machine", [*background.lineage(run), *background.environment(run)]),
            ("How to repeat it", configuration.how_to_repeat(run)),
        ):
            blocks.append(Folded(heading, tuple(inner_blocks)))
        sections.append(ReportSection(run.name, tuple(blocks)))
    return sections
