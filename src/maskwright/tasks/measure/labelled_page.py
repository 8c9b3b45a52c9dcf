"""What `maskwright evaluate` says of a fine-tuned model, as one HTML file with a reliability plot."""

from __future__ import annotations

from maskwright.core import storage
from maskwright.labels.by_label import Calibration
from maskwright.report import plots
from maskwright.report.frame import escaped, page, section, table
from maskwright.report.tables import ReportTable
from maskwright.tasks.measure.labelled import WIDEST, Scores

CONFUSIONS = 20
"""Pairs of labels that are listed."""


def write_page(path: str, scores: Scores) -> None:
    with storage.atomic_writer(path) as file:
        file.write(html(scores).encode())


def html(scores: Scores) -> str:
    cut = f" The model did not read the ends of {scores.cut:,}." if scores.cut else ""
    metrics = tuple((name, f"{value:.4f}") for name, value in scores.metrics.items())
    parts = [
        f"<p>{escaped(scores.model)} on {scores.count:,} examples of {escaped(scores.examples)}.{cut}</p>",
        section("Scores", table(ReportTable("Every metric of the task", ("metric", "value"), metrics))),
        section("By label", _by_label(scores)) if scores.report_rows else "",
        section("Confusions", _matrix(scores), _confusions(scores)) if scores.confusion else "",
        section("Calibration", *_calibration(scores.calibration)) if scores.calibration else "",
    ]
    return page("Scores of a fine-tuned model", parts)


def _by_label(scores: Scores) -> str:
    rows = tuple(
        (row.label, f"{row.precision:.4f}", f"{row.recall:.4f}", f"{row.f1:.4f}", f"{row.support:,}")
        for row in scores.report_rows
    )
    return table(ReportTable("Classification report", ("label", "precision", "recall", "F1", "support"), rows))


def _matrix(scores: Scores) -> str:
    if len(scores.labels) > WIDEST:
        return ""
    rows = zip(scores.labels, scores.confusion or [], strict=True)
    cells = tuple((label, *(f"{count:,}" for count in row)) for label, row in rows)
    caption = "Confusion matrix: a row for each label in the file, a column for each that was predicted"
    return table(ReportTable(caption, ("in the file", *scores.labels), cells))


def _confusions(scores: Scores) -> str:
    """The most frequent ones, with the share of the label's examples."""
    found = [
        (count, count / max(sum(row), 1), gold, said)
        for gold, row in zip(scores.labels, scores.confusion or [], strict=True)
        for said, count in zip(scores.labels, row, strict=True)
        if count and gold != said
    ]
    found.sort(key=lambda one: -one[0])
    rows = tuple((gold, said, f"{count:,}", f"{share:.0%}") for count, share, gold, said in found[:CONFUSIONS])
    caption = "The most frequent confusions, and their share of the label's examples"
    return table(ReportTable(caption, ("in the file", "predicted", "count", "share"), rows, words=2)) if rows else ""


def _calibration(found: Calibration) -> list[str]:
    filled = [part for part in found.bins if part.count]
    total, error = sum(part.count for part in filled), found.expected_calibration_error
    drawn = [(part.low, part.high, part.count / total, part.confidence, part.accuracy) for part in filled]
    rows = tuple(
        (f"{part.low:.2f} to {part.high:.2f}", f"{part.count:,}", f"{part.confidence:.4f}", f"{part.accuracy:.4f}")
        for part in filled
    )
    header = ("confidence", "predictions", "mean confidence", "share right")
    every = table(ReportTable("Ranges with predictions", header, rows))
    return [
        f"<p>Expected calibration error {error:.4f}: by so much, confidence and the share of right predictions differ "
        "on average.</p>",
        plots.reliability(drawn, error),
        '<p class="faint">Each bar is the share of right predictions in a range of confidence, and its dot stands at '
        "their mean confidence. On the dashed line, both would be equal; below it, the model is too sure. The grey "
        "bars show how the predictions are spread.</p>",
        f"<details><summary>Every range</summary>{every}</details>",
    ]
