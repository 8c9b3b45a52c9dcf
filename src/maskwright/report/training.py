"""The training of a run, or of several side by side: numbers at a glance, curves, held-out losses."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from maskwright.core.console import human_count, several
from maskwright.report import frame, incidents, words
from maskwright.report.curves import Curve, Level, Panel, Tick, stack
from maskwright.report.document import Block, Drawing, Facts, Paragraph, Strip
from maskwright.report.frame import ReportTable
from maskwright.report.run import RecordedRun

COLOURS = 6
"""Kinds of lines that the page's style distinguishes."""
LEGENDS = {
    "saved": ("|", "save"),
    "started": ("▶", "restart"),
    "spiked": ("▲", "spike"),
}


def glance(run: RecordedRun, dollars_per_hour: float | None) -> Strip:
    status = run.report.status
    share = f"{run.step / run.of:.0%} of {several(run.of, 'step')}" if run.of else ""
    cells: list[tuple[str, str, str]] = [("State", run.state, share)]
    loss, accuracy = run.score("valid_loss"), run.score("valid_accuracy")
    if loss is not None:
        baseline = run.baseline()
        note = f"unigram baseline {baseline[0]:.3f}" if baseline else ""
        cells.append(("Held-out loss", f"{loss:.3f}", note))
    elif (training := run.last("loss")) is not None:
        cells.append(("Training loss", f"{training:.3f}", ""))
    if accuracy is not None:
        note = "of the validation examples" if run.is_finetuning else "of masked tokens"
        cells.append(("Accuracy", f"{accuracy:.1%}", note))
    if loss is not None and not run.is_finetuning:
        perplexity = math.exp(min(loss, 700.0))
        cells.append(("Perplexity", f"{perplexity:,.{1 if perplexity < 1000 else 0}f}", "of masked tokens"))
    if rate := speed(run):
        tokens = f"{human_count(status.tokens)} in all" if status and status.tokens else ""
        cells.append(("Tokens/s", human_count(rate), tokens))
    starts = len(run.spans)
    cells.append(("Time", words.duration(run.seconds), f"in {starts} starts" if starts > 1 else ""))
    if dollars_per_hour is not None and run.seconds is not None:
        hourly = f"{dollars_per_hour:,.2f}".removesuffix(".00")
        cells.append(("Cost", f"${run.seconds / 3600 * dollars_per_hour:,.2f}", f"at ${hourly} an hour"))
    return Strip(tuple(cells))


def speed(run: RecordedRun) -> float | None:
    """Median tokens per second of the log lines."""
    rates = [value for _, value in run.points("tokens_per_second")]
    return statistics.median(rates) if rates else None


# ---- curves --------------------------------------------------------------------------------------------------------


def curves(runs: Sequence[RecordedRun]) -> list[Block]:
    if not any(run.points("loss") or run.points("valid_loss") for run in runs):
        return [Paragraph("The run has no log line yet, so there is nothing to draw.")]
    last_step = float(max(max(run.step for run in runs), 1))
    panels = [_loss(runs), *_metrics(runs), *_rates(runs), *_health(runs)]
    description = f"Training and held-out loss of {words.listed([run.name for run in runs])}, with what belongs to it"
    constants = _constants(runs[0]) if len(runs) == 1 else ""
    drawing = Drawing(stack(panels, last_step, description), _legend(runs, panels))
    return [drawing, *([Paragraph(constants, faint=True)] if constants else [])]


def _loss(runs: Sequence[RecordedRun]) -> Panel:
    is_single = len(runs) == 1
    series = [Curve("training", run.points("loss"), _kind(index, light=True)) for index, run in enumerate(runs)]
    series += [
        Curve("held out", run.points("valid_loss"), _kind(1 if is_single else index), dots=True)
        for index, run in enumerate(runs)
    ]
    baselines = {round(baseline[0], 3) for run in runs if (baseline := run.baseline())}
    chances = {round(run.chance, 3) for run in runs if run.chance is not None}
    levels = [Level(f"unigram baseline {value:.3g}", value) for value in sorted(baselines)[:2]]
    guess = "guessing" if runs[0].is_finetuning else "ln V"
    levels += [Level(f"{guess} {value:.3g}", value) for value in sorted(chances)[:2]]
    # Fine-tuning's may be a squared error.
    title = "loss" if any(run.is_finetuning for run in runs) else "loss, nats"
    return Panel(title, series, levels, height=240)


