"""The scores of `maskwright evaluate` for a fine-tuned model, as a page with a reliability plot."""

from __future__ import annotations

from maskwright.labels.by_label import Calibration
from maskwright.report import document, plots
from maskwright.report.document import Block, Drawing, Folded, Paragraph, ReportSection
from maskwright.report.frame import ReportTable
from maskwright.tasks.measure.labelled import WIDEST, Scores

CONFUSIONS = 20
"""Pairs of labels that are listed."""


def write_page(path: str, scores: Scores) -> None:
    document.write(path, "Scores of a fine-tuned model", sections(scores))


def sections(scores: Scores) -> list[ReportSection]:
    cut = f" The model did not read the ends of {scores.cut:,}." if scores.cut else ""
    what = Paragraph(f"{scores.model} on {scores.count:,} examples of {scores.examples}.{cut}")
    metrics = tuple((name, f"{value:.4f}") for name, value in scores.metrics.items())
    parts = [
        ReportSection("", (what,)),
        ReportSection("Scores", (ReportTable("Every metric of the task", ("metric", "value"), metrics),)),
    ]
    if scores.report_rows:
        parts.append(ReportSection("By label", (_by_label(scores),)))
    if scores.confusion:
        tables = (_matrix(scores, scores.confusion), _confusions(scores, scores.confusion))
        parts.append(ReportSection("Confusions", tuple(table for table in tables if table)))
    if scores.calibration:
        parts.append(ReportSection("Calibration", _calibration(scores.calibration)))
    return parts


def _by_label(scores: Scores) -> ReportTable:
    rows = tuple(
        (row.label, f"{row.precision:.4f}", f"{row.recall:.4f}", f"{row.f1:.4f}", f"{row.support:,}")
        for row in scores.report_rows
    )
    return ReportTable("Classification report", ("label", "precision", "recall", "F1", "support"), rows)


def _matrix(scores: Scores, confusion: list[list[int]]) -> ReportTable | None:
    if len(scores.labels) > WIDEST:
        return None
    cells = tuple(
        (label, *(f"{count:,}" for count in row)) for label, row in zip(scores.labels, confusion, strict=True)
    )
    caption = "Confusion matrix: a row for each label in the file, a column for each that was predicted"
    return ReportTable(caption, ("in the file", *scores.labels), cells)


def _confusions(scores: Scores, confusion: list[list[int]]) -> ReportTable | None:
    """The most frequent confusions, with the share of the label's examples."""
    pairs = [
        (count, count / max(sum(row), 1), gold, predicted)
        for gold, row in zip(scores.labels, confusion, strict=True)
        for predicted, count in zip(scores.labels, row, strict=True)
        if count and gold != predicted
    ]
    pairs.sort(key=lambda pair: -pair[0])
    rows = tuple(
        (gold, predicted, f"{count:,}", f"{share:.0%}") for count, share, gold, predicted in pairs[:CONFUSIONS]
    )
    caption = "The most frequent confusions, and their share of the label's examples"
    return ReportTable(caption, ("in the file", "predicted", "count", "share"), rows, words=2) if rows else None


def _calibration(calibration: Calibration) -> tuple[Block, ...]:
    filled = [part for part in calibration.bins if part.count]
    total, error = sum(part.count for part in filled), calibration.expected_calibration_error
    drawn = [(part.low, part.high, part.count / total, part.confidence, part.accuracy) for part in filled]
    rows = tuple(
        (f"{part.low:.2f} to {part.high:.2f}", f"{part.count:,}", f"{part.confidence:.4f}", f"{part.accuracy:.4f}")
        for part in filled
    )
    header = ("confidence", "predictions", "mean confidence", "share right")
    differ = "the average difference between confidence and the share of right predictions"
    legend = (
        "Each bar is the share of right predictions in a range of confidence, and its dot stands at their mean "
        "confidence. On the dashed line, both would be equal; below it, the model is too sure. The grey bars show how "
        "the predictions are spread."
    )
    return (
        Paragraph(f"Expected calibration error {error:.4f}: {differ}."),
        Drawing(plots.reliability(drawn, error), legend),
        Folded("Every range", (ReportTable("Ranges with predictions", header, rows),)),
    )
