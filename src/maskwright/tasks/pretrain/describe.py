"""Lines about a run's data and phases, for `--dry-run` and the beginning of each run."""

from __future__ import annotations

from maskwright.config.pretraining import RunConfig
from maskwright.core.console import human_count
from maskwright.data.loader import Loader
from maskwright.model.config import ModelConfig
from maskwright.tasks.planning.cost import pretraining_work

HEADER = ("phase", "steps", "rows a step", "tokens a row", "masked", "causal", "epochs", "tokens", "FLOPs")


def reading(config: RunConfig, loader: Loader, model: ModelConfig) -> list[str]:
    """The run's data and its length, in lines."""
    epochs, packing = loader.epoch(config.steps), config.data.packing
    if config.phases:
        tokens = human_count(sum(stage.tokens for stage in config.stages))
        run = f"run: {config.steps:,} steps, {tokens} tokens, {epochs:.2f} epochs ({packing}), in these phases:"
        return [*loader.describe(), run, *_phases(config, loader, model)]
    rows, per_step = loader.rows.totals, config.rows_per_step
    return [
        f"data: {human_count(rows.text_tokens)} tokens in {rows.rows:,} rows of {rows.seq_len} "
        f"({packing}, {rows.waste:.1%} unused)",
        *loader.describe(),
        f"run: {config.steps:,} steps of {per_step:,} rows ({config.batch.virtual_workers} x "
        f"{config.batch.micro_batch_rows}), {human_count(config.steps * per_step * rows.seq_len)} tokens, "
        f"{epochs:.2f} epochs",
    ]


def _phases(config: RunConfig, loader: Loader, model: ModelConfig) -> list[str]:
    """A line for each stage, below a header. Its share of the run's FLOPs is about its share of the time."""
    causal = any(stage.config.masking.causal_share for stage in config.stages)
    cells: list[tuple[str, ...]] = [tuple(name for name in HEADER if causal or name != "causal")]
    alone = [stage.config.with_steps(stage.end - stage.begin) for stage in config.stages]
    flops = [pretraining_work(stage, model).flops * stage.steps for stage in alone]
    for number, stage in enumerate(config.stages):
        settings, masking = stage.config, stage.config.masking
        name = str(number) if number < len(config.phases) else "rest"
        cells.append(
            (
                name,
                f"{stage.end - stage.begin:,}",
                f"{settings.rows_per_step:,}",
                f"{settings.data.seq_len:,}",
                f"{masking.rate:.0%} {masking.kind}",
                *([f"{masking.causal_share:.4g}"] if causal else []),
                f"{_epochs(loader, stage.begin, stage.end):.2f}",
                human_count(stage.tokens),
                f"{flops[number] / sum(flops):.0%}",
            )
        )
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]


def _epochs(loader: Loader, begin: int, end: int) -> float:
    """Epochs of the text from update `begin` up to `end`."""
    return loader.epoch(end) - loader.epoch(begin)