def _metrics(runs: Sequence[RecordedRun]) -> list[Panel]:
    """Every metric of the validation split except the loss; only for fine-tuning."""
    if not all(run.is_finetuning for run in runs):
        return []
    keys = {key for run in runs for line in run.metrics for key in line if key.startswith("valid_")}
    return [
        Panel(
            f"validation {key.removeprefix('valid_').replace('_', ' ')}",
            [Curve(run.name, run.points(key), _kind(index), dots=True) for index, run in enumerate(runs)],
        )
        for key in sorted(keys - {"valid_loss"})
    ]


def _rates(runs: Sequence[RecordedRun]) -> list[Panel]:
    series = [("learning rate", "learning_rate", True)]
    series += [("masking rate", "masking_rate", False)] if any(_varies(run, "masking_rate") for run in runs) else []
    series += [("causal share", "causal_share", False)] if any(_varies(run, "causal_share") for run in runs) else []
    series += [("row length, tokens", "seq_len", True)] if any(_varies(run, "seq_len") for run in runs) else []
    return [
        Panel(
            title,
            [Curve(run.name, run.points(key), _kind(index)) for index, run in enumerate(runs)],
            height=70,
            from_zero=from_zero,
        )
        for title, key, from_zero in series
    ]


def _health(runs: Sequence[RecordedRun]) -> list[Panel]:
    limits = {run.record.config.optimizer.max_grad_norm for run in runs if run.record}
    norms = sorted(limit for limit in limits if limit is not None)
    levels = [Level(f"gradients clipped above {norm:g}", norm) for norm in norms[:2]]

    def lines(key: str) -> list[Curve]:
        return [Curve(run.name, run.points(key), _kind(index)) for index, run in enumerate(runs)]

    return [
        Panel(
            "gradient norm, before clipping", lines("grad_norm"), levels, height=110, from_zero=True, may_be_log=True
        ),
        Panel("tokens a second", lines("tokens_per_second"), ticks=_ticks(runs), height=100, from_zero=True),
    ]


def _ticks(runs: Sequence[RecordedRun]) -> list[Tick]:
    """The ticks of several runs have the colours of their curves, and omit saves, which would be everywhere."""
    if len(runs) == 1:
        return incidents.ticks(runs[0])
    return [
        replace(tick, text=f"{run.name}: {tick.text}", colour=_kind(index))
        for index, run in enumerate(runs)
        for tick in incidents.ticks(run)
        if tick.kind != "saved"
    ]


def _varies(run: RecordedRun, key: str) -> bool:
    return len({value for _, value in run.points(key)}) > 1


def _constants(run: RecordedRun) -> str:
    """A sentence on values that would be level lines."""
    parts = []
    if not _varies(run, "masking_rate") and (rate := run.last("masking_rate")) is not None:
        parts.append(f"a masking rate of {rate:g}")
    if not _varies(run, "seq_len") and run.record and not run.is_finetuning:
        parts.append(f"rows of {run.record.pretraining.data.seq_len:,} tokens")
    return f"Throughout, the run had {words.listed(parts)}." if parts else ""


def _kind(index: int, *, light: bool = False) -> str:
    return f"s{index % COLOURS}{' light' if light else ''}"


def _key(kind: str, text: str) -> str:
    """An entry of a legend: a piece of a line of that class, and its name."""
    swatch = f'<svg class="swatch" height="10"><path class="{kind}" d="M0 5L24 5"/></svg>'
    return f'<span class="key">{swatch} {frame.escaped(text)}</span>'


