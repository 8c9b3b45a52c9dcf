"""`maskwright report`: one run, or several beside each other, as one HTML file and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from maskwright.report import background, configuration, document, incidents, training, words
from maskwright.report.document import Block, Folded, Listing, Paragraph, ReportSection
from maskwright.report.made_of import in_head
from maskwright.report.run import RecordedRun


@dataclass(frozen=True)
class ComputedBlocks:
    """What was computed for the page beside what the runs record, by the run's name."""

    fill: dict[str, list[Block]]
    held_out: dict[str, list[Block]]


NOTHING = ComputedBlocks({}, {})
MOST_NAMED = 3
"""Runs in a title."""


def write(
    path: str, runs: Sequence[RecordedRun], *, computed: ComputedBlocks = NOTHING, dollars_per_hour: float | None = None
) -> None:
    """Markdown where `path` ends so, else HTML. Raises `InputError` where that file cannot be written."""
    page = path if len(runs) == 1 and not path.endswith(".md") else None
    title, sections = contents(runs, computed, dollars_per_hour, page)
    document.write(path, title, sections, [in_head(run) for run in runs])


def contents(
    runs: Sequence[RecordedRun], computed: ComputedBlocks, dollars_per_hour: float | None, page: str | None = None
) -> tuple[str, list[ReportSection]]:
    """`page`: the file that `maskwright reproduce` will find the run in; else it is given the run's folder."""
    if len(runs) == 1:
        return runs[0].name, _one(runs[0], computed, dollars_per_hour, page)
    named = f": {words.listed([run.name for run in runs])}" if len(runs) <= MOST_NAMED else ""
    return f"{len(runs)} runs{named}", _several(runs, computed, dollars_per_hour)


def _one(
    run: RecordedRun, computed: ComputedBlocks, dollars_per_hour: float | None, page: str | None
) -> list[ReportSection]:
    look = run.look
    state = f"{look.run}: {run.state}" + (f", {look.why}" if look.why else "")
    start: list[Block] = [Paragraph(state, faint=True), training.glance(run, dollars_per_hour)]
    start += [Paragraph(f"To do: {look.fix}.")] if look.fix else []
    start += [Paragraph(f"{line}.") for line in run.damaged]
    found = [ReportSection("", tuple(start)), ReportSection("Training", tuple(training.curves([run])))]
    for heading, blocks in (
        ("Scores", training.results(run)),
        ("Held-out text", [*training.by_source([run]), *computed.held_out.get(run.name, [])]),
        ("What it would write", computed.fill.get(run.name, [])),
        ("What happened", _happened(run)),
        ("Data", background.data(run)),
        ("Configuration", configuration.configuration(run)),
        ("Where it comes from", background.lineage(run)),
        ("Where it ran", background.environment(run)),
        ("How to make it again", configuration.again(run, page)),
    ):
        if blocks:
            found.append(ReportSection(heading, tuple(blocks)))
    return found


def _happened(run: RecordedRun) -> list[Block]:
    lines = incidents.in_words(run)
    return [Paragraph(incidents.summary(run)), *([Listing(tuple(lines))] if lines else [])]


def _several(
    runs: Sequence[RecordedRun], computed: ComputedBlocks, dollars_per_hour: float | None
) -> list[ReportSection]:
    found = [
        ReportSection("", (training.beside(runs),)),
        ReportSection("Training", tuple(training.curves(runs))),
        ReportSection("What differs", tuple(configuration.differences(runs))),
    ]
    for run in runs:
        blocks: list[Block] = [Paragraph(run.location, faint=True), training.glance(run, dollars_per_hour)]
        blocks += [Paragraph(f"{line}.") for line in run.damaged]
        blocks += [*training.results(run), *computed.held_out.get(run.name, []), *computed.fill.get(run.name, [])]
        blocks += _happened(run)
        for heading, more in (
            ("Data", background.data(run)),
            ("Configuration", configuration.configuration(run)),
            ("Where it comes from and ran", [*background.lineage(run), *background.environment(run)]),
            ("How to make it again", configuration.again(run)),
        ):
            blocks.append(Folded(heading, tuple(more)))
        found.append(ReportSection(run.name, tuple(blocks)))
    return found
