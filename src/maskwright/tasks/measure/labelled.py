"""`maskwright evaluate` for fine-tuned models: every metric, and the scores of each label."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from maskwright.core.console import say, warn
from maskwright.core.errors import InputError
from maskwright.core.splits import Split
from maskwright.labels.by_label import (
    Calibration,
    ReportRow,
    calibration,
    classification_report,
    confusion_matrix,
    exchanged,
    roc_auc,
)
from maskwright.labels.dataset import fingerprint_of
from maskwright.labels.example import Reading
from maskwright.labels.metrics import best_threshold, gold_outcomes, measure
from maskwright.labels.names import in_terms_of
from maskwright.labels.read import read_examples
from maskwright.labels.report import one_answer
from maskwright.run.directory import RESULTS
from maskwright.tasks.models.load import TrainedModel
from maskwright.tasks.use.predict import TextOptions, ask, data_of, engine_for, row_length, that_fit, warn_of

LEAST_GAIN = 0.005
"""The gain in F1 by another threshold that is worth a remark."""
WIDEST = 12
"""Labels up to which a confusion matrix fits a terminal; --json always contains it."""


@dataclass(frozen=True)
class Scores:
    model: str
    examples: str
    """Location of the labelled file."""
    count: int
    cut: int
    """Texts (for words: words) whose end the model did not read."""
    metrics: dict[str, float]
    labels: tuple[str, ...]
    report_rows: tuple[ReportRow, ...]
    confusion: list[list[int]] | None
    """[gold][predicted], in the order of `labels`."""
    calibration: Calibration | None
    roc_auc: float | None
    """See `labels.by_label.roc_auc`."""

    def report(self) -> str:
        lines = [f"{self.model} on {self.examples}: {self.count:,} examples"]
        area = {} if self.roc_auc is None else {"roc_auc": self.roc_auc}
        lines += [f"  {name:20}{value:9.4f}" for name, value in (self.metrics | area).items()]
        if self.report_rows:
            width = max(len(row.label) for row in self.report_rows)
            lines += ["", f"{'':{width}}  precision  recall      f1  support"]
            lines += [
                f"{row.label:{width}}  {row.precision:9.4f} {row.recall:7.4f} {row.f1:7.4f}  {row.support:7,}"
                for row in self.report_rows
            ]
        if self.confusion and len(self.labels) <= WIDEST:
            lines += ["", *self._confusion(self.confusion)]
        if self.calibration:
            lines += ["", *self._calibration(self.calibration)]
        return "\n".join(lines)

    def _confusion(self, table: list[list[int]]) -> list[str]:
        width = max(len(name) for name in (*self.labels, "gold"))
        cells = max(len(str(cell)) for row in table for cell in row)
        columns = [max(cells, len(name)) for name in self.labels]
        head = "  ".join(f"{name:>{column}}" for name, column in zip(self.labels, columns, strict=True))
        lines = [f"{'gold':{width}}  {head}   (predicted)"]
        for name, row in zip(self.labels, table, strict=True):
            counts = "  ".join(f"{cell:>{column}}" for cell, column in zip(row, columns, strict=True))
            lines.append(f"{name:{width}}  {counts}")
        return lines

    @staticmethod
    def _calibration(calibration: Calibration) -> list[str]:
        lines = [
            f"expected calibration error {calibration.expected_calibration_error:.4f}",
            "confidence    share right  count",
        ]
        return lines + [
            f"{part.low:.2f} … {part.high:.2f}  {part.accuracy:11.4f}  {part.count:5,}"
            for part in calibration.bins
            if part.count
        ]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def evaluate_labelled(model: TrainedModel, source: str | None, options: TextOptions, device: str = "auto") -> Scores:
    """Scores a fine-tuned model on a labelled file, `source`; by default on the run's own test split, or else its
    validation file.

    The precision is the run's, and so are columns that `options` leave out, so the run's results are reproduced. Raises
    `InputError` with file and line."""
    task = model.require_task()
    own = model.run.finetuning.data if model.run else None
    wanted: tuple[Split, ...] = ("test", "validation")
    recorded = None
    if source is None and own is not None and model.run is not None:
        source, recorded = (own.test, model.run.test) if own.test else (own.validation, model.run.held_out.get(""))
        wanted = wanted if own.test else ("validation",)
    if source is None:
        what = "is a folder, which names no labelled file"
        if model.run:
            what = f"has neither data.test nor data.validation; its {RESULTS} lists the scores on its held-out examples"
        raise InputError(what, where=model.location, fix="name a labelled file as `examples`")
    options = replace(options, skip_bad_input=own is not None and own.on_bad_input == "skip")
    data = data_of(model, source, options, labelled=True)
    reading = Reading(data, task, names=model.labels)
    examples = in_terms_of(model.labels, read_examples(source, reading, wanted), reading)
    if recorded and not (options.text or options.text_pair or options.label or options.encoding):
        recorded.require(fingerprint_of(examples), "set of examples")
    for sentence in reading.notes:
        say(sentence)
    warn_of(reading.skipped)
    if said := one_answer(examples, task):
        warn(f"{source}: {said}")
    # fp32 replaces fp16, which a CPU multiplies at a few per cent of the speed.
    in_bf16 = model.run is not None and model.run.dtype == "bfloat16"
    length = row_length(model, task, data)
    examples = that_fit(model, examples, length, data)
    engine = engine_for(model, device, "bf16" if in_bf16 else "fp32")
    predictions, cut = ask(engine, model, examples, length, may_be_none=model.may_be_none or None)
    scores = measure(task, model.labels, examples, predictions)
    if task.kind == "multi_label_classification" and predictions.probabilities is not None:
        threshold, best = best_threshold(gold_outcomes(task, model.labels, examples), predictions.probabilities)
        if best > scores["f1_micro"] + LEAST_GAIN:
            what = f"f1_micro would be {best:.4f} with a threshold of {threshold:g}, chosen on these same examples"
            say(f"{what}, instead of {task.threshold:g} (`maskwright predict --threshold`, task.threshold)")
    table = confusion_matrix(task, model.labels, examples, predictions)
    if table is not None and (order := exchanged(model.labels, table)):
        warn(order)
    return Scores(
        model.location,
        source,
        len(examples),
        cut,
        scores,
        model.labels,
        tuple(classification_report(task, model.labels, examples, predictions)),
        None if table is None else table.tolist(),
        calibration(task, model.labels, examples, predictions),
        roc_auc(task, model.labels, examples, predictions),
    )