def _legend(runs: Sequence[RecordedRun], panels: Sequence[Panel]) -> str:
    if len(runs) == 1:
        keys = [_key("line s0 light", "training loss")]
        keys += [_key("line s1 bold", "held-out loss")] if runs[0].points("valid_loss") else []
    else:
        keys = [_key(f"line {_kind(index)} bold", run.name) for index, run in enumerate(runs)]
        note = f" After {COLOURS} runs, colours repeat." if len(runs) > COLOURS else ""
        keys.append(f'<span class="key">Thin: training loss. Bold, with dots: held-out loss.{note}</span>')
    for panel in (panel for panel in panels if not panel.empty):
        keys += [_key("zero", level.name) for level in sorted(panel.levels, key=lambda level: -level.value)]
    seen = {tick.kind for panel in panels for tick in panel.ticks}
    for kind, (mark, name) in LEGENDS.items():
        if kind in seen:
            tick_class = f" {kind}" if len(runs) == 1 else ""
            keys.append(f'<span class="key"><span class="tick{tick_class}">{mark}</span> {name}</span>')
    return " ".join(keys)


# ---- held-out text -------------------------------------------------------------------------------------------------


def by_source(runs: Sequence[RecordedRun]) -> list[Block]:
    """Loss of each held-out set with a name; empty without any."""
    run = runs[0]
    if len(runs) > 1 or not run.held_out or run.is_finetuning:
        return []
    series = [
        Curve(name, run.points(f"valid_{name}_loss"), _kind(index), dots=True)
        for index, name in enumerate(run.held_out)
    ]
    rows = []
    for name in run.held_out:
        losses = run.points(f"valid_{name}_loss")
        loss, accuracy = run.score(f"valid_{name}_loss"), run.score(f"valid_{name}_accuracy")
        baseline = run.baseline(name)
        known = losses[0][1] if losses else None, loss, accuracy, baseline[0] if baseline else None
        rows.append((name, *map(words.known, known, (".4f", ".4f", ".2%", ".4f"))))
    header = ("source", "first loss", "loss", "accuracy", "unigram baseline")
    keys = " ".join(_key(f"line {_kind(index)} bold", name) for index, name in enumerate(run.held_out))
    panel = Panel("held-out loss by source, nats", series, height=160)
    drawing = stack([panel], float(max(run.step, 1)), "Held-out loss by source")
    return [Drawing(drawing, keys), ReportTable("Held-out loss by source", header, tuple(rows))]


def results(run: RecordedRun) -> list[Block]:
    """The scores of a fine-tuned run's best checkpoint."""
    splits = [name for name in ("validation", "test") if isinstance(run.results.get(name), dict)]
    if not splits:
        return []
    metrics = [key for key in run.results[splits[0]] if key != "examples"]
    scores = {key: [run.results[split].get(key) for split in splits] for key in metrics}
    rows = tuple(
        (key, *(words.known(value if isinstance(value, float) else None, ".4f") for value in values))
        for key, values in scores.items()
    )
    examples = tuple((name, several(run.results[name].get("examples", 0), "example")) for name in splits)
    caption = f"Scores of the best checkpoint, from step {run.results.get('step')}"
    return [ReportTable(caption, ("metric", *splits), rows), Facts(examples)]


def beside(runs: Sequence[RecordedRun]) -> ReportTable:
    rows = []
    for run in runs:
        loss, accuracy, rate = run.score("valid_loss"), run.score("valid_accuracy"), speed(run)
        status = run.report.status
        rows.append(
            (
                run.name,
                run.state,
                f"{run.step:,} of {run.of:,}",
                words.known(loss, ".4f"),
                words.known(accuracy, ".2%"),
                words.tokens(status.tokens if status else None),
                human_count(rate) if rate else words.NOTHING,
                words.duration(run.seconds),
            )
        )
    header = ("run", "state", "steps", "held-out loss", "accuracy", "tokens", "tokens/s", "time")
    return ReportTable("The runs", header, tuple(rows), words=2)
